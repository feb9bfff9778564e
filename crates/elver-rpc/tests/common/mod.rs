//! Nodes on loopback addresses, each on a thread of its own, and servers at them.
#![allow(dead_code)] // Each test program uses a part of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use elver::node::config::Config as NodeConfig;
use elver::node::{Node, NodeThread};
use elver::{Gid, Session};
use elver_portal::Listener as Socket;
use elver_rpc::{Client, ClientOptions, Error, Server, ServerCounters, ServerOptions};

/// The longest that anything here may take.
pub const WAIT: Option<Duration> = Some(Duration::from_secs(30));

/// A node that processes reach at a path.
pub struct TestNode {
    pub path: PathBuf,
    pub gid: Gid,
    pub thread: NodeThread,
}

/// Address and ports that no other test's nodes have: `group` is the test's own.
pub fn config(group: u8, host: u8) -> NodeConfig {
    let mut config = NodeConfig::default();
    config.node.address = IpAddr::from([127, 15, group, host]);
    config.node.udp_port = 28_000 + u16::from(group);
    config.node.device = format!("rpc{group}-{host}");
    config.memory.lease_ms = 20;
    // A quarter of a second: a thread may get no core for some hundredths.
    config.pool.timeout = 13;
    config.pool.retry_cnt = 7;
    config.engine.spin_us = 50;
    config
}

impl TestNode {
    pub fn start(config: NodeConfig) -> TestNode {
        let address = config.node.address;
        let name = format!("elver-rpc-test-{}-{address}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let socket = Socket::bind(&path).unwrap();
        let thread = Node::open(config, Some(socket)).unwrap().spawn().unwrap();
        TestNode { path, gid: Gid::from(address), thread }
    }

    pub fn session(&self) -> Session {
        Session::connect(&self.path).unwrap()
    }

    /// A server on a thread of its own; `methods` says what it does.
    pub fn serve(
        &self,
        options: ServerOptions,
        methods: impl FnOnce(&mut Server) + Send + 'static,
    ) -> Serving {
        let (path, stop) = (self.path.clone(), Arc::new(AtomicBool::new(false)));
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
        Serving { port, gid: self.gid, stop, thread: Some(thread) }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
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

/// A meta server and another node, which has found it.
pub fn cluster(group: u8) -> (TestNode, TestNode) {
    let (mut meta, mut other) = (config(group, 1), config(group, 2));
    meta.meta.serve = true;
    meta.meta.listen = format!("127.15.{group}.1:{}", 29_000 + u16::from(group));
    other.meta.servers = vec![meta.meta.listen.clone()];
    let nodes = (TestNode::start(meta), TestNode::start(other));
    let begun = Instant::now();
    while nodes.1.thread.status().unwrap().registered == 0 {
        assert!(begun.elapsed().as_secs() < 30, "the node does not find its meta server");
        std::thread::yield_now();
    }
    nodes
}

/// What a message has in it.
pub fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
