//! Nodes in the simulator's virtual time: one that asks, and servers that hold memory.
//!
//! The network's constants are KRCORE's; see [`elver_sim`]. Code takes no time there.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, anyhow, ensure};
use elver_core::{
    ClientId, ClientLimits, Completion, Config, ConnectOptions, Event, MetaServer, Via, VqpId,
    VqpInit,
};
use elver_nodesim::SimCore;
use elver_sim::{FaultPlan, SimNet};
use elver_testbed::node;
use elver_verbs::{
    AccessFlags, Device, MrInfo, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Time,
};

/// The node that asks.
const ASKER: usize = 0;
const META: usize = 1;
/// Bytes that are read, and those of every region.
const READ_BYTES: u32 = 8;
const REGION: u64 = 4_096;
/// Nothing that is measured takes longer in virtual time.
const STALL_NS: u64 = 1_000_000_000;
/// Turns of one node at one moment: more means that it never rests.
const TURNS_MAX: u32 = 10_000;

/// Nodes on one clock.
pub(crate) struct VirtualNodes {
    net: SimNet,
    nodes: Vec<VirtualNode>,
    client: ClientId,
    local: MrInfo,
}

struct VirtualNode {
    core: SimCore,
    /// It was called, and has to run.
    called: bool,
    /// It ran at this moment, and nothing came of it.
    rests_until: Time,
}

/// Memory of a server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    server: usize,
    remote: RemoteAddr,
}

impl VirtualNodes {
    /// A node that asks, with this configuration, a meta server, and so many servers.
    pub(crate) fn new(
        servers: usize,
        config: &Config,
        seed: u64,
    ) -> Result<(VirtualNodes, Vec<Target>)> {
        let hosts = servers + 2;
        let address = |host: usize| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1));
        let net = SimNet::new((0..hosts).map(address).collect(), &FaultPlan::default(), seed);
        let mut nodes = Vec::new();
        for host in 0..hosts {
            let device = net.device(host, elver_sim::Config::default())?;
            let core = SimCore::new(device, config.clone(), seed ^ host as u64, net.now())?;
            nodes.push(VirtualNode { core, called: true, rests_until: Time::ZERO });
        }
        let meta: MetaServer = nodes[META].core.serve_meta(hosts as u32)?;
        for host in 0..hosts {
            let core = &mut nodes[host].core;
            let (gid, record) = (core.gid(), core.record());
            // Who asks for an RC QP is looked up there.
            core.set_meta_servers(&[meta], net.now());
            nodes[META].core.meta_put(gid, record)?;
        }
        let mut targets = Vec::new();
        for (server, node) in nodes.iter_mut().enumerate().skip(META + 1) {
            let (_, mr) = region(&mut node.core)?;
            targets.push(Target { server, remote: RemoteAddr { addr: mr.addr, rkey: mr.rkey } });
        }
        let (client, local) = region(&mut nodes[ASKER].core)?;
        Ok((VirtualNodes { net, nodes, client, local }, targets))
    }

    /// The virtual time.
    pub(crate) fn now(&self) -> Time {
        self.net.now()
    }

    /// A VQP that is connected to a server.
    pub(crate) fn connect(&mut self, to: Target, options: ConnectOptions) -> Result<(VqpId, Via)> {
        let (gid, now) = (self.net.gid(to.server), self.net.now());
        let client = self.client;
        let core = self.asker();
        let vqp = core.vqp_create(client, VqpInit::default())?;
        if let Some(via) = core.qconnect(client, vqp, gid, 1, options, 0, now)? {
            return Ok((vqp, via));
        }
        loop {
            self.step(now)?;
            while let Some(event) = self.nodes[ASKER].core.poll_event() {
                match event {
                    Event::Connected { vqp: ended, result, .. } if ended == vqp => {
                        return Ok((vqp, result?));
                    }
                    Event::Failed { cause, .. } => return Err(cause.into()),
                    _ => {}
                }
            }
        }
    }

    /// Posts a READ.
    pub(crate) fn read(&mut self, vqp: VqpId, from: Target) -> Result<()> {
        let sges = [Sge { addr: self.local.addr, length: READ_BYTES, lkey: self.local.lkey }];
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Read(from.remote),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        let (client, now) = (self.client, self.net.now());
        Ok(self.asker().post_send(client, vqp, &[wr], now).map_err(|(_, error)| error)?)
    }

    /// Lets time pass until something completes, and takes that.
    pub(crate) fn take(&mut self, into: &mut [Completion]) -> Result<usize> {
        let (client, start) = (self.client, self.net.now());
        loop {
            let taken = self.nodes[ASKER].core.poll_completions(client, into);
            if taken > 0 {
                into[..taken].iter().try_for_each(node::succeeded)?;
                return Ok(taken);
            }
            self.step(start)?;
        }
    }

    /// Lets time pass until a moment.
    pub(crate) fn advance(&mut self, to: Time) -> Result<()> {
        while let Some(next) = self.next().filter(|next| *next <= to) {
            self.run_until(next)?;
        }
        self.net.advance(to);
        Ok(())
    }

    fn asker(&mut self) -> &mut SimCore {
        self.nodes[ASKER].called = true;
        &mut self.nodes[ASKER].core
    }

    /// When something happens next.
    fn next(&mut self) -> Option<Time> {
        let now = self.net.now();
        let wakes = self.nodes.iter_mut().filter_map(|node| node.wakes_at(now));
        wakes.chain(self.net.next_arrival()).min()
    }

    /// Goes on to what happens next, and does that.
    fn step(&mut self, start: Time) -> Result<()> {
        let next = self.next().ok_or_else(|| anyhow!("nothing will happen any more"))?;
        ensure!(next.ns_since(start) < STALL_NS, "nothing came of it in a virtual second");
        self.run_until(next)
    }

    fn run_until(&mut self, to: Time) -> Result<()> {
        self.net.advance(to);
        let now = self.net.now();
        for node in &mut self.nodes {
            if node.wakes_at(now).is_some_and(|at| at <= now) {
                node.run(now)?;
            }
        }
        Ok(())
    }
}

impl VirtualNode {
    fn wakes_at(&mut self, now: Time) -> Option<Time> {
        let called = self.called.then_some(now);
        let due = [called, self.core.device().wake_at(), self.core.poll_timeout()];
        due.into_iter().flatten().min().map(|due| due.max(self.rests_until))
    }

    fn run(&mut self, now: Time) -> Result<()> {
        self.called = false;
        let mut turns = 0;
        while self.core.poll(now) {
            turns += 1;
            ensure!(turns < TURNS_MAX, "a node never rests");
        }
        // What is due and was not done must not stop the clock.
        self.rests_until = now.saturating_add_ns(1);
        Ok(())
    }
}

/// A client of a node's, and memory of its that peers may read.
fn region(core: &mut SimCore) -> Result<(ClientId, MrInfo)> {
    let client = core.client_open(ClientLimits::default())?;
    let memory = core.device().alloc_memory(REGION)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    Ok((client, core.reg_mr(client, memory, None, access)?))
}
