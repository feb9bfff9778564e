//! Debian's programs over the genuine librdmacm, unmodified: two processes of one host, and of two network
//! namespaces. rping (`-V`) and riostream (`-T v`) compare what they receive.

mod common;
#[path = "common/namespaces.rs"]
mod namespaces;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use common::{command, library, succeeded};
use elver_farewell::{KEEPER, Keeper};
use namespaces::Namespaces;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A program under the library, as `elver run` starts it: librdmacm's own look-ups go through it too.
fn program(before: &[&str], words: &[&str]) -> Command {
    let preload = format!("LD_PRELOAD={}", library().join("libibverbs.so.1").display());
    command(&[before, &["env", &preload], words].concat())
}

/// Waits until a port is listened on in the network namespace of a process.
fn await_listener(server: &mut Child, port_space: u16, port: u16) {
    await_name(server, "unix", &format!("@elver-rdma_cm/{port_space:04x}/{port}/"));
}

/// The number of a program's process: `timeout` starts it in one of its own, which `env` and `ip` do not.
fn process_of(program: &Child) -> Option<String> {
    let children = format!("/proc/{0}/task/{0}/children", program.id());
    let children = std::fs::read_to_string(children).ok()?;
    children.split_whitespace().last().map(str::to_owned)
}

/// Ends a program's process by SIGKILL.
fn kill(program: &Child) {
    let process = process_of(program).unwrap();
    assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
}

/// Waits until a table of the network namespace of a process has some text.
fn await_name(server: &mut Child, table: &str, wanted: &str) {
    let begun = Instant::now();
    loop {
        let found = process_of(server)
            .and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
            .unwrap_or_default();
        if found.contains(wanted) {
            return;
        }
        assert!(server.try_wait().unwrap().is_none(), "the server ended before it listened");
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody has {wanted} of {table}");
        thread::yield_now();
    }
}

const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;
const UDADDY: u16 = 7174;

/// The port space, and the server's and the client's words.
type Pair = (u16, &'static str, &'static str);

/// What is run.
const PAIRS: [Pair; 9] = [
    (TCP, "rping -s -C 5 -V -p PORT", "rping -c -C 5 -V -a ADDRESS -p PORT"),
    (TCP, "ucmatose -c 8 -C 20 -p PORT", "ucmatose -c 8 -C 20 -s ADDRESS -p PORT"),
    (TCP, "ucmatose -m -c 8 -C 20 -p PORT", "ucmatose -m -c 8 -C 20 -s ADDRESS -p PORT"),
    // It takes no other port.
    (UDP, "udaddy", "udaddy -s ADDRESS"),
    (TCP, "rstream -p PORT -S 4096 -I 20 -C 5", "rstream -s ADDRESS -p PORT -S 4096 -I 20 -C 5"),
    (
        TCP,
        "riostream -p PORT -S 5000 -I 20 -C 5 -T v",
        "riostream -s ADDRESS -p PORT -S 5000 -I 20 -C 5 -T v",
    ),
    (TCP, "rdma_server -p PORT", "rdma_client -s ADDRESS -p PORT"),
    // It asks for no inline data, and sends 16 bytes of it.
    (TCP, "rdma_xserver -c r -p PORT", "rdma_xclient -c r -s ADDRESS -p PORT"),
    // Its SRQ is in the PD that the target's QP names.
    (IB, "rdma_xserver -c x -p PORT", "rdma_xclient -c x -s ADDRESS -p PORT"),
];

/// Its server stops listening for a second between two connections, and its client takes a refusal for the end.
const PERFTEST: [Pair; 2] = [
    (TCP, "ib_write_bw -R -n 100 -p PORT", "ib_write_bw -R -n 100 -p PORT ADDRESS"),
    (TCP, "ib_send_bw -R -n 100 -p PORT", "ib_send_bw -R -n 100 -p PORT ADDRESS"),
];

/// Runs pairs; the other words stand before the server's and the client's. Ports from the first on.
fn run_all(pairs: &[Pair], address: &str, first_port: u16, at_server: &[&str], at_client: &[&str]) {
    for (&(port_space, server, client), port) in pairs.iter().zip(first_port..) {
        let filled =
            |words: &str| words.replace("PORT", &port.to_string()).replace("ADDRESS", address);
        let port = if server.contains("PORT") { port } else { UDADDY };
        let (server, client) = (filled(server), filled(client));
        let split = |words| str::split_whitespace(words).collect::<Vec<&str>>();
        let mut serving = program(at_server, &split(&server)).spawn().unwrap();
        await_listener(&mut serving, port_space, port);
        let asking = program(at_client, &split(&client)).output().unwrap();
        let serving = serving.wait_with_output().unwrap();
        succeeded(&server, &serving);
        succeeded(&client, &asking);
    }
}

