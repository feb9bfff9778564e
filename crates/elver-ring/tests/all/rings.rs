//! Rings between sessions: on one node and between two.

use std::time::Duration;

use crate::common::{
    PLACE, TestNode, WAIT, both_ways_at, cluster, config, content, pair, pair_of, session_at,
};
use elver::{Numa, Policy};
use elver_random::Rng;
use elver_ring::{Config, Connecting, Ends, Error, Listener, ListenerOptions, Options, Refusal};
use elver_testkit::wait_for;

const MESSAGES: u64 = 3_000;

/// Lengths from none to the longest, most of them short.
fn length(rng: &mut Rng, max: u32) -> usize {
    let most = if rng.next_u32().is_multiple_of(16) { max } else { max.min(200) };
    (rng.next_u32() % (most + 1)) as usize
}

/// Sends all messages, and takes as many: filled and read in place.
fn exchange(ends: &mut Ends, mine: u64, theirs: u64) {
    let (mut here, mut there) = (Rng::new(mine), Rng::new(theirs));
    let (mut sent, mut read) = (0, 0);
    let mut next = None;
    while sent < MESSAGES || read < MESSAGES {
        if sent < MESSAGES {
            let max = ends.sender.shape().message_bytes_max();
            let len = *next.get_or_insert_with(|| length(&mut here, max));
            match ends.sender.try_reserve(len) {
                Ok(mut room) => {
                    room.fill(&content(mine + sent, len));
                    room.commit().unwrap();
                    (sent, next) = (sent + 1, None);
                    if sent == MESSAGES {
                        ends.sender.end().unwrap();
                    }
                }
                Err(Error::Full) => {}
                Err(error) => panic!("{error}"),
            }
        } else {
            ends.sender.poll().unwrap();
        }
        let max = ends.receiver.shape().message_bytes_max();
        // With room to send, it looks without waiting.
        let message = match next {
            None if sent < MESSAGES => ends.receiver.try_recv().unwrap(),
            _ if read < MESSAGES => match ends.receiver.recv(Some(Duration::from_millis(1))) {
                Ok(message) => message,
                Err(Error::TimedOut) => None,
                Err(error) => panic!("{error}"),
            },
            _ => None,
        };
        if let Some(message) = message {
            let len = length(&mut there, max);
            assert_eq!(message.to_vec(), content(theirs + read, len), "message {read} of {theirs}");
            read += 1;
        }
    }
    assert!(ends.receiver.recv(WAIT).unwrap().is_none(), "the end is heard");
    assert!(ends.receiver.is_ended());
    ends.sender.finish(WAIT).unwrap();
}

fn both_ways(nodes: (&TestNode, &TestNode), config: Config) {
    let options = Options { token: 77, ..Options::both(config) };
    let (here, there) = (1 << 20, 1 << 30);
    pair(
        nodes,
        options,
        |_listener, mut ends| {
            assert_eq!(ends.token, 77);
            exchange(&mut ends, here, there);
        },
        |_session, mut ends| exchange(&mut ends, there, here),
    );
}

const SMALL: Config =
    Config { slots: 16, slot_bytes: 64, alpha: 8, beta: 4, gamma: 4, linger_ns: None };

#[test]
fn messages_go_both_ways_between_processes_of_one_node() {
    both_ways_at(1, true, |node| {
        both_ways((node, node), Config::default());
        both_ways((node, node), SMALL);
        both_ways((node, node), SMALL.unbatched());
        // Slots and words that share cache lines.
        both_ways((node, node), SMALL.packed_for_messages_of(65).unwrap());
    });
}

#[test]
fn messages_go_both_ways_between_two_nodes() {
    let (one, other) = cluster(2);
    both_ways((&one, &other), Config { slot_bytes: 8_192, ..Config::default() });
    both_ways((&other, &one), SMALL);
    both_ways((&other, &one), SMALL.packed_for_messages_of(100).unwrap());
}

