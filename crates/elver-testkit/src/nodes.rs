//! Nodes on loopback addresses, each on a thread of its own.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use elver_node::config::Config;
use elver_node::{Node, NodeError, NodeThread, Status};
use elver_portal::Listener;
use elver_soft::SoftError;
use elver_verbs::Gid;

use crate::wait::wait_for;

/// Where the nodes of one crate's tests are: no other crate's have these addresses or ports, so that test programs can
/// run beside each other. Within it each test has a `group` of its own, and its nodes have a `host` each.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// In the names of devices and sockets; a few letters.
    pub name: &'static str,
    /// Addresses are `127.network.group.host`.
    pub network: u8,
    /// A group's nodes are at UDP port `udp_ports + group`.
    pub udp_ports: u16,
    /// A group's meta server listens at TCP port `registry_ports + group`.
    pub registry_ports: u16,
}

/// Has a node find out within half a second that a peer is gone: where one goes, and nobody else is taken for dead that had
/// no core for as long.
pub fn impatient(config: &mut Config) {
    config.pool.timeout = 13;
    config.pool.keep_alive_ms = Config::default().pool.keep_alive_ms;
}

/// Has a node find out within some seconds that a peer is gone, and takes nobody for dead that had no core for less: where
/// one goes, and it does not matter how soon that is heard of.
pub fn watchful(config: &mut Config) {
    config.pool.keep_alive_ms = 3_000;
}

/// Leaves a node as [`Place::config`] has it: for a test in which nobody goes without a word, and where one that had no core for half
/// a second would be taken for gone too early.
pub fn patient(_: &mut Config) {}

impl Place {
    /// The configuration of a node: regions that go soon, and an engine that leaves the processor to others. It takes no
    /// peer for dead that stands for a second, as any thread may: see [`impatient`].
    ///
    /// # Panics
    /// If the group is another test's.
    pub fn config(&self, group: u8, host: u8) -> Config {
        self.claim(group);
        let mut config = Config::default();
        config.node.address = self.address(group, host);
        config.node.udp_port = self.udp_ports + u16::from(group);
        config.node.device = format!("{}{group}-{host}", self.name);
        config.memory.lease_ms = 20;
        config.pool.timeout = 15;
        config.pool.retry_cnt = 7;
        config.pool.keep_alive_ms = 10_000;
        config.engine.spin_us = 50;
        config
    }

    /// The configuration of a node without peers: nobody is waited for who may be slow to acknowledge, and its regions go the
    /// sooner.
    ///
    /// # Panics
    /// As [`Place::config`].
    pub fn alone(&self, group: u8) -> Config {
        let mut config = self.config(group, 1);
        config.pool.timeout = 12;
        config
    }

    /// Two tests of one group would be in each other's way on some runs only. libtest names a test's thread after it.
    fn claim(&self, group: u8) {
        static OWNERS: Mutex<BTreeMap<(u8, u8), String>> = Mutex::new(BTreeMap::new());
        let thread = std::thread::current();
        let Some(test) = thread.name().filter(|name| *name != "main") else { return };
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.entry((self.network, group)).or_insert_with(|| test.to_string());
        assert_eq!(owner, test, "group {group} of {} belongs to the first of these", self.name);
    }

    /// Address of a node.
    pub fn address(&self, group: u8, host: u8) -> IpAddr {
        IpAddr::from([127, self.network, group, host])
    }

    /// Where the meta server of a group listens; it is host 1.
    pub fn registry(&self, group: u8) -> String {
        let port = self.registry_ports + u16::from(group);
        format!("{}:{port}", self.address(group, 1))
    }

    /// A meta server, which is host 1, and host 2, which has found it; of configurations that `edit` has been at.
    pub fn cluster(&self, group: u8, edit: impl Fn(&mut Config)) -> (TestNode, TestNode) {
        let mut meta = self.config(group, 1);
        meta.meta.serve = true;
        meta.meta.listen = self.registry(group);
        edit(&mut meta);
        (TestNode::start(meta), self.member(group, 2, edit))
    }

