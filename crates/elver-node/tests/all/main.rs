//! Nodes in this process, and clients that speak the portal to them.

mod common;
mod directs;
mod embedded;
mod forged;
mod shares;

use elver_node::config::Config;
use elver_node::{Node, NodeThread};

use common::Client;

/// A configuration for tests: no fixed ports, small pools.
pub fn config(address: &str) -> Config {
    let mut config = Config::default();
    config.node.address = address.parse().unwrap();
    config.meta.listen = "0.0.0.0:0".to_string();
    config.metrics.listen = "127.0.0.1:0".to_string();
    config.engine.spin_us = 20;
    config.memory.lease_ms = 50;
    config
}

fn node(config: Config) -> NodeThread {
    Node::embedded(config).unwrap().spawn().unwrap()
}

fn client(node: &NodeThread) -> Client {
    Client::over(node.connect().unwrap()).unwrap()
}