/// A request and its answer, one at a time: who waits for the answer sleeps, which the other end is told, and
/// is woken by it.
#[test]
fn who_sleeps_is_woken() {
    const ROUNDS: u64 = 200;
    let way = |node: &TestNode, policy: Policy| {
        // It sleeps at once.
        let options = Options { spin: Duration::ZERO, ..Options::default() };
        let taken = ListenerOptions { policy, ..ListenerOptions::default() };
        pair_of(
            (node, node),
            (taken, options),
            |_listener, mut ends| {
                let (mut answered, mut naps, mut wakings) = (0, 0, 0);
                while let Some(message) = ends.receiver.recv(WAIT).unwrap() {
                    let bytes = message.to_vec();
                    drop(message);
                    // The other end has nothing else to do.
                    while ends.sender.carrier().counters().peer_naps == naps {
                        ends.sender.poll().unwrap();
                        std::thread::yield_now();
                    }
                    ends.sender.send(&bytes, WAIT).unwrap();
                    ends.sender.flush().unwrap();
                    let counters = ends.sender.carrier().counters();
                    assert!(counters.wakings > wakings, "{counters:?}, {wakings} before");
                    // The nap that it was woken from may be a later one than was waited for: it may have woken by
                    // itself meanwhile, and lain down again.
                    (naps, wakings) = (counters.peer_naps, counters.wakings);
                    answered += 1;
                }
                assert_eq!(answered, ROUNDS);
            },
            |_session, mut ends| {
                for round in 0..ROUNDS {
                    ends.sender.send(&round.to_le_bytes(), WAIT).unwrap();
                    ends.sender.flush().unwrap();
                    let answer = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
                    assert_eq!(answer, round.to_le_bytes());
                }
                ends.sender.finish(WAIT).unwrap();
                assert!(ends.receiver.recv(WAIT).unwrap().is_none());
            },
        );
    };
    // Wakings go by the VQP of the rings, or beside it.
    both_ways_at(3, true, |node| {
        way(node, Policy::Shared);
        way(node, Policy::Leased);
    });
}

/// A ring that is full says so, and a sender can wait for room.
#[test]
fn a_full_ring_is_waited_for() {
    both_ways_at(4, false, |node| {
        let (go, wait) = std::sync::mpsc::channel();
        // From huge pages, or as many others as the system has instead.
        let options = Options { huge_pages: true, ..Options::both(SMALL) };
        pair(
            (node, node),
            options,
            move |_listener, mut ends| {
                wait.recv().unwrap();
                for id in 0..17 {
                    assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), [id]);
                }
                assert!(ends.receiver.recv(WAIT).unwrap().is_none());
            },
            move |_session, mut ends| {
                for id in 0..16 {
                    ends.sender.try_send(&[id]).unwrap();
                }
                assert!(matches!(ends.sender.try_send(&[16]), Err(Error::Full)));
                let short = Some(Duration::from_millis(2));
                assert!(matches!(ends.sender.send(&[16], short), Err(Error::TimedOut)));
                go.send(()).unwrap();
                ends.sender.send(&[16], WAIT).unwrap();
                assert!(ends.sender.counters().full >= 2);
                ends.sender.finish(WAIT).unwrap();
            },
        );
    });
}

/// Each end says for its own memory, and none is had at a NUMA node that is not there.
#[test]
fn an_ends_memory_lies_where_it_says() {
    let Some(last) = Numa::nodes().last() else {
        // Of a system that tells of no nodes nobody knows which are not there.
        return;
    };
    let (there, absent) = (Numa::Node(*last), Numa::Node(last + 1));
    let node = TestNode::start(PLACE.alone(119));
    let connects = |taken: Numa, asked: Numa| {
        let session = session_at(&node);
        let taken = ListenerOptions { numa: taken, ..ListenerOptions::default() };
        let options = Options { numa: asked, ..Options::both(SMALL) };
        let listener = Listener::bind(&session, 0, taken).unwrap();
        let mut connecting = Connecting::start(&session, node.gid, listener.port(), options)?;
        let mut ends = None;
        wait_for("an answer", || {
            ends = ends.take().or(listener.try_accept().unwrap());
            connecting.poll().transpose()
        })
        .map(drop)
    };
    for numa in [Numa::Any, Numa::Here, there] {
        connects(numa, numa).unwrap();
    }
    match connects(there, absent) {
        Err(Error::Carrier(elver::Error::Refused { code, .. })) => {
            assert_eq!(code, elver::RefusalCode::OutOfRange);
        }
        other => panic!("{other:?}"),
    }
    match connects(absent, there) {
        Err(Error::Refused { reason: Refusal::Memory }) => {}
        other => panic!("{other:?}"),
    }
}

