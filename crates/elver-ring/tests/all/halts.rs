//! Peers whose node does nothing for a while, and then goes on.

use std::sync::mpsc;

use crate::common::{PLACE, WAIT, cluster, session_at};
use elver::{EmbeddedNode, SessionOptions};
use elver_ring::{Ends, Listener, ListenerOptions, Options, connect};

/// A listener at a node that its thread drives, and a session of another node that has connected to it. `listens` hears
/// from `connects` when to go on, and the other way round.
fn beside(
    group: u8,
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
        let ends = connect(&session, gid, port, Options::default(), WAIT).unwrap();
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
