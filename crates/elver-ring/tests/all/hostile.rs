//! Peers that are no peers: what they write and say by hand is told to their other end, counted, and nothing
//! of it is delivered.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{NodeConfig, PLACE, TestNode, WAIT, cluster, config, session_at};
use elver::{
    AccessFlags, Completed, Gid, Mr, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Session, Vqp, VqpOptions, Wc, WcOpcode, WcStatus,
};
use elver_ring::{
    Config, Ends, Error, Fault, Listener, ListenerOptions, Options, Pause, Refusal, connect,
};
use elver_testkit::wait_for;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// An end that is made by hand, as `greeting` has it.
struct Raw {
    vqp: Vqp,
    cells: Mr,
    slots: Mr,
    peer_cells: RemoteAddr,
    peer_slots: RemoteAddr,
}

/// A hello for rings of so many slots of 64 bytes, α 4, β 2, γ 2.
fn hello(count: u64, cells: RemoteAddr, slots: RemoteAddr) -> [u64; 15] {
    let config = [count | 64 << 32, 4 | 2 << 32, 2, u64::MAX];
    let mut words = [0; 15];
    words[0] = u64::from(u32::from_le_bytes(*b"RB2R")) | 4 << 32 | 1 << 48;
    words[1..5].copy_from_slice(&config);
    words[5..9].copy_from_slice(&config);
    words[9..13].copy_from_slice(&[cells.addr, cells.rkey.into(), slots.addr, slots.rkey.into()]);
    words
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn send(vqp: &Vqp, op: SendOp, bytes: &[u8]) {
    let payload = Payload::Inline(bytes);
    let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[wr]).unwrap();
}

/// Says something to a listener; the words that it answers.
fn say(session: &Session, vqp: &Vqp, bytes: &[u8]) -> Vec<u64> {
    let answer = session.alloc(128, ALL).unwrap();
    vqp.post_recv(&[RecvWr { wr_id: 2, sges: &[answer.sge(0, 128)] }]).unwrap();
    send(vqp, SendOp::Send, bytes);
    loop {
        let mut wcs = [Wc::default()];
        vqp.wait_cq(&mut wcs, WAIT).unwrap();
        let wc = wcs[0].succeeded().unwrap();
        if wc.opcode == WcOpcode::Recv {
            return (0..15).map(|at| answer.read_u64(8 * at).unwrap()).collect();
        }
    }
}

fn vqp(session: &Session, gid: Gid, port: u16) -> Vqp {
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(gid, port).unwrap();
    vqp
}

impl Raw {
    fn connect(session: &Session, gid: Gid, port: u16, count: u64) -> Raw {
        let cells = session.alloc(192, ALL).unwrap();
        let slots = session.alloc(64 * count, ALL).unwrap();
        let vqp = vqp(session, gid, port);
        let words = say(session, &vqp, &bytes(&hello(count, cells.remote(0), slots.remote(0))));
        assert_eq!(words[0] >> 48, 2, "it is welcome");
        let at = |addr, rkey: u64| RemoteAddr { addr, rkey: rkey as u32 };
        let (peer_cells, peer_slots) = (at(words[9], words[10]), at(words[11], words[12]));
        Raw { vqp, cells, slots, peer_cells, peer_slots }
    }

    /// Writes a word there, and waits until it is there.
    fn write(&self, to: RemoteAddr, offset: u64, word: u64) {
        let to = RemoteAddr { addr: to.addr + offset, ..to };
        send(&self.vqp, SendOp::Write(to), &word.to_le_bytes());
        let mut wcs = [Wc::default()];
        self.vqp.wait_cq(&mut wcs, WAIT).unwrap();
        wcs[0].succeeded().unwrap();
    }

    fn tail(&self, tail: u64) {
        self.write(self.peer_cells, 0, tail);
    }

    fn head(&self, head: u64) {
        self.write(self.peer_cells, 64, head);
    }

    /// The header of a message in slot `at`.
    fn header(&self, at: u64, len: u64) {
        self.write(self.peer_slots, (at % 8) * 64, (at + 1) << 32 | len);
    }
}

/// A hand-made end and an honest one, which says when it is ready for what the other does next.
fn beside(group: u8, hostile: impl FnOnce(Raw) + Send, honest: impl FnOnce(Listener, Ends)) {
    beside_rings(config(group, 1), 8, hostile, honest);
}

