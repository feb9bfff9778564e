//! Peers that are killed: their other ends hear it, whether they sleep, look or send, after all that was
//! told before.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{PLACE, TestNode, WAIT, config, session_at};
use elver::{Gid, Policy, Session};
use elver_ring::{Carrier, Config, Ends, Error, Listener, ListenerOptions, Options, connect};
use elver_testkit::{Launch, Process, Role, hears_within_a_second, impatient, patient, role, stay};

/// Of the cluster of which a host dies.
const GROUP: u8 = 12;

/// Connects by a policy, sends one message and a part of a batch, and does nothing more.
fn linger(session: &Session, gid: Gid, knows: &str) {
    let (port, policy) = knows.split_once(' ').unwrap();
    let policy = Policy::from_code(policy.parse().unwrap()).unwrap();
    // So that the first one is told, and of the others their slots are there.
    let config = Config { alpha: 8, beta: 2, ..Config::default() };
    let options = Options { policy, ..Options::both(config) };
    let mut ends = connect(session, gid, port.parse().unwrap(), options, WAIT).unwrap();
    ends.sender.send(b"told", WAIT).unwrap();
    ends.sender.flush().unwrap();
    while ends.sender.carrier().advances() == 0 {
        ends.sender.poll().unwrap();
    }
    (0..5).for_each(|_| ends.sender.send(b"not told", WAIT).unwrap());
    eprintln!("ready");
    stay();
}

/// Not a test of its own: a peer.
#[test]
fn process_that_is_a_peer() {
    let Some(Role { socket, knows }) = role() else { return };
    let session = Session::connect(socket).unwrap();
    linger(&session, session.gid(), &knows);
}

/// Not a test of its own: a peer with a node of its own, which dies with it, as a host does.
#[test]
fn process_that_is_a_host() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = PLACE.member(GROUP, 3, impatient);
    let session = session_at(&node);
    // Nobody does it when this is killed.
    std::fs::remove_file(&node.path).unwrap();
    linger(&session, PLACE.address(GROUP, 1).into(), &knows);
}

/// A process that runs one of these tests, when it is ready.
fn ready(test: &str, node: &TestNode, port: u16, policy: Policy) -> Process {
    let test = format!("deaths::{test}");
    let knows = format!("{port} {}", policy.code());
    let mut process = Launch::new(&test, &node.path).knows(knows).start();
    assert_eq!(process.says(), "ready");
    process
}

/// Reads what was told, kills the peer, and hears of it; after which time. Both ends go by a policy.
fn hears(
    node: &TestNode,
    peer: &str,
    policy: Policy,
    hear: fn(&mut Ends) -> Result<(), Error>,
) -> Duration {
    let session = session_at(node);
    let options = ListenerOptions { policy, ..ListenerOptions::default() };
    let listener = Listener::bind(&session, 0, options).unwrap();
    let port = listener.port();
    let (mut ends, process) = std::thread::scope(|scope| {
        let process = scope.spawn(|| ready(peer, node, port, policy));
        (listener.accept(WAIT).unwrap(), process.join().unwrap())
    });
    process.kill();
    let killed = Instant::now();
    // What was told before counts, and the part of a batch behind it does not.
    assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"told");
    let gone = hear(&mut ends).unwrap_err();
    let took = killed.elapsed();
    println!("heard after {took:?}: {gone}");
    assert!(matches!(gone, Error::Carrier(_)), "{gone}");
    assert!(ends.receiver.try_recv().is_err() && ends.sender.poll().is_err(), "it stays so");
    assert_eq!(ends.receiver.counters().messages, 1);
    // What is left to be told of the two ends no wait again and again: neither while the end is there and has told why, nor
    // when it has gone.
    while told(&session) > 0 {
        assert!(ends.sender.poll().is_err(), "it stays so");
        assert!(Some(killed.elapsed()) < WAIT, "something is told again and again");
    }
    drop(ends);
    assert_eq!([told(&session), told(&session)], [0, 0], "{policy:?}");
    took
}

/// How much of a session's has something, as long as a short wait lasts.
fn told(session: &Session) -> usize {
    match session.wait_ready(Some(Duration::from_millis(20))) {
        Ok(ready) => ready.len(),
        Err(elver::Error::TimedOut) => 0,
        Err(error) => panic!("{error}"),
    }
}

fn sleeps(ends: &mut Ends) -> Result<(), Error> {
    ends.receiver.recv(WAIT).map(|message| assert!(message.is_none(), "nothing was told"))
}

