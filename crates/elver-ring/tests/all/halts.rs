//! Peers whose node does nothing for a while, and then goes on.

use std::sync::mpsc;

use crate::common::{PLACE, WAIT, at_one_that_stands, cluster, config, session_at};
use elver::{
    AccessFlags, EmbeddedNode, Layout, Payload, SendFlags, SendOp, SendWr, SessionOptions,
    VqpOptions,
};
use elver_ring::{
    Carrier, Config, Connecting, Ends, Error, Listener, ListenerOptions, Options, Pause, connect,
};
use elver_testkit::wait_for;

/// A listener at a node that its thread drives, and a session of another node that has connected to it. `listens` hears
/// from `connects` when to go on, and the other way round.
fn beside(
    group: u8,
    options: Options,
    listens: impl Fn(&EmbeddedNode, Listener, Ends, &mpsc::Receiver<()>, &mpsc::Sender<()>) + Send,
    connects: impl FnOnce(Ends, &mpsc::Sender<()>, &mpsc::Receiver<()>),
) {
    let (near, _far) = cluster(group);
    let gid = PLACE.address(group, 3).into();
    let (tell, told) = mpsc::channel();
    let (say, heard) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let node = EmbeddedNode::new(PLACE.driven(group, 3));
            let session = node.session(SessionOptions::default()).unwrap();
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            let ends = listener.accept(WAIT).unwrap();
            listens(&node, listener, ends, &goes, &say);
        });
        let port = told.recv().unwrap();
        let session = session_at(&near);
        let ends = connect(&session, gid, port, options, WAIT).unwrap();
        connects(ends, &go, &heard);
    });
}

/// Drives a node until the other side says so.
fn until(node: &EmbeddedNode, goes: &mpsc::Receiver<()>) {
    while let Err(mpsc::TryRecvError::Empty) = goes.try_recv() {
        node.poll();
    }
}

/// Who drops an end behind more than may be under way waits for room and for what has gone, as long as is promised.
#[test]
fn what_was_sent_before_a_drop_arrives_also_where_there_was_no_room_below() {
    const MESSAGES: u32 = 100;
    beside(
        65,
        Options::default(),
        |node, _listener, mut ends, goes, say| {
            until(node, goes);
            say.send(()).unwrap();
            goes.recv().unwrap();
            let mut read = 0;
            let ended = loop {
                match ends.receiver.recv(WAIT) {
                    Ok(Some(message)) => {
                        assert_eq!(message.to_vec(), u32::to_le_bytes(read));
                        read += 1;
                    }
                    ended => break ended.map(drop),
                }
            };
            assert!(ended.is_ok() && read == MESSAGES, "{read} messages, and {ended:?}");
            say.send(()).unwrap();
            node.poll();
        },
        |mut ends, go, heard| {
            go.send(()).unwrap();
            heard.recv().unwrap();
            let mut sent = 0_u32;
            while !ends.sender.is_held_up() {
                ends.sender.try_send(&sent.to_le_bytes()).unwrap();
                ends.sender.begin_flush().unwrap();
                sent += 1;
            }
            assert!(sent < MESSAGES, "{sent}");
            while sent < MESSAGES {
                ends.sender.try_send(&sent.to_le_bytes()).unwrap();
                sent += 1;
            }
            go.send(()).unwrap();
            drop(ends);
            heard.recv().unwrap();
        },
    );
}

/// Each message is told, and each is acknowledged, by itself: more pointers than may be under way.
const MESSAGES: u32 = 300;
const ONE_BY_ONE: Config =
    Config { slots: 512, slot_bytes: 64, alpha: 1, beta: 1, gamma: 1, linger_ns: None };

/// Sends all of them and the end, and stands still when the other side says so.
fn send_all(ends: &mut Ends, node: &EmbeddedNode, goes: &mpsc::Receiver<()>) {
    for number in 0..MESSAGES {
        ends.sender.send(&number.to_le_bytes(), WAIT).unwrap();
    }
    ends.sender.begin_end().unwrap();
    wait_for("room", || {
        ends.sender.poll().unwrap();
        (!ends.sender.is_held_up()).then_some(())
    });
    until(node, goes);
}

