//! Nodes, a network and a clock. The first node is the meta server of all, and never crashes.

use std::net::{IpAddr, Ipv4Addr};

use elver_core::{ClientId, ClientLimits, Config, VqpInit};
use elver_nodesim::SimCore;
use elver_sim::{Rng, SimNet};
use elver_verbs::Time;

use crate::model::{Violation, broken};
use crate::plan::Plan;
use crate::strange::Deaf;

/// Where every node listens: connecting needs somebody to connect to.
pub(crate) const PORT: u16 = 7;
/// How often a node may ask to run at one moment: more means that it never rests.
const RUNS_MAX: u32 = 10_000;
/// Nodes that a meta server's table has room for.
const META_CAPACITY: u32 = 16;

/// Says that a core refused what it must take.
pub(crate) fn refused(what: &str, error: impl std::fmt::Display) -> Violation {
    Violation(format!("{what} was refused: {error}"))
}

/// A node's address.
pub(crate) fn address(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1))
}

pub(crate) struct Node {
    /// Which of the nodes that stood here it is.
    pub(crate) boot: u32,
    core: Option<SimCore>,
    pub(crate) client: ClientId,
    /// It was called since it last ran.
    called: bool,
    /// It does not run before this: it has just run, and nothing came of it.
    rests_until: Time,
    /// When it comes back, while it is down.
    up_at: Option<Time>,
    /// When it goes down, since it has lost its DC target.
    pub(crate) doomed: Option<Time>,
    /// While its processes take no completions.
    pub(crate) deaf: Option<Deaf>,
}

pub(crate) struct Cluster {
    pub(crate) now: Time,
    pub(crate) net: SimNet,
    pub(crate) nodes: Vec<Node>,
    config: Config,
    device: elver_sim::Config,
    completions: u32,
    rng: Rng,
}

impl Cluster {
    pub(crate) fn new(plan: &Plan, rng: &Rng, whole_trace: bool) -> Result<Cluster, Violation> {
        let addresses = (0..plan.nodes).map(address).collect();
        let net = SimNet::new(addresses, &plan.faults, rng.split("net").next_u64());
        if whole_trace {
            net.keep_whole_trace();
        }
        let node = || Node {
            boot: 0,
            core: None,
            client: ClientId(0),
            called: false,
            rests_until: Time::ZERO,
            up_at: None,
            doomed: None,
            deaf: None,
        };
        let mut cluster = Cluster {
            now: Time::ZERO,
            net,
            nodes: (0..plan.nodes).map(|_| node()).collect(),
            config: plan.config.clone(),
            device: plan.device.clone(),
            completions: plan.strange.completions,
            rng: rng.split("boots"),
        };
        (0..plan.nodes).try_for_each(|node| cluster.boot(node))?;
        Ok(cluster)
    }

    /// A node comes up, and all hear of it at once.
    fn boot(&mut self, node: usize) -> Result<(), Violation> {
        let device = self.net.device(node, self.device.clone());
        let device = device.map_err(|error| refused("a device", error))?;
        let here = self.time_at(node);
        let core = SimCore::new(device, self.config.clone(), self.rng.next_u64(), here);
        let mut core = core.map_err(|error| refused("a core", error))?;
        let limits = ClientLimits { completions: self.completions, ..ClientLimits::default() };
        let client = core.client_open(limits);
        let client = client.map_err(|error| refused("client_open", error))?;
        let listener = core.vqp_create(client, VqpInit::default());
        let listener = listener.map_err(|error| refused("vqp_create", error))?;
        core.qbind(client, listener, PORT).map_err(|error| refused("qbind", error))?;
        let (gid, record) = (core.gid(), core.record());
        let place = &mut self.nodes[node];
        (place.boot, place.client, place.called) = (place.boot + 1, client, true);
        (place.core, place.up_at) = (Some(core), None);
        let Some(first) = self.nodes[0].core.as_mut() else { broken!("the meta server is down") };
        let meta = first.serve_meta(META_CAPACITY).map_err(|error| refused("serve_meta", error))?;
        first.meta_put(gid, record).map_err(|error| refused("meta_put", error))?;
        for (other, there) in self.nodes.iter_mut().enumerate() {
            there.called = true;
            let Some(core) = &mut there.core else { continue };
            let now = self.net.time_at(other);
            if other == node {
                core.set_meta_servers(&[meta], now);
            } else {
                core.node_changed(gid, Some(record), now);
            }
        }
        Ok(())
    }

