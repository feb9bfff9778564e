//! Two nodes, each embedded in a thread that drives it, at the two ends of a link.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use elver_core::{
    ClientId, ClientLimits, Completion, ConnectOptions, Event, PeerInfo, Stats, Via, VqpId, VqpInit,
};
use elver_node::config::Config;
use elver_node::now;
use elver_soft::SoftMemory;
use elver_verbs::{
    AccessFlags, Device, Gid, Memory, MrInfo, RecvWr, RemoteAddr, SendWr, Sge, Wc, WcStatus,
};

use crate::bench::hosts::{HostKnown, Hosts};
use crate::cli::Placement;
use crate::exit::Failure;
use crate::pair;

/// The longest that one step of a benchmark may take.
const STALL: Duration = Duration::from_secs(10);
/// Rounds between two looks at whether the other end is still there.
const ROUNDS: u32 = 1024;
/// Rounds between two looks at hosts that nobody speaks with but to see that they are there.
const HOSTS_LOOK: u32 = 64;
/// Port of the meta server's registry.
pub(crate) const REGISTRY_PORT: u16 = 4_790;
/// Bytes that the far end offers.
pub(crate) const REGION: u64 = 2 << 20;
/// Time between two looks at whether a node is registered.
const REGISTER_LOOK: Duration = Duration::from_micros(200);
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node and its one client, driven by the thread that has it.
pub(crate) struct Node {
    node: elver_node::Node,
    client: ClientId,
}

/// Memory of a node's, which lasts as long as the node.
pub(crate) struct Region {
    info: MrInfo,
    memory: SoftMemory,
}

impl Region {
    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.info.addr, length, lkey: self.info.lkey }
    }

    pub(crate) fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.info.addr, rkey: self.info.rkey }
    }

    /// Its first word.
    pub(crate) fn word(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// What the near end knows of the far one.
#[derive(Clone, Debug)]
pub(crate) struct Far {
    /// The meta server, which has an RC QP to it as soon as it can.
    pub(crate) meta: Gid,
    /// A node beside it that nobody has talked to.
    pub(crate) idle: Gid,
    pub(crate) remote: RemoteAddr,
    /// Further hosts, as many as were asked for.
    pub(crate) hosts: Vec<HostKnown>,
}

/// Hosts beside the meta server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crowded {
    pub(crate) hosts: u32,
    /// Whether connects speak with them, and not with the meta server alone: then they are looked
    /// after at every turn, which costs the meta server a system call.
    pub(crate) spoken_to: bool,
}

impl Node {
    /// A node at an address of the calling thread's network, in the cluster of the meta server at
    /// `meta`.
    fn open(address: IpAddr, meta: IpAddr, config: &Config) -> Result<Node> {
        let mut config = config.clone();
        config.node.address = address;
        config.meta.serve = address == meta;
        config.meta.servers = vec![format!("{meta}:{REGISTRY_PORT}")];
        let mut node = elver_node::Node::embedded(config)?;
        let client = node.core().client_open(ClientLimits::default())?;
        Ok(Node { node, client })
    }

    /// Drives it until the meta server has it in its table. `beside` runs every time: the meta
    /// server must be driven too.
    fn register(&mut self, mut beside: impl FnMut()) -> Result<()> {
        let start = Instant::now();
        let mut looked = start;
        loop {
            self.poll();
            beside();
            if looked.elapsed() > REGISTER_LOOK {
                looked = Instant::now();
                if self.node.status().registered > 0 {
                    return Ok(());
                }
                // The threads that speak with the registry may have this core alone.
                std::thread::yield_now();
            }
            if start.elapsed() > STALL {
                bail!("the meta server did not register this node within {} s", STALL.as_secs());
            }
        }
    }

    pub(crate) fn gid(&mut self) -> Gid {
        self.node.core().gid()
    }

    #[inline]
    pub(crate) fn poll(&mut self) {
        self.node.poll();
    }

    /// The core's counters, and packets that left the device.
    pub(crate) fn counters(&mut self) -> (Stats, u64) {
        let core = self.node.core();
        let stats = core.stats();
        (stats, core.device().counters().tx_packets)
    }

    /// RC QPs of single VQPs, those being closed included.
    pub(crate) fn leases(&mut self) -> u64 {
        let core = self.node.core();
        let shared: u64 = core.peers().map(|peer| u64::from(peer.rc_qps)).sum();
        core.stats().rc_qps.saturating_sub(shared)
    }