/// As [`beside`], with rings of so many slots.
fn beside_rings(
    config: NodeConfig,
    count: u64,
    hostile: impl FnOnce(Raw) + Send,
    honest: impl FnOnce(Listener, Ends),
) {
    let node = TestNode::start(config);
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            hostile(Raw::connect(&session, node.gid, port, count));
        });
        let ends = listener.accept(WAIT).unwrap();
        honest(listener, ends);
    });
}

/// Does to a fresh ring what `hostile` does; how its receiver ends. One that was right before is read.
fn received(group: u8, hostile: impl FnOnce(&Raw) + Send) -> Fault {
    let (tell, told) = mpsc::channel::<()>();
    let mut fault = None;
    beside(
        group,
        move |raw| {
            raw.header(0, 0);
            raw.tail(1);
            // Until the first one is read.
            while raw.cells.read_u64(64).unwrap() == 0 {
                if told.try_recv().is_ok() {
                    break;
                }
            }
            hostile(&raw);
            let _ = told.recv();
        },
        |_listener, mut ends| {
            assert!(ends.receiver.recv(WAIT).unwrap().unwrap().is_empty());
            tell.send(()).unwrap();
            let error = ends.receiver.recv(WAIT).map(|_| ()).unwrap_err();
            assert!(ends.receiver.try_recv().is_err(), "it does not get well");
            let counters = ends.receiver.counters();
            assert_eq!((counters.faults, counters.messages), (1, 1));
            let Error::Fault(told) = error else { panic!("{error}") };
            fault = Some(told);
            drop(tell);
        },
    );
    fault.unwrap()
}

#[test]
fn a_tail_that_cannot_be_ends_the_ring() {
    let fault = received(20, |raw| raw.tail(1_000));
    assert_eq!(fault, Fault::Tail { claimed: 1_000, least: 1, most: 8 });
    let fault = received(21, |raw| raw.tail(0));
    assert_eq!(fault, Fault::Tail { claimed: 0, least: 1, most: 8 });
}

#[test]
fn a_length_beyond_the_tail_ends_the_ring() {
    let fault = received(22, |raw| {
        raw.header(1, 100_000);
        raw.tail(3);
    });
    assert_eq!(fault, Fault::Length { at: 1, bytes: 100_000, slots: 2 });
}

/// A tail that comes before its message finds what stood there before.
#[test]
fn a_tail_that_is_told_too_early_ends_the_ring() {
    let fault = received(23, |raw| raw.tail(2));
    assert!(matches!(fault, Fault::Stale { at: 1, .. }), "{fault}");
}

