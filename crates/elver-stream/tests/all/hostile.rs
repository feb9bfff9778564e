//! Peers that are no streams, and such as break the rules: who has the other end is told, and is given nothing
//! that was not sent.

use std::error::Error as _;
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc;
use std::time::Instant;

use elver_testkit::wait_for;

use crate::common::{NodeConfig, SMALL, TestNode, WAIT, config, session_at};
use elver::{
    AccessFlags, Completed, Gid, Mr, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Session, Vqp, VqpOptions, Wc, WcOpcode,
};
use elver_ring::Fault;
use elver_stream::{Listener, ListenerOptions, Options, Stream};

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// Rings of messages and streams do not take one another for their own.
#[test]
fn rings_of_messages_are_no_streams() {
    let node = TestNode::start(config(50, 1));
    let session = session_at(&node);
    let streams = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let rings =
        elver_ring::Listener::bind(&session, 0, elver_ring::ListenerOptions::default()).unwrap();
    let (stream_port, ring_port) = (streams.port(), rings.port());
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let session = session_at(&node);
            let options = elver_ring::Options::default();
            let ring = elver_ring::connect(&session, node.gid, stream_port, options, WAIT);
            let told = ring.map(drop).unwrap_err().to_string();
            assert!(told.contains("something else is spoken over its rings"), "{told}");
            let stream = Stream::connect(&session, node.gid, ring_port, Options::default(), WAIT);
            let told = stream.map(drop).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::ConnectionRefused);
            assert!(told.to_string().contains("something else is spoken"), "{told}");
            // Larger than the listener allows.
            let large = Options { send_buffer_bytes: 64 << 20, ..SMALL };
            let stream = Stream::connect(&session, node.gid, stream_port, large, WAIT);
            let told = stream.map(drop).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::ConnectionRefused);
            assert!(told.to_string().contains("longer than it allows"), "{told}");
            let wrong = Options { send_buffer_bytes: 1, ..SMALL };
            let told = Stream::connect(&session, node.gid, stream_port, wrong, WAIT);
            assert_eq!(told.map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
        });
        let begun = Instant::now();
        while !asks.is_finished() {
            assert!(streams.try_accept().unwrap().is_none());
            assert!(rings.try_accept().unwrap().is_none());
            assert!(begun.elapsed().as_secs() < 30, "somebody is not answered");
        }
        asks.join().unwrap();
        assert_eq!((streams.counters().accepted, streams.counters().refused), (0, 2));
        assert_eq!((rings.counters().accepted, rings.counters().refused), (0, 1));
    });
    // The port is told.
    let taken = Listener::bind(&session, stream_port, ListenerOptions::default()).map(drop);
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse);
}

/// An end that is made by hand: `elver_ring`'s greeting, with the streams' word.
struct Raw {
    vqp: Vqp,
    cells: Mr,
    _slots: Mr,
    peer_cells: RemoteAddr,
    peer_slots: RemoteAddr,
}

impl Raw {
    /// Rings of so many slots of 64 bytes, α 4, β 2, γ 2.
    fn connect(session: &Session, gid: Gid, port: u16, count: u64) -> Raw {
        let cells = session.alloc(192, ALL).unwrap();
        let slots = session.alloc(64 * count, ALL).unwrap();
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(gid, port).unwrap();
        let measures = [count | 64 << 32, 4 | 2 << 32, 2, u64::MAX];
        let mut words = [0; 15];
        words[0] = u64::from(u32::from_le_bytes(*b"RB2R")) | 4 << 32 | 1 << 48;
        words[1..5].copy_from_slice(&measures);
        words[5..9].copy_from_slice(&measures);
        let at = |mr: &Mr| [mr.remote(0).addr, mr.remote(0).rkey.into()];
        words[9..11].copy_from_slice(&at(&cells));
        words[11..13].copy_from_slice(&at(&slots));
        words[14] = u64::from_le_bytes(*b"stream\0\x01");
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let answer = session.alloc(128, ALL).unwrap();
        vqp.post_recv(&[RecvWr { wr_id: 2, sges: &[answer.sge(0, 128)] }]).unwrap();
        send(&vqp, SendOp::Send, &bytes);
        while complete(&vqp).opcode != WcOpcode::Recv {}
        let word = |at: u64| answer.read_u64(8 * at).unwrap();
        assert_eq!(word(0) >> 48, 2, "it is welcome");
        let remote = |at| RemoteAddr { addr: word(at), rkey: word(at + 1) as u32 };
        let (peer_cells, peer_slots) = (remote(9), remote(11));
        Raw { vqp, cells, _slots: slots, peer_cells, peer_slots }
    }

