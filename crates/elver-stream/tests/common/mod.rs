//! Nodes on loopback addresses, each on a thread of its own, and streams between sessions at them.
#![allow(dead_code)] // Each test program uses a part of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use elver::node::config::Config as NodeConfig;
use elver::node::{Node, NodeThread};
use elver::{Gid, Session};
use elver_portal::Listener as Socket;
use elver_stream::{Listener, ListenerOptions, Options, Stream};

/// The longest that anything here may take.
pub const WAIT: Option<Duration> = Some(Duration::from_secs(30));

/// Buffers that are full at once.
pub const SMALL: Options = Options {
    send_buffer_bytes: 4_096,
    receive_buffer_bytes: 4_096,
    nodelay: false,
    spin: Duration::from_micros(100),
    huge_pages: false,
};

/// A node that processes reach at a path.
pub struct TestNode {
    pub path: PathBuf,
    pub gid: Gid,
    pub thread: NodeThread,
}

/// Address and ports that no other test's nodes have: `group` is the test's own.
pub fn config(group: u8, host: u8) -> NodeConfig {
    let mut config = NodeConfig::default();
    config.node.address = IpAddr::from([127, 9, group, host]);
    config.node.udp_port = 28_000 + u16::from(group);
    config.node.device = format!("stream{group}-{host}");
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
        let name = format!("elver-stream-test-{}-{address}.sock", std::process::id());
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
    meta.meta.listen = format!("127.9.{group}.1:{}", 29_000 + u16::from(group));
    other.meta.servers = vec![meta.meta.listen.clone()];
    let nodes = (TestNode::start(meta), TestNode::start(other));
    let begun = Instant::now();
    while nodes.1.thread.status().unwrap().registered == 0 {
        assert!(begun.elapsed().as_secs() < 30, "the node does not find its meta server");
        std::thread::yield_now();
    }
    nodes
}

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
            let session = nodes.0.session();
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            let stream = listener.accept(WAIT).unwrap();
            listens(listener, stream);
        });
        let port = told.recv().unwrap();
        let session = nodes.1.session();
        let stream = Stream::connect(&session, nodes.0.gid, port, options, WAIT).unwrap();
        connects(session, stream);
    });
}

/// Both ends in this thread.
pub fn beside(session: &Session, options: Options) -> (Listener, Stream, Stream) {
    let listener = Listener::bind(session, 0, ListenerOptions::default()).unwrap();
    let gid = session.gid();
    let mut connecting =
        elver_stream::Connecting::start(session, gid, listener.port(), options).unwrap();
    let mut ends = (None, None);
    let begun = Instant::now();
    loop {
        ends.0 = ends.0.or_else(|| listener.try_accept().unwrap());
        ends.1 = ends.1.or_else(|| connecting.poll().unwrap());
        if let (Some(accepted), Some(connected)) = ends {
            return (listener, accepted, connected);
        }
        assert!(begun.elapsed().as_secs() < 30, "the stream does not come about");
    }
}

/// The bytes of a stream: `id` says which, `at` where in it.
pub fn byte(id: u64, at: u64) -> u8 {
    ((id.wrapping_mul(31) + at).wrapping_mul(0x9e37_79b9) >> 13) as u8
}
