//! Messages that are read in parts, batches that go out when none is under way, and pairs that are connected
//! without waiting, or refused.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::common::{TestNode, WAIT, both_ways_at, config, content, session_at};
use elver::Session;
use elver_random::Rng;
use elver_ring::{
    Config, Connecting, Ends, Error, Listener, ListenerOptions, Options, Refusal, connect,
};

/// Both ends, in this thread.
fn beside(session: &Session, config: Config) -> (Listener, Ends, Ends) {
    let listener = Listener::bind(session, 0, ListenerOptions::default()).unwrap();
    let (gid, port) = (session.gid(), listener.port());
    let mut connecting = Connecting::start(session, gid, port, Options::both(config)).unwrap();
    let begun = Instant::now();
    let (mut accepted, mut connected) = (None, None);
    loop {
        accepted = accepted.or_else(|| listener.try_accept().unwrap());
        connected = connected.or_else(|| connecting.poll().unwrap());
        if let (Some(_), Some(_)) = (&accepted, &connected) {
            assert!(connecting.poll().unwrap().is_none(), "it is made once");
        }
        (accepted, connected) = match (accepted, connected) {
            (Some(accepted), Some(connected)) => return (listener, accepted, connected),
            not_yet => not_yet,
        };
        assert!(begun.elapsed().as_secs() < 30, "the pair does not come about");
    }
}

const SMALL: Config =
    Config { slots: 16, slot_bytes: 64, alpha: 8, beta: 4, gamma: 4, linger_ns: None };

/// What is left of a message comes again, and its place is free when all of it was read: also of one that
/// goes on at the ring's beginning.
#[test]
fn a_message_is_read_in_parts() {
    both_ways_at(50, false, |node| {
        let session = session_at(node);
        let (_listener, mut accepted, mut connected) = beside(&session, SMALL);
        let mut rng = Rng::new(50);
        let mut wrapped = 0;
        for id in 0..200 {
            let len = rng.next_u32() as usize % 700;
            let bytes = content(id, len);
            connected.sender.send(&bytes, WAIT).unwrap();
            connected.sender.flush().unwrap();
            let mut read = Vec::new();
            loop {
                let message = accepted.receiver.recv(WAIT).unwrap().unwrap();
                assert_eq!(
                    (message.len(), message.is_empty()),
                    (len - read.len(), read.len() == len)
                );
                assert_eq!(message.to_vec(), bytes[read.len()..]);
                let part = rng.next_u32() as usize % (message.len() + 1);
                let mut taken = vec![0; part];
                message.read(0, &mut taken);
                let lies: Vec<u8> = message
                    .parts()
                    .into_iter()
                    .flatten()
                    .map(|byte| byte.load(Ordering::Relaxed))
                    .collect();
                assert_eq!(lies, bytes[read.len()..]);
                // SAFETY: the sender is this test's own, and keeps to the protocol.
                let trusted = unsafe { message.trusted_parts() };
                assert_eq!(trusted.concat(), bytes[read.len()..]);
                wrapped += u32::from(!trusted[1].is_empty());
                message.keep_from(part);
                read.extend(taken);
                if read.len() == len {
                    break;
                }
                // It is not over as long as something is left.
                assert!(!accepted.receiver.is_ended());
                assert_eq!(accepted.receiver.counters().messages, id);
            }
            assert_eq!(read, bytes);
            assert_eq!(accepted.receiver.counters().messages, id + 1);
        }
        assert!(wrapped > 50, "{wrapped} went on at the beginning");
    });
}

/// A batch goes out without a flush once the one before it has arrived, whatever it lacks.
#[test]
fn a_batch_goes_out_when_none_is_under_way() {
    both_ways_at(51, false, |node| {
        let session = session_at(node);
        let (_listener, mut accepted, mut connected) = beside(&session, Config::default());
        let sender = &mut connected.sender;
        for round in 1..=50 {
            sender.send(b"alone", WAIT).unwrap();
            sender.flush_if_idle().unwrap();
            assert_eq!(sender.counters().advances, round, "the previous one has arrived");
            assert_eq!(accepted.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"alone");
            let begun = Instant::now();
            while sender.carrier().vqp().info().unwrap().outstanding > 0 {
                assert!(begun.elapsed().as_secs() < 30, "it does not arrive");
            }
        }
    });
}

/// There is as much room as a message may take, and none in a full ring.
#[test]
fn a_sender_knows_how_much_fits() {
    both_ways_at(52, false, |node| {
        let session = session_at(node);
        let (_listener, mut accepted, mut connected) = beside(&session, SMALL);
        let sender = &mut connected.sender;
        let mut fill = || {
            let mut sent = 0;
            while let room @ 1.. = sender.room_bytes().unwrap() {
                assert!(matches!(sender.try_reserve(room), Ok(room) if !room.is_empty()));
                sender.try_send(&vec![0; room.min(100)]).unwrap();
                sent += 1;
            }
            sender.flush().unwrap();
            sent
        };
        // Two slots each, and nobody reads.
        assert_eq!(fill(), 8);
        let begun = Instant::now();
        for _ in 0..4 {
            assert_eq!(accepted.receiver.recv(WAIT).unwrap().unwrap().len(), 100);
        }
        let mut refilled = 0;
        while refilled < 4 {
            refilled += fill();
            assert!(begun.elapsed().as_secs() < 30, "there is room again");
        }
        assert!(matches!(connected.sender.try_reserve(0), Err(Error::Full)));
    });
}

/// A pair for something else is refused, as is one whose listener takes no more; and each is told.
#[test]
fn who_speaks_something_else_is_refused() {
    let node = TestNode::start(config(53, 1));
    let session = session_at(&node);
    let options = ListenerOptions { application: 5, ..ListenerOptions::default() };
    let listener = Listener::bind(&session, 0, options).unwrap();
    let port = listener.port();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let session = session_at(&node);
            let ask = |application| {
                let options = Options { application, ..Options::default() };
                connect(&session, node.gid, port, options, WAIT).map(drop)
            };
            let other = ask(0).unwrap_err();
            let expected = Refusal::Application;
            assert!(matches!(other, Error::Refused { reason } if reason == expected), "{other}");
            assert!(other.to_string().contains("something else is spoken"), "{other}");
            ask(5).unwrap();
            let closed = ask(5).unwrap_err();
            let expected = Refusal::Closed;
            assert!(matches!(closed, Error::Refused { reason } if reason == expected), "{closed}");
        });
        let mut ends = listener.accept(WAIT).unwrap();
        assert_eq!((listener.counters().accepted, listener.counters().refused), (1, 1));
        drop(listener);
        // Its port is there as long as this is, which looks at it when it sleeps.
        assert!(ends.receiver.recv(WAIT).unwrap().is_none(), "the other one is dropped");
        while !asks.is_finished() {
            let _ = ends.sender.carrier().lie_down(&mut elver_ring::Pause::new(None));
        }
        asks.join().unwrap();
    });
}