/// Both ends wait for an answer, and neither flushes: what they sent goes out by its deadline.
#[test]
fn who_waits_for_an_answer_has_its_question_go_out() {
    both_ways_at(15, false, |node| {
        let turns = |mut ends: Ends, asks: bool| {
            for turn in 0..4_u8 {
                if asks {
                    ends.sender.send(&[turn], WAIT).unwrap();
                }
                assert_eq!(ends.recv(WAIT).unwrap().unwrap().to_vec(), [turn]);
                if !asks {
                    ends.sender.send(&[turn], WAIT).unwrap();
                }
            }
            assert_eq!(ends.sender.counters().lingered, if asks { 4 } else { 3 });
            ends.sender.finish(WAIT).unwrap();
            assert!(ends.recv(WAIT).unwrap().is_none());
        };
        pair(
            (node, node),
            Options::both(Config { linger_ns: Some(2_000_000), ..Config::default() }),
            move |_listener, ends| turns(ends, false),
            move |_session, ends| turns(ends, true),
        );
    });
}

/// Without a flush the last messages go out by their deadline, if who sends looks after it.
#[test]
fn a_part_of_a_batch_goes_out_by_itself() {
    both_ways_at(5, false, |node| {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        pair(
            (node, node),
            Options::both(Config { linger_ns: Some(1_000_000), ..Config::default() }),
            move |_listener, mut ends| {
                assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().len(), 3);
                tell.send(()).unwrap();
                // A sender that looks once more finds it there.
                let _ = is_done.recv();
            },
            move |_session, mut ends| {
                ends.sender.send(b"one", WAIT).unwrap();
                while told.try_recv().is_err() {
                    ends.sender.poll().unwrap();
                }
                assert_eq!(ends.sender.counters().lingered, 1);
                drop(done);
            },
        );
    });
}

/// A receiver that stops is heard by who sends, also while he waits for room.
#[test]
fn who_sends_hears_that_nobody_reads_any_more() {
    both_ways_at(6, false, |node| {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        pair(
            (node, node),
            Options::both(SMALL),
            move |_listener, mut ends| {
                assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), [0]);
                ends.receiver.stop().unwrap();
                // The other end says when it has heard it.
                let _ = told.recv();
            },
            move |_session, mut ends| {
                let refused = loop {
                    if let Err(error) = ends.sender.send(&[0], WAIT) {
                        break error;
                    }
                };
                assert!(matches!(refused, Error::Deaf), "{refused}");
                assert!(matches!(ends.sender.finish(WAIT), Err(Error::Deaf)));
                drop(tell);
            },
        );
    });
}

/// A child has its parent's slots in common with it, and writes none of them, nor reads.
#[test]
fn a_child_leaves_its_parent_s_ring_as_it_is() {
    let node = TestNode::start(config(81, 1));
    let lazy = Config { alpha: 8, beta: 8, ..Config::default() };
    let options = Options::both(lazy);
    let listens = |_, mut ends: Ends| {
        ends.sender.send(b"to the parent", WAIT).unwrap();
        ends.sender.flush().unwrap();
        let read = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
        assert_eq!(read, b"the parent's");
    };
    pair((&node, &node), options, listens, |_, mut ends| {
        let (mut go, mut gone) = std::io::pipe().map(|(out, into)| (out, Some(into))).unwrap();
        // SAFETY: the child allocates nothing, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(gone.take());
            // Until the parent has filled a slot, which is not told of yet.
            let _ = std::io::Read::read(&mut go, &mut [0]);
            let forked = |error: Error| matches!(error, Error::Carrier(elver::Error::Forked));
            let sent = ends.sender.try_send(b"the child's!").err().is_some_and(forked);
            let read = ends.receiver.try_recv().err().is_some_and(forked);
            // SAFETY: it ends the child at once.
            unsafe { libc::_exit(i32::from(!(sent && read))) };
        }
        ends.sender.try_send(b"the parent's").unwrap();
        drop(gone.take());
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        ends.sender.flush().unwrap();
        assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"to the parent");
    });
}
