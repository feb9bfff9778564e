//! Messages that nobody waits for: they are held, as many as there is credit for, and hold nobody else up.

use std::sync::Barrier;
use std::time::Duration;

use crate::common::{TestNode, config, content, together};
use elver_msg::{Error, Options, Source, Tag};

fn small() -> Options {
    let mut options = Options { ring_bytes: 8 << 10, ..Options::default() };
    options.limits.unexpected_messages = 16;
    options.limits.unexpected_bytes = 4_096;
    options.limits.eager_bytes = 1_024;
    options
}

/// A flood under one tag, while its receiver speaks with a third rank.
#[test]
fn a_flood_is_held_back_and_nobody_else() {
    let node = TestNode::start(config(30, 1));
    const FLOOD: u32 = 2_000;
    together(&[&node], 3, small(), |group| {
        match group.rank() {
            0 => {
                let mut most = (0, 0);
                for turn in 0..500_u32 {
                    let mut answer = [0; 4];
                    group.send(2, 1, &turn.to_le_bytes()).unwrap();
                    group.recv(2, 1, &mut answer).unwrap();
                    assert_eq!(u32::from_le_bytes(answer), turn);
                    let counters = group.counters();
                    most = most.max((counters.waiting, counters.waiting_bytes));
                }
                // It is full by now: the flood is longer than what is held.
                group.probe(1, Tag::Any).unwrap();
                assert!(most.0 <= 17 && most.1 <= 4_096, "{most:?}");
                for number in 0..FLOOD {
                    let (status, bytes) = group.recv_vec(1, Tag::Any).unwrap();
                    assert_eq!(
                        (status.tag, bytes),
                        (7, content(number.into(), number as usize % 1_500))
                    );
                    // Beside it the first message of the other rank's barrier.
                    assert!(group.counters().waiting <= 17);
                }
            }
            1 => {
                for number in 0..FLOOD {
                    group.send(0, 7, &content(number.into(), number as usize % 1_500)).unwrap();
                }
            }
            _ => {
                for _ in 0..500 {
                    let (_, question) = group.recv_vec(0, 1).unwrap();
                    group.send(0, 1, &question).unwrap();
                }
            }
        }
        group.finish().unwrap();
    });
}

/// What was received makes room for the message that is waited for, however little it is beside what is held.
#[test]
fn what_is_waited_for_has_room_behind_what_is_held() {
    let node = TestNode::start(config(32, 1));
    // By their number, and by their bytes: with 10 held, and 6 received, there are 16; with 3 of 1,000 bytes held, and one
    // received, there is no room for a fifth.
    for (held, received, len) in [(10, 6, 8), (3, 1, 1_000)] {
        together(&[&node], 2, small(), |group| {
            if group.rank() == 0 {
                for tag in std::iter::repeat_n(2, received).chain([3]) {
                    assert_eq!(group.recv_vec(1, tag).unwrap().1, content(tag.into(), len));
                }
                for _ in 0..held {
                    assert_eq!(group.recv_vec(1, 1).unwrap().1, content(1, len));
                }
            } else {
                let tags = std::iter::repeat_n(1, held).chain(std::iter::repeat_n(2, received));
                for tag in tags.chain([3]) {
                    group.send(0, tag, &content(tag.into(), len)).unwrap();
                }
            }
            group.finish().unwrap();
        });
    }
}

/// A rank begins more messages than are held, short ones and larger ones, before a barrier behind which they are received.
#[test]
fn a_barrier_waits_for_no_receive_behind_it() {
    let node = TestNode::start(config(33, 1));
    together(&[&node], 2, small(), |group| {
        const COUNT: u32 = 100;
        for len in [8, 1_000] {
            if group.rank() == 0 {
                let send = |at: u32| group.isend(1, at, content(at.into(), len)).unwrap();
                let requests: Vec<_> = (0..COUNT).map(send).collect();
                group.barrier().unwrap();
                requests.into_iter().for_each(|request| drop(request.wait().unwrap()));
            } else {
                group.barrier().unwrap();
                for at in 0..COUNT {
                    assert_eq!(group.recv_vec(0, at).unwrap().1, content(at.into(), len));
                }
            }
        }
        group.finish().unwrap();
    });
}

/// A rank goes on to operations behind the messages that it began, while another has yet to receive those.
#[test]
fn messages_wait_for_no_operation_behind_them() {
    let node = TestNode::start(config(35, 1));
    together(&[&node], 2, small(), |group| {
        const COUNT: u32 = 17;
        let mut word = [0; 8];
        if group.rank() == 0 {
            let send = |at: u32| group.isend(1, 1, at.to_le_bytes().to_vec()).unwrap();
            let requests: Vec<_> = (0..COUNT).map(send).collect();
            (0..COUNT).for_each(|_| group.broadcast(0, &mut word).unwrap());
            requests.into_iter().for_each(|request| drop(request.wait().unwrap()));
        } else {
            for at in 0..COUNT {
                assert_eq!(group.recv_vec(0, 1).unwrap().1, at.to_le_bytes());
            }
            (0..COUNT).for_each(|_| group.broadcast(0, &mut word).unwrap());
        }
        group.finish().unwrap();
    });
}

/// What cannot come, since its sender waits for receives that are not posted, is an error.
#[test]
fn who_waits_for_a_message_behind_all_that_are_held_is_told() {
    let node = TestNode::start(config(34, 1));
    together(&[&node], 2, small(), |group| {
        if group.rank() == 0 {
            let requests: Vec<_> =
                (0..17).map(|_| group.isend(1, 1, &b"one"[..]).unwrap()).collect();
            group.send(1, 2, b"two").unwrap();
            requests.into_iter().for_each(|request| drop(request.wait().unwrap()));
        } else {
            let told = group.recv_vec(0, 2).unwrap_err();
            assert!(matches!(told, Error::Crowded { rank: 0, messages: 16 }), "{told}");
            let told = group.probe(0, 2).unwrap_err();
            assert!(matches!(told, Error::Crowded { rank: 0, messages: 16 }), "{told}");
            let request = group.irecv(0, 2, 9).unwrap();
            let told = group.wait_any(std::slice::from_ref(&request)).unwrap_err();
            assert!(matches!(told, Error::Crowded { .. }), "{told}");
            assert!(!request.wait_for(Duration::ZERO).unwrap());
            (0..17).for_each(|_| drop(group.recv_vec(0, 1).unwrap()));
            assert_eq!(request.wait().unwrap().bytes, b"two");
        }
        group.finish().unwrap();
    });
}

/// Without receiving anything a rank is told of no more than it may hold; requests of the sender's wait.
#[test]
fn credit_comes_back_when_messages_are_received() {
    let node = TestNode::start(config(31, 1));
    let counted = Barrier::new(2);
    together(&[&node], 2, small(), |group| {
        if group.rank() == 0 {
            let requests: Vec<_> =
                (0..100_u32).map(|at| group.isend(1, at, &at.to_le_bytes()).unwrap()).collect();
            let over = || requests.iter().filter(|request| request.test().unwrap()).count();
            let told = over();
            counted.wait();
            assert_eq!(told, 16);
            group.send(1, 1_000, b"").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(over(), 100);
        } else {
            counted.wait();
            // Those that are held can be received in any order; each makes room for one.
            for at in (0..16).rev().chain(16..100) {
                assert_eq!(group.recv_vec(Source::Any, at).unwrap().1, at.to_le_bytes());
            }
            group.recv_vec(0, 1_000).unwrap();
        }
        group.finish().unwrap();
    });
}
