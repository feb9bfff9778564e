//! A node embedded in the thread that drives it, with one client.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use elver_core::{
    ClientId, ClientLimits, Completion, ConnectOptions, Core, Event, PeerInfo, Stats, Via, VqpId,
    VqpInit,
};
use elver_node::config::Config;
use elver_node::now;
use elver_soft::{SoftDevice, SoftMemory};
use elver_verbs::{
    AccessFlags, Device, Gid, Memory, MrInfo, RecvWr, RemoteAddr, SendWr, Sge, Wc, WcStatus,
};

use crate::cluster::REGISTRY_PORT;

/// The longest that one step of a benchmark may take.
const STALL: Duration = Duration::from_secs(60);
/// Time between two looks at whether a node is registered.
const REGISTER_LOOK: Duration = Duration::from_micros(200);
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node and its one client, driven by the thread that has it.
pub struct Node {
    node: elver_node::Node,
    client: ClientId,
}

/// Memory of a node's, which lasts as long as the node.
pub struct Region {
    info: MrInfo,
    memory: SoftMemory,
}

impl Region {
    /// Its first bytes, for this node's WRs.
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.info.addr, length, lkey: self.info.lkey }
    }

    /// Its first byte, for a peer's WRs.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.info.addr, rkey: self.info.rkey }
    }

    /// Its first word.
    ///
    /// # Errors
    ///
    /// The memory has no 8 bytes.
    pub fn word(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

impl Node {
    /// A node at an address of the calling thread's network, in the cluster of the meta server at
    /// `meta`.
    pub(crate) fn open(address: IpAddr, meta: IpAddr, config: &Config) -> Result<Node> {
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
    pub(crate) fn register(&mut self, mut beside: impl FnMut()) -> Result<()> {
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

    pub(crate) fn core(&mut self) -> &mut Core<SoftDevice> {
        self.node.core()
    }

    /// The node's GID.
    pub fn gid(&mut self) -> Gid {
        self.node.core().gid()
    }

    /// A round of the node.
    #[inline]
    pub fn poll(&mut self) {
        self.node.poll();
    }

    /// The core's counters, and packets that left the device.
    pub fn counters(&mut self) -> (Stats, u64) {
        let core = self.node.core();
        let stats = core.stats();
        (stats, core.device().counters().tx_packets)
    }

    /// RC QPs of single VQPs, those being closed included.
    pub fn leases(&mut self) -> u64 {
        let core = self.node.core();
        let shared: u64 = core.peers().map(|peer| u64::from(peer.rc_qps)).sum();
        core.stats().rc_qps.saturating_sub(shared)
    }

    /// Nodes that it remembers anything of.
    pub fn peers(&mut self) -> Vec<PeerInfo> {
        self.node.core().peers().collect()
    }

    /// Makes the RC QP that all VQPs of this node to `gid` share.
    ///
    /// # Errors
    ///
    /// As [`Node::connect`].
    pub fn link_to(&mut self, gid: Gid, port: u16) -> Result<()> {
        let vqp = self.vqp(VqpInit::default())?;
        let shared = ConnectOptions { policy: elver_core::Policy::Lite, uncached: false };
        self.connect(vqp, gid, port, shared)?;
        self.destroy(vqp)
    }

    /// Has the records of these nodes looked up, and remembers them. `beside` runs every time.
    ///
    /// # Errors
    ///
    /// One of them is in no table, or does not answer in time.
    pub fn learn(&mut self, gids: &[Gid], mut beside: impl FnMut()) -> Result<()> {
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
    pub fn handshakes_at_once(&mut self) -> usize {
        let storm = &self.node.core().config().storm;
        storm.lookups_max.max(storm.handshakes_max) as usize
    }

    /// Memory that everybody may access.
    ///
    /// # Errors
    ///
    /// There is no memory, or no room for another region.
    pub fn region(&mut self, len: u64) -> Result<Region> {
        let memory = self.node.core().device().alloc_memory(len)?;
        let info = self.node.core().reg_mr(self.client, memory.clone(), None, ALL)?;
        Ok(Region { info, memory })
    }

    /// How long it takes to register so many bytes that are there; they are given back again.
    ///
    /// # Errors
    ///
    /// There is no memory, or no room for another region.
    pub fn reg_and_dereg(&mut self, len: u64) -> Result<Duration> {
        let memory = self.node.core().device().alloc_memory(len)?;
        memory.write(0, &vec![1; len as usize])?;
        let start = Instant::now();
        let info = self.node.core().reg_mr(self.client, memory, None, ALL)?;
        let took = start.elapsed();
        self.node.core().dereg_mr(self.client, info.lkey, 0, now())?;
        Ok(took)
    }

    /// A new VQP.
    ///
    /// # Errors
    ///
    /// A limit of the core's or of the client's.
    pub fn vqp(&mut self, init: VqpInit) -> Result<VqpId> {
        Ok(self.node.core().vqp_create(self.client, init)?)
    }

    /// Binds a VQP to a port, or to any for 0; the port.
    ///
    /// # Errors
    ///
    /// The port is another VQP's, or none is free.
    pub fn bind(&mut self, vqp: VqpId, port: u16) -> Result<u16> {
        Ok(self.node.core().qbind(self.client, vqp, port)?)
    }

    /// Destroys a VQP.
    ///
    /// # Errors
    ///
    /// There is no such VQP.
    #[inline]
    pub fn destroy(&mut self, vqp: VqpId) -> Result<()> {
        Ok(self.node.core().vqp_destroy(self.client, vqp, now())?)
    }

    /// Begins to connect; what it came to if that was at hand.
    ///
    /// # Errors
    ///
    /// There is no such VQP, or it may not connect now.
    #[inline]
    pub fn begin_connect(
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
    pub fn next_connected(&mut self) -> Option<(VqpId, Result<Via>)> {
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
    ///
    /// # Errors
    ///
    /// The node is not known, does not answer in time, or refuses.
    pub fn connect(
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

    /// Posts sends.
    ///
    /// # Errors
    ///
    /// What the core refuses; those before it are posted.
    #[inline]
    pub fn post(&mut self, vqp: VqpId, wrs: &[SendWr<'_>]) -> Result<()> {
        self.node.core().post_send(self.client, vqp, wrs, now()).map_err(|(_, error)| error.into())
    }

    /// Posts receives.
    ///
    /// # Errors
    ///
    /// What the core refuses; those before it are posted.
    pub fn post_recv(&mut self, vqp: VqpId, wrs: &[RecvWr<'_>]) -> Result<()> {
        self.node.core().post_recv(self.client, vqp, wrs, now()).map_err(|(_, error)| error.into())
    }

    /// Drives the node and takes completions.
    #[inline]
    pub fn take(&mut self, into: &mut [Completion]) -> usize {
        self.poll();
        self.node.core().poll_completions(self.client, into)
    }

    /// Takes completions that are there.
    #[inline]
    pub fn taken(&mut self, into: &mut [Completion]) -> usize {
        self.node.core().poll_completions(self.client, into)
    }
}

/// Room for completions.
pub fn blank<const N: usize>() -> [Completion; N] {
    [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; N]
}

/// Fails for a completion that is none of success.
///
/// # Errors
///
/// Its status.
pub fn succeeded(completion: &Completion) -> Result<()> {
    match completion.wc.status {
        WcStatus::Success => Ok(()),
        status => Err(anyhow!("a WR through a VQP failed: {status}")),
    }
}
