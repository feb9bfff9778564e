//! Ranks that are no ranks: what they send by hand ends their own connection, is counted, and harms nobody else.

use crate::common::{TOKEN, TestNode, WAIT, addresses, config, join, session_at};
use elver::{RefusalCode, Session};
use elver_msg::protocol::{Fault, Greeting, Header, Kind, Limits, Offer, Remote};
use elver_msg::{APPLICATION, Address, Error, Group, Loss, Options, Tag, Unwanted};
use elver_ring::{Config, Ends};
use elver_testkit::wait_for;

const RANK: u32 = 2;
const SIZE: u32 = 3;

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.encode(), body].concat()
}

fn hello() -> Vec<u8> {
    let greeting = Greeting::new(RANK, SIZE, Limits::default(), TOKEN);
    frame(Header::new(Kind::Hello, 0), &greeting.encode())
}

fn offer(id: u32, len: u64, remote: Option<Remote>) -> Vec<u8> {
    let header = Header { more: id, ..Header::new(Kind::Offer, 7) };
    frame(header, &Offer { len, remote }.encode())
}

/// A pair of rings to a rank, of which nothing is kept but these.
fn connect(session: &Session, to: Address) -> Ends {
    let config = Config::default().with_slots(1 << 10);
    let options =
        elver_ring::Options { application: APPLICATION, ..elver_ring::Options::both(config) };
    // It may not listen yet.
    wait_for("a rank", || elver_ring::connect(session, to.gid, to.port, options, WAIT).ok())
}

fn say(ends: &mut Ends, frame: &[u8]) {
    ends.sender.send(frame, WAIT).unwrap();
    ends.sender.flush().unwrap();
}

fn hears(ends: &mut Ends) -> Vec<u8> {
    ends.receiver.recv(WAIT).unwrap().expect("it speaks").to_vec()
}

/// Goes without a good-bye. A rank may be gone itself as soon as it has heard that.
fn leave(ends: &mut Ends) {
    ends.sender.end().unwrap();
    match ends.receiver.stop() {
        Ok(()) => {}
        Err(elver_ring::Error::Carrier(elver::Error::Refused {
            code: RefusalCode::PeerGone,
            ..
        })) => {}
        Err(other) => panic!("{other}"),
    }
}

/// A rank by hand, which has greeted both others, as they have it.
fn greeted(session: &Session, ranks: &[Address]) -> [Ends; 2] {
    [0, 1].map(|to| {
        let mut ends = connect(session, ranks[to]);
        say(&mut ends, &hello());
        let heard = hears(&mut ends);
        let (header, body) = Header::decode(&heard).unwrap();
        assert_eq!(header.kind, Kind::Hello);
        assert_eq!(Greeting::decode(body).unwrap().rank, to as u32);
        ends
    })
}

/// Runs two ranks, and one by hand beside them; the latter lasts until both have ended.
fn beside<T: Send>(
    node: &TestNode,
    by_hand: impl FnOnce(&mut [Ends; 2]) -> T,
    rank: impl Fn(Group) + Sync,
) -> T {
    let rank = &rank;
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|number| {
            scope.spawn(move || rank(join(&[node], number, SIZE, Options::default())))
        });
        let session = session_at(node);
        let mut ends = greeted(&session, &addresses(&[node], SIZE));
        let done = by_hand(&mut ends);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        done
    })
}

/// What no rank may send, with what it is told as.
fn nonsense() -> Vec<(Vec<u8>, &'static str)> {
    let header = |kind, word| frame(Header::new(kind, word), &[]);
    let mut wrong = vec![
        (vec![3; 7], "shorter than its header"),
        (vec![0xff; 40], "of version 255"),
        (hello(), "a Hello frame has no place"),
        (frame(Header { more: 2, ..Header::new(Kind::Refused, 0) }, &[]), "a Refused frame"),
        (header(Kind::Clear, 4), "a Clear frame of offer 4"),
        (header(Kind::Done, 4), "a Done frame of offer 4"),
        (frame(Header::new(Kind::Piece, 4), &[1]), "a Piece frame of offer 4"),
        (frame(Header { freed_messages: 1, ..Header::new(Kind::Credit, 0) }, &[]), "credit for 1"),
        (frame(Header { freed_bytes: 9, ..Header::new(Kind::Eager, 1) }, &[]), "of 9 bytes"),
        (frame(Header::new(Kind::Eager, 1), &[0; 8_193]), "a message of 8193 bytes"),
        (header(Kind::Eager, elver_msg::TAG_MAX + 1 + (8 << 24)), "a message of tag 0x88000000"),
        (header(Kind::GaveUp, 4), "a message of tag 0x4"),
        (offer(1, u64::MAX, None), "a message of 18446744073709551615 bytes"),
        (offer(1, 0, None), "a field of a Offer frame"),
    ];
    let mut unknown = header(Kind::Bye, 0);
    unknown[0] = 0x4d;
    wrong.push((unknown, "of kind 13"));
    wrong
}

