//! The pairs over the cluster: ends come, fail and go, and hear from their nodes.

use std::collections::BTreeMap;
use std::fmt;

use elver_core::{Completion, ConnectError, ConnectOptions, Event, VqpId};
use elver_ring::protocol::Config;
use elver_sim::{Fault, Journal, Planter, Rng};
use elver_verbs::{Time, Wc, WcStatus};

use crate::canary::Canary;
use crate::cluster::Cluster;
use crate::end::{End, NOBODY, Phase};
use crate::model::{Violation, Way, broken};
use crate::options::{Acts, Options};
use crate::plan::Plan;
use crate::strange::{Fate, Strange};

/// An end, by the order in which they came: the ends of a pair are neighbours.
pub(crate) type EndIx = usize;

/// The other end of the pair.
pub(crate) fn peer_of(end: EndIx) -> EndIx {
    end ^ 1
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) cluster: Cluster,
    pub(crate) ends: Vec<End>,
    /// What each of them sends.
    pub(crate) ways: Vec<Way>,
    /// Those that are not over.
    pub(crate) living: Vec<EndIx>,
    by_vqp: BTreeMap<(usize, u32, VqpId), EndIx>,
    pub(crate) journal: Journal,
    pub(crate) planter: Planter<Canary>,
    pub(crate) acts: Acts,
    pub(crate) counters: Acts,
    /// Randomness of what ends do, of what is done to them, and of when they look.
    pub(crate) acting: Rng,
    pub(crate) meddling: Rng,
    pub(crate) looking: Rng,
    /// Up to when answers may be lost or late on purpose, by who gives them and whom.
    pub(crate) withheld: BTreeMap<(usize, usize), Time>,
    /// Faults are over.
    pub(crate) healed: bool,
    /// When what they have spoilt is over as well.
    pub(crate) well_at: Option<Time>,
    pub(crate) fate: Fate,
}

impl World {
    /// Of the faults that runs have or have not, those that the seed draws, or `only` these.
    pub(crate) fn new(
        seed: u64,
        options: &Options,
        only: Option<&[Fault]>,
    ) -> Result<World, Violation> {
        let root = Rng::new(seed);
        let strange = Strange::generate(&mut root.split("strange"), only, options.canary);
        let plan = Plan::generate(&mut root.split("plan"), strange);
        let cluster = Cluster::new(&plan, &root, options.trace)?;
        Ok(World {
            plan,
            cluster,
            ends: Vec::new(),
            ways: Vec::new(),
            living: Vec::new(),
            by_vqp: BTreeMap::new(),
            journal: Journal::new(options.trace),
            planter: Planter::new(options.canary, root.split("canary")),
            acts: Acts::new(),
            counters: Acts::new(),
            acting: root.split("acting"),
            meddling: root.split("meddling"),
            looking: root.split("looking"),
            withheld: BTreeMap::new(),
            healed: false,
            well_at: None,
            fate: Fate::new(&root),
        })
    }

    pub(crate) fn now(&self) -> Time {
        self.cluster.now
    }

