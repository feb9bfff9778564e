//! A daemon whose engine hangs: what it says of itself, and what becomes of it.
//!
//! The hang is a real one: the engine's thread, and no other, is stopped as a debugger stops it, so
//! that it stands wherever it happens to be.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use crate::common::daemon::{Daemon, Directory, Witness, elverd, toml};
use crate::common::{PATIENCE, free_address, gid, wait_for};

/// A thread that stands still until this is dropped. It must be dropped by who made it.
struct Stopped(i32);

impl Stopped {
    /// Stops a thread of a process that this one started.
    fn new(thread: i32) -> Stopped {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests read and write no memory of ours.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
        }
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) }, thread);
        assert!(libc::WIFSTOPPED(status), "{status:x}");
        Stopped(thread)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: this request reads and writes no memory of ours. If the thread has ended it fails.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// The thread that keeps a node registered lives on while the engine hangs. It kept the node in the
/// table, and all who connected to it waited in vain.
#[test]
fn a_node_whose_engine_hangs_leaves_the_cluster_and_comes_back() {
    let directory = Directory::alone();
    let meta = Daemon::start(&directory, "meta", "serve = true\nttl_ms = 2000");
    let servers =
        format!("servers = [\"{}\"]\n[engine]\nspin_us = 20\nhang_ms = 0", meta.registry.unwrap());
    let config = toml(&free_address(), &directory.path.join("other.sock"), &servers);
    let config = directory.file("other.toml", &config.replace("engine.spin_us = 20\n", ""));
    let mut command = elverd();
    command.arg("--config").arg(config);
    let other = Daemon::run(command);
    other.registered(1);
    let mut witness = Witness::new(&meta);
    let vqp = witness.client.create();
    witness.client.qconnect(vqp, gid(&other.address), 0).unwrap();

    let expired = || meta.status().registry["expired"];
    assert_eq!(expired(), 0);
    let stopped = Stopped::new(other.pid());
    wait_for("the node to be taken for dead", || (expired() == 1).then_some(()));
    witness.works();
    drop(stopped);
    other.registered(1);
    let vqp = witness.client.create();
    wait_for("the node to be found again", || {
        witness.client.qconnect(vqp, gid(&other.address), 0).ok()
    });
    // An engine that merely sleeps is woken for its heartbeats: it is not taken for dead.
    assert_eq!(expired(), 1);
}

#[test]
fn a_daemon_whose_engine_hangs_says_where_and_ends() {
    let directory = Directory::alone();
    let told = UnixDatagram::bind(directory.path.join("notify")).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = toml(&free_address(), &directory.path.join("a.sock"), "[engine]\nhang_ms = 3000");
    let config = directory.file("a.toml", &config.replace("engine.spin_us = 20\n", ""));
    let mut command = elverd();
    command.arg("--config").arg(config).stderr(Stdio::piped());
    command.env("NOTIFY_SOCKET", directory.path.join("notify")).env("WATCHDOG_USEC", "200000");
    let mut daemon = Daemon::run(command);
    let heard = || {
        let mut bytes = [0; 64];
        let count = told.recv(&mut bytes).ok()?;
        Some(std::str::from_utf8(&bytes[..count]).unwrap().trim_end().to_string())
    };
    assert_eq!(heard().as_deref(), Some("READY=1"));
    for _ in 0..5 {
        assert_eq!(heard().as_deref(), Some("WATCHDOG=1"));
    }
    // Who says it is there already: what keeps the engine may keep the system from making a thread.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    // Names have fifteen characters.
    assert!(names.into_iter().any(|name| name.is_ok_and(|name| name == "elver-last-word\n")));
    let _stopped = Stopped::new(daemon.pid());
    // What it said before.
    told.set_nonblocking(true).unwrap();
    while heard().is_some() {}
    assert_eq!(daemon.ended().signal(), Some(libc::SIGABRT));
    let mut said = String::new();
    daemon.stderr().read_to_string(&mut said).unwrap();
    assert!(said.starts_with("elverd: the engine has made no round for 3000 ms; ending"), "{said}");
    assert!(said.contains("state t") && said.len() < 1_024, "{said}");
    // Once it hung its supervisor heard nothing more, but for what was on its way.
    let rest: Vec<String> = std::iter::from_fn(heard).collect();
    assert!(rest.iter().all(|one| one == "WATCHDOG=1"), "{rest:?}");
    assert!(rest.len() <= 3, "{rest:?}");
}

/// What the unit promises in docs/node.md.
#[test]
fn the_unit_restarts_the_daemon_and_keeps_it() {
    let unit = include_str!("../../../../contrib/systemd/elverd.service");
    for line in [
        "Type=notify",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "RestartPreventExitStatus=2",
        "WatchdogSec=30",
        "OOMScoreAdjust=-900",
    ] {
        assert!(unit.lines().any(|one| one == line), "{line}");
    }
}
