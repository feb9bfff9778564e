//! Streams between sessions: on one node and between two.

use std::io::{BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{
    SMALL, TestNode, WAIT, beside, both_ways_at, byte, cluster, config, pair, session_at,
};
use elver::{Policy, Session};
use elver_random::Rng;
use elver_stream::{Interest, Listener, ListenerOptions, Options, Shutdown, Stream};
use elver_testkit::wait_for;

/// A random length, most of them short.
fn length(rng: &mut Rng) -> usize {
    let most = [1, 8, 100, 700, 5_000, 40_000][rng.next_u32() as usize % 6];
    1 + rng.next_u32() as usize % most
}

/// One direction at one end: how far it got, and what is chosen by chance.
struct Flow {
    id: u64,
    at: u64,
    total: u64,
    rng: Rng,
}

impl Flow {
    fn new(seed: u64, id: u64, total: u64) -> Flow {
        Flow { id, at: 0, total, rng: Rng::new(seed ^ id) }
    }

    /// Writes some of what is left, from one buffer or three.
    fn write(&mut self, mut stream: &Stream) -> std::io::Result<usize> {
        let len = length(&mut self.rng).min((self.total - self.at) as usize);
        let bytes: Vec<u8> = (0..len as u64).map(|at| byte(self.id, self.at + at)).collect();
        let written = if self.rng.next_u32().is_multiple_of(2) {
            stream.write(&bytes)?
        } else {
            let (first, rest) = bytes.split_at(self.rng.next_u32() as usize % (len + 1));
            let (second, third) = rest.split_at(self.rng.next_u32() as usize % (rest.len() + 1));
            stream.write_vectored(&[first, second, third].map(IoSlice::new))?
        };
        assert!((1..=len).contains(&written));
        self.at += written as u64;
        Ok(written)
    }

    /// Reads some, into one buffer or two, and looks at each byte; none at the end.
    fn read(&mut self, mut stream: &Stream) -> std::io::Result<usize> {
        let mut bytes = vec![0; length(&mut self.rng)];
        let read = if self.rng.next_u32().is_multiple_of(2) {
            stream.read(&mut bytes)?
        } else {
            let cut = self.rng.next_u32() as usize % (bytes.len() + 1);
            let (first, second) = bytes.split_at_mut(cut);
            stream.read_vectored(&mut [first, second].map(IoSliceMut::new))?
        };
        for (at, found) in (self.at..).zip(&bytes[..read]) {
            assert_eq!(*found, byte(self.id, at), "byte {at} of stream {}", self.id);
        }
        self.at += read as u64;
        assert!(self.at <= self.total, "nothing was invented");
        Ok(read)
    }
}

/// Whether a call of a stream that does not wait has done something.
fn done(result: std::io::Result<usize>) -> Option<usize> {
    match result {
        Ok(count) => Some(count),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            None
        }
    }
}

/// One end of an exchange both ways, which never waits: one step of it. Whether it is at its end.
struct End<'a> {
    stream: &'a Stream,
    out: Flow,
    into: Flow,
    ended: bool,
}

