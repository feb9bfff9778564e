//! Peers that are killed: their streams are reset, whether one reads, looks, writes or sleeps at the
//! descriptor, after all that was sent before.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::common::{PLACE, TestNode, WAIT, both_ways_at, session_at};
use elver::{Gid, Session};
use elver_stream::{Interest, Listener, ListenerOptions, Options, Stream};
use elver_testkit::{Launch, Process, Role, hears_within_a_second, impatient, patient, role, stay};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Of the cluster of which a host dies.
const GROUP: u8 = 41;

/// Connects, says one thing, and does nothing more.
fn linger(session: &Session, gid: Gid, port: u16) {
    let mut stream = Stream::connect(session, gid, port, Options::default(), WAIT).unwrap();
    stream.write_all(b"told").unwrap();
    stream.flush().unwrap();
    // The answer says that it was read.
    stream.read_exact(&mut [0]).unwrap();
    eprintln!("ready");
    stay();
}

/// Not a test of its own: a peer.
#[test]
fn process_that_is_a_peer() {
    let Some(Role { socket, knows }) = role() else { return };
    let session = Session::connect(socket).unwrap();
    linger(&session, session.gid(), knows.parse().unwrap());
}

/// Not a test of its own: a peer with a node of its own, which dies with it, as a host does.
#[test]
fn process_that_is_a_host() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = PLACE.member(GROUP, 3, impatient);
    let session = session_at(&node);
    // Nobody does it when this is killed.
    std::fs::remove_file(&node.path).unwrap();
    linger(&session, PLACE.address(GROUP, 1).into(), knows.parse().unwrap());
}

/// A process that runs one of these tests, when it is ready.
fn ready(test: &str, node: &TestNode, port: u16) -> Process {
    let test = format!("deaths::{test}");
    let mut process = Launch::new(&test, &node.path).knows(port).start();
    assert_eq!(process.says(), "ready");
    process
}

/// Reads what was told, kills the peer, and hears of it; after which time.
fn hears(node: &TestNode, peer: &str, hear: fn(&mut Stream) -> std::io::Error) -> Duration {
    let session = session_at(node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (mut stream, process) = std::thread::scope(|scope| {
        let process = scope.spawn(|| ready(peer, node, port));
        let mut stream = listener.accept(WAIT).unwrap();
        let mut first = [0; 2];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"to");
        stream.write_all(b"!").unwrap();
        stream.flush().unwrap();
        (stream, process.join().unwrap())
    });
    process.kill();
    let killed = Instant::now();
    // What was told before counts, also what was read in part.
    let mut last = [0; 2];
    stream.read_exact(&mut last).unwrap();
    assert_eq!(&last, b"ld");
    let reset = hear(&mut stream);
    let took = killed.elapsed();
    println!("heard after {took:?}: {reset}");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset, "{reset}");
    let cause = reset.get_ref().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(elver_ring::Error::Carrier(_))), "{cause:?}");
    // It stays so.
    for again in [stream.read(&mut [0]), stream.write(b"x")] {
        assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(stream.counters().bytes_read, 4);
    took
}

fn reads(stream: &mut Stream) -> std::io::Error {
    stream.read(&mut [0]).unwrap_err()
}

fn looks(stream: &mut Stream) -> std::io::Error {
    stream.set_nonblocking(true);
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other.unwrap_err(),
        }
    }
}

fn writes(stream: &mut Stream) -> std::io::Error {
    loop {
        if let Err(error) = stream.write(b"into the void") {
            return error;
        }
    }
}

/// Sleeps at the descriptor, as long as it may.
fn sleeps(stream: &mut Stream) -> std::io::Error {
    let session = stream.session();
    stream.set_nonblocking(true);
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other.unwrap_err(),
        }
        let armed = stream.arm(Interest::Readable).unwrap();
        if let Some(at_most) = armed
            && session.arm().unwrap()
        {
            let at_most = Timespec::try_from(at_most).unwrap();
            poll(&mut [PollFd::new(&session, PollFlags::IN)], Some(&at_most)).unwrap();
            session.disarm().unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_is_missed() {
    both_ways_at(40, false, |node| {
        for hear in [reads, looks, writes, sleeps] {
            hears_within_a_second(|| hears(node, "process_that_is_a_peer", hear));
        }
    });
}

/// Nobody is there to tell of it: who waits, and who looks, finds out by asking now and then.
#[test]
fn a_host_that_dies_is_missed() {
    let (meta, _other) = PLACE.cluster(GROUP, impatient);
    for hear in [reads as fn(&mut Stream) -> _, looks, writes, sleeps] {
        hears_within_a_second(|| hears(&meta, "process_that_is_a_host", hear));
    }
}

/// The node of one end ends, and another one is there in its place: who was at it hears that the node went, and the peer
/// that the stream was reset, once it has read what was said.
#[test]
fn a_node_that_starts_anew_ends_its_streams_and_takes_new_ones() {
    let (meta, other) = PLACE.cluster(42, patient);
    let session = session_at(&meta);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let (gid, port) = (meta.gid, listener.port());
    let talk = |path: &std::path::Path| {
        let session = Session::connect(path).unwrap();
        let mut stream = Stream::connect(&session, gid, port, Options::default(), WAIT).unwrap();
        stream.write_all(b"told").unwrap();
        stream.flush().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(b"?").unwrap();
        stream.flush().unwrap();
        stream.read(&mut [0])
    };
    let heard = |stream: &mut Stream| {
        let mut told = [0; 4];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"told");
        stream.write_all(b"!").unwrap();
        stream.flush().unwrap();
        stream.read_exact(&mut [0]).unwrap();
    };
    std::thread::scope(|scope| {
        let path = other.path.clone();
        let talks = scope.spawn(move || talk(&path));
        let mut stream = listener.accept(WAIT).unwrap();
        heard(&mut stream);
        drop(other);
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(stream.counters().bytes_read, 5, "nothing twice");
        let aborted = talks.join().unwrap().unwrap_err();
        assert_eq!(aborted.kind(), ErrorKind::ConnectionAborted, "{aborted}");
    });
    let other = PLACE.member(42, 2, patient);
    std::thread::scope(|scope| {
        let talks = scope.spawn(|| talk(&other.path));
        let mut stream = listener.accept(WAIT).unwrap();
        heard(&mut stream);
        drop(stream);
        assert_eq!(talks.join().unwrap().unwrap(), 0);
    });
}
