//! Processes that mean no good, against the built daemon: floods, files, others' handles, other
//! namespaces, memory that is taken away.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command as Program;

use crate::common::daemon::{Daemon, Directory, Witness, clean, elverd, toml};
use crate::common::process::{nobody, start, start_by};
use crate::common::stall;
use crate::common::{Client, PATIENCE, Region, engine_counter, free_address, gid, wait_for};
use elver_portal::{Answer, Command, Layout, Message, Received, RefusalCode, Socket, VqpOptions};
use elver_testkit::{Role, is_root, role, stay};
use elver_verbs::{AccessFlags, Memory, RemoteAddr, Sge, WcStatus};
use rustix::fs::FallocateFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

fn counter(daemon: &Daemon, name: &str) -> u64 {
    engine_counter(&daemon.status(), name)
}

#[test]
fn who_says_no_hello_keeps_nobody_out() {
    let directory = Directory::new();
    let quota = "[quota]\nsessions = 4\nsessions_total = 100";
    let daemon = Daemon::start(&directory, "a", quota);
    let mut witness = Witness::new(&daemon);
    let mut flood = start(&directory, &daemon.socket, "hostile::client_that_says_no_hello", "");
    // A user gets places for 4 sessions and 64 greetings.
    assert_eq!(flood.says(), "at most 68 of 300 stay");
    witness.works();
    if nobody().is_some() {
        // Others come in while they stay.
        Witness::new(&daemon).works();
    }
    wait_for("all of them to go", || {
        witness.works();
        (daemon.status().engine["greetings_missed"] > 0).then_some(())
    });
    flood.ends();
    wait_for("room for another", || Client::connect(&daemon.socket).ok());
}

/// Not a test of its own: a process that connects without end and says nothing.
#[test]
fn client_that_says_no_hello() {
    let Some(Role { socket, .. }) = role() else { return };
    let sockets: Vec<Socket> =
        (0..300).map(|_| Socket::connect(&socket, PATIENCE).unwrap()).collect();
    let open = |socket: &&Socket| matches!(socket.receive(false), Ok(Received::Nothing));
    // Those that nobody has accepted yet seem to stay, for a moment.
    let stay_on = wait_for("the others to be closed", || {
        let count = sockets.iter().filter(open).count();
        (count <= 68).then_some(68)
    });
    eprintln!("at most {stay_on} of {} stay", sockets.len());
    stay();
}

#[test]
fn a_client_of_another_version_is_told() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut bytes = Message::Hello { layout: Layout::default(), first: None }.encode();
    // Behind the kind and a magic number.
    bytes[5] ^= 0x40;
    let socket = Socket::connect(&daemon.socket, PATIENCE).unwrap();
    rustix::net::send(&socket, &bytes, SendFlags::NOSIGNAL).unwrap();
    let text = wait_for("the answer", || match socket.receive(true).unwrap() {
        Received::Message(Message::Rejected { text }, None) => Some(text),
        Received::Nothing => None,
        other => panic!("{other:?}"),
    });
    assert!(text.contains("version"), "{text}");
    assert_eq!(counter(&daemon, "violations_message"), 1);
    Witness::new(&daemon).works();
}

#[test]
fn who_takes_no_completions_is_refused_more_and_harms_nobody() {
    const POSTED: u64 = 2_000;
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "[quota]\nsession_completions = 64");
    let mut witness = Witness::new(&daemon);
    let mut lazy = Client::connect(&daemon.socket).unwrap();
    let region = lazy.alloc(64).unwrap();
    let options = VqpOptions { max_send_wr: 4_096, ..VqpOptions::default() };
    let vqp = |answer: Answer<'_>| match answer {
        Answer::Vqp(vqp) => Some(vqp),
        _ => None,
    };
    let vqp = lazy.ask(&Command::CreateVqp(options), vqp).unwrap();
    lazy.qconnect(vqp, gid(&daemon.address), 0).unwrap();
    let remote = RemoteAddr { addr: region.addr, rkey: region.rkey };
    let (mut posted, mut full) = (0, 0);
    // Until the node takes no more.
    while full < 1_000 {
        match lazy.try_read(vqp, &region, 8, 8, remote) {
            true => (posted, full) = (posted + 1, 0),
            false => {
                full += 1;
                witness.works();
            }
        }
        assert!(posted < 100 * POSTED, "it was never stopped");
    }
    let mut refused = 0;
    let mut flushed = 0;
    let mut taken = 0;
    while taken < posted || posted < POSTED {
        if posted < POSTED && lazy.try_read(vqp, &region, 8, 8, remote) {
            posted += 1;
        }
        if taken < posted {
            match lazy.completion().status {
                WcStatus::Success => {}
                WcStatus::LocQpOpErr => refused += 1,
                // Its VQP fails with the first that is refused.
                WcStatus::WrFlushErr => flushed += 1,
                other => panic!("{other:?}"),
            }
            taken += 1;
        }
    }
    assert!(refused == 1 && refused + flushed < posted, "{refused}, {flushed} of {posted}");
    // It takes what it is told now, and is as good as others.
    lazy.qconnect(vqp, gid(&daemon.address), 0).unwrap();
    lazy.read(vqp, &region, 8, 8, remote);
    assert_eq!(lazy.completion().status, WcStatus::Success);
    witness.works();
}

