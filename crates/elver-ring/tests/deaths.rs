//! Peers that are killed: their other ends hear it, whether they sleep, look or send, after all that was
//! told before.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{TestNode, WAIT, cluster, config};
use elver::Session;
use elver::node::Node;
use elver_portal::Listener as Socket;
use elver_ring::{Carrier, Config, Ends, Error, Listener, ListenerOptions, Options, connect};

const SOCKET: &str = "ELVER_RING_TEST_SOCKET";
const PORT: &str = "ELVER_RING_TEST_PORT";
const GROUP: &str = "ELVER_RING_TEST_GROUP";
const HOST: &str = "ELVER_RING_TEST_HOST";

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

/// Connects, sends one message and a part of a batch, and does nothing more.
fn linger(session: &Session, gid: elver::Gid) {
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    // So that the first one is told, and of the others their slots are there.
    let config = Config { alpha: 8, beta: 2, ..Config::default() };
    let mut ends = connect(session, gid, port, Options::both(config), WAIT).unwrap();
    ends.sender.send(b"told", WAIT).unwrap();
    ends.sender.flush().unwrap();
    while ends.sender.carrier().advances() == 0 {
        ends.sender.poll().unwrap();
    }
    (0..5).for_each(|_| ends.sender.send(b"not told", WAIT).unwrap());
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
    config.meta.servers = vec![format!("127.6.{group}.1:{}", 27_000 + u16::from(group))];
    let own = Path::new(&socket).with_extension("host");
    let _ = std::fs::remove_file(&own);
    let thread = Node::open(config, Some(Socket::bind(&own).unwrap())).unwrap().spawn().unwrap();
    while thread.status().unwrap().registered == 0 {
        std::thread::yield_now();
    }
    let session = Session::connect(&own).unwrap();
    let _ = std::fs::remove_file(&own);
    linger(&session, std::net::IpAddr::from([127, 6, group, 1]).into());
}

/// Reads what was told, kills the peer, and hears of it.
fn hears(
    node: &TestNode,
    place: (u8, u8),
    peer: &str,
    hear: impl FnOnce(&mut Ends) -> Result<(), Error>,
) {
    let session = node.session();
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let (mut ends, process) = std::thread::scope(|scope| {
        let process = scope.spawn(|| Process::start(peer, &node.path, port, place));
        (listener.accept(WAIT).unwrap(), process.join().unwrap())
    });
    process.kill();
    let killed = Instant::now();
    // What was told before counts, and the part of a batch behind it does not.
    assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"told");
    let gone = hear(&mut ends).unwrap_err();
    println!("heard after {:?}: {gone}", killed.elapsed());
    assert!(matches!(gone, Error::Carrier(_)), "{gone}");
    assert!(ends.receiver.try_recv().is_err() && ends.sender.poll().is_err(), "it stays so");
    assert_eq!(ends.receiver.counters().messages, 1);
}

fn sleeps(ends: &mut Ends) -> Result<(), Error> {
    ends.receiver.recv(WAIT).map(|message| assert!(message.is_none(), "nothing was told"))
}

fn polls(ends: &mut Ends) -> Result<(), Error> {
    loop {
        assert!(ends.receiver.try_recv()?.is_none(), "nothing was told");
    }
}

fn sends(ends: &mut Ends) -> Result<(), Error> {
    loop {
        ends.sender.send(b"into the void", WAIT)?;
    }
}

#[test]
fn a_process_that_is_killed_is_missed() {
    let node = TestNode::start(config(11, 1));
    for hear in [sleeps, polls, sends] {
        hears(&node, (11, 1), "process_that_is_a_peer", hear);
    }
}

/// Nobody is there to tell of it: who waits, and who looks, finds out by asking now and then.
#[test]
fn a_host_that_dies_is_missed() {
    let (meta, _other) = cluster(12);
    for (host, hear) in [(3, sleeps as fn(&mut Ends) -> _), (3, polls), (3, sends)] {
        hears(&meta, (12, host), "process_that_is_a_host", hear);
    }
}