impl<'a> End<'a> {
    fn new(stream: &'a Stream, out: Flow, into: Flow) -> End<'a> {
        stream.set_nonblocking(true);
        End { stream, out, into, ended: false }
    }

    fn step(&mut self) -> bool {
        if self.out.at < self.out.total {
            let written = done(self.out.write(self.stream));
            if written.is_some() && self.out.at == self.out.total {
                self.stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        if !self.ended {
            self.ended = done(self.into.read(self.stream)) == Some(0);
        }
        let is_done = self.ended && self.out.at == self.out.total;
        assert!(!is_done || self.into.at == self.into.total, "all of it came");
        is_done
    }
}

/// Exchanges both ways, between threads.
fn both_ways(nodes: (&TestNode, &TestNode), options: Options, total: u64, seed: u64) {
    println!("seed {seed}, {options:?}");
    let run = move |stream: Stream, mine: u64, theirs: u64| {
        let (out, into) = (Flow::new(seed, mine, total), Flow::new(seed, theirs, total));
        let mut end = End::new(&stream, out, into);
        let begun = Instant::now();
        while !end.step() {
            assert!(begun.elapsed().as_secs() < 60, "seed {seed}: it does not end");
            std::thread::yield_now();
        }
        let counters = stream.counters();
        assert_eq!((counters.bytes_written, counters.bytes_read), (total, total));
    };
    pair(
        nodes,
        options,
        move |listener, stream| {
            assert_eq!(stream.port(), listener.port());
            run(stream, 1, 2);
        },
        move |_session, stream| run(stream, 2, 1),
    );
}

/// Each end by an RC queue pair of its own.
#[test]
fn streams_go_by_leases_at_both_ends() {
    let (one, other) = cluster(12);
    let policy = Policy::Leased;
    let taken = ListenerOptions { policy, ..ListenerOptions::default() };
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&one);
            let listener = Listener::bind(&session, 0, taken).unwrap();
            tell.send(listener.port()).unwrap();
            // As who waits for other things of the session as well.
            let mut stream = loop {
                if let Some(stream) = listener.try_accept().unwrap() {
                    break stream;
                }
                let soon = Some(Duration::from_millis(1));
                let at_most = if listener.is_answering() { soon } else { WAIT };
                let slept = session.wait_ready(at_most);
                assert!(matches!(slept, Ok(_) | Err(elver::Error::TimedOut)), "{slept:?}");
            };
            assert_eq!(stream.peer_gid().unwrap(), other.gid);
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            stream.write_all(&said).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let port = told.recv().unwrap();
        let options = Options { policy, ..Options::default() };
        let mut stream =
            Stream::connect(&session_at(&other), one.gid, port, options, WAIT).unwrap();
        stream.write_all(b"by a lease").unwrap();
        // Before the other end says anything.
        for node in [&one, &other] {
            let vqps = node.thread.status().unwrap().vqps;
            assert!(vqps.iter().any(|vqp| vqp.via.as_deref() == Some("leased")), "{vqps:?}");
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"by a lease");
    });
}

#[test]
fn bytes_go_both_ways_between_processes_of_one_node() {
    both_ways_at(1, true, |node| {
        for seed in 0..4 {
            both_ways((node, node), SMALL, 200_000, seed);
            both_ways((node, node), Options::default(), 3_000_000, seed);
            both_ways((node, node), Options { nodelay: true, ..SMALL }, 100_000, seed);
        }
    });
}

#[test]
fn bytes_go_both_ways_between_two_nodes() {
    let (one, other) = cluster(2);
    for seed in 10..12 {
        both_ways((&one, &other), Options::default(), 2_000_000, seed);
        both_ways((&other, &one), SMALL, 100_000, seed);
    }
}

/// Both ends in one thread, with one session, and neither waits for the other.
#[test]
fn both_ends_are_in_one_thread() {
    both_ways_at(3, true, |node| {
        let session = session_at(node);
        for seed in 20..26 {
            let (_listener, accepted, connected) = beside(&session, SMALL);
            println!("seed {seed}");
            assert_eq!(accepted.peer_gid().unwrap(), node.gid);
            assert_eq!(connected.peer_gid().unwrap(), node.gid);
            let (one, other) = (Flow::new(seed, 1, 300_000), Flow::new(seed, 2, 200_000));
            let mut here = End::new(&accepted, one, Flow::new(seed, 2, 200_000));
            let mut there = End::new(&connected, other, Flow::new(seed, 1, 300_000));
            let mut order = Rng::new(seed);
            let begun = Instant::now();
            let mut ended = (false, false);
            while ended != (true, true) {
                if order.next_u32().is_multiple_of(2) {
                    ended.0 = here.step();
                } else {
                    ended.1 = there.step();
                }
                assert!(begun.elapsed().as_secs() < 60, "seed {seed}: it does not end");
            }
        }
    });
}

/// A question and its answer, with what a user of std writes, and no thought of flushing.
#[test]
fn who_asks_and_reads_need_not_flush() {
    both_ways_at(4, true, |node| {
        pair(
            (node, node),
            Options::default(),
            |_listener, mut stream| {
                let mut lines = String::new();
                let mut reader = BufReader::new(&stream);
                let mut count = 0;
                while reader.read_line(&mut lines).unwrap() > 0 {
                    count += 1;
                    // In parts, of which only the first finds nothing under way.
                    let mut writer = &stream;
                    write!(writer, "{count}: {}", lines.trim_end()).unwrap();
                    writeln!(writer).unwrap();
                    lines.clear();
                }
                stream.flush().unwrap();
            },
            |_session, mut stream| {
                let mut reader = BufReader::new(&stream);
                let mut line = String::new();
                for count in 1..=300 {
                    let mut writer = &stream;
                    for word in ["how ", "do ", "you ", "do"] {
                        writer.write_all(word.as_bytes()).unwrap();
                    }
                    writeln!(writer, "?").unwrap();
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                    assert_eq!(line, format!("{count}: how do you do?\n"));
                }
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the other end is dropped");
            },
        );
    });
}