#[test]
fn a_head_that_cannot_be_ends_the_ring() {
    let (tell, told) = mpsc::channel::<()>();
    beside(
        24,
        move |raw| {
            raw.head(5);
            let _ = told.recv();
        },
        |_listener, mut ends| {
            let error = loop {
                ends.sender.try_send(b"x").unwrap();
                match ends.sender.flush().and_then(|()| ends.sender.poll()) {
                    Ok(()) if ends.sender.counters().messages < 4 => {}
                    Ok(()) => break ends.sender.send(&[0; 400], WAIT).unwrap_err(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Fault(Fault::Head { claimed: 5, .. })), "{error}");
            assert_eq!(ends.sender.counters().faults, 1);
            assert!(matches!(ends.sender.try_send(b"x"), Err(Error::Fault(_))));
            drop(tell);
        },
    );
}

/// Who stops within a batch has sent nothing of it; and who then goes is missed.
#[test]
fn of_a_batch_without_its_tail_nothing_is_delivered() {
    let (tell, told) = mpsc::channel::<()>();
    beside(
        25,
        move |raw| {
            raw.header(0, 8);
            let _ = told.recv();
        },
        |_listener, mut ends| {
            let short = Some(Duration::from_millis(20));
            assert!(matches!(ends.receiver.recv(short), Err(Error::TimedOut)));
            drop(tell);
            let gone = ends.receiver.recv(WAIT).map(|_| ()).unwrap_err();
            assert!(matches!(gone, Error::Carrier(_)), "{gone}");
        },
    );
}

/// Memory that is no ring's any more takes nothing: the sender is told which WRITE failed, and why.
#[test]
fn a_ring_whose_memory_vanishes_is_told_to_its_sender() {
    let (tell, told) = mpsc::channel::<()>();
    let (gone, is_gone) = mpsc::channel::<()>();
    beside(
        26,
        move |raw| {
            raw.slots.deregister().unwrap();
            gone.send(()).unwrap();
            let _ = told.recv();
            drop(raw.vqp);
        },
        |_listener, mut ends| {
            is_gone.recv().unwrap();
            let error = loop {
                match ends.sender.try_send(b"x").and_then(|()| ends.sender.flush()) {
                    Ok(()) | Err(Error::Full) => {}
                    Err(error) => break error,
                }
            };
            let failed = match &error {
                Error::Carrier(elver::Error::Completion { wc }) => wc.status,
                _ => panic!("{error}"),
            };
            assert_eq!(failed, WcStatus::RemAccessErr);
            drop(tell);
        },
    );
}

/// Who says what makes no sense is told why, and counted; the next one is served.
#[test]
fn a_listener_refuses_what_does_not_fit() {
    let node = TestNode::start(PLACE.alone(27));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let vqp = vqp(&session, node.gid, port);
            let mr = session.alloc(4_096, ALL).unwrap();
            let good = hello(8, mr.remote(0), mr.remote(0));
            let with = |at: usize, word: u64| {
                let mut words = good;
                words[at] = word;
                bytes(&words)
            };
            let cases = [
                (b"hello".to_vec(), Refusal::Malformed),
                (bytes(&good[..14]), Refusal::Malformed),
                (with(0, good[0] ^ 1 << 32), Refusal::Version),
                (with(0, good[0] ^ 1), Refusal::Malformed),
                // It answers, and nobody has asked.
                (with(0, good[0] ^ 1 << 48 ^ 2 << 48), Refusal::Malformed),
                // A slot of 65 bytes, 7 slots, β > α, γ > slots.
                (with(1, 8 | 65 << 32), Refusal::Config),
                (with(5, 7 | 64 << 32), Refusal::Config),
                (with(2, 4 | 5 << 32), Refusal::Config),
                (with(3, 9), Refusal::Config),
                (with(1, 1 << 16 | 4096 << 32), Refusal::TooLarge),
                (with(14, 5), Refusal::Application),
            ];
            for (index, (bytes, expected)) in cases.into_iter().enumerate() {
                let answer = say(&session, &vqp, &bytes);
                assert_eq!(answer[0] >> 48, 3, "case {index} is refused");
                let reasons = [
                    Refusal::Version,
                    Refusal::Malformed,
                    Refusal::Config,
                    Refusal::TooLarge,
                    Refusal::Memory,
                    Refusal::Application,
                ];
                assert_eq!(reasons[answer[9] as usize], expected, "case {index}");
            }
            // Whoever uses the library is told by it.
            let large = Config { slots: 1 << 16, slot_bytes: 4_096, ..Config::default() };
            let refused = connect(&session, node.gid, port, Options::both(large), WAIT);
            let expected = Refusal::TooLarge;
            assert!(
                matches!(refused, Err(Error::Refused { reason }) if reason == expected),
                "{refused:?}"
            );
            connect(&session, node.gid, port, Options::default(), WAIT).unwrap();
        });
        listener.accept(WAIT).unwrap();
        let counters = listener.counters();
        assert_eq!((counters.accepted, counters.refused, counters.dropped), (1, 12, 0));
    });
}

/// What answers may be of another version, or nothing of the kind.
#[test]
fn who_connects_is_told_what_answers() {
    let node = TestNode::start(PLACE.alone(28));
    let session = session_at(&node);
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let mr = session.alloc(256, ALL).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let ask = || connect(&session, node.gid, port, Options::default(), WAIT).unwrap_err();
            let other = ask();
            assert!(matches!(other, Error::Version { theirs: 9, ours: 4 }), "{other}");
            let echo = ask();
            assert!(matches!(echo, Error::NoListener { .. }), "{echo}");
            let short = Some(Duration::from_millis(5));
            let silent = connect(&session, node.gid, port, Options::default(), short);
            assert!(matches!(silent, Err(Error::TimedOut)), "{silent:?}");
        });
        for is_echo in [false, true] {
            bound.post_recv(&[RecvWr { wr_id: 0, sges: &[mr.sge(0, 256)] }]).unwrap();
            let message = bound.wait_msgs(WAIT).unwrap().remove(0);
            let mut answer = vec![0; message.wc.byte_len as usize];
            mr.read(0, &mut answer).unwrap();
            if !is_echo {
                answer[4] = 9;
            }
            send(&message.source, SendOp::Send, &answer);
            let mut wcs = [Wc::default()];
            message.source.wait_cq(&mut wcs, WAIT).unwrap();
        }
    });
}

