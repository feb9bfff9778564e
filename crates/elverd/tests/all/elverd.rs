//! The built daemon: its arguments, its sockets, its life and its clients' deaths.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::common::daemon::{Daemon, Directory, clean, elverd, toml};
use crate::common::process::nobody;
use crate::common::{Client, PATIENCE, engine_counter, free_address, gid, wait_for};
use elver_portal::{RefusalCode, Via};
use elver_testkit::copy;
use elver_verbs::{Memory, RemoteAddr, WcStatus};
use rustix::process::Signal;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn output(arguments: &[&str]) -> Output {
    elverd().args(arguments).output().unwrap()
}

#[test]
fn it_explains_itself() {
    let help = output(&["--help"]);
    assert!(help.status.success());
    for word in ["--config", "--check", "--print-config", "ELVER_SOCKET", "SIGTERM"] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
    let printed = output(&["--print-config"]);
    assert!(printed.status.success());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/elverd.toml");
    assert_eq!(text(&printed.stdout), std::fs::read_to_string(file).unwrap());
    assert_eq!(output(&["--unknown"]).status.code(), Some(2));
}

#[test]
fn it_prints_its_manual_and_completions() {
    let page = output(&["man"]);
    assert!(page.status.success(), "{page:?}");
    let page = text(&page.stdout).replace("\\-", "-");
    for part in
        [".TH elverd 8", "--print-config", "ELVER_SOCKET", "completions", "max_accepted = 12288"]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("elverd-"), "there is one page alone: {page}");
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        assert!(script.status.success() && text(&script.stdout).contains("print-config"));
    }
    // No shell, and nothing that a daemon does at once.
    for wrong in [&["completions", "cmd"][..], &["--check", "man"], &["women"]] {
        assert_eq!(output(wrong).status.code(), Some(2), "{wrong:?}");
    }
    // A reader may have enough, as with `elverd man | head`.
    for arguments in [&["man"][..], &["completions", "bash"], &["--print-config"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = elverd().args(arguments).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn it_checks_configurations() {
    let directory = Directory::new();
    let check = |name: &str, content: &str| {
        let file = directory.file(name, content);
        output(&["--check", "--config", file.to_str().unwrap()])
    };
    let good = check("good.toml", "[engine]\nspin_us = 1\n");
    assert!(good.status.success(), "{good:?}");
    assert!(text(&good.stdout).contains("good.toml is good"));
    for (content, word) in [
        ("[engine]\nspinn_us = 1\n", "spinn_us"),
        ("[pool]\ndc_qps = 0\n", "pool.dc_qps"),
        ("not toml", "line 1"),
    ] {
        let bad = check("bad.toml", content);
        assert_eq!(bad.status.code(), Some(2), "{bad:?}");
        assert!(text(&bad.stderr).contains(word), "{bad:?}");
        // Without --check too.
        let file = directory.path.join("bad.toml");
        assert_eq!(output(&["--config", file.to_str().unwrap()]).status.code(), Some(2));
    }
    let none = output(&["--config", "/nowhere/elverd.toml"]);
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn an_address_that_is_none_of_this_hosts_is_refused() {
    let directory = Directory::new();
    let socket = directory.path.join("a.sock");
    let config = directory.file("a.toml", &toml("203.0.113.9", &socket, ""));
    let failed = elverd().arg("--config").arg(config).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("203.0.113.9"), "{failed:?}");
}

#[test]
fn it_serves_tells_how_it_is_and_ends_at_a_signal() {
    let directory = Directory::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&directory, "a", "serve = true");
        daemon.registered(1);
        let mut client = Client::connect(&daemon.socket).unwrap();
        let vqp = client.create();
        client.qconnect(vqp, gid(&daemon.address), 0).unwrap();
        let status = daemon.status();
        assert_eq!(status.address.map(|ip| ip.to_string()), Some(daemon.address.clone()));
        assert_eq!(status.sessions[0].pid, std::process::id() as i32);
        assert_eq!((status.vqps.len(), status.vqps[0].state.as_str()), (1, "connected"));
        assert_eq!(engine_counter(&status, "sessions_opened"), 1);

        let metrics = daemon.http("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        for line in
            ["elver_sessions 1\n", "elver_vqps 1\n", "elver_engine_sessions_opened_total 1\n"]
        {
            assert!(metrics.contains(line), "{line:?} in {metrics}");
        }
        // A browser asks so for a page whose owner points its name here.
        let misled = daemon.http("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(misled.starts_with("HTTP/1.1 421 "), "{misled}");
        assert!(daemon.http("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(daemon.http("PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));

        assert_eq!(daemon.signal(signal).code(), Some(0));
        client.ended();
        assert!(!daemon.socket.exists());
    }
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let other = toml(&free_address(), &daemon.socket, "");
    let config = directory.file("b.toml", &other);
    let refused = elverd().arg("--config").arg(config).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("another elverd serves"), "{refused:?}");
    Client::connect(&daemon.socket).unwrap();
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    let directory = Directory::new();
    let open = directory.path.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let config = directory.file("a.toml", &toml(&free_address(), &open.join("a.sock"), ""));
    let refused = elverd().arg("--config").arg(config).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("only this user or root"), "{refused:?}");
}