#[test]
fn processes_of_one_host_connect() {
    let first = 21_000 + (std::process::id() % 600) as u16 * 18;
    run_all(&[&PAIRS[..], &PERFTEST].concat(), "127.0.0.1", first, &[], &[]);
    let first = first + (PAIRS.len() + PERFTEST.len()) as u16;
    let packets = ["env", "ELVER_DIRECT=off"];
    run_all(&PERFTEST, "127.0.0.1", first, &packets, &packets);
    let first = first + PERFTEST.len() as u16;
    // What rdma_cm tells of the way has the index too.
    let index = ["env", "ELVER_GID_INDEX=3"];
    run_all(&PAIRS[..4], "127.0.0.1", first, &index, &index);
}

#[test]
fn processes_of_two_namespaces_connect() {
    let namespaces = Namespaces::new("rdmacm", 6);
    let ends = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [0, 1].map(|end| ends[end].each_ref().map(String::as_str));
    run_all(&[&PAIRS[..], &PERFTEST].concat(), &namespaces.address(0), 7_000, &at_a, &at_b);
}

/// Runs rping between two processes, with messages of several packets: what the client says, and whether it has done it.
fn ping(at_server: &[&str], at_client: &[&str], address: &str) -> (bool, String) {
    let words = ["rping", "-s", "-V", "-S", "3000", "-C", "5"];
    let mut server = program(at_server, &words).spawn().unwrap();
    await_listener(&mut server, TCP, 7174);
    let words = ["rping", "-c", "-V", "-S", "3000", "-C", "5", "-a", address];
    let output = program(at_client, &words).output().unwrap();
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        succeeded("rping -s", &server.wait_with_output().unwrap());
    } else {
        // It may have ended by itself, and says why.
        if server.try_wait().unwrap().is_none() {
            kill(&server);
        }
        said += "the server: ";
        said += &String::from_utf8_lossy(&server.wait_with_output().unwrap().stderr);
    }
    (output.status.success(), said)
}

/// A device on loopback has a larger MTU than one of an interface; of two hosts the one that is asked says what is too much.
#[test]
fn devices_of_different_mtus_agree_or_are_told() {
    let namespaces = Namespaces::new("mtus", 10);
    let [at_a, at_b] = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [&at_a, &at_b].map(|at| at.each_ref().map(String::as_str));
    let enter = |words: &[&str]| {
        let whole = [&at_a[..], words].concat();
        succeeded(words[0], &command(&whole).output().unwrap());
    };
    enter(&["ip", "link", "set", "lo", "up"]);
    // By packets, the other way takes messages whole.
    let [named, anywhere] = [&at_a[..], &at_a[..5]].map(|at| [at, &["ELVER_DIRECT=off"]].concat());
    let (done, said) = ping(&named, &anywhere, &namespaces.address(0));
    assert!(done, "{said}");
    let (done, said) = ping(&anywhere, &named, "127.0.0.1");
    assert!(done, "{said}");
    enter(&["ip", "link", "set", "pl0", "mtu", "4400"]);
    let (done, said) = ping(&at_b, &at_a, &namespaces.address(1));
    assert!(!done && said.contains("RDMA_CM_EVENT_REJECTED, error 26"), "{said}");
    let (done, said) = ping(&at_a, &at_b, &namespaces.address(0));
    assert!(done, "{said}");
}

/// Load balancers have it so.
#[test]
fn hosts_whose_sockets_may_have_any_address_connect() {
    let namespaces = Namespaces::new("nonlocal", 11);
    let ends = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [0, 1].map(|end| ends[end].each_ref().map(String::as_str));
    for at in [at_a, at_b] {
        let set = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind"];
        succeeded("sh", &command(&[&at[..], &set].concat()).output().unwrap());
    }
    // An address that is not the interface's first is the host's too.
    let further = ["ip", "addr", "add", "10.77.11.9/24", "dev", "pl0"];
    succeeded("ip", &command(&[&at_a[..], &further].concat()).output().unwrap());
    let (done, said) = ping(&at_a, &at_b, &namespaces.address(0));
    assert!(done, "{said}");
    let at_further = [&at_a[..5], &["ELVER_ADDRESS=10.77.11.9"]].concat();
    let (done, said) = ping(&at_further, &at_b, "10.77.11.9");
    assert!(done, "{said}");
}

/// A program that is killed says no more; rdma_cm tells the other end of it all the same, as a kernel does, though
/// nothing is under way between them that would be missed.
fn killed(at_server: &[&str], at_client: &[&str], address: &str, port: u16) {
    let port = port.to_string();
    for kills_server in [false, true] {
        let mut server = program(at_server, &["rping", "-s", "-p", &port]).spawn().unwrap();
        await_listener(&mut server, TCP, port.parse().unwrap());
        let words = ["rping", "-c", "-v", "-a", address, "-p", &port];
        let mut client = program(at_client, &words).spawn().unwrap();
        // It goes on until nobody reads what it says.
        let mut said = BufReader::new(client.stdout.take().unwrap());
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0 && line.contains("ping data"), "{line}");
        let (killed, left) =
            if kills_server { (&mut server, &mut client) } else { (&mut client, &mut server) };
        kill(killed);
        let mut complaints = BufReader::new(left.stderr.take().unwrap()).lines();
        let told = complaints.any(|line| line.unwrap().contains("DISCONNECT EVENT"));
        assert!(told, "the server was killed: {kills_server}");
        drop(said);
        killed.wait().unwrap();
        left.wait().unwrap();
    }
}

