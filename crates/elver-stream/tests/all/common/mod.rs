//! Nodes of these tests, and streams between sessions at them.

use std::sync::mpsc;
use std::time::Duration;

pub use elver::node::config::Config as NodeConfig;
use elver::{Numa, Policy, Session};
use elver_stream::{Connecting, Listener, ListenerOptions, Options, Stream};
use elver_testkit::{Place, wait_for};

pub use elver_testkit::{TestNode, WAIT};

/// Where nodes of these tests are.
pub const PLACE: Place =
    Place { name: "stream", network: 9, udp_ports: 28_000, registry_ports: 29_000 };

/// As [`Place::config`].
pub fn config(group: u8, host: u8) -> NodeConfig {
    PLACE.config(group, host)
}

/// As [`Place::cluster`].
pub fn cluster(group: u8) -> (TestNode, TestNode) {
    PLACE.cluster(group, |_| ())
}

/// As [`Place::both_ways`].
pub fn both_ways_at(group: u8, much: bool, test: impl Fn(&TestNode)) {
    PLACE.both_ways(group, much, test);
}

pub fn session_at(node: &TestNode) -> Session {
    Session::connect(&node.path).unwrap()
}

/// Buffers that are full at once.
pub const SMALL: Options = Options {
    send_buffer_bytes: 4_096,
    receive_buffer_bytes: 4_096,
    nodelay: false,
    spin: Duration::from_micros(100),
    huge_pages: false,
    numa: Numa::Here,
    policy: Policy::Shared,
};

/// Both ends of a stream, each on a thread with a session of its own: who listens, and who connects.
pub fn pair(
    nodes: (&TestNode, &TestNode),
    options: Options,
    listens: impl FnOnce(Listener, Stream) + Send,
    connects: impl FnOnce(Session, Stream) + Send,
) {
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let session = session_at(nodes.0);
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            let stream = listener.accept(WAIT).unwrap();
            listens(listener, stream);
        });
        let port = told.recv().unwrap();
        let session = session_at(nodes.1);
        let stream = Stream::connect(&session, nodes.0.gid, port, options, WAIT).unwrap();
        connects(session, stream);
    });
}

/// Both ends in this thread.
pub fn beside(session: &Session, options: Options) -> (Listener, Stream, Stream) {
    let listener = Listener::bind(session, 0, ListenerOptions::default()).unwrap();
    let gid = session.gid();
    let mut connecting = Connecting::start(session, gid, listener.port(), options).unwrap();
    let (mut accepted, mut connected) = (None, None);
    wait_for("the stream to come about", || {
        accepted = accepted.take().or_else(|| listener.try_accept().unwrap());
        connected = connected.take().or_else(|| connecting.poll().unwrap());
        (accepted.is_some() && connected.is_some()).then_some(())
    });
    (listener, accepted.unwrap(), connected.unwrap())
}

/// The bytes of a stream: `id` says which, `at` where in it.
pub fn byte(id: u64, at: u64) -> u8 {
    ((id.wrapping_mul(31) + at).wrapping_mul(0x9e37_79b9) >> 13) as u8
}
