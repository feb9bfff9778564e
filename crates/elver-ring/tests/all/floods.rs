//! More messages than a listener's node holds for its port: nobody's rings fail for them.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{TestNode, WAIT, config, session_at};
use elver::{
    Error as ElverError, Payload, RefusalCode, SendFlags, SendOp, SendWr, Session, Vqp, VqpOptions,
};
use elver_ring::{Ends, Error, Listener, ListenerOptions, Options, connect};
use elver_testkit::wait_for;

/// Fills what a node holds for a port: senders, until one is refused.
fn flood(session: &Session, port: u16) -> Vec<Vqp> {
    const SENDERS: u32 = 64;
    const AT_ONCE: usize = 100;
    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(session.gid(), port).unwrap();
        let payload = Payload::Inline(b"flood");
        let flags = SendFlags::empty();
        let wr = SendWr { wr_id: 0, op: SendOp::Send, flags, payload, dest: None };
        vqp.post_send(&[wr; AT_ONCE]).unwrap();
        senders.push(vqp);
        let began = Instant::now();
        // The first ones wait for credit.
        while began.elapsed() < Duration::from_millis(20) {
            session.poll().unwrap();
            if let Some(failure) = senders.iter().find_map(Vqp::failure) {
                let overrun = RefusalCode::Overrun;
                assert!(matches!(failure, ElverError::Refused { code, .. } if code == overrun));
                return senders;
            }
        }
    }
    panic!("{SENDERS} senders are not refused");
}

/// Sends, and looks after the ring, until `done` says so.
fn look_until(ends: &mut Ends, mut done: impl FnMut(&Ends) -> bool) {
    let began = Instant::now();
    while !done(ends) {
        assert!(began.elapsed() < WAIT.unwrap(), "{:?}", ends.sender.carrier().counters());
        ends.sender.poll().unwrap();
        std::thread::yield_now();
    }
}

/// Wakings of all who have connected to a listener come by its port, and so does what anybody else sends there.
#[test]
fn a_flood_at_a_listener_s_port_fails_nobody_s_ring_and_no_sleeper_is_missed() {
    let mut config = config(63, 1);
    config.messages.backlog = 64;
    let node = TestNode::start(config);
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (sleeps, is_asleep) = mpsc::channel::<()>();
    let (sent, is_sent) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (sent, is_asleep) = (sent, is_asleep);
            let session = session_at(&node);
            let mut ends = connect(&session, node.gid, port, Options::default(), WAIT).unwrap();
            is_asleep.recv().unwrap();
            let flooders = session_at(&node);
            let flooding = flood(&flooders, port);
            ends.sender.send(b"behind a flood", WAIT).unwrap();
            ends.sender.flush().unwrap();
            look_until(&mut ends, |ends| ends.sender.carrier().counters().wakings_lost > 1);
            sent.send(()).unwrap();
            is_asleep.recv().unwrap();
            drop(flooding);
            // It sleeps again, and is woken, by the way that wakings were lost on.
            let naps = ends.sender.carrier().counters().peer_naps;
            let wakings = ends.sender.carrier().counters().wakings;
            look_until(&mut ends, |ends| ends.sender.carrier().counters().peer_naps > naps);
            ends.sender.send(b"once more", WAIT).unwrap();
            ends.sender.flush().unwrap();
            look_until(&mut ends, |ends| ends.sender.carrier().counters().wakings > wakings);
            ends.sender.finish(WAIT).unwrap();
        });
        let mut ends = listener.accept(WAIT).unwrap();
        wait_for("the other end to be told that it sleeps", || {
            let short = Some(Duration::from_millis(20));
            assert!(matches!(ends.receiver.recv(short), Err(Error::TimedOut)));
            (ends.receiver.carrier().naps() > 0).then_some(())
        });
        sleeps.send(()).unwrap();
        // It looks at nothing meanwhile.
        is_sent.recv().unwrap();
        let message = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
        assert_eq!(message, b"behind a flood");
        sleeps.send(()).unwrap();
        let message = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
        assert_eq!(message, b"once more");
        assert!(ends.receiver.recv(WAIT).unwrap().is_none());
    });
}
