//! Nodes of these tests, and servers at them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use elver::node::config::Config as NodeConfig;
use elver::{Gid, Session};
use elver_rpc::{Client, ClientOptions, Error, Server, ServerCounters, ServerOptions};
use elver_testkit::Place;

pub use elver_testkit::{TestNode, WAIT};

/// Where nodes of these tests are.
pub const PLACE: Place =
    Place { name: "rpc", network: 15, udp_ports: 28_000, registry_ports: 29_000 };

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

/// A server on a thread of its own; `methods` says what it does.
pub fn serve(
    node: &TestNode,
    options: ServerOptions,
    methods: impl FnOnce(&mut Server) + Send + 'static,
) -> Serving {
    let (path, stop) = (node.path.clone(), Arc::new(AtomicBool::new(false)));
    let (tell, told) = mpsc::channel();
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let session = Session::connect(path).unwrap();
        let mut server = Server::bind(&session, 0, options).unwrap();
        methods(&mut server);
        tell.send(server.port()).unwrap();
        server.run(&stopped).unwrap();
        server.counters()
    });
    let port = told.recv().unwrap();
    Serving { port, gid: node.gid, stop, thread: Some(thread) }
}

/// A server that runs until this is dropped.
pub struct Serving {
    pub port: u16,
    pub gid: Gid,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<ServerCounters>>,
}

impl Serving {
    pub fn client(&self, session: &Session) -> Result<Client, Error> {
        Client::connect(session, self.gid, self.port, ClientOptions::default(), WAIT)
    }

    /// Stops it; what it has seen.
    pub fn stop(mut self) -> ServerCounters {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server failed");
        }
    }
}

/// What a message has in it.
pub fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