    /// Writes there, and waits until it is there.
    fn write(&self, to: RemoteAddr, offset: u64, bytes: &[u8]) {
        let to = RemoteAddr { addr: to.addr + offset, ..to };
        send(&self.vqp, SendOp::Write(to), bytes);
        complete(&self.vqp);
    }

    fn tail(&self, tail: u64) {
        self.write(self.peer_cells, 0, &tail.to_le_bytes());
    }

    /// A message in slot `at` that claims a length.
    fn message(&self, at: u64, len: u64, bytes: &[u8]) {
        let header = ((at + 1) << 32 | len).to_le_bytes();
        self.write(self.peer_slots, (at % 8) * 64, &[&header[..], bytes].concat());
    }
}

fn send(vqp: &Vqp, op: SendOp, bytes: &[u8]) {
    let payload = Payload::Inline(bytes);
    let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[wr]).unwrap();
}

fn complete(vqp: &Vqp) -> Wc {
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, WAIT).unwrap();
    wcs[0].succeeded().unwrap()
}

/// A stream whose other end is `hostile`, which waits at the end until it is let go.
fn beside(group: u8, hostile: impl FnOnce(&Raw) + Send, honest: impl FnOnce(Stream)) {
    beside_rings(config(group, 1), 8, hostile, honest);
}

/// As [`beside`], with rings of so many slots.
fn beside_rings(
    config: NodeConfig,
    count: u64,
    hostile: impl FnOnce(&Raw) + Send,
    honest: impl FnOnce(Stream),
) {
    let node = TestNode::start(config);
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (go, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let raw = Raw::connect(&session, node.gid, port, count);
            hostile(&raw);
            let _ = wait.into_iter().next();
        });
        honest(listener.accept(WAIT).unwrap());
        drop(go);
    });
}