/// Sends a message with as many files as a message can have.
fn send_files(
    socket: &Socket,
    message: &Message,
    file: BorrowedFd<'_>,
) -> rustix::io::Result<usize> {
    const FILES: usize = 253;
    let files = [file; FILES];
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = message.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags)
}

#[test]
fn files_that_are_sent_go_nowhere() {
    let directory = Directory::new();
    // Nothing is made ready for sessions to come, which would have descriptors.
    let text = toml(&free_address(), &directory.path.join("a.sock"), "")
        .replace("engine.", "socket.spare_sessions = 0\nengine.");
    let mut command = elverd();
    command.arg("--config").arg(directory.file("a.toml", &text));
    let daemon = Daemon::run(command);
    let mut witness = Witness::new(&daemon);
    let before = daemon.descriptors();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let hello = Message::Hello { layout: Layout::default(), first: None };
    let ended = |socket: &Socket| {
        wait_for("the session to end", || match socket.receive(true) {
            Ok(Received::Closed) | Err(_) => Some(()),
            _ => None,
        });
    };
    let (mut refused, mut taken) = (0, 0);
    for round in 0..100 {
        // With the first message, or later.
        let client = (round % 2 == 1).then(|| Client::connect(&daemon.socket).unwrap());
        let fresh;
        let (socket, message) = match &client {
            Some(client) => (&client.socket, &Message::Wake),
            None => {
                fresh = Socket::connect(&daemon.socket, PATIENCE).unwrap();
                (&fresh, &hello)
            }
        };
        match send_files(socket, message, writer.as_fd()) {
            // Since Linux 6.16 the sender is told.
            Err(rustix::io::Errno::PERM) => refused += 1,
            Ok(_) => {
                taken += 1;
                ended(socket);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(refused + taken, 100);
    assert_eq!(counter(&daemon, "violations_message"), taken);
    wait_for("its descriptors to be as before", || {
        witness.works();
        (daemon.descriptors() <= before).then_some(())
    });
    // Nobody but we has the pipe's end.
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_client_in_another_pid_namespace_is_served() {
    if !is_root() {
        return println!("skipped: only root makes PID namespaces");
    }
    let directory = Directory::new();
    let config = toml(&free_address(), &directory.path.join("a.sock"), "");
    let config = directory.file("a.toml", &config);
    // The daemon in one of its own sees no process of ours.
    let mut command = clean(Program::new("unshare"));
    command.args(["--pid", "--fork", "--kill-child=KILL", env!("CARGO_BIN_EXE_elverd")]);
    let daemon = Daemon::run({
        command.arg("--config").arg(config);
        command
    });
    let mut witness = Witness::new(&daemon);
    witness.works();
    let status = daemon.status();
    assert_eq!((status.sessions[0].pid, status.sessions[0].uid), (0, 0));
    // What it cannot see it cannot copy, and says so.
    let own = elver_soft::SoftMemory::alloc(4_096).unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    let command = Command::RegisterMr { addr: own.base_addr(), len: 4_096, access };
    let (code, text) = witness.client.done(&command).unwrap_err();
    assert_eq!(code, RefusalCode::Permission);
    assert!(text.contains("another PID namespace"), "{text}");
    witness.works();
    // Its end is seen all the same.
    let mut other = start(&directory, &daemon.socket, "hostile::client_that_has_a_session", "");
    assert_eq!(other.says(), "session");
    assert_eq!(daemon.status().sessions.len(), 2);
    drop(other);
    wait_for("the session to end", || (daemon.status().sessions.len() == 1).then_some(()));
    witness.works();
}

/// Not a test of its own: a process with a session and a VQP.
#[test]
fn client_that_has_a_session() {
    let Some(Role { socket, .. }) = role() else { return };
    let mut client = Client::connect(&socket).unwrap();
    client.create();
    eprintln!("session");
    stay();
}

#[test]
fn another_users_handles_are_refused() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    witness.region.memory.write(0, b"not thine").unwrap();
    let bound = witness.client.create();
    let port = witness.client.qbind(bound, 0).unwrap();
    let knows = format!(
        "{} {} {} {port} {}",
        witness.vqp, witness.region.lkey, witness.region.rkey, daemon.address
    );
    let test = "hostile::client_that_tries_others_handles";
    let mut other = start(&directory, &daemon.socket, test, &knows);
    assert_eq!(other.says(), "refused 7 times");
    // And root has no more right to its.
    let its: Vec<u32> = other.says().split(' ').map(|one| one.parse().unwrap()).collect();
    let (vqp, lkey) = (its[0], its[1]);
    let refused = witness.client.done(&Command::DestroyVqp { vqp });
    assert_eq!(refused.unwrap_err().0, RefusalCode::NoSuchVqp);
    let refused = witness.client.done(&Command::DeregisterMr { lkey });
    assert_eq!(refused.unwrap_err().0, RefusalCode::NoSuchMr);
    let mine = witness.region.lkey;
    witness.region.lkey = lkey;
    witness.client.read(witness.vqp, &witness.region, 0, 8, witness.remote());
    assert_eq!(witness.client.completion().status, WcStatus::LocProtErr);
    witness.region.lkey = mine;
    witness.client.qconnect(witness.vqp, gid(&daemon.address), 0).unwrap();
    witness.works();
    let mut bytes = [0; 9];
    witness.region.memory.read(0, &mut bytes[..8]).unwrap();
    assert_eq!(&bytes[..8], b"not thin");
    assert_eq!(counter(&daemon, "commands_refused"), 6);
    assert_eq!(counter(&daemon, "posts_refused"), 3);
    other.ends();
}

/// Not a test of its own: a process that knows another's handles, and uses them for its own.
#[test]
fn client_that_tries_others_handles() {
    let Some(Role { socket, knows }) = role() else { return };
    let words: Vec<&str> = knows.split(' ').collect();
    let number = |index: usize| words[index].parse::<u32>().unwrap();
    let (vqp, lkey, rkey, port) = (number(0), number(1), number(2), number(3) as u16);
    let node = gid(words[4]);
    let mut client = Client::connect(&socket).unwrap();
    let (own, region) = (client.create(), client.alloc(64).unwrap());
    let mut refused = 0;
    let mut expect = |code: Result<(), (RefusalCode, String)>, expected| {
        assert_eq!(code.unwrap_err().0, expected);
        refused += 1;
    };
    expect(client.qconnect(vqp, node, 0).map(drop), RefusalCode::NoSuchVqp);
    expect(client.qbind(vqp, 0).map(drop), RefusalCode::NoSuchVqp);
    expect(client.qbind(own, port).map(drop), RefusalCode::PortInUse);
    expect(client.done(&Command::DeregisterMr { lkey }), RefusalCode::NoSuchMr);
    client.qconnect(own, node, 0).unwrap();
    let remote = RemoteAddr { addr: region.addr, rkey: region.rkey };
    client.read(vqp, &region, 0, 8, remote);
    assert_eq!(client.completion().status, WcStatus::LocQpOpErr);
    let foreign = Region { lkey, ..client.alloc(64).unwrap() };
    client.read(own, &foreign, 0, 8, remote);
    assert_eq!(client.completion().status, WcStatus::LocProtErr);
    client.qconnect(own, node, 0).unwrap();
    // A key that is nearly right.
    let guess = RemoteAddr { addr: region.addr, rkey: rkey ^ 1 };
    client.read(own, &region, 0, 8, guess);
    assert_eq!(client.completion().status, WcStatus::RemAccessErr);
    eprintln!("refused {} times", refused + 3);
    eprintln!("{own} {}", region.lkey);
    stay();
}

#[test]
fn each_quota_has_its_own_refusal() {
    let directory = Directory::new();
    for (quota, expected) in [
        ("mrs = 3\nvqps = 100", "100 VQPs: `quota.vqps`; 3 regions: `quota.mrs`"),
        ("mrs = 100\nvqps = 1", "1 VQPs: `quota.vqps`; 100 regions: `quota.mrs`"),
        ("bytes = 200000", "4096 VQPs: `quota.session_vqps`; 3 regions: `quota.bytes`"),
        (
            "session_vqps = 5\nsession_mrs = 4",
            "5 VQPs: `quota.session_vqps`; 4 regions: `quota.session_mrs`",
        ),
    ] {
        let daemon = Daemon::start(&directory, "a", &format!("[quota]\n{quota}"));
        let mut witness = Witness::new(&daemon);
        if nobody().is_none() && !quota.starts_with("session") {
            // This user's witness has a share of it.
            println!("skipped: only root can be another user");
            continue;
        }
        let test = "hostile::client_that_takes_all";
        let mut greedy = start(&directory, &daemon.socket, test, "");
        assert_eq!(greedy.says(), expected);
        assert!(counter(&daemon, "commands_refused") >= 2);
        witness.works();
        greedy.ends();
    }
}

/// Not a test of its own: a process that takes what it gets, and says why it got no more.
#[test]
fn client_that_takes_all() {
    let Some(Role { socket, .. }) = role() else { return };
    let mut client = Client::connect(&socket).unwrap();
    let why = |(code, text): (RefusalCode, String)| {
        assert_eq!(code, RefusalCode::Limit, "{text}");
        format!("`{}`", text.split('`').nth(1).unwrap())
    };
    let mut vqps = 0;
    let no_vqp = loop {
        match client.try_create() {
            Ok(_) => vqps += 1,
            Err(refused) => break why(refused),
        }
    };
    let mut regions = Vec::new();
    let no_region = loop {
        match client.alloc(60_000) {
            Ok(region) => regions.push(region),
            Err(refused) => break why(refused),
        }
    };
    eprintln!("{vqps} VQPs: {no_vqp}; {} regions: {no_region}", regions.len());
    stay();
}

/// Huge pages that are set aside for a test, and given back after it.
struct HugePages {
    before: u64,
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn set_aside(count: u64) -> Option<HugePages> {
        let read = || std::fs::read_to_string(HUGE_PAGES).ok()?.trim().parse::<u64>().ok();
        let before = read()?;
        let pages = HugePages { before };
        std::fs::write(HUGE_PAGES, (before + count).to_string()).ok()?;
        // The kernel sets aside what it finds.
        (read()? == before + count).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, self.before.to_string());
    }
}

const HUGE: u64 = 2 << 20;

#[test]
fn huge_pages_are_for_the_trusted_and_where_there_are_none_small_ones_do() {
    let directory = Directory::alone();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    // More than anybody has set aside.
    let (region, _, bytes) = witness.client.alloc_file(40 * HUGE + 5, true).unwrap();
    assert_eq!(bytes, 40 * HUGE + 4_096);
    region.memory.write(0, &[7; 100]).unwrap();
    drop(region);
    let Some(_pages) = HugePages::set_aside(2) else {
        return println!("skipped: no huge pages can be set aside here");
    };
    let (region, file, bytes) = witness.client.alloc_file(HUGE + 5, true).unwrap();
    assert_eq!(bytes, 2 * HUGE);
    assert_eq!(rustix::fs::fstatfs(&file).unwrap().f_bsize as u64, HUGE);
    let remote = RemoteAddr { addr: region.addr + HUGE - 3, rkey: region.rkey };
    region.memory.write(HUGE - 3, b"across").unwrap();
    witness.client.read(witness.vqp, &region, 0, 6, remote);
    assert_eq!(witness.client.completion().status, WcStatus::Success);
    let mut copied = [0; 6];
    region.memory.read(0, &mut copied).unwrap();
    assert_eq!(&copied, b"across");
    witness.client.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap();

    // One whom nobody trusts gets small ones, which it may take away without harm.
    let test = "hostile::client_that_takes_its_memory_away";
    let mut other = start(&directory, &daemon.socket, test, &daemon.address);
    let trusted = nobody().is_none();
    assert_eq!(other.says(), if trusted { "huge" } else { "small" });
    if !trusted {
        assert_eq!(other.says(), "zeros");
    }
    other.ends();
    witness.works();
}

#[test]
fn memory_that_its_process_takes_away_harms_nobody() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    let test = "hostile::client_that_takes_its_memory_away";
    let mut other = start(&directory, &daemon.socket, test, &daemon.address);
    assert_eq!(other.says(), "small");
    assert_eq!(other.says(), "zeros");
    other.ends();
    witness.works();
}

/// Not a test of its own: a process that asks for huge pages, makes holes into what it gets, and
/// has the node read it, and write it.
#[test]
fn client_that_takes_its_memory_away() {
    let Some(Role { socket, knows: node }) = role() else { return };
    let mut client = Client::connect(&socket).unwrap();
    let (region, file, bytes): (Region, OwnedFd, u64) = client.alloc_file(8_000, true).unwrap();
    if bytes == HUGE {
        eprintln!("huge");
        return stay();
    }
    assert_eq!(rustix::fs::fstatfs(&file).unwrap().f_bsize, 4_096);
    eprintln!("small");
    region.memory.write(0, &[7; 8_000]).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 0, bytes).unwrap();
    let vqp = client.create();
    client.qconnect(vqp, gid(&node), 0).unwrap();
    let remote = RemoteAddr { addr: region.addr, rkey: region.rkey };
    for _ in 0..100 {
        client.read(vqp, &region, 4_000, 4_000, remote);
        assert_eq!(client.completion().status, WcStatus::Success);
        rustix::fs::fallocate(&file, hole, 0, bytes).unwrap();
    }
    let mut copied = [1; 4_000];
    region.memory.read(4_000, &mut copied).unwrap();
    assert_eq!(copied, [0; 4_000]);
    // Nor can it be made shorter.
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(rustix::io::Errno::PERM));
    eprintln!("zeros");
    stay();
}