    /// Nodes that it remembers anything of.
    pub(crate) fn peers(&mut self) -> Vec<PeerInfo> {
        self.node.core().peers().collect()
    }

    /// Makes the RC QP that all VQPs of this node to `gid` share.
    pub(crate) fn link_to(&mut self, gid: Gid, port: u16) -> Result<()> {
        let vqp = self.vqp(VqpInit::default())?;
        let shared = ConnectOptions { policy: elver_core::Policy::Lite, uncached: false };
        self.connect(vqp, gid, port, shared)?;
        self.destroy(vqp)
    }

    /// Has the records of these nodes looked up, and remembers them. `beside` runs every time.
    pub(crate) fn learn(&mut self, gids: &[Gid], mut beside: impl FnMut()) -> Result<()> {
        self.node.core().warm(self.client, gids, 0, now())?;
        let start = Instant::now();
        loop {
            self.poll();
            beside();
            while let Some(event) = self.node.poll_event() {
                if let Event::Warmed { failed, .. } = event {
                    ensure!(failed == 0, "{failed} of {} nodes were not found", gids.len());
                    return Ok(());
                }
            }
            ensure!(start.elapsed() < STALL, "nodes were not looked up within {STALL:?}");
        }
    }

    /// Look-ups and handshakes that go on side by side at most.
    pub(crate) fn handshakes_at_once(&mut self) -> usize {
        let storm = &self.node.core().config().storm;
        storm.lookups_max.max(storm.handshakes_max) as usize
    }

    pub(crate) fn region(&mut self, len: u64) -> Result<Region> {
        let memory = self.node.core().device().alloc_memory(len)?;
        let info = self.node.core().reg_mr(self.client, memory.clone(), None, ALL)?;
        Ok(Region { info, memory })
    }

    /// How long it takes to register so many bytes that are there; they are given back again.
    pub(crate) fn reg_and_dereg(&mut self, len: u64) -> Result<Duration> {
        let memory = self.node.core().device().alloc_memory(len)?;
        memory.write(0, &vec![1; len as usize])?;
        let start = Instant::now();
        let info = self.node.core().reg_mr(self.client, memory, None, ALL)?;
        let took = start.elapsed();
        self.node.core().dereg_mr(self.client, info.lkey, 0, now())?;
        Ok(took)
    }

    pub(crate) fn vqp(&mut self, init: VqpInit) -> Result<VqpId> {
        Ok(self.node.core().vqp_create(self.client, init)?)
    }

    pub(crate) fn bind(&mut self, vqp: VqpId, port: u16) -> Result<u16> {
        Ok(self.node.core().qbind(self.client, vqp, port)?)
    }

    #[inline]
    pub(crate) fn destroy(&mut self, vqp: VqpId) -> Result<()> {
        Ok(self.node.core().vqp_destroy(self.client, vqp, now())?)
    }

    /// Begins to connect; what it came to if that was at hand.
    #[inline]
    pub(crate) fn begin_connect(
        &mut self,
        vqp: VqpId,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
    ) -> Result<Option<Via>> {
        let token = u64::from(vqp.0);
        Ok(self.node.core().qconnect(self.client, vqp, gid, port, options, token, now())?)
    }

    /// A connect that has ended.
    #[inline]
    pub(crate) fn next_connected(&mut self) -> Option<(VqpId, Result<Via>)> {
        loop {
            match self.node.poll_event()? {
                Event::Connected { vqp, result, .. } => {
                    return Some((vqp, result.map_err(anyhow::Error::from)));
                }
                Event::Failed { vqp, cause, .. } => return Some((vqp, Err(cause.into()))),
                _ => {}
            }
        }
    }

