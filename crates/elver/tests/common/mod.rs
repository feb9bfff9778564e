//! Nodes on loopback addresses, each on a thread of its own.
#![allow(dead_code)] // Each test binary uses a part of it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use elver::{
    AccessFlags, Gid, Payload, SendFlags, SendOp, SendWr, Session, Sge, Vqp, Wc, WcStatus,
};
use elver_node::config::Config;
use elver_node::{Node, NodeThread};
use elver_portal::Listener;

/// The longest that anything here may take.
pub const WAIT: Option<Duration> = Some(Duration::from_secs(30));
pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node that processes reach at a path.
pub struct TestNode {
    pub path: PathBuf,
    pub gid: Gid,
    pub thread: NodeThread,
}

/// Address and ports that no other test's nodes have: `group` is the test's own.
pub fn config(group: u8, host: u8) -> Config {
    let mut config = Config::default();
    let address = IpAddr::from([127, 0, group, host]);
    config.node.address = address;
    config.node.udp_port = 21_000 + u16::from(group);
    config.node.device = format!("test{group}-{host}");
    config.memory.lease_ms = 20;
    // A quarter of a second: a thread may get no core for some hundredths.
    config.pool.timeout = 13;
    config.pool.retry_cnt = 7;
    config.engine.spin_us = 50;
    config
}

impl TestNode {
    pub fn start(config: Config) -> TestNode {
        let address = config.node.address;
        let name = format!("elver-test-{}-{address}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = Listener::bind(&path).unwrap();
        let thread = Node::open(config, Some(listener)).unwrap().spawn().unwrap();
        TestNode { path, gid: Gid::from(address), thread }
    }

    pub fn session(&self) -> Session {
        session(&self.path)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A meta server and another node, which has found it, of configurations that `edit` has been at.
pub fn cluster(group: u8, edit: impl Fn(&mut Config)) -> (TestNode, TestNode) {
    let (mut meta, mut other) = (config(group, 1), config(group, 2));
    meta.meta.serve = true;
    meta.meta.listen = format!("127.0.{group}.1:{}", 22_000 + u16::from(group));
    other.meta.servers = vec![meta.meta.listen.clone()];
    edit(&mut meta);
    edit(&mut other);
    let nodes = (TestNode::start(meta), TestNode::start(other));
    let begun = Instant::now();
    while nodes.1.thread.status().unwrap().registered == 0 {
        assert!(begun.elapsed().as_secs() < 30, "the node does not find its meta server");
        std::thread::yield_now();
    }
    nodes
}

pub fn session(path: &Path) -> Session {
    Session::connect(path).unwrap()
}

pub fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    let payload = Payload::Sges(sges);
    SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None }
}

/// Posts a WR and waits for its completion.
pub fn run(vqp: &Vqp, wr: SendWr<'_>) -> Wc {
    vqp.post_send(&[wr]).unwrap();
    completion(vqp)
}

pub fn completion(vqp: &Vqp) -> Wc {
    let mut wcs = [Wc::default()];
    assert_eq!(vqp.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    wcs[0]
}

#[track_caller]
pub fn succeeds(vqp: &Vqp, wr: SendWr<'_>) {
    let wr_id = wr.wr_id;
    let wc = run(vqp, wr);
    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id));
}