#[test]
fn who_is_connected_to_a_killed_process_is_told() {
    let first = 29_500 + (std::process::id() % 500) as u16 * 2;
    killed(&[], &[], "127.0.0.1", first);
    let packets = ["env", "ELVER_DIRECT=off"];
    killed(&packets, &packets, "127.0.0.1", first + 1);
}

/// The name of a keeper in a network namespace, as `elver run` starts one; it is there as long as this test's process.
fn keeper(namespaces: &Namespaces, end: usize) -> String {
    let namespace = std::fs::File::open(namespaces.path(end)).unwrap();
    let until = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let (name, listener) = Keeper::listen().unwrap();
        tell.send(name).unwrap();
        Keeper::new(listener, until).unwrap().run().unwrap();
    });
    told.recv().unwrap()
}

#[test]
fn who_is_connected_to_a_process_of_another_host_is_told_that_it_was_killed() {
    let namespaces = Namespaces::new("farewell", 8);
    let ends = [0, 1].map(|end| {
        let named = format!("{KEEPER}={}", keeper(&namespaces, end));
        [&namespaces.at(end)[..], &[named]].concat()
    });
    let [at_a, at_b] = [0, 1].map(|end| ends[end].iter().map(String::as_str).collect::<Vec<_>>());
    killed(&at_a, &at_b, &namespaces.address(0), 7_100);
}

/// Runs udpong, over datagram rsockets. Its server never ends by itself.
fn pong(address: &str, port: u16, at_server: &[&str], at_client: &[&str]) {
    let port = port.to_string();
    let words = ["udpong", "-p", &port, "-b", address];
    let mut serving = program(at_server, &words).spawn().unwrap();
    await_name(&mut serving, "udp", &format!(":{:04X} ", port.parse::<u16>().unwrap()));
    let words = ["udpong", "-p", &port, "-s", address, "-S", "500", "-C", "200", "-T", "e"];
    let said = succeeded("udpong -s", &program(at_client, &words).output().unwrap());
    assert!(said.contains("500     400"), "{said}");
    let stopped = Command::new("kill").arg(serving.id().to_string()).status().unwrap();
    assert!(stopped.success() && !serving.wait().unwrap().success());
}

#[test]
fn datagrams_of_rsockets_come_back() {
    let port = 20_900 + std::process::id() as u16 % 90;
    pong("127.0.0.1", port, &[], &[]);
    let namespaces = Namespaces::new("udpong", 9);
    let ends = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [0, 1].map(|end| ends[end].each_ref().map(String::as_str));
    pong(&namespaces.address(0), 7_000, &at_a, &at_b);
}

/// Runs a sender to a group and its receivers, each with the words before it. Who receives ends when all has come.
fn multicast(group: &str, sources: [&str; 2], at_receivers: &[&[&str]], at_sender: &[&str]) {
    let words = |source| ["mckey", "-m", group, "-C", "10", "-b", source];
    let start = |at: &&[&str]| program(at, &words(sources[0])).spawn().unwrap();
    let receivers: Vec<Child> = at_receivers.iter().map(start).collect();
    // It waits five seconds between joining and sending.
    let sender = program(at_sender, &[&words(sources[1])[..], &["-s"]].concat()).output().unwrap();
    succeeded("mckey -s", &sender);
    for receiver in receivers {
        let said = succeeded("mckey", &receiver.wait_with_output().unwrap());
        assert!(said.contains("data transfers complete"), "{said}");
    }
}

#[test]
fn processes_of_one_host_hear_one_another_by_multicast() {
    let group = format!("230.7.{}.1", std::process::id() % 250);
    multicast(&group, ["127.0.0.1"; 2], &[&[], &[]], &[]);
}

#[test]
fn a_process_of_another_namespace_hears_by_multicast() {
    let namespaces = Namespaces::new("mckey", 7);
    let ends = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [0, 1].map(|end| ends[end].each_ref().map(String::as_str));
    let [a, b] = [0, 1].map(|end| namespaces.address(end));
    multicast("230.7.0.1", [&a, &b], &[&at_a], &at_b);
}

/// Nobody listens: the host's own manager says so, at once.
#[test]
fn who_asks_nobody_is_refused() {
    let words = ["rping", "-c", "-C", "1", "-a", "127.0.0.1", "-p", "20999"];
    let output = program(&[], &words).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{said}");
}

/// A port of the host is one process's.
#[test]
fn a_port_is_listened_on_once() {
    let port = (20_000 + std::process::id() % 900).to_string();
    let mut first = program(&[], &["rping", "-s", "-C", "1", "-p", &port]).spawn().unwrap();
    await_listener(&mut first, TCP, port.parse().unwrap());
    let second = program(&[], &["rping", "-s", "-C", "1", "-p", &port]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("Address already in use"), "{said}");
    let words = ["rping", "-c", "-C", "1", "-a", "127.0.0.1", "-p", &port];
    succeeded("rping", &program(&[], &words).output().unwrap());
    first.wait().unwrap();
}
