//! A cluster on this machine: `elverd` processes, each on a host of its own, that go however this
//! process ends.
//!
//! As root a host is a network namespace, joined to the others by a bridge; otherwise it is an
//! address of the loopback. Sockets and configurations stand in a temporary directory.

mod daemon;
mod host;
mod spec;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use elver_console::Failure;
use elver_node::Status;

pub use spec::{Ground, NodeSpec};

use crate::cluster::daemon::Daemon;
use crate::cluster::host::{Host, Hub};
use crate::netns::{reach_hosts, stand_for_hosts};
use crate::programs::Programs;
use crate::scratch::Scratch;
use crate::signals;

/// Port of the meta server's registry.
pub const REGISTRY_PORT: u16 = 4_790;
/// How long a cluster has to get ready.
const READY_WAIT: Duration = Duration::from_secs(60);
/// Most hosts: their addresses are of one /24.
const HOSTS_MAX: usize = 200;

/// Running nodes. The first is the meta server.
pub struct Cluster {
    // In this order: daemons end before what they stand on.
    nodes: Vec<Node>,
    _hub: Option<Hub>,
    ground: Ground,
    programs: Programs,
    elverd: PathBuf,
    directory: Scratch,
}

struct Node {
    // Before what it stands on, and none where a benchmark's own processes are the node.
    daemon: Option<Daemon>,
    host: Host,
    address: IpAddr,
}

impl Cluster {
    /// Starts the nodes; returns when all of them are ready.
    ///
    /// # Errors
    ///
    /// [`Failure::Unusable`] for none or too many, for who is not root between namespaces, or without `elverd`; else what
    /// kept a daemon from getting ready.
    pub fn start(
        programs: &Programs,
        ground: Ground,
        specs: &[NodeSpec],
    ) -> Result<Cluster, Failure> {
        if specs.is_empty() || specs.len() > HOSTS_MAX {
            return Err(Failure::unusable(format!("a cluster has 1 to {HOSTS_MAX} nodes")));
        }
        let mut cluster = Cluster::empty(programs, ground)?;
        for (index, spec) in specs.iter().enumerate() {
            cluster.begin(spec)?;
            // The others ask the meta server as soon as they run.
            if index == 0 {
                cluster.wait_ready(index)?;
            }
        }
        (1..specs.len()).try_for_each(|index| cluster.wait_ready(index))?;
        for (index, spec) in specs.iter().enumerate() {
            cluster.wait_registered(index, spec.name)?;
        }
        Ok(cluster)
    }

    /// One without nodes. What stands on the first host is its meta server.
    ///
    /// # Errors
    ///
    /// [`Failure::Unusable`] for who is not root between namespaces, or without `elverd`; else what the system says.
    pub fn empty(programs: &Programs, ground: Ground) -> Result<Cluster, Failure> {
        if ground == Ground::Netns && !rustix::process::geteuid().is_root() {
            return Err(Failure::unusable(
                "network namespaces need root: run it with sudo, or take `--placement loopback`",
            ));
        }
        let (programs, elverd) = (programs.clone(), programs.elverd()?);
        signals::watch()?;
        let directory = Scratch::new()?;
        let hub = match ground {
            Ground::Netns => Some(Hub::new()?),
            Ground::Loopback => None,
        };
        Ok(Cluster { nodes: Vec::new(), _hub: hub, ground, programs, elverd, directory })
    }

    /// A further host, without a daemon; its number.
    ///
    /// # Errors
    ///
    /// What the system says of the namespace or its link.
    pub fn host(&mut self) -> Result<usize> {
        let index = self.nodes.len();
        let address = address(self.ground, index);
        let host = match &self._hub {
            Some(hub) => hub.attach(index, address)?,
            None => Host::here()?,
        };
        self.nodes.push(Node { daemon: None, host, address });
        Ok(index)
    }

    /// A further host with a daemon that is in the meta server's table; its number.
    ///
    /// # Errors
    ///
    /// What kept the daemon from starting, or from being registered in time.
    pub fn node(&mut self, spec: &NodeSpec) -> Result<usize> {
        let index = self.begin(spec)?;
        self.wait_ready(index)?;
        self.wait_registered(index, spec.name)?;
        Ok(index)
    }

    fn begin(&mut self, spec: &NodeSpec) -> Result<usize> {
        let index = self.host()?;
        let text = self.configuration(index, self.address(index), spec);
        let host = &self.nodes[index].host;
        let daemon = Daemon::start(&self.elverd, &self.directory, index, spec, &text, host)?;
        self.nodes[index].daemon = Some(daemon);
        Ok(index)
    }

    fn wait_ready(&mut self, index: usize) -> Result<()> {
        let daemon = self.nodes[index].daemon.as_mut();
        daemon.map_or(Ok(()), |daemon| daemon.wait_ready(READY_WAIT))
    }

    /// Many addresses that sockets on the first host may have; the first of a /24.
    ///
    /// # Errors
    ///
    /// `ip` cannot be run, or refuses.
    pub fn many_addresses(&self) -> Result<Ipv4Addr> {
        let first = many(self.ground);
        if self.ground == Ground::Netns {
            self.on(0, move || stand_for_hosts(first, "eth0"))??;
        }
        Ok(first)
    }

    /// Lets the other hosts reach them.
    ///
    /// # Errors
    ///
    /// `ip` cannot be run, or refuses.
    pub fn lead_to_many(&self, first: Ipv4Addr) -> Result<()> {
        let by = self.address(0);
        if self.ground == Ground::Netns {
            for index in 1..self.nodes.len() {
                self.on(index, move || reach_hosts(first, by))??;
            }
        }
        Ok(())
    }

    /// Waits until the others can find a node: that needs a word with the registry.
    fn wait_registered(&self, index: usize, name: &str) -> Result<()> {
        let start = Instant::now();
        while Status::fetch(&self.socket(index))?.registered == 0 {
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

    /// The programs that it is made of.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The socket of a node, for processes.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.directory.path().join(format!("node{index}.sock"))
    }

    /// A node's address, which is its GID too.
    pub fn address(&self, index: usize) -> IpAddr {
        self.nodes[index].address
    }

    /// Runs something on a node's host: what it starts and opens is there.
    ///
    /// # Errors
    ///
    /// The host's thread has ended.
    pub fn on<T: Send + 'static>(
        &self,
        index: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.nodes[index].host.run(job)
    }
}

/// The first of many addresses on one host.
fn many(ground: Ground) -> Ipv4Addr {
    match ground {
        Ground::Netns => Ipv4Addr::new(10, 9, 4, 1),
        Ground::Loopback => {
            let [low, high, ..] = std::process::id().to_le_bytes();
            Ipv4Addr::new(127, 144 + (high & 0x3f), low, 1)
        }
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
