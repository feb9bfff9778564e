//! Nodes in the simulator's virtual time, in which code takes none: how long something takes is then
//! what waits for packets and for timers, and the same in every run.

use std::net::{IpAddr, Ipv4Addr};

use elver_core::*;
use elver_sim::{FaultPlan, SimNet};
use elver_verbs::*;

use crate::common::stubborn::Stubborn;

/// Nothing here takes longer, in virtual time.
const STALL_NS: u64 = 600_000_000_000;
/// Turns of one node at one moment: more means that it never rests.
const TURNS_MAX: u32 = 10_000;

/// A node with one client.
pub struct Node {
    pub core: Core<Stubborn>,
    pub client: ClientId,
    rests_until: Time,
    held_until: Time,
    /// By how much its clock is behind for having been held.
    behind_ns: u64,
}

impl Node {
    fn clock(&self, now: Time) -> Time {
        Time(now.0 - self.behind_ns)
    }
}

/// Some nodes; the first is the meta server of all.
pub struct Nodes {
    pub net: SimNet,
    pub nodes: Vec<Node>,
    /// Nothing happens until somebody calls a node.
    rest: bool,
}

impl Nodes {
    pub fn new(count: u8, config: &Config, limits: ClientLimits) -> Nodes {
        let device = elver_sim::Config::default();
        Nodes::with(count, &|_| config.clone(), &device, limits)
    }

    /// The same, each node with a configuration of its own.
    pub fn with(
        count: u8,
        config: &dyn Fn(usize) -> Config,
        device: &elver_sim::Config,
        limits: ClientLimits,
    ) -> Nodes {
        Nodes::on(count, config, device, limits, &FaultPlan::default(), 1)
    }