fn fault(mut stream: Stream, reads: &[u8]) -> Fault {
    let mut read = vec![0; reads.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(read, reads);
    let error = stream.read(&mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    assert_eq!(stream.read(&mut [0; 64]).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!(stream.counters().received.faults, 1);
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(elver_ring::Error::Fault(fault)) => *fault,
        other => panic!("{other:?}, {:?}", error.source()),
    }
}

#[test]
fn nothing_that_was_not_sent_is_read() {
    // A tail before its message, behind one that was right.
    beside(
        51,
        |raw| {
            raw.message(0, 5, b"right");
            raw.tail(1);
            raw.tail(2);
        },
        |stream| {
            let fault = fault(stream, b"right");
            assert!(matches!(fault, Fault::Stale { at: 1, .. }), "{fault}");
        },
    );
    // A length beyond what is there.
    beside(
        52,
        |raw| {
            raw.message(0, 5, b"right");
            raw.message(1, 4_000, b"wrong");
            raw.tail(2);
        },
        |stream| {
            let fault = fault(stream, b"right");
            assert_eq!(fault, Fault::Length { at: 1, bytes: 4_000, slots: 1 });
        },
    );
}

/// A peer that changes the length of a message of which a part was read: what it was is what counts.
#[test]
fn a_length_that_changes_changes_nothing() {
    let (read, is_read) = mpsc::channel::<()>();
    let (changed, is_changed) = mpsc::channel::<()>();
    beside(
        53,
        move |raw| {
            raw.message(0, 10, b"0123456789");
            raw.tail(1);
            is_read.recv().unwrap();
            raw.message(0, 2, b"0123456789");
            changed.send(()).unwrap();
        },
        move |mut stream| {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).unwrap();
            read.send(()).unwrap();
            is_changed.recv().unwrap();
            let mut rest = [0; 6];
            stream.read_exact(&mut rest).unwrap();
            assert_eq!((&bytes, &rest), (b"0123", b"456789"));
        },
    );
}

/// Messages without bytes are no end, and do not hold who reads for ever.
#[test]
fn empty_messages_are_no_end() {
    beside(
        54,
        |raw| {
            (0..7).for_each(|at| raw.message(at, 0, b""));
            raw.message(7, 3, b"end");
            raw.tail(8);
        },
        |mut stream| {
            let mut said = [0; 64];
            assert_eq!(stream.read(&mut said).unwrap(), 3);
            assert_eq!(&said[..3], b"end");
            stream.set_nonblocking(true);
            assert_eq!(stream.read(&mut said).unwrap_err().kind(), ErrorKind::WouldBlock);
        },
    );
}

/// A head that was never reached makes no room.
#[test]
fn a_head_that_cannot_be_ends_the_stream() {
    beside(
        55,
        |raw| raw.write(raw.peer_cells, 64, &1_000_u64.to_le_bytes()),
        |mut stream| {
            let refused = loop {
                if let Err(error) = stream.write(&[0; 300]) {
                    break error;
                }
            };
            assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
            assert_eq!(stream.counters().sent.faults, 1);
            assert!(stream.counters().bytes_written <= 8 * 64);
        },
    );
}

/// A peer that asks to be woken and takes no waking holds up what is behind that one, and nobody who closes without waiting.
#[test]
fn a_peer_that_takes_no_waking_keeps_nobody_who_closes() {
    const WAKINGS: u64 = 30;
    const MORE: u64 = 150;
    const ENDED: u64 = 1 << 63;
    let (closed, is_closed) = mpsc::channel::<u64>();
    let mut config = config(56, 1);
    // Of messages that nobody takes a node holds some, and then halts who sends them.
    config.messages.backlog = 64;
    beside_rings(
        config,
        256,
        move |raw| {
            let mut nap = 0_u64;
            let written = loop {
                nap += 1;
                raw.write(raw.peer_cells, 128, &nap.to_le_bytes());
                match is_closed.try_recv() {
                    Err(mpsc::TryRecvError::Empty) => {}
                    // Nobody is left who would have written anything.
                    told => break told.unwrap_or(0),
                }
            };
            // It takes its wakings after all, however many there are.
            let bells = raw.vqp.session().alloc(128, ALL).unwrap();
            let take = || {
                raw.vqp.post_recv(&[RecvWr { wr_id: 3, sges: &[bells.sge(0, 128)] }]).unwrap();
            };
            (0..WAKINGS).for_each(|_| take());
            // What waited for its turn at the sender is not lost, nor the end behind it.
            wait_for("all that was written", || {
                let mut wcs = [Wc::default()];
                while raw.vqp.poll_cq(&mut wcs).unwrap() > 0 {
                    if wcs[0].succeeded().unwrap().opcode == WcOpcode::Recv {
                        take();
                    }
                }
                (raw.cells.read_u64(0).unwrap() == ENDED | written).then_some(())
            });
        },
        |mut stream| {
            let mut heard = 0;
            while stream.counters().wire.wakings < WAKINGS {
                let naps = stream.counters().wire.peer_naps;
                if std::mem::replace(&mut heard, naps) != naps {
                    assert_eq!(stream.write(b"x").unwrap(), 1);
                    stream.flush().unwrap();
                }
            }
            // More than may be under way.
            stream.set_nodelay(true);
            for _ in 0..MORE {
                assert_eq!(stream.write(b"x").unwrap(), 1);
            }
            let written = stream.counters().bytes_written;
            let mut closing = stream.close();
            for _ in 0..1_000 {
                assert!(!closing.poll(), "nothing is behind a waking that nobody takes");
            }
            closed.send(written).unwrap();
            wait_for("all to be on its way", || closing.poll().then_some(()));
        },
    );
}
