//! Streams whose node stands still, so that there is no room below for what they let out.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{PLACE, SMALL, TestNode, session_at};
use elver::tokio::AsyncSession;
use elver::{Session, SessionOptions, VqpOptions};
use elver_stream::{AsyncStream, Connecting, Listener, ListenerOptions, Options, Stream};
use elver_testkit::{Standing, wait_for};
use tokio::io::AsyncWrite;

const OPTIONS: Options =
    Options { send_buffer_bytes: 1 << 16, receive_buffer_bytes: 1 << 16, nodelay: true, ..SMALL };
/// Writes after which there is no room below, while the ring has more.
const WRITES: usize = 200;

/// Both ends of a stream at a node that stands still when it is told to, and carries all itself.
fn pair(group: u8) -> (Standing, [Session; 2], [Stream; 2]) {
    let mut config = PLACE.alone(group);
    config.direct.enabled = false;
    let (stands, sockets) = Standing::start(config);
    let [ours, theirs] =
        sockets.map(|socket| Session::over(socket, SessionOptions::default()).unwrap());
    let listener = Listener::bind(&theirs, 0, ListenerOptions::default()).unwrap();
    let mut connecting = Connecting::start(&ours, ours.gid(), listener.port(), OPTIONS).unwrap();
    let accepted = wait_for("a stream", || {
        connecting.poll().unwrap();
        listener.try_accept().unwrap()
    });
    let connected = wait_for("its end", || connecting.poll().unwrap());
    (stands, [ours, theirs], [connected, accepted])
}

/// Writes so many bytes, one by one, or as many as there is room for.
fn fill(stream: &Stream, most: usize) -> usize {
    stream.set_nonblocking(true);
    (0..most).take_while(|_| (&*stream).write(b"x").is_ok()).count()
}

/// The flush said that all was let out, though it had found no room: a task that then waited for something else never came by
/// again.
#[test]
fn a_task_s_flush_and_end_wait_until_what_was_written_is_on_its_way() {
    let (stands, [ours, _theirs], [connected, accepted]) = pair(150);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _runs = runtime.enter();
    let session = Rc::new(AsyncSession::new(ours).unwrap());
    let still = stands.still();
    let written = fill(&connected, WRITES);
    assert_eq!(written, WRITES);
    connected.set_nonblocking(false);
    let mut stream = AsyncStream::new(connected, &session);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut stream).poll_flush(cx).is_pending());
    assert!(Pin::new(&mut stream).poll_shutdown(cx).is_pending());
    drop(still);
    wait_for("the end", || match Pin::new(&mut stream).poll_shutdown(cx) {
        Poll::Ready(ended) => ended.map(Some).unwrap(),
        Poll::Pending => None,
    });
    let mut read = Vec::new();
    (&accepted).read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), written);
}

/// It looked at its own direction alone, and the peer waited for room of which it was never told.
#[test]
fn who_waits_until_all_is_read_tells_the_peer_of_room() {
    let (stands, _sessions, [connected, accepted]) = pair(151);
    let theirs = fill(&accepted, usize::MAX);
    for _ in 0..100 {
        // A round of the node's each, behind all that there was room for.
        (&accepted).flush().unwrap();
        accepted.session().create_vqp(VqpOptions::default()).unwrap();
    }
    let still = stands.still();
    fill(&connected, WRITES);
    // There is no room below to tell the peer that there is room again.
    (&connected).read_exact(&mut vec![0; theirs]).unwrap();
    drop(still);
    let mut writes = true;
    wait_for("the end", || {
        // It reads nothing before it has written.
        writes = writes && (&accepted).write(b"more").is_err();
        if !writes {
            let _ = (&accepted).read(&mut [0; 64]);
        }
        match connected.finish(Some(Duration::from_millis(2))) {
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            finished => finished.map(Some).unwrap(),
        }
    });
}

/// It was heard of only once the ring was full.
#[test]
fn who_writes_hears_at_once_that_the_peer_has_said_that_it_reads_no_more() {
    let node = TestNode::start(PLACE.alone(152));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let mut connecting =
        Connecting::start(&session, node.gid, listener.port(), Options::default()).unwrap();
    let accepted = wait_for("a stream", || {
        connecting.poll().unwrap();
        listener.try_accept().unwrap()
    });
    let connected = wait_for("its end", || connecting.poll().unwrap());
    accepted.shutdown(Shutdown::Read).unwrap();
    // What comes behind the word.
    (&accepted).write_all(b"!").unwrap();
    (&accepted).flush().unwrap();
    (&connected).read_exact(&mut [0]).unwrap();
    let deaf = (&connected).write(b"after").unwrap_err();
    assert_eq!(deaf.kind(), ErrorKind::BrokenPipe);
}
