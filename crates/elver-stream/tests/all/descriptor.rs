//! Waiting for many streams by the session's descriptor.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Wake;
use std::time::{Duration, Instant};

use crate::common::{SMALL, TestNode, WAIT, beside, byte, config, pair, session_at};
use elver::{RecvWr, Session, VqpOptions};
use elver_stream::{Connecting, Interest, Listener, ListenerOptions, Options, Shutdown, Stream};
use elver_testkit::wait_for;
use rustix::event::{Timespec, epoll};

/// An epoll that has a session's descriptor.
fn watch(session: &Session) -> rustix::fd::OwnedFd {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(0);
    epoll::add(&epoll, session.as_fd(), data, epoll::EventFlags::IN).unwrap();
    epoll
}

/// Waits at most so long; whether the descriptor was readable.
fn sleep(epoll: &rustix::fd::OwnedFd, session: &Session, at_most: Duration) -> bool {
    let mut events = Vec::with_capacity(4);
    let at_most = Timespec::try_from(at_most).unwrap();
    let woken =
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_most)).unwrap();
    session.disarm().unwrap();
    woken > 0
}

/// A client as its server sees it: what came and has not gone back.
struct Echo {
    stream: Stream,
    held: Vec<u8>,
    ended: bool,
}

impl Echo {
    /// Does what can be done; whether there will be more.
    fn serve(&mut self) -> bool {
        loop {
            let mut bytes = [0; 1_000];
            // No more is taken than goes back.
            if self.held.is_empty() && !self.ended {
                match self.stream.read(&mut bytes) {
                    Ok(0) => self.ended = true,
                    Ok(read) => self.held.extend_from_slice(&bytes[..read]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                    Err(error) => panic!("{error}"),
                }
            }
            if self.held.is_empty() {
                return false;
            }
            match self.stream.write(&self.held) {
                Ok(written) => drop(self.held.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn interest(&self) -> Interest {
        if self.held.is_empty() { Interest::Readable } else { Interest::Writable }
    }
}

/// Many clients of one thread, each with more under way than the buffers hold.
#[test]
fn one_descriptor_serves_many() {
    const STREAMS: u64 = 24;
    const TOTAL: u64 = 40_000;
    let node = TestNode::start(config(30, 1));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let epoll = watch(&session);
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            let (mut echoes, mut accepted, mut slept) = (Vec::new(), 0, 0);
            while accepted < STREAMS || !echoes.is_empty() {
                while let Some(stream) = listener.try_accept().unwrap() {
                    stream.set_nonblocking(true);
                    echoes.push(Echo { stream, held: Vec::new(), ended: false });
                    accepted += 1;
                }
                echoes.retain_mut(Echo::serve);
                let mut at_most = Some(Duration::from_secs(30));
                for echo in &echoes {
                    let armed = echo.stream.arm(echo.interest()).unwrap();
                    at_most = at_most.zip(armed).map(|(one, other)| one.min(other));
                }
                let Some(at_most) = at_most else { continue };
                if session.arm().unwrap() {
                    let woken = sleep(&epoll, &session, at_most);
                    assert!(woken || at_most < Duration::from_secs(30), "nobody came");
                    slept += 1;
                }
            }
            assert!(slept > 0);
        });
        let (port, session) = (told.recv().unwrap(), session_at(&node));
        let connect = |id| {
            let stream = Stream::connect(&session, node.gid, port, SMALL, WAIT).unwrap();
            stream.set_nonblocking(true);
            (id, stream, 0, 0)
        };
        let mut streams: Vec<_> = (0..STREAMS).map(connect).collect();
        let begun = Instant::now();
        while !streams.is_empty() {
            assert!(begun.elapsed().as_secs() < 60, "{} do not end", streams.len());
            streams.retain_mut(|(id, stream, sent, heard)| {
                let len = (*id * 37 % 900 + 1).min(TOTAL - *sent);
                let bytes: Vec<u8> = (*sent..*sent + len).map(|at| byte(*id, at)).collect();
                if len > 0
                    && let Ok(written) = stream.write(&bytes)
                {
                    *sent += written as u64;
                    if *sent == TOTAL {
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                }
                let mut bytes = [0; 2_000];
                let read = match stream.read(&mut bytes) {
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                    Err(error) => panic!("{error}"),
                };
                for found in &bytes[..read] {
                    assert_eq!(*found, byte(*id, *heard), "byte {heard} of stream {id}");
                    *heard += 1;
                }
                assert!(read > 0 || *heard == TOTAL);
                read > 0
            });
        }
    });
}

/// Who sleeps is woken by the next byte, each time, and not by the time that it sleeps at most.
#[test]
fn who_sleeps_is_woken() {
    const ROUNDS: u64 = 100;
    let node = TestNode::start(config(31, 1));
    pair(
        (&node, &node),
        Options::default(),
        |_listener, mut stream| {
            let session = stream.session();
            let epoll = watch(&session);
            stream.set_nonblocking(true);
            let mut heard = 0;
            while heard < ROUNDS {
                match stream.read(&mut [0]) {
                    Ok(read) => {
                        assert_eq!(read, 1);
                        heard += 1;
                        stream.write_all(&[heard as u8]).unwrap();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                let armed = stream.arm(Interest::Readable).unwrap();
                if let Some(at_most) = armed
                    && session.arm().unwrap()
                {
                    sleep(&epoll, &session, at_most);
                }
            }
        },
        |_session, mut stream| {
            let (mut naps, mut wakings, mut answer) = (0, 0, [0]);
            for round in 1..=ROUNDS {
                let begun = Instant::now();
                loop {
                    let counters = stream.counters().wire;
                    if counters.peer_naps > naps {
                        break;
                    }
                    assert!(begun.elapsed().as_secs() < 30, "it does not lie down: {counters:?}");
                    std::thread::yield_now();
                }
                stream.write_all(&[0]).unwrap();
                stream.flush().unwrap();
                // For this nap, or the one after it, if it woke by itself and lay down again. A waking that found no way yet
                // goes when its sender comes back.
                naps = wait_for("the waking", || {
                    let counters = stream.counters().wire;
                    if counters.wakings == wakings {
                        stream.arm(Interest::Readable).unwrap();
                        return None;
                    }
                    wakings = counters.wakings;
                    Some(counters.peer_naps)
                });
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer[0], round as u8);
            }
        },
    );
}

/// A connect under way says when who sleeps is to look again: its answer may have been lost, and the listener is asked then.
#[test]
fn a_connect_that_nobody_answers_is_looked_after_by_its_deadline() {
    let node = TestNode::start(config(35, 1));
    let mute = session_at(&node);
    let bound = mute.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let mr = mute.alloc(512, elver::AccessFlags::LOCAL_WRITE).unwrap();
    for wr_id in 0..2 {
        bound.post_recv(&[RecvWr { wr_id, sges: &[mr.sge(256 * wr_id, 256)] }]).unwrap();
    }
    let session = session_at(&node);
    let epoll = watch(&session);
    let options = Options::default();
    let mut connecting = Connecting::start(&session, node.gid, port, options).unwrap();
    let (mut came, began) = (0, Instant::now());
    // An offer, and a question.
    while came < 2 {
        assert!(began.elapsed() < WAIT.unwrap(), "it does not ask");
        assert!(connecting.poll().unwrap().is_none(), "nobody answers");
        let deadline = connecting.deadline().unwrap_or(began + WAIT.unwrap());
        if session.arm().unwrap() {
            sleep(&epoll, &session, deadline.saturating_duration_since(Instant::now()));
        }
        came += bound.qpop_msgs().unwrap().len();
    }
}

struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Told>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who shares a session under a lock hears once that another has taken something, whatever it was.
#[test]
fn news_that_another_takes_are_told_once() {
    let node = TestNode::start(config(32, 1));
    let session = session_at(&node);
    let told = Arc::new(Told(AtomicBool::new(false)));
    let take = || drop(session.alloc(64, elver::AccessFlags::empty()).unwrap());
    take();
    session.wake_on_news(&told.clone().into());
    assert!(!told.0.load(Ordering::Relaxed));
    // The answer comes from the node.
    take();
    assert!(told.0.swap(false, Ordering::Relaxed));
    take();
    assert!(!told.0.load(Ordering::Relaxed));
}

thread_local! {
    /// What the waker below looks at, and how often it has.
    static LOOKED_AT: RefCell<Vec<Rc<Stream>>> = const { RefCell::new(Vec::new()) };
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Runs its task when it is woken, on the spot.
struct Looks;

impl Wake for Looks {
    fn wake(self: Arc<Looks>) {
        for stream in LOOKED_AT.with_borrow(Vec::clone) {
            stream.is_ready(Interest::Readable);
        }
        LOOKS.set(LOOKS.get() + 1);
    }
}

/// A waker may run its task inside of `wake`, which then uses the stream whose call has woken it.
#[test]
fn a_task_that_its_waker_runs_at_once_finds_the_streams_free() {
    let node = TestNode::start(config(34, 1));
    let session = session_at(&node);
    let (_listener, one, other) = beside(&session, SMALL);
    let (one, other) = (Rc::new(one), Rc::new(other));
    LOOKED_AT.set(vec![one.clone(), other.clone()]);
    let waker = Arc::new(Looks).into();
    for round in 1..=20 {
        session.wake_on_news(&waker);
        (&*one).write_all(&[7]).unwrap();
        (&*one).flush().unwrap();
        (&*other).read_exact(&mut [0]).unwrap();
        let began = Instant::now();
        while LOOKS.get() < round {
            one.is_ready(Interest::Both);
            assert!(began.elapsed() < WAIT.unwrap());
        }
    }
    LOOKED_AT.take();
}

/// What is ready is told without a word to the peer.
#[test]
fn what_is_ready_is_told_without_arming() {
    let node = TestNode::start(config(33, 1));
    let (full, is_full) = mpsc::channel();
    pair(
        (&node, &node),
        SMALL,
        |_listener, mut stream| {
            stream.set_nonblocking(true);
            assert!(stream.is_ready(Interest::Writable));
            while stream.write(&[7; 500]).is_ok() {}
            assert!(!stream.is_ready(Interest::Writable));
            full.send(()).unwrap();
            while !stream.is_ready(Interest::Both) {
                std::thread::yield_now();
            }
            while !stream.is_ready(Interest::Readable) {
                std::thread::yield_now();
            }
            assert_eq!(stream.read(&mut [0; 2]).unwrap(), 1);
            assert!(!stream.is_ready(Interest::Readable));
            assert_eq!(stream.counters().wire.naps, 0);
        },
        move |_session, mut stream| {
            let mut bytes = [0; 1_000];
            is_full.recv().unwrap();
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&[1]).unwrap();
            // Until the peer has closed.
            while stream.read(&mut bytes).unwrap() > 0 {}
        },
    );
}