/// Two ends on one VQP would count each other's completions, and find more of them than they had posted.
#[test]
fn a_peer_that_greets_again_has_one_end_all_the_same() {
    let (tell, told) = mpsc::channel::<()>();
    beside(
        60,
        move |raw| {
            let again = bytes(&hello(8, raw.cells.remote(0), raw.slots.remote(0)));
            send(&raw.vqp, SendOp::Send, &again);
            let _ = told.recv();
        },
        |listener, mut ends| {
            while listener.counters().dropped == 0 {
                assert!(listener.try_accept().unwrap().is_none(), "the VQP has an end");
                // Whose pointers complete meanwhile.
                if ends.sender.try_send(&[1]).is_ok() {
                    ends.sender.flush().unwrap();
                }
            }
            assert_eq!(listener.counters().accepted, 1);
            drop(tell);
        },
    );
}

/// What is said to it on its ring's VQP beside the ring takes places in the send queue there, which the ring has back when that has
/// arrived. More of it than fits found the queue full once, and the ring ended.
#[test]
fn a_peer_that_asks_after_offers_it_never_made_keeps_its_ring() {
    const QUESTIONS: u64 = 300;
    const MESSAGES: u64 = 20;
    let (tell, told) = mpsc::channel::<()>();
    beside(
        122,
        move |raw| {
            let answers = raw.vqp.session().alloc(64 * 128, ALL).unwrap();
            let ready = |slot: u64| {
                let sges = [answers.sge(slot * 128, 128)];
                raw.vqp.post_recv(&[RecvWr { wr_id: slot, sges: &sges }]).unwrap();
            };
            (0..64).for_each(ready);
            let mut question = [0; 15];
            question[0] = hello(8, raw.cells.remote(0), raw.slots.remote(0))[0] & !(0xffff << 48);
            question[0] |= 4 << 48;
            // An offer of nobody's.
            question[9..13].copy_from_slice(&[64, 1, 128, 1]);
            let (mut taken, mut answered) = (0, 0);
            let mut take = |wcs: &[Wc]| {
                for wc in wcs {
                    if wc.succeeded().unwrap().opcode == WcOpcode::Recv {
                        answered += 1;
                        ready(wc.wr_id);
                    } else {
                        taken += 1;
                    }
                }
                taken.min(answered)
            };
            for asked in 1..=QUESTIONS {
                send(&raw.vqp, SendOp::Send, &bytes(&question));
                // Not one after the other: a ring's own WRs are to be behind many of them. No more than there
                // are receives for, either.
                let mut wcs = [Wc::default(); 8];
                let polled = raw.vqp.poll_cq(&mut wcs).unwrap();
                let mut done = take(&wcs[..polled]);
                while asked - done > 60 || asked == QUESTIONS && done < QUESTIONS {
                    let waited = raw.vqp.wait_cq(&mut wcs, WAIT).unwrap();
                    done = take(&wcs[..waited]);
                }
            }
            // Room for what the ring sends.
            for head in 1..=MESSAGES {
                wait_for("a tail", || (raw.cells.read_u64(0).unwrap() >= head).then_some(()));
                raw.head(head);
            }
            tell.send(()).unwrap();
        },
        |listener, mut ends| {
            wait_for("all questions", || {
                assert!(listener.try_accept().unwrap().is_none());
                (listener.counters().lost == QUESTIONS).then_some(())
            });
            for _ in 0..MESSAGES {
                ends.sender.send(&[1], WAIT).unwrap();
                ends.sender.flush().unwrap();
            }
            assert_eq!(ends.sender.counters().messages, MESSAGES);
            // Nothing is let go of that the other still writes to.
            told.recv().unwrap();
        },
    );
}

