//! Debian's own programs, unmodified, over the library: two processes of one host, each for at
//! most a minute. The ping-pongs compare what they received (`-c`).

mod common;
#[path = "common/namespaces.rs"]
mod namespaces;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{command, succeeded};
use namespaces::Namespaces;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

fn run(words: &[&str]) -> String {
    succeeded(&words.join(" "), &command(words).output().unwrap())
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<String> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    listed.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Waits until a server listens on a port, without talking to it: it takes one connection only.
fn await_listener(port: u16, server: &mut Child) {
    let wanted = format!(":{port:04X}");
    let begun = Instant::now();
    loop {
        let is_there = ["tcp", "tcp6"].iter().any(|file| {
            // `timeout` starts the server in a process of its own, which `env` and `ip` do not.
            let file = children(server.id()).last().map(|pid| format!("/proc/{pid}/net/{file}"));
            let Some(file) = file else { return false };
            let table = std::fs::read_to_string(file).unwrap_or_default();
            table
                .lines()
                .filter_map(|line| {
                    line.split_whitespace().nth(1).zip(line.split_whitespace().nth(3))
                })
                .any(|(local, state)| local.ends_with(&wanted) && state == "0A")
        });
        if is_there {
            return;
        }
        if let Some(status) = server.try_wait().unwrap() {
            let mut said = String::new();
            server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the server ended with {status} before it listened: {said}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no server on port {port}");
        thread::yield_now();
    }
}

/// A port that nobody takes meanwhile: of none that the system gives to who asks for any, and each once.
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 10_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(taken < COUNT, "no port is free from {FIRST} on");
        let port = (FIRST + (std::process::id() * 100 + taken) % COUNT) as u16;
        // It does not listen: a child that another test starts has it until its exec, and would be in the server's way.
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        if bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port))).is_ok() {
            return port;
        }
    }
}

/// Runs a program's server and its client, and again with packets alone; returns what the clients said.
fn pair(words: &[&str]) -> [String; 2] {
    [&[][..], &["env", "ELVER_DIRECT=off"]].map(|way| pair_of(words, "127.0.0.1", way, way))
}

/// The same, of a server at an address; the other words stand before the server's and the client's.
fn pair_of(words: &[&str], address: &str, at_server: &[&str], at_client: &[&str]) -> String {
    let port = free_port();
    let number = port.to_string();
    let words = [words, &["-p", &number]].concat();
    let mut server = command(&[at_server, &words].concat()).spawn().unwrap();
    await_listener(port, &mut server);
    let client = command(&[at_client, &words, &[address]].concat()).output().unwrap();
    let server = server.wait_with_output().unwrap();
    let name = words.join(" ");
    // The server only says that the client has gone where that one failed.
    let said = succeeded(&format!("client of {name}"), &client);
    succeeded(&format!("server of {name}"), &server);
    said
}

#[test]
fn two_namespaces_reach_each_other() {
    let namespaces = Namespaces::new("preload", 5);
    let ends = [0, 1].map(|end| namespaces.at(end));
    let [at_a, at_b] = [0, 1].map(|end| ends[end].each_ref().map(String::as_str));
    for words in
        [&["ibv_rc_pingpong", "-g", "0", "-n", "200", "-c"][..], &["ib_write_bw", "-n", "200"]]
    {
        let said = pair_of(words, &namespaces.address(0), &at_a, &at_b);
        assert!(said.contains("10.77.5.2") || said.contains("10:77:05:02"), "{words:?}: {said}");
    }
}

#[test]
fn the_device_is_listed_and_described() {
    assert!(run(&["ibv_devices"]).contains("elver0"));
    let said = run(&["ibv_devinfo", "-v"]);
    for line in ["hca_id:\telver0", "PORT_ACTIVE", "::ffff:127."] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let renamed = command(&["ibv_devices"]).env("ELVER_DEVICE", "mine").output().unwrap();
    assert!(succeeded("ibv_devices", &renamed).contains("mine"));
}

#[test]
fn pingpongs_receive_what_was_sent() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for events in [&["-e"][..], &[]] {
            let said = pair(&[&[program, "-g", "0", "-n", "200", "-c"], events].concat());
            let all = said.iter().all(|said| said.contains("iters in"));
            assert!(all, "{program} {events:?}: {said:?}");
        }
    }
}

#[test]
fn programs_have_their_gid_at_the_index_in_their_source() {
    let ends = [("ibv_rc_pingpong", "3"), ("ibv_uc_pingpong", "2"), ("ibv_ud_pingpong", "1")];
    for (program, index) in ends {
        let told = format!("ELVER_GID_INDEX={index}");
        let words = [program, "-g", index, "-n", "200", "-c"];
        pair_of(&words, "127.0.0.1", &["env", &told], &["env", &told]);
    }
}