#[test]
fn who_sends_nonsense_is_heard_no_more_and_harms_nobody_else() {
    let node = TestNode::start(config(90, 1));
    for (wrong, why) in nonsense() {
        let by_hand = |ends: &mut [Ends; 2]| ends.iter_mut().for_each(|ends| say(ends, &wrong));
        beside(&node, by_hand, |group| {
            let told = group.recv_vec(RANK, Tag::Any).unwrap_err();
            let Error::Lost { rank: RANK, loss: Loss::Fault(_) } = &told else {
                panic!("{why}: {told}")
            };
            assert!(told.to_string().contains(why), "{why}: {told}");
            // Nothing of it was delivered, it is counted, and it counts as dead.
            assert_eq!(group.counters().messages.faults, 1, "{why}");
            assert!(matches!(group.try_probe(RANK, Tag::Any), Err(Error::Lost { .. })), "{why}");
            assert!(matches!(group.barrier(), Err(Error::Lost { rank: RANK, .. })));
            assert!(matches!(group.send(RANK, 1, b""), Err(Error::Lost { rank: RANK, .. })));
            // The others go on.
            let other = 1 - group.rank();
            let theirs = group.irecv(other, 1, 10).unwrap();
            group.send(other, 1, b"unharmed").unwrap();
            assert_eq!(theirs.wait().unwrap().bytes, b"unharmed");
            // Both stay until both have it.
            let theirs = group.irecv(other, 2, 0).unwrap();
            group.send(other, 2, b"").unwrap();
            theirs.wait().unwrap();
            group.flush().unwrap();
        });
    }
}

/// More than there is credit for; a rank holds no more of it than it has said.
#[test]
fn who_minds_no_credit_is_heard_no_more() {
    let node = TestNode::start(config(91, 1));
    let limits = Limits::default();
    let flood = |ends: &mut [Ends; 2]| {
        for ends in ends {
            let message = frame(Header::new(Kind::Eager, 1), &[9]);
            // Who is heard no more cannot say all of it.
            for _ in 0..4 * limits.unexpected_messages {
                if ends.sender.send(&message, WAIT).is_err() {
                    break;
                }
            }
            let _ = ends.sender.flush();
        }
    };
    beside(&node, flood, |group| {
        let told = group.recv_vec(RANK, 99).unwrap_err();
        let Error::Lost { loss: Loss::Fault(Fault::Overrun { messages, .. }), .. } = told else {
            panic!("{told}")
        };
        assert_eq!(messages, limits.unexpected_messages + 1);
        assert_eq!(group.counters().waiting, limits.unexpected_messages as usize);
    });
}

/// A message that is not where its sender says.
#[test]
fn memory_that_cannot_be_read_is_its_owners_fault() {
    let node = TestNode::start(config(92, 1));
    let remote = Some(Remote { addr: 1 << 40, rkey: 0x1234_5678 });
    let by_hand = |ends: &mut [Ends; 2]| {
        ends.iter_mut().for_each(|ends| say(ends, &offer(1, 100_000, remote)));
    };
    beside(&node, by_hand, |group| {
        let region = group.alloc(100_000).unwrap();
        let told = group.recv_region(RANK, Tag::Any, &region).unwrap_err();
        assert!(matches!(&told, Error::Lost { rank: RANK, loss: Loss::Unreadable(_) }), "{told}");
        assert_eq!(group.counters().messages.received, 0);
        assert_eq!(group.counters().requests, 0);
        assert!(group.counters().unreadable > 0);
    });
}

/// The memory of who dies goes before his end is told: nobody blames him for it.
#[test]
fn who_goes_with_his_memory_is_gone() {
    let node = TestNode::start(config(96, 1));
    let remote = Some(Remote { addr: 1 << 40, rkey: 0x1234_5678 });
    let by_hand = |ends: &mut [Ends; 2]| {
        ends.iter_mut().for_each(|ends| say(ends, &offer(1, 100_000, remote)));
        // Each says so when that could not be READ.
        let kind = |ends: &mut Ends| Header::decode(&hears(ends)).unwrap().0.kind;
        for ends in ends {
            while kind(ends) != Kind::Eager {}
            leave(ends);
        }
    };
    beside(&node, by_hand, |group| {
        let region = group.alloc(100_000).unwrap();
        let came = group.irecv_region(RANK, Tag::Any, &region).unwrap();
        while group.counters().unreadable == 0 {
            assert!(!came.test().unwrap());
            std::thread::yield_now();
        }
        group.send(RANK, 1, b"").unwrap();
        let told = came.wait().unwrap_err();
        assert!(matches!(&told, Error::Lost { rank: RANK, loss: Loss::Left }), "{told}");
    });
}

