//! A daemon whose engine hangs: what it says of itself, and what becomes of it.
//!
//! The hang is a real one: the engine's thread, and no other, is stopped as a debugger stops it, so
//! that it stands wherever it happens to be.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use elver_node::config::Config;
use elver_node::{Node, Watchdog, Words};
use elver_testkit::allocations;

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

/// Stands wherever it is when the signal comes, until it is let go.
extern "C" fn stand(_: libc::c_int) {
    while IS_HELD.load(Ordering::Acquire) {
        // SAFETY: it gives up the core, and touches nothing.
        unsafe { libc::sched_yield() };
    }
}

/// What a watchdog's thread had allocated when it saw the engine turn, and since when it saw it hang; and where.
#[derive(Clone, Copy, Default)]
struct Seen {
    turned: Option<u64>,
    hung: Option<(u64, Words)>,
}

static IS_HELD: AtomicBool = AtomicBool::new(true);

/// What it said was put together in memory of the allocator's, whose lock the engine may hold.
#[test]
fn who_finds_that_an_engine_hangs_allocates_nothing_for_it() {
    let mut config = Config::default();
    config.node.address = free_address().parse().unwrap();
    let mut node = Node::embedded(config).unwrap();
    let seen = Arc::new((Mutex::new(Seen::default()), Condvar::new()));
    let (turned, hung) = (seen.clone(), seen.clone());
    let watchdog = Watchdog {
        hang: Duration::from_millis(400),
        every: None,
        turned: Box::new(move || {
            turned.0.lock().unwrap().turned = Some(allocations());
            turned.1.notify_all();
        }),
        hung: Box::new(move |place| {
            let mut seen = hung.0.lock().unwrap();
            seen.hung = seen.turned.map(|before| (allocations() - before, *place));
            hung.1.notify_all();
        }),
    };
    node.watch(watchdog).unwrap();
    let waits = |is_unseen: fn(&mut Seen) -> bool| {
        let guard = seen.0.lock().unwrap();
        *seen.1.wait_timeout_while(guard, PATIENCE, is_unseen).unwrap().0
    };
    let (tell, engine) = sync_channel(1);
    std::thread::spawn(move || {
        // SAFETY: the call has no argument and cannot fail.
        tell.send(unsafe { libc::pthread_self() }).unwrap();
        node.run(&AtomicBool::new(false))
    });
    let engine = engine.recv().unwrap();
    waits(|seen| seen.turned.is_none()).turned.unwrap();
    // SAFETY: all zeros are a valid `sigaction`; the handler makes system calls and reads an atomic alone, and the thread
    // runs until the program ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stand as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::pthread_kill(engine, libc::SIGUSR2), 0);
    }
    let seen = waits(|seen| seen.hung.is_none());
    IS_HELD.store(false, Ordering::Release);
    let (since, place) = seen.hung.unwrap();
    assert_eq!(since, 0, "{place}");
    assert!(place.as_str().starts_with("state "), "{place}");
    assert!(allocations() > 0, "the allocator of this program does not count");
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
