//! Peers that are killed: their streams are reset, whether one reads, looks, writes or sleeps at the
//! descriptor, after all that was sent before.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{TestNode, WAIT, cluster, config};
use elver::Session;
use elver::node::Node;
use elver_portal::Listener as Socket;
use elver_stream::{Interest, Listener, ListenerOptions, Options, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SOCKET: &str = "ELVER_STREAM_TEST_SOCKET";
const PORT: &str = "ELVER_STREAM_TEST_PORT";
const GROUP: &str = "ELVER_STREAM_TEST_GROUP";
const HOST: &str = "ELVER_STREAM_TEST_HOST";

/// A process that ends when this is dropped.
struct Process(Child);

impl Process {
    /// Runs a test of this program as a process of its own, until it says that it is ready.
    fn start(test: &str, socket: &Path, port: u16, (group, host): (u8, u8)) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, socket)
            .env(PORT, port.to_string())
            .env(GROUP, group.to_string())
            .env(HOST, host.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        Process(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects, says one thing, and does nothing more.
fn linger(session: &Session, gid: elver::Gid) {
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let mut stream = Stream::connect(session, gid, port, Options::default(), WAIT).unwrap();
    stream.write_all(b"told").unwrap();
    stream.flush().unwrap();
    // The answer says that it was read.
    stream.read_exact(&mut [0]).unwrap();
    eprintln!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Not a test of its own: a peer.
#[test]
fn process_that_is_a_peer() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let session = Session::connect(socket).unwrap();
    linger(&session, session.gid());
}

/// Not a test of its own: a peer with a node of its own, which dies with it, as a host does.
#[test]
fn process_that_is_a_host() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    let (group, host) = (number(GROUP), number(HOST));
    let mut config = config(group, host);
    config.meta.servers = vec![format!("127.9.{group}.1:{}", 29_000 + u16::from(group))];
    let own = Path::new(&socket).with_extension("host");
    let _ = std::fs::remove_file(&own);
    let thread = Node::open(config, Some(Socket::bind(&own).unwrap())).unwrap().spawn().unwrap();
    while thread.status().unwrap().registered == 0 {
        std::thread::yield_now();
    }
    let session = Session::connect(&own).unwrap();
    let _ = std::fs::remove_file(&own);
    linger(&session, std::net::IpAddr::from([127, 9, group, 1]).into());
}

/// Reads what was told, kills the peer, and hears of it.
fn hears(
    node: &TestNode,
    place: (u8, u8),
    peer: &str,
    hear: impl FnOnce(&mut Stream) -> std::io::Error,
) {
    let session = node.session();
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (mut stream, process) = std::thread::scope(|scope| {
        let process = scope.spawn(|| Process::start(peer, &node.path, port, place));
        let mut stream = listener.accept(WAIT).unwrap();
        let mut first = [0; 2];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"to");
        stream.write_all(b"!").unwrap();
        stream.flush().unwrap();
        (stream, process.join().unwrap())
    });
    process.kill();
    let killed = Instant::now();
    // What was told before counts, also what was read in part.
    let mut last = [0; 2];
    stream.read_exact(&mut last).unwrap();
    assert_eq!(&last, b"ld");
    let reset = hear(&mut stream);
    println!("heard after {:?}: {reset}", killed.elapsed());
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset, "{reset}");
    let cause = reset.get_ref().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(elver_ring::Error::Carrier(_))), "{cause:?}");
    // It stays so.
    for again in [stream.read(&mut [0]), stream.write(b"x")] {
        assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(stream.counters().bytes_read, 4);
}

fn reads(stream: &mut Stream) -> std::io::Error {
    stream.read(&mut [0]).unwrap_err()
}

fn looks(stream: &mut Stream) -> std::io::Error {
    stream.set_nonblocking(true);
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other.unwrap_err(),
        }
    }
}

fn writes(stream: &mut Stream) -> std::io::Error {
    loop {
        if let Err(error) = stream.write(b"into the void") {
            return error;
        }
    }
}

/// Sleeps at the descriptor, as long as it may.
fn sleeps(stream: &mut Stream) -> std::io::Error {
    let session = stream.session();
    stream.set_nonblocking(true);
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other.unwrap_err(),
        }
        let armed = stream.arm(Interest::Readable).unwrap();
        if let Some(at_most) = armed
            && session.arm().unwrap()
        {
            let at_most = Timespec::try_from(at_most).unwrap();
            poll(&mut [PollFd::new(&session, PollFlags::IN)], Some(&at_most)).unwrap();
            session.disarm().unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_is_missed() {
    let node = TestNode::start(config(40, 1));
    for hear in [reads, looks, writes, sleeps] {
        hears(&node, (40, 1), "process_that_is_a_peer", hear);
    }
}

/// Nobody is there to tell of it: who waits, and who looks, finds out by asking now and then.
#[test]
fn a_host_that_dies_is_missed() {
    let (meta, _other) = cluster(41);
    for hear in [reads as fn(&mut Stream) -> _, looks, writes, sleeps] {
        hears(&meta, (41, 3), "process_that_is_a_host", hear);
    }
}