/// The VQP back to a peer outlives an end: a second one on it begins anew, and takes no completion for its
/// own that is the first one's.
#[test]
fn a_peer_may_greet_again_when_its_end_is_gone() {
    let (tell, told) = mpsc::channel::<()>();
    beside(
        61,
        move |raw| {
            told.recv().unwrap();
            let again = bytes(&hello(8, raw.cells.remote(0), raw.slots.remote(0)));
            send(&raw.vqp, SendOp::Send, &again);
            let _ = told.recv();
        },
        |listener, mut ends| {
            ends.sender.send(&[1], WAIT).unwrap();
            ends.sender.flush().unwrap();
            drop(ends);
            tell.send(()).unwrap();
            let mut ends = listener.accept(WAIT).unwrap();
            for _ in 0..7 {
                ends.sender.send(&[1], WAIT).unwrap();
                ends.sender.flush().unwrap();
            }
            assert_eq!(ends.sender.counters().messages, 7);
            drop(tell);
        },
    );
}

/// Who asks for an offer is not told that the listener has gone if there is a pair of it, which its answer may not have overtaken:
/// the pair was given up.
#[test]
fn a_pair_that_stands_is_not_refused_for_its_listener_that_has_gone() {
    let node = TestNode::start(PLACE.alone(117));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (tell, told) = mpsc::channel();
    let at = &node;
    std::thread::scope(|scope| {
        let asks = scope.spawn(move || {
            let (session, node) = (session_at(at), at);
            let raw = Raw::connect(&session, node.gid, port, 8);
            told.recv().unwrap();
            let question = |cells: RemoteAddr, slots| {
                let mut words = hello(8, cells, slots);
                words[0] = words[0] ^ 1 << 48 ^ 4 << 48;
                words[1..9].fill(0);
                bytes(&words)
            };
            let [of_the_pair, of_none] = [(); 2].map(|()| vqp(&session, node.gid, port));
            let answer = session.alloc(128, ALL).unwrap();
            of_the_pair.post_recv(&[RecvWr { wr_id: 2, sges: &[answer.sge(0, 128)] }]).unwrap();
            let (cells, slots) = (raw.cells.remote(0), raw.slots.remote(0));
            send(&of_the_pair, SendOp::Send, &question(cells, slots));
            // Answered behind it.
            let closed = say(&session, &of_none, &question(slots, cells));
            assert_eq!((closed[0] >> 48, closed[9]), (3, 6), "it is closed");
            let mut wcs = [Wc::default(); 2];
            assert_eq!(of_the_pair.poll_cq(&mut wcs).unwrap(), 1);
            assert_eq!(wcs[0].opcode, WcOpcode::Send, "nothing is answered");
        });
        let ends = listener.accept(WAIT).unwrap();
        drop(listener);
        tell.send(()).unwrap();
        while !asks.is_finished() {
            let _ = ends.sender.carrier().lie_down(&mut Pause::new(None));
        }
        asks.join().unwrap();
    });
}

/// Of one node no more offers wait than half of what the others leave, and the others' wait beside them: it is told, and
/// counted, also where it takes no answer.
#[test]
fn a_peer_that_offers_without_end_leaves_places_to_others() {
    const OFFERS: usize = 700;
    const SHARE: u64 = 512;
    /// How a refusal says so.
    const CROWDED: u64 = 10;
    let (one, other) = cluster(87);
    let session = session_at(&one);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (tell, told) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Gone with what fails here, so that nobody waits for it.
        let (tell, gid, path) = (tell, one.gid, &other.path);
        scope.spawn(move || {
            let session = Session::connect(path).unwrap();
            let mr = session.alloc(4_096, ALL).unwrap();
            let flood = vqp(&session, gid, port);
            let offer = bytes(&hello(8, mr.remote(0), mr.remote(0)));
            // One that is accepted, and those behind it.
            for _ in 0..=OFFERS {
                send(&flood, SendOp::Send, &offer);
                let mut wcs = [Wc::default()];
                flood.wait_cq(&mut wcs, WAIT).unwrap();
                wcs[0].succeeded().unwrap();
            }
            let again = vqp(&session, gid, port);
            let answer = say(&session, &again, &offer);
            assert_eq!((answer[0] >> 48, answer[9]), (3, CROWDED));
            let _ = told.recv();
        });
        // Who looks after its rings takes in what comes to the port, and accepts nobody meanwhile.
        let mut pause = Pause::new(WAIT);
        let ends = listener.accept(WAIT).unwrap();
        let mut looks = || ends.sender.carrier().lie_down(&mut pause).unwrap().is_none();
        let crowded = OFFERS as u64 + 1 - SHARE;
        wait_for("all offers to come", || {
            looks();
            (listener.counters().crowded == crowded).then_some(())
        });
        scope.spawn(|| {
            let session = session_at(&one);
            let mut ends = connect(&session, one.gid, port, Options::default(), WAIT).unwrap();
            ends.sender.finish(WAIT).unwrap();
        });
        wait_for("the other's offer to come", || looks().then_some(()));
        let mut honest = listener.accept(WAIT).unwrap();
        assert!(honest.receiver.recv(WAIT).unwrap().is_none());
        assert_eq!(honest.sender.carrier().peer(), Some(one.gid));
        let counters = listener.counters();
        assert_eq!((counters.accepted, counters.dropped), (2, SHARE));
        assert_eq!((counters.refused, counters.crowded), (crowded, crowded));
        drop(tell);
    });
}