/// One direction ends, and the other goes on: whoever ends first.
#[test]
fn one_direction_ends_and_the_other_goes_on() {
    both_ways_at(5, false, |node| {
        for listener_ends_first in [false, true] {
            let ends = |mut stream: Stream| {
                stream.write_all(b"all of it").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let refused = stream.write(b"more").unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::BrokenPipe, "{refused}");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "it was all of it, and this came behind its end".repeat(1_000));
                assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it stays at its end");
            };
            let goes_on = |mut stream: Stream| {
                let mut said = String::new();
                stream.read_to_string(&mut said).unwrap();
                for _ in 0..1_000 {
                    write!(stream, "it was {said}, and this came behind its end").unwrap();
                }
                stream.finish(WAIT).unwrap();
            };
            pair(
                (node, node),
                SMALL,
                move |_listener, stream| {
                    if listener_ends_first { ends(stream) } else { goes_on(stream) }
                },
                move |_session, stream| {
                    if listener_ends_first { goes_on(stream) } else { ends(stream) }
                },
            );
        }
    });
}

/// What was written before a stream is dropped arrives, and the end behind it.
#[test]
fn a_stream_that_is_dropped_ends_behind_what_was_written() {
    both_ways_at(6, false, |node| {
        let session = session_at(node);
        for count in [0, 1, 5, 30] {
            let (_listener, mut accepted, mut connected) = beside(&session, SMALL);
            for number in 0..count {
                assert_eq!(accepted.write(&[number; 100]).unwrap(), 100);
            }
            drop(accepted);
            let mut all = Vec::new();
            connected.read_to_end(&mut all).unwrap();
            let expected: Vec<u8> = (0..count).flat_map(|number| [number; 100]).collect();
            assert_eq!(all, expected);
            let refused = loop {
                if let Err(error) = connected.write(b"into the void") {
                    break error;
                }
            };
            assert_eq!(refused.kind(), ErrorKind::BrokenPipe, "{refused}");
        }
    });
}

/// Whichever end gives up without a word: what it wrote before is read, and then a reset. An end that is said is known
/// ahead of what was not read.
#[test]
fn a_stream_that_is_aborted_is_reset_behind_what_was_written() {
    both_ways_at(11, false, |node| {
        let session = session_at(node);
        for accepts in [true, false] {
            let (_listener, accepted, connected) = beside(&session, SMALL);
            let [mut here, mut there] =
                if accepts { [accepted, connected] } else { [connected, accepted] };
            assert!(!there.has_peer_ended().unwrap() && !there.is_ready(Interest::End));
            here.write_all(b"before").unwrap();
            here.flush().unwrap();
            let mut closing = here.abort();
            wait_for("all to be on its way", || closing.poll().then_some(()));
            drop(closing);
            let mut all = Vec::new();
            let reset = there.read_to_end(&mut all).unwrap_err();
            assert_eq!((reset.kind(), &all[..]), (ErrorKind::ConnectionReset, &b"before"[..]));
            assert_eq!(there.has_peer_ended().unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(there.is_ready(Interest::End) && there.is_ready(Interest::WritableOrEnd));
        }
        let (_listener, mut accepted, mut connected) = beside(&session, SMALL);
        accepted.write_all(b"last").unwrap();
        accepted.shutdown(Shutdown::Write).unwrap();
        wait_for("the end", || connected.has_peer_ended().unwrap().then_some(()));
        assert!(connected.is_ready(Interest::End));
        let mut all = Vec::new();
        connected.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"last");
    });
}

/// Without reading, the peer's writes fail, and so do those that wait for room.
#[test]
fn who_writes_hears_that_nobody_reads() {
    both_ways_at(7, false, |node| {
        let (done, is_done) = mpsc::channel::<()>();
        pair(
            (node, node),
            SMALL,
            move |_listener, mut stream| {
                stream.read_exact(&mut [0; 1]).unwrap();
                stream.shutdown(Shutdown::Read).unwrap();
                assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
                // The other direction is there.
                stream.write_all(b"enough").unwrap();
                stream.finish(WAIT).unwrap();
                // Whose peer is gone is told so, whatever it does.
                let _ = is_done.recv();
            },
            move |_session, mut stream| {
                let _done = done;
                let refused = loop {
                    if let Err(error) = stream.write(&[7; 1_000]) {
                        break error;
                    }
                };
                assert_eq!(refused.kind(), ErrorKind::BrokenPipe, "{refused}");
                let mut said = String::new();
                stream.read_to_string(&mut said).unwrap();
                assert_eq!(said, "enough");
                stream.shutdown(Shutdown::Both).unwrap();
                stream.shutdown(Shutdown::Both).unwrap();
            },
        );
    });
}