    /// The same on a network with faults.
    pub fn on(
        count: u8,
        config: &dyn Fn(usize) -> Config,
        device: &elver_sim::Config,
        limits: ClientLimits,
        faults: &FaultPlan,
        seed: u64,
    ) -> Nodes {
        let addresses = (1..=count).map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))).collect();
        let net = SimNet::new(addresses, faults, seed);
        let mut nodes = Vec::new();
        for host in 0..usize::from(count) {
            let device = net.device(host, device.clone()).unwrap();
            let device = Stubborn::new(device);
            let mut core = Core::new(device, config(host), 7 + host as u64, net.now()).unwrap();
            let client = core.client_open(limits).unwrap();
            nodes.push(Node {
                core,
                client,
                rests_until: Time::ZERO,
                held_until: Time::ZERO,
                behind_ns: 0,
            });
        }
        let meta = nodes[0].core.serve_meta(u32::from(count)).unwrap();
        for host in 0..usize::from(count) {
            let (gid, record) = (nodes[host].core.gid(), nodes[host].core.record());
            nodes[0].core.meta_put(gid, record).unwrap();
            nodes[host].core.set_meta_servers(&[meta], net.now());
        }
        Nodes { net, nodes, rest: false }
    }

    pub fn vqp(&mut self, n: usize, init: VqpInit) -> VqpId {
        let Node { core, client, .. } = &mut self.nodes[n];
        core.vqp_create(*client, init).unwrap()
    }

    /// A region of so many bytes at node `n`, which peers may read and write.
    pub fn region(&mut self, n: usize, length: u64) -> MrInfo {
        let Node { core, client, .. } = &mut self.nodes[n];
        let memory = core.device().alloc_memory(length).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        core.reg_mr(*client, memory, None, access | AccessFlags::REMOTE_WRITE).unwrap()
    }

    pub fn destroy(&mut self, n: usize, vqp: VqpId) {
        let now = self.net.now();
        let Node { core, client, .. } = &mut self.nodes[n];
        core.vqp_destroy(*client, vqp, now).unwrap();
    }

    /// Starts to connect a VQP of node `n` to a node; its token is its id.
    pub fn begin_connect(
        &mut self,
        n: usize,
        vqp: VqpId,
        to: usize,
        policy: Policy,
        uncached: bool,
    ) -> Option<Via> {
        let options = ConnectOptions { policy, uncached };
        self.begin_connect_to(n, vqp, self.net.gid(to), options)
    }

    /// The same to whatever has a GID.
    pub fn begin_connect_to(
        &mut self,
        n: usize,
        vqp: VqpId,
        gid: Gid,
        options: ConnectOptions,
    ) -> Option<Via> {
        let now = self.net.now();
        let Node { core, client, .. } = &mut self.nodes[n];
        core.qconnect(*client, vqp, gid, 7, options, u64::from(vqp.0), now).unwrap()
    }

    /// Holds a node for so long, and its core's clock with it, as a hypervisor may hold a host. Its packets
    /// wait.
    pub fn hold(&mut self, n: usize, ns: u64) {
        let until = self.net.now().saturating_add_ns(ns);
        self.net.stall(n, until);
        (self.nodes[n].held_until, self.nodes[n].behind_ns) = (until, self.nodes[n].behind_ns + ns);
    }

    /// The time by a node's clock.
    pub fn clock(&self, n: usize) -> Time {
        self.nodes[n].clock(self.net.now())
    }

    /// Has all nodes do what there is to do now, and then lets time pass until the next thing
    /// happens.
    pub fn step(&mut self) {
        let next = self.turn();
        let Some(next) = next else {
            assert!(!core::mem::replace(&mut self.rest, true), "nothing will happen any more");
            return;
        };
        self.rest = false;
        assert!(next.0 < STALL_NS, "it takes too long");
        self.net.advance(next);
    }

    /// Lets so much time pass.
    pub fn pause(&mut self, ns: u64) {
        let end = self.net.now().saturating_add_ns(ns);
        while let Some(next) = self.turn()
            && next < end
        {
            self.net.advance(next);
        }
        self.net.advance(end);
    }

    /// Has all nodes do what there is to do now; returns when the next thing happens.
    fn turn(&mut self) -> Option<Time> {
        let now = self.net.now();
        for node in self.nodes.iter_mut().filter(|node| node.held_until <= now) {
            let mut turns = 0;
            while node.core.poll(node.clock(now)) {
                turns += 1;
                assert!(turns < TURNS_MAX, "a node never rests");
            }
            // What is due and was not done must not stop the clock.
            node.rests_until = now.saturating_add_ns(1);
        }
        let wakes = self.nodes.iter_mut().filter_map(|node| {
            let timeout = node.core.poll_timeout();
            let timeout = timeout.map(|due| due.saturating_add_ns(node.behind_ns));
            let due = [node.core.device().inner.wake_at(), timeout];
            due.into_iter()
                .flatten()
                .min()
                .map(|due| due.max(node.rests_until).max(node.held_until))
        });
        wakes.chain(self.net.next_arrival()).min()
    }

    /// Takes an end of a connect of node `n`'s.
    pub fn connected(&mut self, n: usize) -> Option<(VqpId, Result<Via, ConnectError>)> {
        loop {
            match self.nodes[n].core.poll_event()? {
                Event::Connected { vqp, result, .. } => return Some((vqp, result)),
                _ => continue,
            }
        }
    }

    /// Connects a VQP.
    pub fn connect(
        &mut self,
        n: usize,
        vqp: VqpId,
        to: usize,
        policy: Policy,
    ) -> Result<Via, ConnectError> {
        if let Some(via) = self.begin_connect(n, vqp, to, policy, false) {
            return Ok(via);
        }
        loop {
            if let Some((ended, result)) = self.connected(n) {
                assert_eq!(ended, vqp);
                return result;
            }
            self.step();
        }
    }

    /// Lets nodes go on until something holds.
    pub fn until(&mut self, mut done: impl FnMut(&mut Nodes) -> bool) {
        while !done(self) {
            self.step();
        }
    }
}
