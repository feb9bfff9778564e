//! Processes that mean no good, against the built daemon: floods, files, others' handles, other
//! namespaces, memory that is taken away.

mod common;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command as Program;

use common::daemon::{Daemon, Directory, Witness, clean, elverd, toml};
use common::process::{Process, is_root, nobody, role, stay};
use common::{Client, Region, engine_counter, free_address, gid, wait_for};
use elver_portal::{Answer, Command, Layout, Message, Received, RefusalCode, Socket, VqpOptions};
use elver_verbs::{AccessFlags, Memory, RemoteAddr, WcStatus};
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
    let mut flood = Process::start(&directory, &daemon.socket, "client_that_says_no_hello", "");
    // A user gets places for 4 sessions and 64 greetings, and is told nothing of those beyond.
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
    let Some((socket, _)) = role() else { return };
    let sockets: Vec<Socket> = (0..300).map(|_| Socket::connect(&socket).unwrap()).collect();
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
    let mut bytes = Message::Hello { layout: Layout::default() }.encode();
    // Behind the kind and a magic number.
    bytes[5] ^= 0x40;
    let socket = Socket::connect(&daemon.socket).unwrap();
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
    let mut taken = 0;
    while taken < posted || posted < POSTED {
        if posted < POSTED && lazy.try_read(vqp, &region, 8, 8, remote) {
            posted += 1;
        }
        if taken < posted {
            match lazy.completion().status {
                WcStatus::Success => {}
                WcStatus::LocQpOpErr => refused += 1,
                other => panic!("{other:?}"),
            }
            taken += 1;
        }
    }
    assert!(refused > 0 && refused < posted, "{refused} of {posted}");
    assert_eq!(counter(&daemon, "posts_refused"), refused);
    // It takes what it is told now, and is as good as others.
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
    let text = toml(&free_address(), &directory.0.join("a.sock"), "")
        .replace("engine.", "socket.spare_sessions = 0\nengine.");
    let mut command = elverd();
    command.arg("--config").arg(directory.file("a.toml", &text));
    let daemon = Daemon::run(command);
    let mut witness = Witness::new(&daemon);
    let before = daemon.descriptors();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let hello = Message::Hello { layout: Layout::default() };
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
                fresh = Socket::connect(&daemon.socket).unwrap();
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
    let config = toml(&free_address(), &directory.0.join("a.sock"), "");
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
    let mut other = Process::start(&directory, &daemon.socket, "client_that_has_a_session", "");
    assert_eq!(other.says(), "session");
    assert_eq!(daemon.status().sessions.len(), 2);
    drop(other);
    wait_for("the session to end", || (daemon.status().sessions.len() == 1).then_some(()));
    witness.works();
}

/// Not a test of its own: a process with a session and a VQP.
#[test]
fn client_that_has_a_session() {
    let Some((socket, _)) = role() else { return };
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
    let test = "client_that_tries_others_handles";
    let mut other = Process::start(&directory, &daemon.socket, test, &knows);
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
    let Some((socket, knows)) = role() else { return };
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
        let test = "client_that_takes_all";
        let mut greedy = Process::start(&directory, &daemon.socket, test, "");
        assert_eq!(greedy.says(), expected);
        assert!(counter(&daemon, "commands_refused") >= 2);
        witness.works();
        greedy.ends();
    }
}

/// Not a test of its own: a process that takes what it gets, and says why it got no more.
#[test]
fn client_that_takes_all() {
    let Some((socket, _)) = role() else { return };
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
    let directory = Directory::new();
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
    let test = "client_that_takes_its_memory_away";
    let mut other = Process::start(&directory, &daemon.socket, test, &daemon.address);
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
    let test = "client_that_takes_its_memory_away";
    let mut other = Process::start(&directory, &daemon.socket, test, &daemon.address);
    assert_eq!(other.says(), "small");
    assert_eq!(other.says(), "zeros");
    other.ends();
    witness.works();
}

/// Not a test of its own: a process that asks for huge pages, makes holes into what it gets, and
/// has the node read it, and write it.
#[test]
fn client_that_takes_its_memory_away() {
    let Some((socket, node)) = role() else { return };
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
    let test = "client_that_registers_its_memory";
    let mut other = Process::start(&directory, &daemon.socket, test, &daemon.address);
    assert_eq!(other.says(), "copied");
    other.ends();
}

/// Not a test of its own: a process whose own memory is copied, while it is there.
#[test]
fn client_that_registers_its_memory() {
    let Some((socket, node)) = role() else { return };
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