#[test]
fn memory_of_another_users_process_is_copied_for_it_alone() {
    if !is_root() {
        return println!("skipped: only root can be another user");
    }
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let test = "hostile::client_that_registers_its_memory";
    let mut other = start(&directory, &daemon.socket, test, &daemon.address);
    assert_eq!(other.says(), "copied");
    other.ends();
}

/// Not a test of its own: a process whose own memory is copied, while it is there.
#[test]
fn client_that_registers_its_memory() {
    let Some(Role { socket, knows: node }) = role() else { return };
    let mut client = Client::connect(&socket).unwrap();
    let own = elver_soft::SoftMemory::alloc(8_192).unwrap();
    own.write(0, b"of nobody").unwrap();
    let access = AccessFlags::REMOTE_READ;
    let command = Command::RegisterMr { addr: own.base_addr(), len: 8_192, access };
    let take = |answer: Answer<'_>| match answer {
        Answer::Mr { rkey, .. } => Some(rkey),
        _ => None,
    };
    let rkey = client.ask(&command, take).unwrap();
    let region = client.alloc(64).unwrap();
    let vqp = client.create();
    client.qconnect(vqp, gid(&node), 0).unwrap();
    let remote = RemoteAddr { addr: own.base_addr(), rkey };
    client.read(vqp, &region, 0, 9, remote);
    assert_eq!(client.completion().status, WcStatus::Success);
    let mut bytes = [0; 9];
    region.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"of nobody");
    // It goes, and its key is of no use.
    drop(own);
    client.read(vqp, &region, 0, 9, remote);
    assert_ne!(client.completion().status, WcStatus::Success);
    eprintln!("copied");
    stay();
}