    /// Runs a test at a node that lets processes write each other's memory themselves, and at one that does not, which
    /// has the group a hundred further on. Where it sends `much`, some of that goes directly before it has ended.
    ///
    /// # Panics
    /// If something goes another way than it may.
    pub fn both_ways(&self, group: u8, much: bool, test: impl Fn(&TestNode)) {
        for (group, is_direct) in [(group, true), (group + 100, false)] {
            let mut config = self.config(group, 1);
            config.direct.enabled = is_direct;
            let node = TestNode::start(config);
            test(&node);
            let writes = node.thread.status().unwrap().engine["direct_writes"];
            assert!(writes == 0 || is_direct, "{writes} WRITEs went directly");
            assert!(writes > 0 || !is_direct || !much, "nothing went directly");
        }
    }

    /// A host of a group that has a meta server, when that knows it.
    pub fn member(&self, group: u8, host: u8, edit: impl Fn(&mut Config)) -> TestNode {
        let mut config = self.config(group, host);
        config.meta.servers = vec![self.registry(group)];
        edit(&mut config);
        let node = TestNode::start(config);
        wait_for("the node to find its meta server", || {
            (node.thread.status().unwrap().registered > 0).then_some(())
        });
        node
    }

    /// A host of a group that has a meta server, which knows it: a node that somebody drives by hand.
    pub fn driven(&self, group: u8, host: u8) -> Node {
        let mut config = self.config(group, host);
        config.meta.servers = vec![self.registry(group)];
        let mut node = opened(|| Node::embedded(config.clone()));
        wait_for("the node to find its meta server", || {
            node.poll();
            (node.status().registered > 0).then_some(())
        });
        node
    }
}

/// A node that processes reach at a path. It ends when this is dropped.
pub struct TestNode {
    /// Its socket.
    pub path: PathBuf,
    /// Its address, as peers name it.
    pub gid: Gid,
    /// Its engine.
    pub thread: NodeThread,
}

impl TestNode {
    /// Starts a node.
    ///
    /// # Panics
    /// If it cannot be started; its address or its port may be another's.
    pub fn start(config: Config) -> TestNode {
        let (address, device) = (config.node.address, &config.node.device);
        let name = format!("elver-{device}-{}-{address}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let node = opened(|| {
            // There is none, unless a program of this number did not end well.
            let _ = std::fs::remove_file(&path);
            let listener = Listener::bind(&path).unwrap();
            Node::open(config.clone(), Some(listener))
        });
        TestNode { path, gid: Gid::from(address), thread: node.spawn().unwrap() }
    }

    /// How it is. One that gets no core is late to say.
    ///
    /// # Panics
    /// If it does not say: it has ended.
    pub fn status(&self) -> Status {
        wait_for("a node to say how it is", || self.thread.status())
    }
}

/// Opens a node when its address is free: what one had that has ended, a process that another test is just starting has
/// as well, until it runs its program.
fn opened(open: impl Fn() -> Result<Node, NodeError>) -> Node {
    wait_for("a node's address to be free", || match open() {
        Ok(node) => Some(node),
        Err(error) if is_taken(&error) => None,
        Err(error) => panic!("{error}"),
    })
}

/// Whether somebody else has an address.
fn is_taken(error: &NodeError) -> bool {
    match error {
        NodeError::Device(SoftError::Bind { reason, .. }) | NodeError::Listen { reason, .. } => {
            reason.kind() == ErrorKind::AddrInUse
        }
        _ => false,
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        // A test may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place =
        Place { name: "kit", network: 3, udp_ports: 20_600, registry_ports: 20_900 };

    #[test]
    fn nodes_of_a_cluster_know_each_other() {
        let (meta, other) = PLACE.cluster(1, |config| config.memory.lease_ms = 30);
        assert_eq!(meta.gid, Gid::from(PLACE.address(1, 1)));
        assert_eq!(other.thread.status().unwrap().registered, 1);
        let third = PLACE.member(1, 3, |_| ());
        assert_eq!(third.thread.status().unwrap().registered, 1);
        assert!(third.path.exists());
        let path = third.path.clone();
        drop(third);
        assert!(!path.exists());
    }

    #[test]
    fn a_group_is_one_test_s() {
        PLACE.config(2, 1);
        PLACE.config(2, 2);
        let other = std::thread::Builder::new().name("other".into());
        let took = other.spawn(|| PLACE.config(2, 3)).unwrap().join();
        let said = took.unwrap_err().downcast::<String>().unwrap();
        assert!(said.contains("group 2 of kit") && said.contains("other"), "{said}");
    }
}
