//! The built daemon where the system gives it little: limits, ports that are taken, places that it
//! may not write.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::daemon::{Daemon, Directory, Witness, clean, elverd, toml};
use crate::common::group::Group;
use crate::common::process::nobody;
use crate::common::{Client, PATIENCE, engine_counter, free_address, wait_for};
use elver_portal::{
    Answer, Class, Command as Ask, Layout, Message, RefusalCode, Socket, VqpOptions,
};
use elver_testkit::{copy, is_root};

/// The daemon behind a command of the shell's, which may limit it.
fn behind(shell: &str, config: &Path) -> Command {
    let mut command = clean(Command::new("bash"));
    command.args(["-c", &format!("{shell} && exec \"$0\" \"$@\"")]);
    command.args([env!("CARGO_BIN_EXE_elverd"), "--config"]).arg(config);
    command
}

fn config(directory: &Directory, more: &str) -> PathBuf {
    let text = toml(&free_address(), &directory.path.join("a.sock"), more);
    directory.file("a.toml", &text)
}

/// What a daemon that fails says, after it ended as it should.
#[track_caller]
fn failure(output: Output) -> String {
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("elverd: ") && text.lines().count() == 1, "{text}");
    text
}

#[test]
fn it_says_which_limit_is_too_low() {
    let directory = Directory::new();
    let config = config(&directory, "serve = true");
    for (limit, words) in [
        ("ulimit -n 20", &["20 files", "64", "LimitNOFILE="][..]),
        ("ulimit -f 0", &["File too large", "ulimit -f"]),
    ] {
        let text = failure(behind(limit, &config).output().unwrap());
        for word in words {
            assert!(text.contains(word), "{limit}: {text}");
        }
    }
    // Of root's own threads none is refused.
    if let Some(uid) = nobody() {
        let program = directory.path.join("elverd");
        copy(Path::new(env!("CARGO_BIN_EXE_elverd")), &program);
        let place = directory.path.join("nobody");
        std::fs::create_dir(&place).unwrap();
        std::os::unix::fs::chown(&place, Some(uid), None).unwrap();
        let text = toml(&free_address(), &place.join("a.sock"), "serve = true");
        let config = directory.file("nobody.toml", &text);
        let script = "ulimit -u 1 && exec \"$@\"";
        let mut command = clean(Command::new("setpriv"));
        command.args([&format!("--reuid={uid}"), "--clear-groups", "bash", "-c", script, "-"]);
        command.arg(&program).arg("--config").arg(&config).current_dir("/");
        let text = failure(command.output().unwrap());
        assert!(text.contains("ulimit -u"), "{text}");
    }
    // What failed leaves nothing but its lock.
    assert!(!directory.path.join("a.sock").exists());
    assert!(!directory.path.join("a.sock.status").exists());
}

#[test]
fn it_needs_no_locked_memory() {
    let directory = Directory::new();
    let daemon = Daemon::run(behind("ulimit -l 0", &config(&directory, "")));
    Witness::new(&daemon).works();
}

#[test]
fn it_says_what_is_taken_and_leaves_nothing() {
    let directory = Directory::new();
    let socket = directory.path.join("a.sock");
    let start = |text: &str| {
        let config = directory.file("a.toml", text);
        let text = failure(elverd().arg("--config").arg(config).output().unwrap());
        assert!(!socket.exists() && !directory.path.join("a.sock.status").exists(), "{text}");
        text
    };
    let address = free_address();
    let plain = toml(&address, &socket, "serve = true");
    let taken = UdpSocket::bind((&*address, 4_791)).unwrap();
    let text = start(&plain);
    assert!(text.contains(&format!("UDP {address}:4791")) && text.contains("in use"), "{text}");
    drop(taken);
    let taken = TcpListener::bind((&*address, 0)).unwrap();
    let there = taken.local_addr().unwrap().to_string();
    let text = start(&plain.replace("0.0.0.0:0", &there));
    assert!(text.contains(&there) && text.contains("set `meta.listen`"), "{text}");
    let text = start(&plain.replace("127.0.0.1:0", &there));
    assert!(text.contains(&there) && text.contains("set `metrics.listen`"), "{text}");
}