/// Not a test of its own: a process that says whether it got a session, VQPs and regions.
#[test]
fn client_that_says_what_it_gets() {
    let Some(Role { socket, knows }) = role() else { return };
    match Client::connect(&socket) {
        Err(refused) => eprintln!("{refused}"),
        Ok(mut client) => {
            let most: usize = knows.parse().unwrap();
            let vqps: Vec<u32> =
                std::iter::from_fn(|| client.try_create().ok()).take(most).collect();
            let mrs = std::iter::from_fn(|| client.alloc(64).ok()).take(most).count();
            let ports = vqps.iter().filter(|vqp| client.qbind(**vqp, 0).is_ok()).count();
            eprintln!("{} VQPs, {mrs} regions, {ports} ports", vqps.len());
            stay();
        }
    }
}

/// A process that keeps a namespace open until it is dropped.
struct Holder(std::process::Child);

impl Holder {
    /// Runs a command until that has a namespace of its own.
    fn new(command: &[&str]) -> Holder {
        let mut child = Program::new(command[0])
            .args(&command[1..])
            .args(["sh", "-c", "echo; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).expect("a namespace");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A user owns many numbers, by a user namespace (newuidmap). Each had a quota of its own.
#[test]
fn a_users_other_numbers_give_it_no_more() {
    if !is_root() {
        return println!("skipped: only root gives numbers to others");
    }
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "[quota]\nsessions = 3");
    let mut witness = Witness::new(&daemon);
    let nobody = ["setpriv", "--reuid=65534", "--clear-groups", "unshare", "--user"];
    let space = Holder::new(&nobody);
    let pid = space.0.id().to_string();
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{map}"), "0 100000 1000").unwrap();
    }
    let as_number = |number: &str| {
        let by = ["nsenter", "--user", "--target", &pid, "--setuid", number, "--setgid", "0"];
        let test = "hostile::client_that_says_what_it_gets";
        let mut process = start_by(&by, &directory, &daemon.socket, test, "1");
        (process.says(), process)
    };
    let sessions: Vec<_> = ["0", "7", "8"].map(as_number).into_iter().collect();
    assert!(sessions.iter().all(|(says, _)| says == "1 VQPs, 1 regions, 1 ports"));
    let status = daemon.status();
    let its = status.users.iter().find(|user| user.uid == 65_534).expect("one account");
    assert_eq!((its.sessions, status.users.len()), (3, 2), "{:?}", status.users);
    let (refused, _) = as_number("9");
    assert!(refused.contains("user 65534") && refused.contains("quota.sessions"), "{refused}");
    // Nor has the user itself any left.
    let test = "hostile::client_that_says_what_it_gets";
    let refused = start(&directory, &daemon.socket, test, "1").says();
    assert!(refused.contains("quota.sessions"), "{refused}");
    // Another user is not concerned.
    let by = ["setpriv", "--reuid=7777", "--clear-groups"];
    let mut other = start_by(&by, &directory, &daemon.socket, test, "1");
    assert_eq!(other.says(), "1 VQPs, 1 regions, 1 ports");
    witness.works();
}

/// Root of a container has the number of the host's. It had no quota, and huge pages.
#[test]
fn root_of_a_container_is_not_the_hosts() {
    if !is_root() {
        return println!("skipped: only root makes containers");
    }
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "[quota]\nvqps = 3");
    let mut witness = Witness::new(&daemon);
    let run = |by: &[&str]| {
        let test = "hostile::client_that_says_what_it_gets";
        let mut process = start_by(by, &directory, &daemon.socket, test, "5");
        (process.says(), process)
    };
    let (hosts, _root) = run(&["env"]);
    assert_eq!(hosts, "5 VQPs, 5 regions, 5 ports");
    let pids = ["unshare", "--pid", "--fork", "--kill-child"];
    for by in [
        // As a container is by default, but for its files: fewer capabilities, or other PIDs.
        &["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"][..],
        &pids,
        &["unshare", "--user", "--map-root-user"],
    ] {
        let (contained, _process) = run(by);
        assert_eq!(contained, "3 VQPs, 5 regions, 3 ports", "{by:?}");
    }
    // Whoever is root there can be any user, and is the same to the node.
    let space = Holder::new(&pids);
    let children = format!("/proc/{0}/task/{0}/children", space.0.id());
    let first = std::fs::read_to_string(children).unwrap().trim().to_string();
    let inside = ["nsenter", "--pid", "--target", &first, "setpriv", "--clear-groups"];
    let (one, _one) = run(&[&inside[..], &["--reuid=7001"]].concat());
    let (two, _two) = run(&[&inside[..], &["--reuid=7002"]].concat());
    assert_eq!((&*one, &*two), ("3 VQPs, 5 regions, 3 ports", "0 VQPs, 5 regions, 0 ports"));
    witness.works();
}

/// The quota of regions is as large as what there is of them: the first who came had them all.
#[test]
fn whoever_takes_all_it_gets_leaves_some_to_others() {
    if !is_root() {
        return println!("skipped: only root can be other users");
    }
    let directory = Directory::new();
    let limits = "[quota]\nvqps = 100000\n[memory]\nmax_mrs = 128\n[pool]\nmax_vqps = 256";
    let config = toml(&free_address(), &directory.path.join("a.sock"), limits);
    let config = directory.file(
        "a.toml",
        &config
            .replace("memory.lease_ms = 50\n", "")
            .replace("pool.timeout = 13\npool.retry_cnt = 7\n", ""),
    );
    let mut command = elverd();
    command.arg("--config").arg(config);
    let daemon = Daemon::run(command);
    let run = |uid: u32| {
        let (by, test) = (format!("--reuid={uid}"), "hostile::client_that_says_what_it_gets");
        let by = ["setpriv", &by, "--clear-groups"];
        let mut process = start_by(&by, &directory, &daemon.socket, test, "1000");
        (process.says(), process)
    };
    let (first, _first) = run(7_001);
    assert_eq!(first, "128 VQPs, 64 regions, 128 ports");
    let mut before = (128, 64);
    let mut stay = Vec::new();
    for uid in 7_002..7_005 {
        let (says, process) = run(uid);
        let mut numbers = says.split(' ').filter_map(|word| word.parse::<u32>().ok());
        let has = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(has.0 > 0 && has.1 > 0 && has < before, "{says} after {before:?}");
        before = has;
        stay.push(process);
    }
    Witness::new(&daemon).works();
}

/// A page that never comes held the engine up for a quarter of a second, whenever it was asked for.
#[test]
fn a_page_that_never_comes_is_waited_for_once() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    let test = "hostile::client_with_a_page_that_never_comes";
    // Of one who is trusted too: it may know of it as little as anybody.
    let by: &[&str] = if is_root() { &["unshare", "--mount"] } else { &["env"] };
    let place = directory.file("slow", "");
    let knows = format!("{} {}", daemon.address, place.display());
    let mut other = start_by(by, &directory, &daemon.socket, test, &knows);
    let says = other.says();
    if says == "none" {
        return println!("skipped: nobody here may mount a file system");
    }
    assert_eq!(says, "registered");
    other.goes();
    witness.works();
    assert_eq!(other.says(), "refused 20 times");
    witness.works();
    let status = daemon.status();
    let counted = ["copies_given_up", "copies_banned"].map(|name| engine_counter(&status, name));
    assert_eq!(counted, [1, 1]);
    // What is there, of this process too, and what others have, is as it was.
    assert_eq!(other.says(), "read");
    witness.works();
    other.ends();
}