fn polls(ends: &mut Ends) -> Result<(), Error> {
    loop {
        assert!(ends.receiver.try_recv()?.is_none(), "nothing was told");
    }
}

fn sends(ends: &mut Ends) -> Result<(), Error> {
    loop {
        ends.sender.send(b"into the void", WAIT)?;
    }
}

#[test]
fn a_process_that_is_killed_is_missed() {
    let node = TestNode::start(config(11, 1));
    for hear in [sleeps, polls, sends] {
        for policy in [Policy::Shared, Policy::Leased] {
            hears_within_a_second(|| hears(&node, "process_that_is_a_peer", policy, hear));
        }
    }
}

/// Nobody is there to tell of it: who waits, and who looks, finds out by asking now and then.
#[test]
fn a_host_that_dies_is_missed() {
    let (meta, _other) = PLACE.cluster(GROUP, impatient);
    for hear in [sleeps as fn(&mut Ends) -> _, polls, sends] {
        for policy in [Policy::Shared, Policy::Leased] {
            hears_within_a_second(|| hears(&meta, "process_that_is_a_host", policy, hear));
        }
    }
}

/// Connects and says one thing, which has arrived.
fn tells(session: &Session, gid: Gid, port: u16) -> Ends {
    let mut ends = connect(session, gid, port, Options::default(), WAIT).unwrap();
    ends.sender.send(b"told", WAIT).unwrap();
    ends.sender.flush().unwrap();
    while ends.sender.carrier().advances() == 0 {
        ends.sender.poll().unwrap();
    }
    ends
}

/// Connects at another node to a listener, and says one thing; both ends go on when it has arrived, each on its thread.
fn told_to(
    listener: &Listener,
    (gid, path): (Gid, &Path),
    connected: impl FnOnce(Ends) + Send,
    accepted: impl FnOnce(Ends),
) {
    let port = listener.port();
    let (tell, is_told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let ends = tells(&Session::connect(path).unwrap(), gid, port);
            tell.send(()).unwrap();
            connected(ends);
        });
        let ends = listener.accept(WAIT).unwrap();
        is_told.recv().unwrap();
        accepted(ends);
    });
}

/// Rings between processes that write each other's memory themselves need no node for their data.
#[test]
fn the_end_of_the_node_of_both_ends_is_heard_by_both() {
    let hears = |ends: &mut Ends, hear: fn(&mut Ends) -> Result<(), Error>| {
        let gone = hear(ends).unwrap_err();
        assert!(matches!(gone, Error::Carrier(elver::Error::NodeGone)), "{gone}");
    };
    for is_direct in [true, false] {
        for hear in [sleeps as fn(&mut Ends) -> _, polls, sends] {
            let mut config = config(98, 1);
            config.direct.enabled = is_direct;
            let node = TestNode::start(config);
            let session = session_at(&node);
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            let (gid, path) = (node.gid, node.path.clone());
            let connected = |mut ends| hears(&mut ends, hear);
            told_to(&listener, (gid, &path), connected, |mut ends| {
                assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"told");
                drop(node);
                hears(&mut ends, hear);
            });
        }
    }
}

/// The node of one end ends, and another one is there in its place.
#[test]
fn a_node_that_starts_anew_ends_its_rings_and_takes_new_ones() {
    let (meta, other) = PLACE.cluster(13, patient);
    let session = session_at(&meta);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let (gid, path) = (meta.gid, other.path.clone());
    let connected = |mut ends: Ends| {
        let gone = ends.receiver.recv(WAIT).unwrap_err();
        assert!(matches!(gone, Error::Carrier(elver::Error::NodeGone)), "{gone}");
        assert!(matches!(ends.sender.poll(), Err(Error::Carrier(elver::Error::NodeGone))));
    };
    told_to(&listener, (gid, &path), connected, |mut ends| {
        drop(other);
        assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"told");
        let gone = ends.receiver.recv(WAIT).unwrap_err();
        assert!(matches!(gone, Error::Carrier(_)), "{gone}");
        assert_eq!(ends.receiver.counters().messages, 1, "nothing twice");
    });
    let other = PLACE.member(13, 2, patient);
    let connected = |mut ends: Ends| {
        assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"heard");
    };
    told_to(&listener, (gid, &other.path), connected, |mut ends| {
        assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"told");
        ends.sender.send(b"heard", WAIT).unwrap();
        ends.sender.finish(WAIT).unwrap();
    });
}
