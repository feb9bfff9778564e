//! A node, and memory there for handlers to read.

use elver::{AccessFlags, Mr, Session};
use elver_testkit::{Place, TestNode, python_module};
use serde_json::{Value, json};

use crate::platform::Platform;

/// Bytes of what handlers read and write.
pub const BYTES: usize = 256 << 10;

pub struct Store {
    // A region ends before its node.
    region: Mr,
    pub node: TestNode,
}

/// What a node has of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub open: u64,
    pub sessions: u64,
    pub vqps: u64,
    pub mrs: u64,
    pub bytes: u64,
}

impl Held {
    /// What is held besides what was before.
    pub fn since(self, before: Held) -> Held {
        Held {
            open: self.open - before.open,
            sessions: self.sessions - before.sessions,
            vqps: self.vqps - before.vqps,
            mrs: self.mrs - before.mrs,
            bytes: self.bytes - before.bytes,
        }
    }

    /// This, and so many times another.
    pub fn and(self, times: u64, other: Held) -> Held {
        Held {
            open: self.open + times * other.open,
            sessions: self.sessions + times * other.sessions,
            vqps: self.vqps + times * other.vqps,
            mrs: self.mrs + times * other.mrs,
            bytes: self.bytes + times * other.bytes,
        }
    }
}

impl Store {
    /// Ends the node, and starts it again.
    pub fn again(self, place: &Place, group: u8) -> Store {
        drop(self);
        Store::new(place, group)
    }

    pub fn new(place: &Place, group: u8) -> Store {
        Store::of(TestNode::start(place.config(group, 1)))
    }

    pub fn of(node: TestNode) -> Store {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&node.path, permissions).unwrap();
        let session = Session::connect(&node.path).unwrap();
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let region = session.alloc(BYTES as u64, access).unwrap();
        region.write(0, b"greeting").unwrap();
        Store { region, node }
    }

    /// Writes what handlers are to read.
    pub fn fill(&self, bytes: &[u8]) {
        self.region.write(0, bytes).unwrap();
    }

    /// What is there, of which handlers may have written something.
    pub fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.region.read(0, &mut bytes).unwrap();
        bytes
    }

    /// What the node has now, of this store and of all others; also sessions that are ready and that nobody has taken over.
    pub fn held(&self) -> Held {
        let status = self.node.status();
        let users = &status.users;
        Held {
            open: status.sessions.len() as u64,
            sessions: users.iter().map(|user| u64::from(user.sessions)).sum(),
            vqps: status.vqps_total + status.vqps_going,
            mrs: users.iter().map(|user| u64::from(user.mrs)).sum(),
            bytes: users.iter().map(|user| user.bytes).sum(),
        }
    }

    pub fn gid(&self) -> String {
        self.node.gid.to_string()
    }

    /// An orchestrator whose containers reach the node, with functions in TOML.
    pub fn platform(&self, functions: &str) -> Platform {
        let lines = format!("node_socket = {:?}", self.node.path);
        Platform::start(&lines, functions)
    }

    /// The same, with the module for Python.
    pub fn platform_with_python(&self, functions: &str) -> Platform {
        let lines = format!("node_socket = {:?}\nmodule = {:?}", self.node.path, python_module());
        Platform::start(&lines, functions)
    }

    /// What a handler is to read.
    pub fn event(&self, more: Value) -> Value {
        let (address, rkey) = (self.region.addr(), self.region.rkey());
        let mut event = json!({"to": self.gid(), "address": address, "rkey": rkey});
        event.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        event
    }

    /// What backs each VQP that is connected to a node from here.
    pub fn ways_to(&self, to: &Store) -> Vec<String> {
        let there = Some(to.node.gid.to_ip());
        let vqps = self.node.status().vqps.into_iter();
        let to_there = vqps.filter(|vqp| vqp.state == "connected" && vqp.peer == there);
        to_there.filter_map(|vqp| vqp.via).collect()
    }

    /// VQPs that are connected to the node itself.
    pub fn connected(&self) -> usize {
        let status = self.node.status();
        let there = Some(self.node.gid.to_ip());
        status.vqps.iter().filter(|vqp| vqp.state == "connected" && vqp.peer == there).count()
    }

    pub fn count(&self, name: &str) -> u64 {
        self.node.status().engine[&format!("heirs_{name}")]
    }
}