/// Its first part, and then more than it should have: what is there by then is no message.
#[test]
fn a_message_of_too_much_is_not_delivered() {
    let node = TestNode::start(config(93, 1));
    let by_hand = |ends: &mut [Ends; 2]| {
        for ends in ends {
            say(ends, &offer(5, 10_000, None));
            let heard = hears(ends);
            let cleared = Header::decode(&heard).unwrap().0;
            assert_eq!((cleared.kind, cleared.word), (Kind::Clear, 5));
            let piece = frame(Header::new(Kind::Piece, 5), &[1; 6_000]);
            say(ends, &piece);
            say(ends, &piece);
        }
    };
    beside(&node, by_hand, |group| {
        let told = group.recv_vec(RANK, Tag::Any).unwrap_err();
        let fault = Fault::TooMuch { len: 10_000, bytes: 12_000 };
        assert!(
            matches!(&told, Error::Lost { rank: RANK, loss: Loss::Fault(it) } if *it == fault),
            "{told}"
        );
    });
}

/// Behind the last barrier nobody needs anything of anybody: who then goes without a good-bye, for which it may have
/// had no time, has finished too.
#[test]
fn who_goes_behind_the_last_barrier_has_finished() {
    let node = TestNode::start(config(95, 1));
    let by_hand = |ends: &mut [Ends; 2]| {
        // Its part of the first barrier.
        let barrier = frame(Header::new(Kind::Eager, elver_msg::TAG_MAX + 1), &[]);
        ends.iter_mut().for_each(|ends| say(ends, &barrier));
        // Nobody leaves before all are past it.
        let kind = |ends: &mut Ends| Header::decode(&hears(ends)).unwrap().0.kind;
        ends.iter_mut().for_each(|ends| while kind(ends) != Kind::Bye {});
        // And nobody before all have said good-bye: more than a ring holds is still taken in.
        let long = frame(Header::new(Kind::Eager, 1), &[7; 8_000]);
        ends.iter_mut().for_each(|ends| (0..100).for_each(|_| say(ends, &long)));
        ends.iter_mut().for_each(leave);
    };
    beside(&node, by_hand, |group| group.finish().unwrap());
}

/// Strangers at a rank's port, before its group is together: one of another version is told, the others are not
/// waited for.
#[test]
fn strangers_do_not_keep_a_group_from_meeting() {
    let node = TestNode::start(config(94, 1));
    let ranks = addresses(&[&node], 2);
    std::thread::scope(|scope| {
        let lower = scope.spawn(|| join(&[&node], 0, 2, Options::default()).finish().unwrap());
        let session = session_at(&node);
        let mut silent = connect(&session, ranks[0]);
        let refused = |words: &[u8]| {
            let mut ends = connect(&session, ranks[0]);
            say(&mut ends, words);
            // Its greeting, and then what it makes of this one.
            hears(&mut ends);
            let heard = hears(&mut ends);
            let header = Header::decode(&heard).unwrap().0;
            assert_eq!(header.kind, Kind::Refused);
            header.more
        };
        let mut later = Greeting::new(1, 2, Limits::default(), TOKEN);
        later.version = (9, 0);
        let later = frame(Header::new(Kind::Hello, 0), &later.encode());
        assert_eq!(refused(&later), Unwanted::Version as u32);
        assert_eq!(refused(b"nonsense"), Unwanted::Nonsense as u32);
        let own = Greeting::new(0, 2, Limits::default(), TOKEN);
        let own = frame(Header::new(Kind::Hello, 0), &own.encode());
        assert_eq!(refused(&own), Unwanted::Rank as u32);
        join(&[&node], 1, 2, Options::default()).finish().unwrap();
        lower.join().unwrap();
        hears(&mut silent);
    });
}

/// As many strangers as are listened to, and one more: the oldest one goes, and not who came last, which may be a rank.
#[test]
fn the_oldest_stranger_goes_for_a_newcomer() {
    let node = TestNode::start(config(200, 1));
    let ranks = addresses(&[&node], 2);
    std::thread::scope(|scope| {
        let lower = scope.spawn(|| join(&[&node], 0, 2, Options::default()).finish().unwrap());
        let session = session_at(&node);
        let mut silent: Vec<_> = (0..2 + 16 + 1).map(|_| connect(&session, ranks[0])).collect();
        let has_gone = |ends: &mut Ends| {
            let came = ends.receiver.try_recv().map(|greeting| greeting.is_some());
            came.map_or(true, |came| !came && ends.receiver.is_ended())
        };
        let gone = wait_for("one that goes", || silent.iter_mut().position(has_gone));
        assert_eq!(gone, 0, "which one");
        join(&[&node], 1, 2, Options::default()).finish().unwrap();
        lower.join().unwrap();
    });
}