/// It compares what it received, each client's in a queue of its own.
#[test]
fn xrc_reaches_the_queue_that_is_named() {
    for events in [&[][..], &["-e"]] {
        let words = [&["ibv_xsrq_pingpong", "-g", "0", "-n", "100"], events].concat();
        let said = pair(&words);
        assert!(said.iter().all(|said| said.contains("success")), "{said:?}");
    }
    for program in ["ib_write_bw", "ib_send_lat", "ib_atomic_bw"] {
        let said = pair(&[program, "-n", "200", "-c", "XRC"]);
        assert!(said.iter().all(|said| said.contains("#bytes")), "{program}: {said:?}");
    }
}

#[test]
fn perftest_measures() {
    for program in [
        "ib_write_bw",
        "ib_write_lat",
        "ib_read_bw",
        "ib_read_lat",
        "ib_send_bw",
        "ib_send_lat",
        "ib_atomic_bw",
    ] {
        let said = pair(&[program, "-n", "200"]);
        assert!(said.iter().all(|said| said.contains("#bytes")), "{program}: {said:?}");
    }
}

/// DC, which perftest has by libmlx5's calls.
#[test]
fn perftest_measures_dc() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_atomic_bw"] {
        let [said, _] = pair(&[program, "-n", "200", "-c", "DC"]);
        assert!(said.contains("Connection type : DC"), "{program}: {said}");
    }
}

/// What `elver run` asks for by these variables: loss and delay cost time alone. perftest's ends wait for each other at the
/// end, as a ping-pong's do not: one whose last ACK is lost asks a process that has gone.
#[test]
fn a_bad_network_costs_time_alone() {
    let late = ["env", "ELVER_DELAY_US=50"];
    let said =
        pair_of(&["ibv_rc_pingpong", "-g", "0", "-n", "300", "-c"], "127.0.0.1", &late, &late);
    assert!(said.contains("iters in"), "{said}");
    let bad = ["env", "ELVER_LOSS_PER_MILLION=10000", "ELVER_DELAY_US=50", "ELVER_SEED=5"];
    let said = pair_of(&["ib_send_bw", "-n", "300", "-s", "4096"], "127.0.0.1", &bad, &bad);
    assert!(said.contains("4096"), "{said}");
}

#[test]
fn peers_die_on_demand() {
    let port = free_port();
    let words = ["ibv_rc_pingpong", "-g", "0", "-p", &port.to_string()];
    let mut server = command(&words).spawn().unwrap();
    await_listener(port, &mut server);
    let deaf = ["env", "ELVER_PEERS_DIE_AFTER_MS=0"];
    let client = command(&[&deaf, &words[..], &["127.0.0.1"]].concat()).output().unwrap();
    // Who watches over it hands that on, and does not hand on being killed.
    let ended = Command::new("kill").arg(server.id().to_string()).status().unwrap();
    assert!(ended.success());
    server.wait().unwrap();
    let said = String::from_utf8_lossy(&client.stderr);
    assert!(!client.status.success() && said.contains("retry"), "{said}");
}

/// A client of `ibv_rc_pingpong` whose port goes down, and what it ended with.
fn pingpong_through(outage: &[&str]) -> Output {
    let port = free_port();
    let words = ["ibv_rc_pingpong", "-g", "0", "-p", &port.to_string()];
    let mut server = command(&words).spawn().unwrap();
    await_listener(port, &mut server);
    let client =
        command(&[&["env"], outage, &words[..], &["127.0.0.1"]].concat()).output().unwrap();
    // It has ended by itself if its client has succeeded.
    let _ = Command::new("kill").arg(server.id().to_string()).output().unwrap();
    server.wait().unwrap();
    client
}

#[test]
fn the_port_goes_down_on_demand() {
    let client = pingpong_through(&["ELVER_PORT_DOWN_AFTER_MS=0"]);
    let said = String::from_utf8_lossy(&client.stderr);
    assert!(!client.status.success() && said.contains("retry"), "{said}");
    // Retries bear what is shorter than all of them.
    let client = pingpong_through(&["ELVER_PORT_DOWN_AFTER_MS=0", "ELVER_PORT_UP_AFTER_MS=200"]);
    succeeded("ibv_rc_pingpong", &client);
    let down = command(&["ibv_devinfo"]).env("ELVER_PORT_DOWN_AFTER_MS", "0").output().unwrap();
    let said = succeeded("ibv_devinfo", &down);
    assert!(said.contains("PORT_DOWN"), "{said}");
}

