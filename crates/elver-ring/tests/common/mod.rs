//! Nodes on loopback addresses, each on a thread of its own, and pairs of rings between sessions at them.
#![allow(dead_code)] // Each test program uses a part of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use elver::node::config::Config as NodeConfig;
use elver::node::{Node, NodeThread};
use elver::{Gid, Session};
use elver_portal::Listener as Socket;
use elver_ring::{Ends, Listener, ListenerOptions, Options, connect};

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
    config.node.address = IpAddr::from([127, 6, group, host]);
    config.node.udp_port = 26_000 + u16::from(group);
    config.node.device = format!("ring{group}-{host}");
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
        let name = format!("elver-ring-test-{}-{address}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let socket = Socket::bind(&path).unwrap();
        let thread = Node::open(config, Some(socket)).unwrap().spawn().unwrap();
        TestNode { path, gid: Gid::from(address), thread }
    }

    pub fn session(&self) -> Session {
        Session::connect(&self.path).unwrap()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A meta server and another node, which has found it.
pub fn cluster(group: u8) -> (TestNode, TestNode) {
    let (mut meta, mut other) = (config(group, 1), config(group, 2));
    meta.meta.serve = true;
    meta.meta.listen = format!("127.6.{group}.1:{}", 27_000 + u16::from(group));
    other.meta.servers = vec![meta.meta.listen.clone()];
    let nodes = (TestNode::start(meta), TestNode::start(other));
    let begun = Instant::now();
    while nodes.1.thread.status().unwrap().registered == 0 {
        assert!(begun.elapsed().as_secs() < 30, "the node does not find its meta server");
        std::thread::yield_now();
    }
    nodes
}

/// Both ends of a pair of rings, each on a thread with a session of its own: who listens, and who connects.
pub fn pair(
    nodes: (&TestNode, &TestNode),
    options: Options,
    listens: impl FnOnce(Listener, Ends) + Send,
    connects: impl FnOnce(Session, Ends) + Send,
) {
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let session = nodes.0.session();
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            let ends = listener.accept(WAIT).unwrap();
            listens(listener, ends);
        });
        let port = told.recv().unwrap();
        let session = nodes.1.session();
        let ends = connect(&session, nodes.0.gid, port, options, WAIT).unwrap();
        connects(session, ends);
    });
}

/// What a message has in it.
pub fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