/// The engine opened the memory of a process that stood in `execve`, and stood as long: until the watchdog ended the
/// daemon. Here it does after three seconds.
#[test]
fn who_is_long_beginning_another_program_keeps_nobody_waiting() {
    let directory = Directory::new();
    let config = toml(&free_address(), &directory.path.join("a.sock"), "[engine]\nhang_ms = 3000");
    let config = directory.file("a.toml", &config.replace("engine.spin_us = 20\n", ""));
    let mut command = elverd();
    command.arg("--config").arg(config);
    let daemon = Daemon::run(command);
    let mut witness = Witness::new(&daemon);
    let test = "hostile::client_that_is_long_beginning_another_program";
    let by: &[&str] = if is_root() { &["unshare", "--mount"] } else { &["env"] };
    let place = directory.file("slow", "");
    let mut other = start_by(by, &directory, &daemon.socket, test, &place.display().to_string());
    let says = other.says();
    if says == "none" {
        return println!("skipped: nobody here may mount a file system");
    }
    assert_eq!(says, "stands");
    other.goes();
    assert_eq!(other.says(), "refused");
    witness.works();
    let status = daemon.status();
    let counted = ["copies_given_up", "hangs"].map(|name| engine_counter(&status, name));
    assert_eq!(counted, [1, 0]);
    other.goes();
    other.ends();
}