/// Who has read everything may go at once, also where there is no room to say so: whoever waits for that hears it.
#[test]
fn what_was_read_before_a_drop_is_told_also_where_there_was_no_room_below() {
    beside(
        66,
        Options { back: ONE_BY_ONE, ..Options::default() },
        |node, _listener, mut ends, goes, say| {
            send_all(&mut ends, node, goes);
            // Nothing goes on here until the other end is about to be dropped.
            say.send(()).unwrap();
            goes.recv().unwrap();
            ends.sender.finish(WAIT).unwrap();
            drop(ends);
            until(node, goes);
        },
        |mut ends, go, heard| {
            while !ends.receiver.has_heard_end().unwrap() {}
            go.send(()).unwrap();
            heard.recv().unwrap();
            let mut read = 0;
            while ends.receiver.try_recv().unwrap().is_some() {
                read += 1;
            }
            assert!(read == MESSAGES && ends.receiver.is_ended(), "{read} messages");
            ends.sender.begin_end().unwrap();
            assert!(ends.receiver.is_held_up() && ends.sender.is_held_up());
            go.send(()).unwrap();
            drop(ends);
            go.send(()).unwrap();
        },
    );
}

/// A ring of which nothing is left to read has not ended until that is on its way.
#[test]
fn who_finishes_an_idle_ring_waits_for_room_to_say_so() {
    beside(
        67,
        Options { back: ONE_BY_ONE, ..Options::default() },
        |node, _listener, mut ends, goes, say| {
            send_all(&mut ends, node, goes);
            say.send(()).unwrap();
            goes.recv().unwrap();
            assert!(ends.receiver.recv(WAIT).unwrap().is_none());
            say.send(()).unwrap();
            until(node, goes);
        },
        |mut ends, go, heard| {
            while !ends.receiver.has_heard_end().unwrap() {}
            go.send(()).unwrap();
            heard.recv().unwrap();
            while ends.receiver.try_recv().unwrap().is_some() {}
            assert!(ends.receiver.is_held_up());
            go.send(()).unwrap();
            ends.sender.finish(WAIT).unwrap();
            assert!(!ends.sender.is_held_up());
            heard.recv().unwrap();
            go.send(()).unwrap();
        },
    );
}

/// The same of one half, where the other one goes on and waits for an answer: it is said as soon as there is room.
#[test]
fn what_a_half_had_still_to_say_is_said_while_the_other_one_waits() {
    beside(
        68,
        Options { there: ONE_BY_ONE, ..Options::default() },
        |node, _listener, mut ends, goes, say| {
            until(node, goes);
            say.send(()).unwrap();
            goes.recv().unwrap();
            let mut read = 0_u32;
            while let Some(message) = ends.receiver.recv(WAIT).unwrap() {
                assert_eq!(message.to_vec(), u32::to_le_bytes(read));
                read += 1;
            }
            ends.sender.send(&read.to_le_bytes(), WAIT).unwrap();
            ends.sender.flush().unwrap();
            until(node, goes);
        },
        |mut ends, go, heard| {
            go.send(()).unwrap();
            heard.recv().unwrap();
            let mut sent = 0_u32;
            while !ends.sender.is_held_up() {
                ends.sender.try_send(&sent.to_le_bytes()).unwrap();
                sent += 1;
            }
            let Ends { sender, mut receiver, .. } = ends;
            drop(sender);
            go.send(()).unwrap();
            let answer = receiver.recv(WAIT).unwrap().unwrap().to_vec();
            assert_eq!(answer, sent.to_le_bytes());
            go.send(()).unwrap();
        },
    );
}