/// A reader that is slow holds the writer, which takes no more than the buffers hold.
#[test]
fn a_writer_waits_for_its_reader() {
    both_ways_at(8, false, |node| {
        let session = session_at(node);
        let (_listener, mut accepted, mut connected) = beside(&session, SMALL);
        connected.set_nonblocking(true);
        let mut taken = 0;
        while let Some(written) = done(connected.write(&[1; 1_000])) {
            taken += written;
            assert!(taken <= 4_096, "no more than the buffer");
        }
        assert!(taken > 3_000, "and not much less: {taken}");
        assert!(connected.counters().full > 0);
        connected.set_nonblocking(false);
        connected.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(connected.write(&[1; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
        accepted.read_exact(&mut vec![0; taken]).unwrap();
        // The node may take longer than that to tell of the room.
        connected.set_write_timeout(WAIT).unwrap();
        connected.write_all(&[2; 10]).unwrap();
        connected.flush().unwrap();
        let mut last = [0; 10];
        accepted.read_exact(&mut last).unwrap();
        assert_eq!(last, [2; 10]);
    });
}

#[test]
fn timeouts_and_what_cannot_be() {
    both_ways_at(9, false, |node| {
        let session = session_at(node);
        let (_listener, mut accepted, connected) = beside(&session, Options::default());
        let short = Some(Duration::from_millis(5));
        accepted.set_read_timeout(short).unwrap();
        assert_eq!((accepted.read_timeout(), accepted.write_timeout()), (short, None));
        assert_eq!(accepted.read(&mut [0; 4]).unwrap_err().kind(), ErrorKind::TimedOut);
        let none = Some(Duration::ZERO);
        for refused in [connected.set_read_timeout(none), connected.set_write_timeout(none)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        accepted.set_nonblocking(true);
        assert_eq!(accepted.read(&mut [0; 4]).unwrap_err().kind(), ErrorKind::WouldBlock);
        // Nothing is asked for.
        assert_eq!(accepted.read(&mut []).unwrap(), 0);
        assert_eq!(accepted.write(&[]).unwrap(), 0);
        accepted.set_nonblocking(false);
        accepted.set_read_timeout(None).unwrap();
        session.waker().unwrap().wake();
        let woken = accepted.read(&mut [0; 4]).unwrap_err();
        assert_eq!(woken.kind(), ErrorKind::Other, "who tries again would wait on: {woken}");
        connected.set_nodelay(true);
        assert!(connected.nodelay() && !accepted.nodelay());
    });
}

fn refused(session: &Session, port: u16) -> std::io::Error {
    let gid = session.gid();
    Stream::connect(session, gid, port, Options::default(), WAIT).map(drop).unwrap_err()
}

#[test]
fn where_nobody_listens_a_stream_is_refused() {
    let node = TestNode::start(config(10, 1));
    let session = session_at(&node);
    let unbound = refused(&session, 999);
    assert_eq!(unbound.kind(), ErrorKind::ConnectionRefused, "{unbound}");
    assert!(unbound.to_string().contains("999"), "{unbound}");
    let nowhere = std::net::IpAddr::from([127, 9, 10, 77]).into();
    let lost = Stream::connect(&session, nowhere, 7, SMALL, WAIT).map(drop).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::HostUnreachable, "{lost}");
    // Nobody answers as long as nobody accepts.
    let (listener, _accepted, _connected) = beside(&session, SMALL);
    let port = listener.port();
    let short = Some(Duration::from_millis(5));
    let late = Stream::connect(&session, node.gid, port, SMALL, short).map(drop).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    // A port that still carries a stream, and whose listener is gone, refuses when it is looked at.
    let asks = session_at(&node);
    drop(listener);
    let mut connecting = elver_stream::Connecting::start(&asks, node.gid, port, SMALL).unwrap();
    let begun = Instant::now();
    let closed = loop {
        let _ = _accepted.arm(elver_stream::Interest::Readable).unwrap();
        match connecting.poll() {
            Ok(stream) => assert!(stream.is_none()),
            Err(error) => break error,
        }
        assert!(begun.elapsed().as_secs() < 30, "nobody refuses");
    };
    assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
    assert!(closed.to_string().contains("takes no more"), "{closed}");
}
