//! Two nodes, each embedded in a thread that drives it, at the two ends of a link.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use elver_core::{ClientId, ClientLimits, Completion, ConnectOptions, Event, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_node::now;
use elver_verbs::{
    AccessFlags, Device, Gid, MrInfo, RecvWr, RemoteAddr, SendWr, Sge, Wc, WcStatus,
};

use crate::cli::Placement;
use crate::exit::Failure;
use crate::pair;

/// The longest that one step of a benchmark may take.
const STALL: Duration = Duration::from_secs(10);
/// Rounds between two looks at whether the other end is still there.
const ROUNDS: u32 = 1024;
/// Port of the meta server's registry.
const REGISTRY_PORT: u16 = 4_790;
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
pub(crate) struct Region(MrInfo);

impl Region {
    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.0.addr, length, lkey: self.0.lkey }
    }

    pub(crate) fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.0.addr, rkey: self.0.rkey }
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

    /// Drives it until the meta server has it in its table.
    fn register(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut looked = start;
        loop {
            self.poll();
            if looked.elapsed() > REGISTER_LOOK {
                looked = Instant::now();
                if self.node.status().registered > 0 {
                    return Ok(());
                }
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

    /// Look-ups and handshakes that go on side by side at most.
    pub(crate) fn handshakes_at_once(&mut self) -> usize {
        let storm = &self.node.core().config().storm;
        storm.lookups_max.max(storm.handshakes_max) as usize
    }

    pub(crate) fn region(&mut self, len: u64) -> Result<Region> {
        let memory = self.node.core().device().alloc_memory(len)?;
        let info = self.node.core().reg_mr(self.client, memory, None, ALL)?;
        Ok(Region(info))
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
    let known = OnceLock::new();
    let (_, out) = pair::run(
        placement,
        |end, peer| {
            let mut node = Node::open(end.own, end.own, config)?;
            let mut idle = Node::open(end.beside, end.own, config)?;
            node.register()?;
            idle.register()?;
            let mut state = prepare(&mut node)?;
            let remote = node.region(REGION)?.remote();
            let _ = known.set(Far { meta: node.gid(), idle: idle.gid(), remote });
            peer.begin();
            while !peer.is_gone() {
                for _ in 0..ROUNDS {
                    node.poll();
                    serve(&mut node, &mut state)?;
                }
                idle.poll();
            }
            Ok(())
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register()?;
            let far = known.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            client(&mut node, far)
        },
    )?;
    Ok(out)
}

/// Runs `job` with a node at either end, the second of them the meta server: it is given the node,
/// the other one's GID, and which end it is. Results are in that order.
pub(crate) fn run_both<T: Send>(
    placement: Placement,
    config: &Config,
    job: impl Fn(&mut Node, Gid, usize) -> Result<T> + Send + Sync,
) -> Result<[T; 2], Failure> {
    let client_gid = OnceLock::new();
    let server_gid = OnceLock::new();
    let (theirs, ours) = pair::run(
        placement,
        |end, client| {
            let mut node = Node::open(end.own, end.own, config)?;
            node.register()?;
            let _ = server_gid.set(node.gid());
            client.begin();
            let start = Instant::now();
            let peer = loop {
                node.poll();
                if let Some(gid) = client_gid.get() {
                    break *gid;
                }
                if client.is_gone() || start.elapsed() > STALL {
                    bail!("the client's node did not come");
                }
            };
            job(&mut node, peer, 1)
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register()?;
            let peer = *server_gid.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            let _ = client_gid.set(node.gid());
            job(&mut node, peer, 0)
        },
    )?;
    Ok([ours, theirs])
}