/// Not a test of its own: a process that stands in the beginning of another program, since a file of its is not
/// closed, and another one that has its session as well.
#[test]
fn client_that_is_long_beginning_another_program() {
    let Some(Role { socket, knows }) = role() else { return };
    let Some(own) = crate::common::stall::map(std::path::Path::new(&knows)) else {
        return eprintln!("none");
    };
    let _file = std::fs::File::open(&knows).unwrap();
    own.keep_closes();
    let (mut go, mut told) = std::os::unix::net::UnixStream::pair().unwrap();
    let device = own.device();
    let ask = move || {
        stall::Stalling::is_a_childs(device);
        let mut client = Client::connect(&socket).unwrap();
        // SAFETY: the child takes no lock that another thread could have had.
        if unsafe { libc::fork() } > 0 {
            return Ok(());
        }
        told.read_exact(&mut [0]).unwrap();
        let access = AccessFlags::REMOTE_READ;
        let command = Command::RegisterMr { addr: own_page() as u64, len: 8, access };
        let refused = client.done(&command).is_err();
        eprintln!("{}", if refused { "refused" } else { "registered" });
        std::process::exit(0);
    };
    let mut program = Program::new("true");
    // SAFETY: nobody else allocates or prints here while the child begins.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut program, ask) };
    let beginning = std::thread::spawn(move || program.status());
    wait_for("the other program to begin", || own.is_wanted().then_some(()));
    eprintln!("stands");
    stay();
    std::io::Write::write_all(&mut go, &[1]).unwrap();
    stay();
    own.fail();
    assert!(beginning.join().unwrap().unwrap().success());
    stay();
}

