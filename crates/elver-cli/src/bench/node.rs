//! Two nodes, each embedded in a thread that drives it, at the two ends of a link.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use elver_core::{
    ClientId, ClientLimits, Completion, Config, ConnectOptions, Core, Event, MetaServer,
    NodeRecord, Via, VqpId, VqpInit,
};
use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::{
    AccessFlags, Device, Gid, MrInfo, RecvWr, RemoteAddr, SendWr, Sge, Time, Wc, WcStatus,
};

use crate::cli::Placement;
use crate::exit::Failure;
use crate::pair::{self, End};

/// The longest that one step of a benchmark may take.
const STALL: Duration = Duration::from_secs(10);
/// Rounds between two looks at whether the other end is still there.
const ROUNDS: u32 = 1024;
/// Most nodes of a meta server.
const NODES: u32 = 64;
/// Bytes that the far end offers.
pub(crate) const REGION: u64 = 2 << 20;
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node and its one client, driven by the thread that has it.
pub(crate) struct Node {
    core: Core<SoftDevice>,
    client: ClientId,
    start: Instant,
}

/// Memory of a node's.
pub(crate) struct Region {
    pub(crate) memory: SoftMemory,
    info: MrInfo,
}

impl Region {
    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.info.addr, length, lkey: self.info.lkey }
    }

    pub(crate) fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.info.addr, rkey: self.info.rkey }
    }
}

/// What the near end knows of the far one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    /// The meta server, which has an RC QP to it as soon as it can.
    pub(crate) meta: Gid,
    /// A node beside it that nobody has talked to.
    pub(crate) idle: Gid,
    pub(crate) remote: RemoteAddr,
}

impl Node {
    /// A node at an address of the calling thread's network.
    fn open(address: IpAddr, config: &Config) -> Result<Node> {
        let mut soft = SoftConfig::for_address(address);
        soft.publish = false;
        let start = Instant::now();
        let device = SoftDevice::open(soft)?;
        let seed = std::hash::BuildHasher::hash_one(
            &std::collections::hash_map::RandomState::new(),
            address,
        );
        let mut core = Core::new(device, config.clone(), seed, Time(1))?;
        let client = core.client_open(ClientLimits::default())?;
        Ok(Node { core, client, start })
    }

    #[inline]
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64 + 1)
    }

    pub(crate) fn gid(&self) -> Gid {
        self.core.gid()
    }

    #[inline]
    pub(crate) fn poll(&mut self) {
        let now = self.now();
        self.core.poll(now);
    }

    pub(crate) fn region(&mut self, len: u64) -> Result<Region> {
        let memory = self.core.device().alloc_memory(len)?;
        let info = self.core.reg_mr(self.client, memory.clone(), None, ALL)?;
        Ok(Region { memory, info })
    }

    pub(crate) fn vqp(&mut self, init: VqpInit) -> Result<VqpId> {
        Ok(self.core.vqp_create(self.client, init)?)
    }

    pub(crate) fn bind(&mut self, vqp: VqpId, port: u16) -> Result<u16> {
        Ok(self.core.qbind(self.client, vqp, port)?)
    }

    #[inline]
    pub(crate) fn destroy(&mut self, vqp: VqpId) -> Result<()> {
        let now = self.now();
        Ok(self.core.vqp_destroy(self.client, vqp, now)?)
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
        let now = self.now();
        let token = u64::from(vqp.0);
        Ok(self.core.qconnect(self.client, vqp, gid, port, options, token, now)?)
    }

    /// A connect that has ended.
    #[inline]
    pub(crate) fn next_connected(&mut self) -> Option<(VqpId, Result<Via>)> {
        loop {
            match self.core.poll_event()? {
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
        let now = self.now();
        self.core.post_send(self.client, vqp, wrs, now).map_err(|(_, error)| error.into())
    }

    pub(crate) fn post_recv(&mut self, vqp: VqpId, wrs: &[RecvWr<'_>]) -> Result<()> {
        let now = self.now();
        self.core.post_recv(self.client, vqp, wrs, now).map_err(|(_, error)| error.into())
    }

    /// Drives the node and takes completions.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut [Completion]) -> usize {
        self.poll();
        self.core.poll_completions(self.client, into)
    }

    /// Takes completions that are there.
    #[inline]
    pub(crate) fn taken(&mut self, into: &mut [Completion]) -> usize {
        self.core.poll_completions(self.client, into)
    }

    fn serve_meta(&mut self) -> Result<MetaServer> {
        Ok(self.core.serve_meta(NODES)?)
    }

    /// Drives until `done`.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Node) -> bool) -> Result<()> {
        let start = Instant::now();
        while !done(self) {
            self.poll();
            if start.elapsed() > STALL {
                bail!("{what} did not come within {} s", STALL.as_secs());
            }
        }
        Ok(())
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

/// What the two ends tell each other before a benchmark.
#[derive(Default)]
struct Introductions {
    server: OnceLock<(MetaServer, Far)>,
    client: OnceLock<(Gid, NodeRecord)>,
    registered: AtomicBool,
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
    let introductions = Introductions::default();
    let (_, out) = pair::run(
        placement,
        |end, peer| {
            let mut node = Node::open(end.own, config)?;
            let mut state = introduce(&mut node, end, config, &introductions, prepare)?;
            peer.begin();
            while !peer.is_gone() {
                for _ in 0..ROUNDS {
                    node.poll();
                    serve(&mut node, &mut state)?;
                }
                if let Some((gid, record)) = introductions.client.get()
                    && !introductions.registered.load(Ordering::Acquire)
                {
                    node.core.meta_put(*gid, *record)?;
                    introductions.registered.store(true, Ordering::Release);
                }
            }
            Ok(())
        },
        |end| {
            let mut node = Node::open(end.own, config)?;
            let (meta, far) = introductions.server.get().ok_or_else(|| anyhow!("no server"))?;
            let _ = introductions.client.set((node.gid(), node.core.record()));
            node.until("registration", |_| introductions.registered.load(Ordering::Acquire))?;
            let now = node.now();
            node.core.set_meta_servers(&[*meta], now);
            client(&mut node, far)
        },
    )?;
    Ok(out)
}

/// The far end makes itself known.
fn introduce<S>(
    node: &mut Node,
    end: End,
    config: &Config,
    introductions: &Introductions,
    prepare: impl FnOnce(&mut Node) -> Result<S>,
) -> Result<S> {
    let idle = Node::open(end.beside, config)?;
    let meta = node.serve_meta()?;
    for (gid, record) in [(node.gid(), node.core.record()), (idle.gid(), idle.core.record())] {
        node.core.meta_put(gid, record)?;
    }
    let now = node.now();
    node.core.set_meta_servers(&[meta], now);
    let state = prepare(node)?;
    let region = node.region(REGION)?;
    let far = Far { meta: node.gid(), idle: idle.gid(), remote: region.remote() };
    let _ = introductions.server.set((meta, far));
    Ok(state)
}