#[test]
fn it_says_where_it_cannot_put_its_socket() {
    let directory = Directory::new();
    let start = |socket: &Path| {
        let config = directory.file("a.toml", &toml(&free_address(), socket, ""));
        let text = failure(elverd().arg("--config").arg(config).output().unwrap());
        assert!(text.contains(&socket.display().to_string()), "{text}");
        assert!(text.contains("`socket.path`"), "{text}");
        text
    };
    // That one needs no start to be told.
    let long = toml(&free_address(), &directory.path.join("x".repeat(110)), "");
    let long = directory.file("long.toml", &long);
    let refused = elverd().args(["--check", "--config"]).arg(&long).output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && text.contains("too long"), "{text}");
    // The environment's word is looked at when it is used.
    let config = directory.file("a.toml", &toml(&free_address(), Path::new(""), ""));
    let mut named = elverd();
    named.env("ELVER_SOCKET", directory.path.join("x".repeat(110))).arg("--config").arg(config);
    assert!(failure(named.output().unwrap()).contains("too long"));
    assert!(start(&directory.file("file", "").join("a.sock")).contains("Not a directory"));
    let place = directory.path.join("directory.sock");
    std::fs::create_dir(&place).unwrap();
    assert!(start(&place).contains("Is a directory"));
    assert!(start(Path::new("/nowhere/at/all/a.sock")).contains("No such file"));
}