#[test]
fn programs_are_told_of_the_port() {
    let mut watch = command(&["ibv_asyncwatch", "-d", "elver0"]);
    // It may take its time to open the device.
    watch.envs([("ELVER_PORT_DOWN_AFTER_MS", "2000"), ("ELVER_PORT_UP_AFTER_MS", "100")]);
    let mut watch = watch.spawn().unwrap();
    let said = BufReader::new(watch.stdout.take().unwrap());
    // It waits for ever: `command` ends it when nothing comes.
    let events: Vec<String> = said
        .lines()
        .map(Result::unwrap)
        .filter(|line| line.contains("event_type"))
        .take(2)
        .collect();
    Command::new("kill").arg(watch.id().to_string()).status().unwrap();
    watch.wait().unwrap();
    let told = |line: &String, event: &str| line.contains(event) && line.contains("port 1");
    assert!(events.len() == 2 && told(&events[0], "(10)") && told(&events[1], "(9)"), "{events:?}");
}

/// What a client comes to whose posts suffer, of a server that is ended afterwards.
fn suffers(program: &[&str], faults: &[&str]) -> String {
    let port = free_port();
    let number = port.to_string();
    let words = [program, &["-p", &number]].concat();
    let mut server = command(&words).spawn().unwrap();
    await_listener(port, &mut server);
    let client =
        command(&[&["env"], faults, &words[..], &["127.0.0.1"]].concat()).output().unwrap();
    // It may have ended by itself.
    let _ = Command::new("kill").arg(server.id().to_string()).output().unwrap();
    server.wait().unwrap();
    assert!(!client.status.success(), "{faults:?}");
    [client.stdout, client.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
}

/// perftest prints the status of what failed: 10 is `IBV_WC_REM_ACCESS_ERR`, 5 is `IBV_WC_WR_FLUSH_ERR`.
#[test]
fn posts_suffer_on_demand() {
    let said = suffers(&["ib_write_bw", "-n", "200"], &["ELVER_WRONG_KEYS_PER_MILLION=1000000"]);
    assert!(said.contains("Failed status 10"), "{said}");
    let said = suffers(&["ibv_rc_pingpong", "-g", "0"], &["ELVER_QP_FAILURES_PER_MILLION=1000000"]);
    assert!(said.contains("Work Request Flushed Error"), "{said}");
}

#[test]
fn packets_are_recorded_for_each_process() {
    let dir = tempfile::tempdir().unwrap();
    let variable = format!("ELVER_CAPTURE={}", dir.path().join("trace").display());
    let recorded = ["env", &variable];
    pair_of(&["ibv_rc_pingpong", "-g", "0", "-n", "10"], "127.0.0.1", &recorded, &recorded);
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        // The first block of pcapng.
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && bytes.len() > 1_000, "{file:?}");
    }
}

/// A program that gives up closes nothing, and is the one whose packets are looked at.
#[test]
fn packets_stay_recorded_of_who_ends_without_closing() {
    let dir = tempfile::tempdir().unwrap();
    let variable = format!("ELVER_CAPTURE={}", dir.path().join("trace").display());
    suffers(&["ib_write_bw", "-n", "200"], &["ELVER_WRONG_KEYS_PER_MILLION=1000000", &variable]);
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let bytes = std::fs::read(files[0].path()).unwrap();
    assert!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && bytes.len() > 200, "{}", bytes.len());
}

/// Each process of several takes the first address that is free; where none is, it says what to do.
#[test]
fn processes_share_a_list_of_addresses() {
    let id = std::process::id();
    let [first, second] =
        [0, 1].map(|end| format!("127.238.{}.{}", id >> 7 & 0xff, id << 1 & 0xfe | end));
    let both = format!("{first},{second}");
    let port = free_port();
    let mut server = command(&["ibv_rc_pingpong", "-g", "0", "-p", &port.to_string()]);
    let mut server = server.env("ELVER_ADDRESS", &both).spawn().unwrap();
    await_listener(port, &mut server);
    let at = |addresses: &str| {
        command(&["ibv_devinfo", "-v"]).env("ELVER_ADDRESS", addresses).output().unwrap()
    };
    let [taken, free] = [&first, &both].map(|addresses| at(addresses));
    // Who watches over it hands that on.
    Command::new("kill").arg(server.id().to_string()).status().unwrap();
    server.wait().unwrap();
    let complaint = String::from_utf8_lossy(&taken.stderr);
    assert!(
        !taken.status.success() && complaint.contains("with commas between them"),
        "{complaint}"
    );
    let said = succeeded("ibv_devinfo", &free);
    assert!(said.contains(&format!("::ffff:{second}")), "{said}");
}

/// An address that is none of this host's is refused with a sentence.
#[test]
fn a_wrong_address_is_told() {
    let output = command(&["ibv_devinfo"]).env("ELVER_ADDRESS", "nowhere").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("give an IP address of this host"), "{said}");
}