    /// Connects, and waits for it.
    pub(crate) fn connect(
        &mut self,
        vqp: VqpId,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
    ) -> Result<Via> {
        if let Some(via) = self.begin_connect(vqp, gid, port, options)? {
            return Ok(via);
        }
        let start = Instant::now();
        loop {
            self.poll();
            if let Some((ended, result)) = self.next_connected()
                && ended == vqp
            {
                return result;
            }
            if start.elapsed() > STALL {
                bail!("a connect did not end within {} s", STALL.as_secs());
            }
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, vqp: VqpId, wrs: &[SendWr<'_>]) -> Result<()> {
        self.node.core().post_send(self.client, vqp, wrs, now()).map_err(|(_, error)| error.into())
    }

    pub(crate) fn post_recv(&mut self, vqp: VqpId, wrs: &[RecvWr<'_>]) -> Result<()> {
        self.node.core().post_recv(self.client, vqp, wrs, now()).map_err(|(_, error)| error.into())
    }

    /// Drives the node and takes completions.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut [Completion]) -> usize {
        self.poll();
        self.node.core().poll_completions(self.client, into)
    }

    /// Takes completions that are there.
    #[inline]
    pub(crate) fn taken(&mut self, into: &mut [Completion]) -> usize {
        self.node.core().poll_completions(self.client, into)
    }
}

/// Room for completions.
pub(crate) fn blank<const N: usize>() -> [Completion; N] {
    [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; N]
}

/// Fails for a completion that is none of success.
pub(crate) fn succeeded(completion: &Completion) -> Result<()> {
    match completion.wc.status {
        WcStatus::Success => Ok(()),
        status => Err(anyhow!("a WR through a VQP failed: {status}")),
    }
}

/// Runs `client` with a node at the near end; at the far end a meta server stands, which `serve`
/// runs beside after each round, and an idle node.
pub(crate) fn run<C: Send, S: Send>(
    placement: Placement,
    config: &Config,
    prepare: impl FnOnce(&mut Node) -> Result<S> + Send,
    serve: impl Fn(&mut Node, &mut S) -> Result<()> + Send + Sync,
    client: impl FnOnce(&mut Node, &Far) -> Result<C> + Send,
) -> Result<C, Failure> {
    run_among(placement, config, Crowded::default(), prepare, serve, client)
}

/// The same, with further hosts at the far end, on its thread.
pub(crate) fn run_among<C: Send, S: Send>(
    placement: Placement,
    config: &Config,
    crowded: Crowded,
    prepare: impl FnOnce(&mut Node) -> Result<S> + Send,
    serve: impl Fn(&mut Node, &mut S) -> Result<()> + Send + Sync,
    client: impl FnOnce(&mut Node, &Far) -> Result<C> + Send,
) -> Result<C, Failure> {
    let known = OnceLock::new();
    let (_, out) = pair::run(
        placement,
        |end, peer| {
            let mut node = Node::open(end.own, end.own, config)?;
            let mut idle = Node::open(end.beside, end.own, config)?;
            node.register(|| {})?;
            idle.register(|| node.poll())?;
            let mut state = prepare(&mut node)?;
            let remote = node.region(REGION)?.remote();
            if crowded.hosts > 0 {
                pair::stand_for(placement, end)?;
            }
            let mut hosts = Hosts::open(end.hosts, crowded.hosts, node.node.core())?;
            let (meta, idle_gid) = (node.gid(), idle.gid());
            let _ = known.set(Far { meta, idle: idle_gid, remote, hosts: hosts.known() });
            peer.begin();
            let look = if crowded.spoken_to { 1 } else { HOSTS_LOOK };
            while !peer.is_gone() {
                for round in 0..ROUNDS {
                    node.poll();
                    serve(&mut node, &mut state)?;
                    if round % look == 0 {
                        hosts.poll()?;
                    }
                }
                idle.poll();
            }
            Ok(())
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register(|| {})?;
            let far = known.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            client(&mut node, far)
        },
    )?;
    Ok(out)
}

/// Runs `job` with a node at either end, and a meta server beside the second of them, on its thread:
/// `job` is given the node, the meta server where it is there to be driven, the other node's GID,
/// and which end it is. Results are in that order.
pub(crate) fn run_both<T: Send>(
    placement: Placement,
    config: &Config,
    job: impl Fn(&mut Node, Option<&mut Node>, Gid, usize) -> Result<T> + Send + Sync,
) -> Result<[T; 2], Failure> {
    let client_gid = OnceLock::new();
    let server_gid = OnceLock::new();
    let (theirs, ours) = pair::run(
        placement,
        |end, client| {
            let mut meta = Node::open(end.own, end.own, config)?;
            meta.register(|| {})?;
            let mut node = Node::open(end.beside, end.own, config)?;
            node.register(|| meta.poll())?;
            let _ = server_gid.set(node.gid());
            client.begin();
            let start = Instant::now();
            let peer = loop {
                node.poll();
                meta.poll();
                if let Some(gid) = client_gid.get() {
                    break *gid;
                }
                if client.is_gone() || start.elapsed() > STALL {
                    bail!("the client's node did not come");
                }
            };
            job(&mut node, Some(&mut meta), peer, 1)
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register(|| {})?;
            let peer = *server_gid.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            let _ = client_gid.set(node.gid());
            job(&mut node, None, peer, 0)
        },
    )?;
    Ok([ours, theirs])
}
