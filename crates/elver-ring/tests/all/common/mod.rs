//! Nodes of these tests, and pairs of rings between sessions at them.

use std::sync::mpsc;

pub use elver::node::config::Config as NodeConfig;
use elver::{Session, SessionOptions};
use elver_ring::{Ends, Listener, ListenerOptions, Options, connect};
use elver_testkit::{Place, Standing};

pub use elver_testkit::{TestNode, WAIT};

/// Where nodes of these tests are.
pub const PLACE: Place =
    Place { name: "ring", network: 6, udp_ports: 26_000, registry_ports: 27_000 };

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

/// Both ends of a pair of rings, each on a thread with a session of its own: who listens, and who connects.
pub fn pair(
    nodes: (&TestNode, &TestNode),
    options: Options,
    listens: impl FnOnce(Listener, Ends) + Send,
    connects: impl FnOnce(Session, Ends) + Send,
) {
    pair_of(nodes, (ListenerOptions::default(), options), listens, connects);
}

/// As [`pair`], with options of the listener's.
pub fn pair_of(
    nodes: (&TestNode, &TestNode),
    (taken, options): (ListenerOptions, Options),
    listens: impl FnOnce(Listener, Ends) + Send,
    connects: impl FnOnce(Session, Ends) + Send,
) {
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let session = session_at(nodes.0);
            let listener = Listener::bind(&session, 0, taken).unwrap();
            tell.send(listener.port()).unwrap();
            let ends = listener.accept(WAIT).unwrap();
            listens(listener, ends);
        });
        let port = told.recv().unwrap();
        let session = session_at(nodes.1);
        let ends = connect(&session, nodes.0.gid, port, options, WAIT).unwrap();
        connects(session, ends);
    });
}

/// Sessions at a node that stands still when it is told to.
pub fn at_one_that_stands(
    config: NodeConfig,
    options: [SessionOptions; 2],
    test: impl FnOnce([Session; 2], &Standing),
) {
    let (stands, [one, other]) = Standing::start(config);
    let sessions =
        [Session::over(one, options[0]).unwrap(), Session::over(other, options[1]).unwrap()];
    test(sessions, &stands);
}

/// What a message has in it.
pub fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
