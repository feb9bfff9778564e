//! A cluster on this machine: `elverd` processes, each on a host of its own, that go however this
//! process ends.
//!
//! As root a host is a network namespace, joined to the others by a bridge; otherwise it is an
//! address of the loopback. Sockets and configurations stand in a temporary directory.

mod daemon;
mod host;
mod scratch;
mod signals;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

pub(crate) use daemon::die_with_parent;

use crate::cluster::daemon::{Daemon, find_elverd};
use crate::cluster::host::{Host, Hub};
use crate::cluster::scratch::Scratch;
use crate::exit::Failure;
use crate::pair::Seat;
use crate::status;

/// Port of the meta server's registry.
const REGISTRY_PORT: u16 = 4_790;
/// How long a cluster has to get ready.
const READY_WAIT: Duration = Duration::from_secs(10);
/// Most hosts: their addresses are of one /24.
const HOSTS_MAX: usize = 200;

/// Where the nodes of a cluster stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// A network namespace for each. Needs root.
    Netns,
    /// An address of the loopback for each.
    Loopback,
}

impl Ground {
    /// Namespaces for root, else the loopback.
    pub(crate) fn best() -> Ground {
        if rustix::process::geteuid().is_root() { Ground::Netns } else { Ground::Loopback }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Ground::Netns => "netns",
            Ground::Loopback => "loopback",
        }
    }
}

/// What a node of a cluster is made with.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSpec {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Where it runs.
    pub(crate) seat: Seat,
    /// Options of its configuration, such as `engine.spin_us = 100`.
    pub(crate) options: Vec<String>,
}

/// Running nodes. The first is the meta server.
pub(crate) struct Cluster {
    // In this order: daemons end before what they stand on.
    nodes: Vec<Node>,
    _hub: Option<Hub>,
    directory: Scratch,
}

struct Node {
    daemon: Daemon,
    host: Host,
    address: IpAddr,
}

impl Cluster {
    /// Starts the nodes; returns when all of them are ready.
    pub(crate) fn start(ground: Ground, specs: &[NodeSpec]) -> Result<Cluster, Failure> {
        if specs.is_empty() || specs.len() > HOSTS_MAX {
            return Err(Failure::unusable(format!("a cluster has 1 to {HOSTS_MAX} nodes")));
        }
        if ground == Ground::Netns && !rustix::process::geteuid().is_root() {
            return Err(Failure::unusable(
                "network namespaces need root: run it with sudo, or take `--placement loopback`",
            ));
        }
        let elverd = find_elverd()?;
        signals::watch()?;
        let directory = Scratch::new()?;
        let hub = match ground {
            Ground::Netns => Some(Hub::new()?),
            Ground::Loopback => None,
        };
        let mut cluster = Cluster { nodes: Vec::new(), _hub: hub, directory };
        for (index, spec) in specs.iter().enumerate() {
            let address = address(ground, index);
            let host = match &cluster._hub {
                Some(hub) => hub.attach(index, address)?,
                None => Host::here()?,
            };
            let text = cluster.configuration(index, address, spec);
            let daemon = Daemon::start(&elverd, &cluster.directory, index, spec, &text, &host)?;
            cluster.nodes.push(Node { daemon, host, address });
            // The others ask the meta server as soon as they run.
            if index == 0 {
                cluster.nodes[0].daemon.wait_ready(READY_WAIT)?;
            }
        }
        for node in &mut cluster.nodes[1..] {
            node.daemon.wait_ready(READY_WAIT)?;
        }
        for (index, spec) in specs.iter().enumerate() {
            cluster.wait_registered(index, spec.name)?;
        }
        Ok(cluster)
    }

    /// Waits until the others can find a node: that needs a word with the registry.
    fn wait_registered(&self, index: usize, name: &str) -> Result<()> {
        let start = Instant::now();
        while status::fetch(&self.socket(index))?.registered == 0 {
            ensure!(start.elapsed() < READY_WAIT, "{name} was not registered in {READY_WAIT:?}");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn configuration(&self, index: usize, address: IpAddr, spec: &NodeSpec) -> String {
        let registry = self.nodes.first().map_or(address, |meta| meta.address);
        let socket = self.socket(index);
        let mut lines = vec![
            format!("node.address = \"{address}\""),
            format!("socket.path = {:?}", socket.display().to_string()),
            format!("meta.serve = {}", index == 0),
            format!("meta.servers = [\"{registry}:{REGISTRY_PORT}\"]"),
            // None: nobody asks, and the default port is one node's alone.
            "metrics.listen = \"\"".to_string(),
        ];
        lines.extend(spec.options.iter().cloned());
        lines.join("\n") + "\n"
    }

    /// The socket of a node, for processes.
    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        self.directory.path().join(format!("node{index}.sock"))
    }

    /// A node's address, which is its GID too.
    pub(crate) fn address(&self, index: usize) -> IpAddr {
        self.nodes[index].address
    }

    /// Runs something on a node's host: what it starts and opens is there.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        index: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.nodes[index].host.run(job)
    }
}

fn address(ground: Ground, index: usize) -> IpAddr {
    let last = index as u8 + 1;
    match ground {
        Ground::Netns => Ipv4Addr::new(10, 9, 1, last).into(),
        // Of this process: two clusters of one machine do not meet.
        Ground::Loopback => {
            let [low, high, ..] = std::process::id().to_le_bytes();
            Ipv4Addr::new(127, 80u8.wrapping_add(high & 0x3f), low, last).into()
        }
    }
}