#[test]
fn the_environment_names_the_socket() {
    let directory = Directory::new();
    let config = toml(&free_address(), &directory.path.join("a.sock"), "");
    let config = directory.file("a.toml", &config);
    let named = directory.path.join("named.sock");
    let mut command = elverd();
    command.arg("--config").arg(config).env("ELVER_SOCKET", &named);
    let daemon = Daemon::run(command);
    assert_eq!(daemon.socket, named);
    Client::connect(&named).unwrap();
}

/// A path may be of this directory.
#[test]
fn a_socket_may_be_where_the_daemon_is_started() {
    let directory = Directory::new();
    let config = directory.file("a.toml", &toml(&free_address(), Path::new(""), ""));
    let mut command = elverd();
    command
        .arg("--config")
        .arg(&config)
        .env("ELVER_SOCKET", "here.sock")
        .current_dir(&directory.path);
    let daemon = Daemon::run(command);
    assert_eq!(daemon.socket, Path::new("here.sock"));
    Client::connect(&directory.path.join("here.sock")).unwrap();
    let mut command = elverd();
    command
        .arg("--config")
        .arg(config)
        .env("ELVER_SOCKET", "nowhere/deep/here.sock")
        .current_dir(&directory.path);
    let output = command.output().unwrap();
    let said = text(&output.stderr).to_string();
    assert!(
        said.contains("cannot listen at nowhere/deep/here.sock")
            && said.contains("set `ELVER_SOCKET`"),
        "{said}"
    );
}

/// Without a path, an ordinary user's daemon serves below that user's runtime directory.
#[test]
fn a_users_daemon_is_in_its_runtime_directory() {
    let directory = Directory::new();
    let runtime = directory.path.join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let text = toml(&free_address(), Path::new(""), "");
    let config = directory.file("a.toml", &text);
    let program = directory.path.join("elverd");
    copy(Path::new(env!("CARGO_BIN_EXE_elverd")), &program);
    let mut command = match nobody() {
        Some(uid) => {
            std::os::unix::fs::chown(&runtime, Some(uid), None).unwrap();
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={uid}"), "--clear-groups"]).arg(&program);
            clean(command)
        }
        None => clean(Command::new(&program)),
    };
    command.arg("--config").arg(config).env("XDG_RUNTIME_DIR", &runtime).current_dir("/");
    let mut daemon = Daemon::run(command);
    assert_eq!(daemon.socket, runtime.join("elver/elverd.sock"));
    Client::connect(&daemon.socket).unwrap().create();
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
    assert!(!daemon.socket.exists());
}