    /// What the clock says of the host that an end is at.
    pub(crate) fn time_of(&self, end: EndIx) -> Time {
        self.cluster.time_at(self.ends[end].node)
    }

    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        self.journal.add(self.cluster.now, event);
    }

    pub(crate) fn count(&mut self, act: &'static str) {
        *self.acts.entry(act).or_default() += 1;
    }

    /// Living ends of a node.
    pub(crate) fn at(&self, node: usize) -> Vec<EndIx> {
        self.living.iter().copied().filter(|end| self.ends[*end].node == node).collect()
    }

    /// A pair comes: both ends connect to each other's node. Nothing if one of the nodes is not there.
    pub(crate) fn add_pair(&mut self) -> Result<(), Violation> {
        let nodes = [(); 2].map(|()| self.acting.index(self.plan.nodes));
        if nodes.iter().any(|node| !self.cluster.serves(*node)) {
            return Ok(());
        }
        let configs = [(); 2].map(|()| self.draw_config());
        let first = self.ends.len();
        for (side, &node) in nodes.iter().enumerate() {
            let boot = self.cluster.nodes[node].boot;
            let Some(at) = self.cluster.core(node) else { broken!("node {node} is down") };
            let end = End::new(at, (node, boot), (configs[side], configs[1 - side]))?;
            if self.plan.late_memory_percent > 0 {
                let (percent, ns) = (self.plan.late_memory_percent, self.plan.late_memory_ns());
                for memory in end.memories() {
                    memory.recede(percent, ns, Rng::new(self.acting.next_u64()));
                }
            }
            self.by_vqp.insert((node, boot, end.vqp), first + side);
            self.living.push(first + side);
            self.ends.push(end);
            self.ways.push(Way::default());
        }
        self.note(format_args!("ends {first} and {} at nodes {nodes:?}: {configs:?}", first + 1));
        self.count("pair made");
        for end in [first, first + 1] {
            let policy = self.acting.pick(self.plan.policies);
            let options = ConnectOptions { policy, uncached: self.acting.percent(10) };
            let (now, gid) =
                (self.time_of(end), self.cluster.net.gid(self.ends[peer_of(end)].node));
            let node = self.ends[end].node;
            let Some(at) = self.cluster.core(node) else { broken!("node {node} is down") };
            self.ends[end].connect(at, gid, options, now)?;
            self.cluster.called(node);
        }
        Ok(())
    }

    /// A ring's measures: all that fit each other.
    fn draw_config(&mut self) -> Config {
        let rng = &mut self.acting;
        let slots = 1 << rng.between(1, self.plan.log_slots_max.into());
        let alpha = rng.between(1, slots.into()) as u32;
        let beta = rng.between(1, alpha.into()) as u32;
        let gamma = rng.between(1, slots.into()) as u32;
        let slot_bytes = rng.pick(&[64, 64, 72, 128, 576]);
        let linger_ns = rng.pick(&[None, Some(0), Some(20_000)]);
        Config { slots, slot_bytes, alpha, beta, gamma, linger_ns }
    }

    /// The ends of a node hear what it tells.
    pub(crate) fn hear(&mut self, node: usize) -> Result<(), Violation> {
        let boot = self.cluster.nodes[node].boot;
        loop {
            let Some((core, _)) = self.cluster.core(node) else { return Ok(()) };
            let Some(event) = core.poll_event() else { break };
            self.note(format_args!("node {node}: {event:?}"));
            match event {
                Event::Connected { vqp, result, .. } => {
                    let Some(end) = self.living_at(node, boot, vqp) else { continue };
                    match result {
                        Ok(_) if self.ends[end].phase == Phase::Connecting => {
                            self.ends[end].phase = Phase::Up;
                        }
                        Ok(_) => broken!("end {end} is connected twice"),
                        Err(error) => self.connect_failed(end, &error)?,
                    }
                }
                Event::Failed { vqp, cause, .. } => {
                    let Some(end) = self.living_at(node, boot, vqp) else { continue };
                    self.fails(end, format!("it failed: {cause}"))?;
                }
                Event::Warmed { .. } => broken!("node {node} was not asked to warm up"),
                Event::Deregistered { token, .. } => {
                    self.count("region given back");
                    if token != NOBODY {
                        self.ends[token as usize].close();
                    }
                }
                Event::GaveWay { .. } => self.count("accepted VQP gave way"),
            }
        }
        if self.cluster.nodes[node].deaf.is_some() {
            return Ok(());
        }
        self.take_completions(node, boot)
    }

    fn living_at(&self, node: usize, boot: u32, vqp: VqpId) -> Option<EndIx> {
        let end = self.by_vqp.get(&(node, boot, vqp)).copied()?;
        (!self.ends[end].is_over()).then_some(end)
    }

    /// A node's processes take what they have left, or some of them.
    pub(crate) fn hear_at_last(&mut self, node: usize) -> Result<(), Violation> {
        let boot = self.cluster.nodes[node].boot;
        let lost = self.planter.strikes(Canary::CompletionsLost);
        if lost && let Some((core, client)) = self.cluster.core(node) {
            let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
            while core.poll_completions(client, &mut [blank; 16]) > 0 {}
        }
        self.take_completions(node, boot)
    }

    fn take_completions(&mut self, node: usize, boot: u32) -> Result<(), Violation> {
        const AT_ONCE: usize = 16;
        loop {
            let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
            let mut taken = [blank; AT_ONCE];
            let Some((core, client)) = self.cluster.core(node) else { return Ok(()) };
            let count = core.poll_completions(client, &mut taken);
            for Completion { vqp, wc, .. } in &taken[..count] {
                let Some(end) = self.living_at(node, boot, *vqp) else { continue };
                if wc.status == WcStatus::Success {
                    self.ends[end].completed(wc);
                } else {
                    let what = format!("WR {} completed: {}", wc.wr_id, wc.status);
                    self.fails(end, what)?;
                }
            }
            if count < AT_ONCE {
                return Ok(());
            }
        }
    }

    fn connect_failed(&mut self, end: EndIx, error: &ConnectError) -> Result<(), Violation> {
        // Somebody else may have the last queue pair.
        if matches!(error, ConnectError::NoRcQp { .. }) {
            self.count("no RC QP");
            return self.over(end, error.to_string());
        }
        self.fails(end, format!("connect failed: {error}"))
    }

    /// An end is over, for which there must be a reason.
    pub(crate) fn fails(&mut self, end: EndIx, what: String) -> Result<(), Violation> {
        if !self.explains(end) {
            broken!("end {end}: {what}, without a cause");
        }
        self.over(end, what)
    }

    /// An end gives back what it has.
    pub(crate) fn over(&mut self, end: EndIx, what: String) -> Result<(), Violation> {
        self.note(format_args!("end {end} is over: {what}"));
        self.count("end over");
        let now = self.time_of(end);
        self.living.retain(|living| *living != end);
        let closed_early = self.planter.strikes(Canary::ClosedEarly);
        let here = &mut self.ends[end];
        here.phase = Phase::Over(what);
        here.over_at = Some(self.cluster.now);
        let node = &self.cluster.nodes[here.node];
        if node.boot != here.boot || self.cluster.is_down(here.node) {
            return Ok(());
        }
        let Some(at) = self.cluster.core(here.node) else { return Ok(()) };
        here.part(at, end, now)?;
        if closed_early {
            here.close();
        }
        self.cluster.called(self.ends[end].node);
        Ok(())
    }

    /// A node crashes, and all ends there with it.
    pub(crate) fn crash(&mut self, node: usize) -> Result<(), Violation> {
        if self.cluster.is_down(node) {
            return Ok(());
        }
        self.take_counters(node);
        let for_ns = self.meddling.between(1, 20_000_000);
        self.note(format_args!("node {node} crashes"));
        self.count("node crashed");
        self.cluster.crash(node, for_ns);
        for end in self.at(node) {
            self.over(end, "its node crashed".into())?;
        }
        Ok(())
    }

    /// Takes over what a core has counted.
    pub(crate) fn take_counters(&mut self, node: usize) {
        let Some((core, _)) = self.cluster.core(node) else { return };
        for (name, count) in core.stats().iter() {
            *self.counters.entry(name).or_default() += count;
        }
    }

    /// Whether an end is up and its process lives, and its node does not stand still.
    pub(crate) fn may_act(&self, end: EndIx) -> bool {
        let here = &self.ends[end];
        here.is_up() && !here.vanished && self.cluster.serves(here.node)
    }

    /// Notes and counts a fault.
    pub(crate) fn befell(&mut self, fault: Fault, whom: fmt::Arguments<'_>) {
        self.note(format_args!("fault: {fault}, {whom}"));
        *self.fate.faults.entry(fault).or_default() += 1;
    }
}