/// A page that is there in every process of this program.
fn own_page() -> *const u8 {
    static PAGE: [u8; 8] = [1; 8];
    PAGE.as_ptr()
}

/// Where the process is bound whose page does not come.
const SLOW_PORT: u16 = 5;

/// While a page did not come the engine waited for it, and with it all users of the node.
#[test]
fn nobody_waits_for_another_s_page() {
    let directory = Directory::new();
    // So that nothing is given up while the test runs, however slow the machine.
    let patient = |name: &str, meta: &str| {
        let (address, socket) = (free_address(), directory.path.join(format!("{name}.sock")));
        let text = toml(&address, &socket, meta).replace("timeout = 13", "timeout = 30");
        let text = format!("memory.patience_ms = 3600000\n{text}");
        let mut command = elverd();
        command.arg("--config").arg(directory.file(&format!("{name}.toml"), &text));
        Daemon::run(command)
    };
    let daemon = patient("a", "serve = true");
    let far = patient("b", &format!("servers = [\"{}\"]", daemon.registry.unwrap()));
    far.registered(1);
    let mut owner = Client::connect(&daemon.socket).unwrap();
    let theirs = owner.alloc(64).unwrap();
    let mut reader = Client::connect(&far.socket).unwrap();
    let (own, vqp) = (reader.alloc(64).unwrap(), reader.create());
    reader.qconnect(vqp, gid(&daemon.address), 0).unwrap();
    let test = "hostile::client_that_waits_for_its_page";
    let by: &[&str] = if is_root() { &["unshare", "--mount"] } else { &["env"] };
    let knows = format!("{} {}", daemon.address, directory.file("slow", "").display());
    let mut other = start_by(by, &directory, &daemon.socket, test, &knows);
    let says = other.says();
    if says == "none" {
        return println!("skipped: nobody here may mount a file system");
    }
    assert_eq!(says, "asked");
    let waits = |name: &str| daemon.status().device[name];
    wait_for("its READ to wait", || (waits("waits_for_memory") > 0).then_some(()));
    // A message to a receive there waits as well.
    let sender = reader.create();
    reader.qconnect(sender, gid(&daemon.address), SLOW_PORT).unwrap();
    reader.send(sender, b"waits");
    assert_eq!(reader.completion().status, WcStatus::Success);
    let landed = || daemon.status().core["messages_landed_late"];
    wait_for("the message to wait", || (landed() > 0).then_some(()));
    let bytes = || engine_counter(&daemon.status(), "memory_bytes_waiting");
    assert!((1..1 << 20).contains(&bytes()), "{}", bytes());
    let remote = RemoteAddr { addr: theirs.addr, rkey: theirs.rkey };
    for _ in 0..100 {
        reader.read(vqp, &own, 0, 8, remote);
        assert_eq!(reader.completion().status, WcStatus::Success);
    }
    // Commands are executed as well, and processes come and go.
    assert!(Client::connect(&daemon.socket).unwrap().alloc(64).is_ok());
    other.goes();
    assert_eq!(other.says(), "waited in vain");
    let status = daemon.status();
    let counted = ["copies_given_up", "copies_banned"].map(|name| engine_counter(&status, name));
    assert_eq!(counted, [0, 0]);
    assert!(engine_counter(&status, "copies_waited") > 0);
    other.ends();
}

/// Not a test of its own: a process that reads memory of its own of which a page does not come.
#[test]
fn client_that_waits_for_its_page() {
    const PAGE: u64 = 4_096;
    let Some(Role { socket, knows }) = role() else { return };
    let (node, place) = knows.split_once(' ').unwrap();
    let Some(own) = crate::common::stall::map(std::path::Path::new(place)) else {
        return eprintln!("none");
    };
    let mut client = Client::connect(&socket).unwrap();
    let access = AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE;
    let command = Command::RegisterMr { addr: own.start, len: 3 * PAGE, access };
    let take = |answer: Answer<'_>| match answer {
        Answer::Mr { lkey, rkey, .. } => Some((lkey, rkey)),
        _ => None,
    };
    let (lkey, rkey) = client.ask(&command, take).unwrap();
    let (region, vqp, bound) = (client.alloc(64).unwrap(), client.create(), client.create());
    client.qconnect(vqp, gid(node), 0).unwrap();
    client.qbind(bound, SLOW_PORT).unwrap();
    client.receive(bound, Sge { addr: own.start + PAGE, length: 64, lkey });
    // The node looks at what is registered, and what is registered is read.
    let access = AccessFlags::REMOTE_READ;
    let unseen = Command::RegisterMr { addr: own.start + PAGE, len: PAGE, access };
    let unseen = client.begin(&unseen);
    client.read(vqp, &region, 0, 4, RemoteAddr { addr: own.start + PAGE, rkey });
    eprintln!("asked");
    stay();
    own.fail();
    assert!(client.answer(unseen, |_| Some(())).is_err());
    for _ in 0..2 {
        assert_ne!(client.completion().status, WcStatus::Success);
    }
    eprintln!("waited in vain");
    stay();
}

