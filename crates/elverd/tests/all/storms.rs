//! Crowds of processes that connect at once, through built daemons.

use std::time::{Duration, Instant};

use crate::common::daemon::{Daemon, Directory};
use crate::common::process::start;
use crate::common::{Client, PATIENCE, gid, wait_for};
use elver_portal::{Answer, Command, ConnectOptions, Policy, RefusalCode};
use elver_testkit::{Process, Role, role, stay};
use elver_verbs::{RemoteAddr, WcStatus};

/// Nobody of a crowd waits longer than this, or than so many times what the quickest do where all are slow; most wait a
/// thousandth of it.
const BOUND: Duration = Duration::from_secs(5);
const BOUND_TIMES: u32 = 20;

fn pair(directory: &Directory, more: &str) -> (Daemon, Daemon) {
    let meta = Daemon::start(directory, "a", "serve = true");
    let servers = format!("servers = [\"{}\"]\n{more}", meta.registry.unwrap());
    let node = Daemon::start(directory, "b", &servers);
    node.registered(1);
    (meta, node)
}

/// Lets processes that wait begin, all at once.
fn begin(crowd: Vec<Process>) -> Vec<Process> {
    crowd
        .into_iter()
        .map(|mut one| {
            one.goes();
            one
        })
        .collect()
}

#[test]
fn two_hundred_and_forty_processes_connect_at_once() {
    const PROCESSES: usize = 240;
    let directory = Directory::alone();
    let (meta, node) = pair(&directory, "");
    let mut there = Client::connect(&meta.socket).unwrap();
    let target = there.alloc(64).unwrap();
    let knows = format!("{} {} {}", meta.address, target.addr, target.rkey);
    for test in ["storms::client_that_connects", "storms::client_that_leases"] {
        let mut crowd: Vec<Process> =
            (0..PROCESSES).map(|_| start(&directory, &node.socket, test, &knows)).collect();
        for one in &mut crowd {
            assert_eq!(one.says(), "ready");
        }
        let mut waits: Vec<Duration> = begin(crowd)
            .iter_mut()
            .map(|one| Duration::from_micros(one.says().parse().unwrap()))
            .collect();
        waits.sort_unstable();
        assert_eq!(waits.len(), PROCESSES);
        // Of so many one may get no core for long.
        let bound = BOUND.max(BOUND_TIMES * waits[PROCESSES / 10]);
        assert!(waits[PROCESSES * 9 / 10] < bound, "{waits:?}");
        wait_for("all to be gone", || node.status().sessions.is_empty().then_some(()));
    }
    assert_eq!(node.status().core["device_faults"], 0);
}

/// Not a test of its own: a process that connects as if it was the first, and reads.
#[test]
fn client_that_connects() {
    connects(ConnectOptions { uncached: true, ..ConnectOptions::default() });
}

/// Not a test of its own: a process that makes and connects an RC QP of its own, and reads.
#[test]
fn client_that_leases() {
    connects(ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() });
}

fn connects(options: ConnectOptions) {
    let Some(Role { socket, knows }) = role() else { return };
    let words: Vec<&str> = knows.split(' ').collect();
    let remote = RemoteAddr { addr: words[1].parse().unwrap(), rkey: words[2].parse().unwrap() };
    let mut client = Client::connect(&socket).unwrap();
    let region = client.alloc(64).unwrap();
    let vqp = client.create();
    eprintln!("ready");
    stay();
    let begun = Instant::now();
    let connect = Command::Connect { vqp, gid: gid(words[0]), port: 0, options };
    let connected = |answer: Answer<'_>| matches!(answer, Answer::Connected(_)).then_some(());
    client.ask(&connect, connected).unwrap();
    client.read(vqp, &region, 0, 8, remote);
    assert_eq!(client.completion().status, WcStatus::Success);
    eprintln!("{}", begun.elapsed().as_micros());
}

#[test]
fn sixty_four_processes_connect_with_sixty_four() {
    const PROCESSES: usize = 64;
    let directory = Directory::alone();
    let (meta, node) = pair(&directory, "");
    let knows = format!("{} {}", meta.address, node.address);
    let mut crowd: Vec<Process> = (0..PROCESSES)
        .map(|number| {
            let daemon = if number % 2 == 0 { &meta } else { &node };
            let knows = format!("{knows} {number} {PROCESSES}");
            start(&directory, &daemon.socket, "storms::client_of_a_mesh", &knows)
        })
        .collect();
    for one in &mut crowd {
        assert_eq!(one.says(), "bound");
    }
    let mut crowd = begin(crowd);
    for one in &mut crowd {
        one.says();
    }
    // While all of them hold what they have: each has connected with each, itself included.
    let held = |daemon: &Daemon| daemon.status().core["vqps"];
    let expected = (PROCESSES * (PROCESSES + 1)) as u64;
    assert_eq!(held(&meta) + held(&node), expected);
    drop(crowd);
    wait_for("all to be gone", || (held(&meta) + held(&node) == 0).then_some(()));
}

/// Not a test of its own: one of a mesh. It is bound, and connects with all.
#[test]
fn client_of_a_mesh() {
    let Some(Role { socket, knows }) = role() else { return };
    let words: Vec<&str> = knows.split(' ').collect();
    let number: u16 = words[2].parse().unwrap();
    let count: u16 = words[3].parse().unwrap();
    let mut client = Client::connect(&socket).unwrap();
    let bound = client.create();
    client.qbind(bound, 100 + number).unwrap();
    let vqps: Vec<u32> = (0..count).map(|_| client.create()).collect();
    eprintln!("bound");
    stay();
    let begun = Instant::now();
    let options = ConnectOptions::default();
    let requests: Vec<u32> = vqps
        .iter()
        .zip(0..count)
        .map(|(&vqp, other)| {
            let gid = gid(words[usize::from(other % 2)]);
            client.begin(&Command::Connect { vqp, gid, port: 100 + other, options })
        })
        .collect();
    // Who is known is there before who must be looked up.
    for (request, outcome) in client.outcomes(requests.len()) {
        assert!(requests.contains(&request));
        outcome.unwrap();
    }
    eprintln!("{}", begun.elapsed().as_micros());
    std::thread::park_timeout(PATIENCE);
}

#[test]
fn more_connects_than_may_wait_are_told_to_come_back() {
    let directory = Directory::alone();
    let storm = "[storm]\nlookups_max = 1\nconnects_waiting_max = 4";
    let (meta, node) = pair(&directory, storm);
    let mut client = Client::connect(&node.socket).unwrap();
    let vqps: Vec<u32> = (0..100).map(|_| client.create()).collect();
    let options = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    let connect = |vqp| Command::Connect { vqp, gid: gid(&meta.address), port: 0, options };
    let requests: Vec<(u32, u32)> =
        vqps.into_iter().map(|vqp| (client.begin(&connect(vqp)), vqp)).collect();
    let mut turned_away = Vec::new();
    for (request, outcome) in client.outcomes(requests.len()) {
        let Err((code, text)) = outcome else { continue };
        assert_eq!(code, RefusalCode::Busy, "{text}");
        assert!(text.contains("try again later"), "{text}");
        turned_away.extend(requests.iter().find(|(of, _)| *of == request).map(|(_, vqp)| *vqp));
    }
    let connected = |answer: Answer<'_>| matches!(answer, Answer::Connected(_)).then_some(());
    assert_eq!(node.status().core["connects_busy"], turned_away.len() as u64);
    assert!(!turned_away.is_empty() && turned_away.len() < 100, "{}", turned_away.len());
    for vqp in turned_away {
        client.ask(&connect(vqp), connected).unwrap();
    }
}