    /// A node goes down, with all that was in it, and comes back after some time.
    pub(crate) fn crash(&mut self, node: usize, for_ns: u64) {
        (self.nodes[node].core, self.nodes[node].doomed) = (None, None);
        self.nodes[node].up_at = Some(self.now.saturating_add_ns(for_ns));
        self.net.crash(node);
    }

    /// What a node's clock says.
    pub(crate) fn time_at(&self, node: usize) -> Time {
        self.net.time_at(node)
    }

    pub(crate) fn is_down(&self, node: usize) -> bool {
        self.nodes[node].core.is_none()
    }

    /// Nodes that are down come back at once.
    pub(crate) fn bring_back(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.up_at.is_some()) {
            node.up_at = Some(self.now);
        }
    }

    /// Whether a node takes calls: it is up, and its engine does not stand still.
    pub(crate) fn serves(&self, node: usize) -> bool {
        self.nodes[node].core.is_some() && self.net.stalled_until(node) <= self.now
    }

    /// The core of a node that is up, and its client. After a call that gives it something to do,
    /// [`Cluster::called`].
    pub(crate) fn core(&mut self, node: usize) -> Option<(&mut SimCore, ClientId)> {
        let place = &mut self.nodes[node];
        place.core.as_mut().map(|core| (core, place.client))
    }

    /// A node has something to do: it runs.
    pub(crate) fn called(&mut self, node: usize) {
        self.nodes[node].called = true;
    }

    /// When something happens next.
    pub(crate) fn next_event(&mut self) -> Option<Time> {
        let arrival = self.net.next_arrival();
        let wakes = (0..self.nodes.len()).filter_map(|node| self.wakes_at(node)).min();
        [arrival, wakes].into_iter().flatten().min()
    }

    /// When a node runs next, or comes back.
    fn wakes_at(&mut self, node: usize) -> Option<Time> {
        let stalled = self.net.stalled_until(node);
        let ahead = self.time_at(node).ns_since(self.now);
        let place = &mut self.nodes[node];
        let Some(core) = &mut place.core else { return place.up_at };
        let called = place.called.then_some(self.now);
        let timeout = core.poll_timeout().map(|due| Time(due.0.saturating_sub(ahead)));
        let due = [called, core.device().wake_at(), timeout];
        let due = due.into_iter().flatten().min()?;
        Some(due.max(stalled).max(place.rests_until))
    }

    /// Lets everything happen that is due at a moment; the nodes that ran.
    pub(crate) fn advance(&mut self, to: Time) -> Result<Vec<usize>, Violation> {
        self.now = self.now.max(to);
        self.net.advance(self.now);
        let mut ran = Vec::new();
        for node in 0..self.nodes.len() {
            if self.wakes_at(node).is_none_or(|wake| wake > self.now) {
                continue;
            }
            if self.is_down(node) {
                self.boot(node)?;
            }
            self.run(node)?;
            ran.push(node);
        }
        Ok(ran)
    }

    fn run(&mut self, node: usize) -> Result<(), Violation> {
        let here = self.time_at(node);
        let place = &mut self.nodes[node];
        let Some(core) = &mut place.core else { return Ok(()) };
        place.called = false;
        let mut runs = 0;
        while core.poll(here) {
            runs += 1;
            if runs > RUNS_MAX {
                broken!("node {node} never rests");
            }
        }
        // What is due and was not done must not stop the clock.
        place.rests_until = self.now.saturating_add_ns(1);
        Ok(())
    }
}
