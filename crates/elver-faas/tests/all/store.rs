//! A node, and memory there for handlers to read.

use elver::{AccessFlags, Mr, Session};
use elver_testkit::{Place, TestNode, python_module};
use serde_json::{Value, json};

use crate::platform::Platform;

pub struct Store {
    // A region ends before its node.
    region: Mr,
    pub node: TestNode,
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
        let region = session.alloc(64, AccessFlags::REMOTE_READ).unwrap();
        region.write(0, b"greeting").unwrap();
        Store { region, node }
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

    pub fn count(&self, name: &str) -> u64 {
        self.node.thread.status().unwrap().engine[&format!("heirs_{name}")]
    }
}