/// Nobody takes the completion of a refusal, which would keep the listener's session from sleeping.
#[test]
fn who_is_refused_lets_the_listener_sleep() {
    let node = TestNode::start(PLACE.alone(80));
    let session = session_at(&node);
    let options = ListenerOptions { application: 1, ..ListenerOptions::default() };
    let listener = Listener::bind(&session, 0, options).unwrap();
    let (gid, port) = (session.gid(), listener.port());
    let (tell, told) = mpsc::channel::<()>();
    let path = &node.path;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let session = Session::connect(path).unwrap();
            let options = Options { application: 2, ..Options::default() };
            let refused = connect(&session, gid, port, options, WAIT).unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            // It stays, and its VQP with it.
            told.recv().unwrap();
        });
        while listener.counters().refused == 0 {
            assert!(listener.try_accept().unwrap().is_none());
        }
        let asleep = || {
            let waited = session.wait_ready(Some(Duration::from_millis(1)));
            assert!(listener.try_accept().unwrap().is_none());
            matches!(waited, Err(elver::Error::TimedOut))
        };
        assert!((0..1_000).any(|_| asleep()), "there is always something");
        tell.send(()).unwrap();
    });
}

/// A peer that asks to be woken, and takes no waking: nothing gets through behind that one. Nobody waits for it that did
/// not ask to.
#[test]
fn a_peer_that_takes_no_waking_keeps_nobody() {
    let (tell, told) = mpsc::channel::<()>();
    let (ends_too, has_ended) = mpsc::channel::<()>();
    let mut config = config(62, 1);
    // Of messages that nobody takes a node holds some, and then halts who sends them.
    config.messages.backlog = 64;
    beside_rings(
        config,
        256,
        move |raw| {
            let (_ends_too, began) = (ends_too, Instant::now());
            for nap in 1.. {
                raw.write(raw.peer_cells, 128, nap);
                if !matches!(told.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                    break;
                }
                // Whoever waits without end is let go, with an error.
                if began.elapsed() > WAIT.unwrap() {
                    break;
                }
            }
        },
        |_listener, mut ends| {
            let wakings = |ends: &Ends| ends.sender.carrier().counters().wakings;
            let mut heard = 0;
            while wakings(&ends) < 30 {
                let naps = ends.sender.carrier().counters().peer_naps;
                if std::mem::replace(&mut heard, naps) != naps {
                    ends.sender.try_send(b"x").unwrap();
                    ends.sender.flush().unwrap();
                }
            }
            // More WRITEs than may be outstanding, and fewer messages than the ring takes.
            for _ in 0..150 {
                ends.sender.try_send(b"x").unwrap();
                ends.sender.flush().unwrap();
            }
            ends.receiver.stop().unwrap();
            ends.sender.end().unwrap();
            let short = Some(Duration::from_millis(20));
            assert!(matches!(ends.sender.finish(short), Err(Error::TimedOut)));
            assert!(!ends.sender.carrier().is_settled(), "nothing gets through");
            drop(tell);
            let _ = has_ended.recv();
        },
    );
}