#[test]
fn it_says_that_it_may_not_write_there() {
    let Some(uid) = nobody() else {
        return println!("skipped: only root can run it as another user");
    };
    let directory = Directory::new();
    let program = directory.path.join("elverd");
    copy(Path::new(env!("CARGO_BIN_EXE_elverd")), &program);
    let place = directory.path.join("roots");
    std::fs::create_dir(&place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = directory.file("a.toml", &toml(&free_address(), &place.join("a.sock"), ""));
    let mut command = clean(Command::new("setpriv"));
    command.args([&format!("--reuid={uid}"), "--clear-groups"]).arg(&program).current_dir("/");
    let text = failure(command.arg("--config").arg(config).output().unwrap());
    assert!(text.contains("Permission denied") && text.contains("`socket.path`"), "{text}");
}

#[test]
fn without_descriptors_it_serves_whom_it_has_and_then_others() {
    const DESCRIPTORS: usize = 100;
    let directory = Directory::new();
    let limit = format!("ulimit -n {DESCRIPTORS}");
    let daemon = Daemon::run(behind(&limit, &config(&directory, "")));
    let mut witness = Witness::new(&daemon);
    let hello = Message::Hello { layout: Layout::default(), first: None };
    let crowd: Vec<Socket> = (0..DESCRIPTORS)
        .map(|_| {
            let socket = Socket::connect(&daemon.socket, PATIENCE).unwrap();
            socket.send(&hello, None).unwrap();
            socket
        })
        .collect();
    wait_for("the descriptors to be used up", || {
        witness.works();
        (daemon.descriptors() >= DESCRIPTORS - 2).then_some(())
    });
    for _ in 0..100 {
        witness.works();
    }
    drop(crowd);
    wait_for("room for another", || Client::connect(&daemon.socket).ok());
    let status = daemon.status();
    let refused = |name| engine_counter(&status, name);
    assert!(refused("accepts_failed") + refused("sessions_rejected") > 0, "{status:?}");
    witness.works();
}

#[test]
fn memory_that_its_container_has_not_is_refused() {
    const LIMIT: u64 = 256 << 20;
    let Some(group) = Group::new(LIMIT) else {
        return println!("skipped: no control group with a limit of memory can be made here");
    };
    let directory = Directory::new();
    let shell = format!("echo $$ >{}", group.0.join("cgroup.procs").display());
    let mut daemon = Daemon::run(behind(&shell, &config(&directory, "")));
    let mut witness = Witness::new(&daemon);
    let mut greedy = Client::connect(&daemon.socket).unwrap();
    let (code, text) = greedy.alloc(2 * LIMIT).err().unwrap();
    assert_eq!(code, RefusalCode::NoMemory, "{text}");
    assert!(text.contains("container has room for"), "{text}");
    // In small pieces it gets no more either.
    for len in [8 << 20, 256 << 10] {
        let mut regions = Vec::new();
        let refused = loop {
            assert!((regions.len() as u64) < LIMIT / len, "it got all");
            match greedy.alloc(len) {
                Ok(region) => regions.push(region),
                Err((code, _)) => break code,
            }
        };
        assert_eq!(refused, RefusalCode::NoMemory);
        assert!(regions.len() > 4, "it got {} of {len} bytes", regions.len());
        witness.works();
        drop(greedy);
        greedy = wait_for("room for another", || {
            let mut next = Client::connect(&daemon.socket).ok()?;
            next.alloc(64 << 20).ok()?;
            Some(next)
        });
        drop(greedy);
        // What that one had is given back by and by.
        greedy = wait_for("room for the next", || Client::connect(&daemon.socket).ok());
    }
    witness.works();
    assert_eq!(daemon.signal(rustix::process::Signal::TERM).code(), Some(0));
    assert!(is_root(), "nobody else makes groups");
}

#[test]
fn a_socket_that_systemd_passes_is_taken() {
    let has = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if !has("systemd-socket-activate") {
        return println!("skipped: there is no systemd-socket-activate");
    }
    let directory = Directory::new();
    let path = directory.path.join("passed.sock");
    let config = config(&directory, "");
    let mut command = clean(Command::new("systemd-socket-activate"));
    command.arg("--seqpacket").arg("--listen").arg(&path);
    command.arg(env!("CARGO_BIN_EXE_elverd")).arg("--config").arg(config);
    // It starts the daemon when somebody comes.
    let early = std::thread::spawn({
        let path = path.clone();
        move || wait_for("the socket", || Socket::connect(&path, PATIENCE).ok())
    });
    let daemon = Daemon::run(command);
    assert_eq!(daemon.socket, path);
    Client::over(early.join().unwrap()).unwrap().create();
    Witness::new(&daemon).works();
}

#[test]
fn what_is_passed_wrongly_is_told() {
    let directory = Directory::new();
    let config = config(&directory, "");
    let with = |variables: &str| {
        let shell = format!("exec 3</dev/null && export LISTEN_PID=$$ {variables}");
        failure(behind(&shell, &config).output().unwrap())
    };
    assert!(with("LISTEN_FDS=2").contains("LISTEN_FDS is 2, but elverd takes one socket"));
    assert!(with("LISTEN_FDS=x").contains("LISTEN_FDS is x"));
    assert!(with("").contains("without LISTEN_FDS"));
    let closed = "exec 3<&- && export LISTEN_PID=$$ LISTEN_FDS=1";
    let text = failure(behind(closed, &config).output().unwrap());
    assert!(text.contains("fd 3 is not a socket"), "{text}");
    // Meant for another process: it makes its own.
    let daemon = Daemon::run(behind("export LISTEN_PID=1 LISTEN_FDS=1", &config));
    assert_eq!(daemon.socket, directory.path.join("a.sock"));
}

/// Each option at the ends of what it may be: what the check takes, a node can be made with.
#[test]
fn what_is_checked_can_be_started() {
    let directory = Directory::new();
    for (number, (options, wrong)) in [
        ("pool.dc_qps = 1\nqos.high_dc_qps = 0", "pool.dc_qps = 0"),
        ("pool.dc_qps = 1024\npool.sq_depth = 512", "pool.dc_qps = 1025"),
        ("pool.sq_depth = 32", "pool.sq_depth = 31"),
        ("pool.sq_depth = 16384", "pool.sq_depth = 16385"),
        ("pool.max_peers = 2", "pool.max_peers = 1"),
        ("pool.max_peers = 1048576", "pool.max_peers = 1048577"),
        ("pool.max_vqps = 1\npool.max_vqp_wr = 1", "pool.max_vqps = 0"),
        ("pool.max_vqps = 1048576", "pool.max_vqps = 1048577"),
        ("memory.max_mrs = 1\nmemory.max_cached_mrs = 0", "memory.max_mrs = 0"),
        ("messages.recv_buffers = 1\nmessages.backlog = 0", "messages.recv_buffers = 0"),
        ("transfer.rc_qps_max = 800", "transfer.rc_qps_max = 100000"),
        ("transfer.leased_wrs_max = 990000", "transfer.leased_wrs_max = 4294967295"),
        ("storm.lookups_max = 65536\nstorm.handshakes_max = 65536", "storm.lookups_max = 0"),
        ("socket.command_slots = 32\nsocket.spare_sessions = 0", "socket.command_slots = 16"),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = directory.path.join(format!("{number}.sock"));
        let plain = format!(
            "node.address = \"{}\"\nsocket.path = \"{}\"\nmetrics.listen = \"\"\n",
            free_address(),
            socket.display()
        );
        let refused = directory.file("wrong.toml", &format!("{plain}{wrong}\n"));
        let checked = elverd().args(["--check", "--config"]).arg(refused).output().unwrap();
        assert_eq!(checked.status.code(), Some(2), "{wrong}: {checked:?}");
        let config = directory.file("right.toml", &format!("{plain}{options}\n"));
        let checked = elverd().args(["--check", "--config"]).arg(&config).output().unwrap();
        assert!(checked.status.success(), "{options}: {checked:?}");
        let mut command = elverd();
        command.arg("--config").arg(config);
        let mut daemon = Daemon::run(command);
        Client::connect(&daemon.socket).unwrap();
        assert_eq!(daemon.signal(rustix::process::Signal::TERM).code(), Some(0), "{options}");
    }
}

/// A process of another user's claims the high class: it has what the file gives its user, and not
/// what it says.
#[test]
fn the_high_class_is_for_whom_the_configuration_names() {
    let Some(uid) = nobody() else {
        return println!("skipped: only root can be another user");
    };
    let directory = Directory::new();
    let create = |name: &str, more: &str, class: Option<Class>| {
        let daemon = Daemon::start(&directory, name, &format!("serve = true\n{more}"));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // Of this thread alone; the socket tells of the one that connects.
                let uid = Some(rustix::fs::Uid::from_raw(uid));
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                let mut client = Client::connect(&daemon.socket).unwrap();
                let command = Ask::CreateVqp(VqpOptions { class, ..VqpOptions::default() });
                let vqp = client.ask(&command, |answer| match answer {
                    Answer::Vqp(vqp) => Some(vqp),
                    _ => None,
                })?;
                client.ask(&Ask::QueryVqp { vqp }, |answer| match answer {
                    Answer::Info(info) => Some(info.class),
                    _ => None,
                })
            });
            client.join().unwrap()
        })
    };
    let (code, text) = create("a", "", Some(Class::High)).unwrap_err();
    assert_eq!(code, RefusalCode::Permission);
    assert!(text.contains("`qos.high`") && text.contains("65534"), "{text}");
    assert_eq!(create("b", "", None), Ok(Class::Low));
    let may = "[qos]\nhigh = [\"65534\"]";
    assert_eq!(create("c", may, Some(Class::High)), Ok(Class::High));
    assert_eq!(create("d", may, None), Ok(Class::Low));
    let is = "[qos]\nhigh_by_default = [\"65534\"]";
    assert_eq!(create("e", is, None), Ok(Class::High));
    assert_eq!(create("f", is, Some(Class::Low)), Ok(Class::Low));
}