/// The engine gave memory back itself, and waited for as long as its process held the lock of the file.
#[test]
fn who_holds_the_lock_of_its_memory_waits_for_it_alone() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let test = "hostile::client_that_holds_the_lock_of_its_memory";
    // It is on an account of its own.
    let by: &[&str] = if is_root() { &["unshare", "--mount", "--pid", "--fork"] } else { &["env"] };
    let place = directory.file("slow", "").display().to_string();
    let mut other = start_by(by, &directory, &daemon.socket, test, &place);
    let says = other.says();
    if says == "none" {
        return println!("skipped: nobody here may mount a file system");
    }
    assert_eq!(says, "asked");
    // The one region is none of its session's any more, and waits to be given back.
    let regions = || daemon.status().sessions.iter().map(|session| session.mrs).sum::<u32>();
    wait_for("a region to be given back", || (regions() == 1).then_some(()));
    other.goes();
    assert_eq!(other.says(), "held");
    Witness::new(&daemon).works();
    let mut client = Client::connect(&daemon.socket).unwrap();
    for bytes in [4_096, 1 << 20, 64 << 20] {
        let region = client.alloc(bytes).unwrap();
        client.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap();
    }
    drop(client);
    let held = || {
        let users = daemon.status().users;
        users.iter().find(|user| user.space != 0).map_or(0, |user| user.bytes)
    };
    // What it gave up counts until it has gone.
    assert_eq!(held(), 2 * 8_192);
    other.goes();
    assert_eq!(other.says(), "gone");
    wait_for("its memory to go", || (held() == 0).then_some(()));
    other.ends();
}

/// Not a test of its own: a process that writes from a page which does not come to memory that it gives back.
#[test]
fn client_that_holds_the_lock_of_its_memory() {
    const PAGE: u64 = 4_096;
    let Some(Role { socket, knows: place }) = role() else { return };
    let Some(own) = crate::common::stall::map(std::path::Path::new(&place)) else {
        return eprintln!("none");
    };
    let mut client = Client::connect(&socket).unwrap();
    let mut ending = Client::connect(&socket).unwrap();
    ending.alloc(8_192).unwrap();
    let (region, file, _): (Region, OwnedFd, u64) = client.alloc_file(8_192, false).unwrap();
    let page = own.start + PAGE;
    let holding = std::thread::spawn(move || {
        let page = std::ptr::with_exposed_provenance::<u8>(page as usize);
        // SAFETY: the page is mapped, if it comes, and nobody writes it.
        let bytes = unsafe { std::slice::from_raw_parts(page, 1) };
        assert!(rustix::io::pwrite(&file, bytes, 0).is_err());
    });
    wait_for("the page to be wanted", || own.is_wanted().then_some(()));
    // One session gives the memory back, and what another one had waits behind that.
    let gone = client.begin(&Command::DeregisterMr { lkey: region.lkey });
    eprintln!("asked");
    stay();
    drop(ending);
    eprintln!("held");
    stay();
    own.fail();
    holding.join().unwrap();
    client.answer(gone, |_| Some(())).unwrap();
    eprintln!("gone");
    stay();
}

/// Not a test of its own: a process that has memory registered of which a page never comes.
#[test]
fn client_with_a_page_that_never_comes() {
    const PAGE: u64 = 4_096;
    let Some(Role { socket, knows }) = role() else { return };
    let (node, place) = knows.split_once(' ').unwrap();
    let Some(own) = crate::common::stall::map(std::path::Path::new(place)) else {
        return eprintln!("none");
    };
    let mut client = Client::connect(&socket).unwrap();
    let command =
        Command::RegisterMr { addr: own.start, len: 3 * PAGE, access: AccessFlags::REMOTE_READ };
    let take = |answer: Answer<'_>| match answer {
        Answer::Mr { rkey, .. } => Some(rkey),
        _ => None,
    };
    let rkey = client.ask(&command, take).unwrap();
    let region = client.alloc(64).unwrap();
    eprintln!("registered");
    stay();
    let mut read = |page: u64| {
        let vqp = client.create();
        client.qconnect(vqp, gid(node), 0).unwrap();
        let remote = RemoteAddr { addr: own.start + page * PAGE, rkey };
        client.read(vqp, &region, 0, 4, remote);
        let status = client.completion().status;
        client.done(&Command::DestroyVqp { vqp }).unwrap();
        status
    };
    assert_eq!(read(0), WcStatus::Success);
    assert_ne!(read(1), WcStatus::Success);
    // From now on it does not come at once. While somebody waits for it this process may have to.
    own.fail();
    let refused = (0..20).filter(|_| read(1) != WcStatus::Success).count();
    eprintln!("refused {refused} times");
    assert_eq!((read(0), read(2)), (WcStatus::Success, WcStatus::Success));
    eprintln!("read");
    stay();
}