#[test]
fn it_takes_a_socket_and_tells_its_starter() {
    let directory = Directory::new();
    let path = directory.path.join("passed.sock");
    let listener = elver_portal::Listener::bind(&path).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let told = UnixDatagram::bind(directory.path.join("notify")).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();

    let config = toml(&free_address(), &directory.path.join("unused.sock"), "");
    let config = directory.file("a.toml", &config);
    // The process that becomes the daemon must know its own number.
    let number = std::os::fd::AsFd::as_fd(&listener).as_raw_fd();
    let script = format!("exec 3<&{number} && LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"");
    let mut command = clean(Command::new("bash"));
    command.args(["-c", &script, env!("CARGO_BIN_EXE_elverd"), "--config"]).arg(config);
    command.env("NOTIFY_SOCKET", directory.path.join("notify"));
    // A process that came before the daemon waits for it.
    let early = elver_portal::Socket::connect(&path, PATIENCE).unwrap();
    let mut daemon = Daemon::run(command);
    assert_eq!(daemon.socket, path);
    let mut bytes = [0; 64];
    let mut heard = || {
        let count = told.recv(&mut bytes).unwrap();
        text(&bytes[..count]).trim_end().to_string()
    };
    assert_eq!(heard(), "READY=1");
    let mut client = Client::over(early).unwrap();
    client.create();
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
    assert_eq!(heard(), "STOPPING=1");
    assert!(path.exists(), "the socket is its maker's");
}

#[test]
fn a_socket_of_another_kind_is_refused() {
    let directory = Directory::new();
    let config =
        directory.file("a.toml", &toml(&free_address(), &directory.path.join("a.sock"), ""));
    let script = "exec 3</dev/null && LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = clean(Command::new("bash"));
    command.args(["-c", script, env!("CARGO_BIN_EXE_elverd"), "--config"]).arg(config);
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn daemons_find_each_other_and_notice_a_death() {
    let directory = Directory::new();
    let first = Daemon::start(&directory, "a", "serve = true\nttl_ms = 1500");
    let servers = format!("servers = [\"{}\"]", first.registry.unwrap());
    let mut second = Daemon::start(&directory, "b", &servers);
    let third = Daemon::start(&directory, "c", &servers);
    for daemon in [&first, &second, &third] {
        daemon.registered(1);
    }
    let mut there = Client::connect(&second.socket).unwrap();
    let target = there.alloc(64).unwrap();
    target.memory.write(0, b"far away").unwrap();
    let mut here = Client::connect(&third.socket).unwrap();
    let region = here.alloc(64).unwrap();
    let vqp = here.create();
    here.qconnect(vqp, gid(&second.address), 0).unwrap();
    here.read(vqp, &region, 0, 8, RemoteAddr { addr: target.addr, rkey: target.rkey });
    assert_eq!(here.completion().status, WcStatus::Success);
    let mut bytes = [0; 8];
    region.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"far away");

    second.signal(Signal::KILL);
    let other = here.create();
    wait_for("the dead node to be forgotten", || {
        let refused = here.qconnect(other, gid(&second.address), 0);
        matches!(refused, Err((RefusalCode::NoSuchNode, _))).then_some(())
    });
    here.qconnect(other, gid(&first.address), 0).unwrap();
}

/// A node comes back with other metadata: who has the old in its cache notices, and reads what is
/// there now.
#[test]
fn a_node_that_comes_back_is_reached_anew() {
    let directory = Directory::new();
    let meta = Daemon::start(&directory, "a", "serve = true");
    let servers = format!("servers = [\"{}\"]", meta.registry.unwrap());
    let (address, socket) = (free_address(), directory.path.join("b.sock"));
    let config = directory.file("b.toml", &toml(&address, &socket, &servers));
    let start = || {
        let mut command = elverd();
        command.arg("--config").arg(&config);
        let daemon = Daemon::run(command);
        daemon.registered(1);
        daemon
    };
    let third = Daemon::start(&directory, "c", &servers);
    third.registered(1);
    let mut here = Client::connect(&third.socket).unwrap();
    let region = here.alloc(64).unwrap();
    for (life, signal) in [Signal::KILL, Signal::TERM, Signal::KILL].into_iter().enumerate() {
        let mut second = start();
        let mut there = Client::connect(&second.socket).unwrap();
        let target = there.alloc(64).unwrap();
        target.memory.write_u64(0, life as u64 + 1).unwrap();
        // The news of the change, or its absence, may come before or after.
        let vqp = wait_for("a connection that works", || {
            let vqp = here.create();
            here.qconnect(vqp, gid(&address), 0).ok()?;
            here.read(vqp, &region, 0, 8, RemoteAddr { addr: target.addr, rkey: target.rkey });
            let works = here.completion().status == WcStatus::Success;
            works.then_some(vqp)
        });
        assert_eq!(region.memory.read_u64(0), Ok(life as u64 + 1));
        // From the cache now.
        let other = here.create();
        assert_eq!(here.qconnect(other, gid(&address), 0), Ok(Via::DcCached));
        second.signal(signal);
        // What was in flight ends, and nothing is left to wait for.
        here.read(vqp, &region, 0, 8, RemoteAddr { addr: target.addr, rkey: target.rkey });
        assert_ne!(here.completion().status, WcStatus::Success);
    }
}

#[test]
fn nodes_find_each_other_while_one_of_two_meta_servers_lives() {
    let directory = Directory::new();
    let mut first = Daemon::start(&directory, "a", "serve = true");
    let second = Daemon::start(&directory, "b", "serve = true");
    let both =
        format!("servers = [\"{}\", \"{}\"]", first.registry.unwrap(), second.registry.unwrap());
    let third = Daemon::start(&directory, "c", &both);
    let fourth = Daemon::start(&directory, "d", &both);
    for daemon in [&third, &fourth] {
        daemon.registered(2);
        wait_for("both meta servers", || (daemon.status().meta_servers.len() == 2).then_some(()));
    }
    first.signal(Signal::KILL);
    let mut client = Client::connect(&third.socket).unwrap();
    let vqp = client.create();
    // The first look-up may still go to the dead one, and to the other when it does not answer. If that one has no core
    // for so long, it is asked again.
    let mut finds = |address| {
        wait_for("an answer of the other", || client.qconnect(vqp, gid(address), 0).ok());
    };
    finds(&fourth.address);
    third.registered(1);
    let last = Daemon::start(&directory, "e", &both);
    last.registered(1);
    finds(&last.address);
}

#[test]
fn a_users_quota_holds_for_all_its_processes() {
    let directory = Directory::new();
    let quota = "[quota]\nsessions = 2\nvqps = 3\nbytes = 100000";
    let daemon = Daemon::start(&directory, "a", quota);
    // Root has no quota: then the processes are nobody's.
    let uid = Some(65_534).filter(|_| rustix::process::geteuid().is_root());
    // Where the tests were built nobody may have no business.
    let program = directory.path.join("client");
    copy(&std::env::current_exe().unwrap(), &program);
    let mut children = Vec::new();
    let mut spawn = || {
        let mut command = Command::new(&program);
        command
            .args(["--exact", "elverd::client_that_takes_all_it_gets", "--nocapture"])
            .current_dir("/")
            .env(CLIENT_OF, &daemon.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        children.push(child);
        line.trim().to_string()
    };
    assert_eq!(spawn(), "3 VQPs, 1 regions");
    assert_eq!(spawn(), "0 VQPs, 0 regions");
    let refused = spawn();
    assert!(refused.contains("`quota.sessions`"), "{refused}");
    // Another user is not concerned; this one is, where it is the same.
    if uid.is_some() {
        Client::connect(&daemon.socket).unwrap().create();
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    wait_for("the quota to be free", || daemon.status().users.is_empty().then_some(()));
}

#[test]
fn a_session_ends_with_its_process_though_a_child_holds_its_socket() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "elverd::client_that_leaves_its_socket_to_a_child", "--nocapture"])
        .env(CLIENT_OF, &daemon.socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Its own child lives as long as this.
    let stdin = child.stdin.take();
    wait_for("the client", || (engine_counter(&daemon.status(), "commands") > 0).then_some(()));
    assert!(child.wait().unwrap().success());
    wait_for("the session to end", || daemon.status().users.is_empty().then_some(()));
    assert_eq!(engine_counter(&daemon.status(), "sessions_closed"), 1);
    drop(stdin);
}

/// Not a test of its own: a process that ends and leaves a child with its socket, which lives until
/// their standard input ends.
#[test]
#[expect(clippy::zombie_processes, reason = "the child is to live longer")]
fn client_that_leaves_its_socket_to_a_child() {
    let Some(socket) = std::env::var_os(CLIENT_OF) else { return };
    let mut client = Client::connect(Path::new(&socket)).unwrap();
    client.create();
    rustix::io::fcntl_setfd(&client.socket, rustix::io::FdFlags::empty()).unwrap();
    Command::new("cat").stdout(Stdio::null()).spawn().unwrap();
}

/// Not a test of its own: a process that takes what it gets, tells how much that is, and holds it
/// until its standard input ends.
#[test]
fn client_that_takes_all_it_gets() {
    let Some(socket) = std::env::var_os(CLIENT_OF) else { return };
    let mut client = match Client::connect(Path::new(&socket)) {
        Ok(client) => client,
        Err(text) => return eprintln!("{text}"),
    };
    let mut vqps = 0;
    while client.try_create().is_ok() {
        vqps += 1;
    }
    let mut regions = Vec::new();
    while let Ok(region) = client.alloc(60_000) {
        regions.push(region);
    }
    eprintln!("{vqps} VQPs, {} regions", regions.len());
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn clients_hear_of_a_daemons_death_and_come_back_to_the_next() {
    let directory = Directory::new();
    let (address, socket) = (free_address(), directory.path.join("a.sock"));
    let config = directory.file("a.toml", &toml(&address, &socket, "serve = true"));
    let start = || {
        let mut command = elverd();
        command.arg("--config").arg(&config);
        Daemon::run(command)
    };
    let mut daemon = start();
    let mut client = Client::connect(&socket).unwrap();
    client.create();
    daemon.signal(Signal::KILL);
    client.ended();
    // The dead one left its socket.
    assert!(socket.exists());
    let _daemon = start();
    let mut client = Client::connect(&socket).unwrap();
    let vqp = client.create();
    client.qconnect(vqp, gid(&address), 0).unwrap();
}

/// Name of the variable that makes this program a client of the daemon there.
const CLIENT_OF: &str = "ELVERD_TEST_CLIENT_OF";

/// Not a test of its own: what a process does that is killed in the midst of it. It says a word
/// before each step.
#[test]
fn client_that_is_killed() {
    let Some(socket) = std::env::var_os(CLIENT_OF) else { return };
    let say = |word: &str| eprintln!("{word}");
    say("begin");
    let mut client = Client::connect(Path::new(&socket)).unwrap();
    say("session");
    let region = client.alloc(1 << 20).unwrap();
    say("region");
    let own = client.welcome.gid;
    let vqp = client.create();
    say("vqp");
    client.qconnect(vqp, own, 0).unwrap();
    say("connected");
    let bound = client.create();
    client.qbind(bound, 77).unwrap();
    say("bound");
    let limit = Instant::now() + PATIENCE;
    let remote = RemoteAddr { addr: region.addr, rkey: region.rkey };
    while Instant::now() < limit {
        client.read(vqp, &region, 4_096, 512, remote);
        client.completion();
        say("posted");
    }
}

#[test]
fn a_client_killed_at_any_step_leaves_nothing() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Client::connect(&daemon.socket).unwrap();
    let region = witness.alloc(64).unwrap();
    let vqp = witness.create();
    witness.qconnect(vqp, gid(&daemon.address), 0).unwrap();
    for words in 1..=12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "elverd::client_that_is_killed", "--nocapture"])
            .env(CLIENT_OF, &daemon.socket)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in 0..words {
            lines.next().unwrap().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Another notices nothing.
        witness.read(vqp, &region, 0, 8, RemoteAddr { addr: region.addr, rkey: region.rkey });
        assert_eq!(witness.completion().status, WcStatus::Success);
        wait_for("what it had to go", || {
            let status = daemon.status();
            let vqps = status.vqps_total + status.vqps_going;
            let left = (status.sessions.len(), vqps, status.core["mrs"]);
            (left == (1, 1, 1)).then_some(())
        });
    }
    // Port 77 is free each time, and no violation was seen.
    let status = daemon.status();
    let violations = status.engine.iter().filter(|(name, _)| name.starts_with("violations"));
    assert_eq!(violations.map(|(_, count)| count).sum::<u64>(), 0);
    assert_eq!(witness.qbind(vqp, 77).map_err(|(code, _)| code), Ok(77));
}
