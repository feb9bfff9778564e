//! The rest of a cluster, in one process: a meta server, and hosts that are nothing but a device, a
//! core and memory.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use elver_core::ClientLimits;
use elver_node::Node;
use elver_node::config::Config;

use crate::cluster::REGISTRY_PORT;
use crate::hosts::Hosts;
use crate::worker::task::Known;
use crate::worker::tell::{end_with_parent, tell};

/// Any port: no message is sent.
const PORT: u16 = 7;

/// Runs until the parent has enough. It never sleeps: it has a core for itself.
pub(super) fn run(meta: IpAddr, first: Ipv4Addr, hosts: u32) -> Result<()> {
    let mut config = Config::default();
    config.node.address = meta;
    config.meta.serve = true;
    config.meta.servers = vec![format!("{meta}:{REGISTRY_PORT}")];
    let mut node = Node::embedded(config)?;
    // Who connects to the meta server itself finds a client there too.
    node.core().client_open(ClientLimits::default())?;
    let mut hosts = Hosts::open(first, hosts, node.core())?;
    let known = hosts.known().into_iter().map(|host| Known {
        gid: host.gid.0,
        port: PORT,
        addr: host.remote.addr,
        rkey: host.remote.rkey,
    });
    tell(&known.collect::<Vec<_>>())?;
    end_with_parent()?;
    loop {
        node.poll();
        hosts.poll()?;
    }
}