/// The node stands still ahead of, or in the middle of, what a listener's end posts for a message: its slots, the tail, and a
/// waking, since the other end sleeps. All of it went again, once there was room: the tail arrived twice, and counted twice.
/// Where none of it went, that was no want of room but a failure. And a flush did not know of the rest.
#[test]
fn what_was_posted_in_part_goes_on_where_it_stopped() {
    const ROOM: u32 = 32;
    let layout = Layout { command_slots: ROOM, ..Layout::default() };
    let options = SessionOptions { layout, ..SessionOptions::default() };
    let options = [options, SessionOptions::default()];
    let mut config = config(18, 1);
    // What this process wrote itself would go by no ring that can be full.
    config.direct.enabled = false;
    at_one_that_stands(config, options, |[session, others], stands| {
        let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
        let (gid, port) = (session.gid(), listener.port());
        let filler = session.create_vqp(VqpOptions::default()).unwrap();
        filler.qconnect(gid, 0).unwrap();
        let filled =
            session.alloc(8, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
        let (op, payload) = (SendOp::Write(filled.remote(0)), Payload::Inline(b"x"));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), payload, dest: None };
        let options = Options::both(ONE_BY_ONE);
        let mut connecting = Connecting::start(&others, gid, port, options).unwrap();
        let mut ours = wait_for("a pair", || {
            connecting.poll().unwrap();
            listener.try_accept().unwrap()
        });
        let mut theirs = wait_for("a pair", || connecting.poll().unwrap());
        for (number, room) in (0_u32..).zip([None, Some(0), Some(1), Some(2), None]) {
            let mut pause = Pause::new(None);
            theirs.receiver.carrier().lie_down(&mut pause).unwrap();
            let naps = theirs.receiver.carrier().naps();
            wait_for("the nap to be told", || {
                (ours.sender.carrier().counters().peer_naps == naps).then_some(())
            });
            // Before a VQP's second WR the node is asked whether this process does them itself.
            filler.post_send(&[wr; 2]).unwrap();
            filler.info().unwrap();
            let still = room.map(|room: u32| {
                let still = stands.still();
                filler.post_send(&vec![wr; (ROOM - room) as usize]).unwrap();
                still
            });
            ours.sender.try_send(&number.to_le_bytes()).unwrap();
            assert_eq!(ours.sender.is_held_up(), room.is_some_and(|room| room < 2), "{room:?}");
            drop(still);
            wait_for("the message", || {
                ours.sender.begin_flush().unwrap();
                let message = theirs.receiver.try_recv().unwrap()?.to_vec();
                assert_eq!(message, number.to_le_bytes());
                Some(())
            });
            let told = u64::from(number) + 1;
            // By now all is told of the message before.
            wait_for("its completion", || {
                ours.sender.poll().unwrap();
                (ours.sender.carrier().advances() >= told).then_some(())
            });
            assert_eq!(ours.sender.carrier().advances(), told);
        }
    });
}

/// The node goes in the middle of what a listener's end posts: the slots and the tail were written by this process itself, and
/// the waking found no room. The tail's completion was one of a message that was never posted, and the next poll panicked.
#[test]
fn who_was_posting_when_the_node_went_hears_that_it_is_gone() {
    const ROOM: u32 = 32;
    let layout = Layout { command_slots: ROOM, ..Layout::default() };
    let options = SessionOptions { layout, ..SessionOptions::default() };
    let options = [options, SessionOptions::default()];
    at_one_that_stands(config(19, 1), options, |[session, others], stands| {
        let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
        let (gid, port) = (session.gid(), listener.port());
        let filler = session.create_vqp(VqpOptions::default()).unwrap();
        filler.qconnect(gid, 0).unwrap();
        let options = Options::both(ONE_BY_ONE);
        let mut connecting = Connecting::start(&others, gid, port, options).unwrap();
        let mut ours = wait_for("a pair", || {
            connecting.poll().unwrap();
            listener.try_accept().unwrap()
        });
        let mut theirs = wait_for("a pair", || connecting.poll().unwrap());
        // Before a VQP's second WR the node is asked whether this process does them itself.
        for number in 0..4_u32 {
            ours.sender.try_send(&number.to_le_bytes()).unwrap();
            wait_for("the message", || {
                ours.sender.poll().unwrap();
                theirs.receiver.try_recv().unwrap().map(drop)
            });
            ours.sender.carrier().vqp().info().unwrap();
        }
        let mut pause = Pause::new(None);
        theirs.receiver.carrier().lie_down(&mut pause).unwrap();
        let naps = theirs.receiver.carrier().naps();
        wait_for("the nap to be told", || {
            (ours.sender.carrier().counters().peer_naps == naps).then_some(())
        });
        let still = stands.still();
        let (op, payload) = (SendOp::Send, Payload::Inline(b"x"));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), payload, dest: None };
        filler.post_send(&vec![wr; ROOM as usize]).unwrap();
        stands.go(still);
        let sent = ours.sender.try_send(b"x");
        // Unless the session has looked whether its node lives, as it does from time to time, and wrote nothing.
        let knew = matches!(sent, Err(Error::Carrier(elver::Error::NodeGone)));
        assert!(theirs.receiver.try_recv().unwrap().is_some() || knew, "{sent:?}");
        let gone = wait_for("the node to be missed", || ours.sender.poll().err());
        assert!(matches!(gone, Error::Carrier(elver::Error::NodeGone)), "{gone:?}");
    });
}
