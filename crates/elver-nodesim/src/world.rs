//! The nodes, the network, the registry and the clients under one clock.

use std::collections::BTreeMap;
use std::fmt;

use elver_sim::{Journal, Planter, Rng, SimNet};
use elver_verbs::{Gid, Time};

use crate::answers;
use crate::canary::Canary;
use crate::engine::SimCore;
use crate::forge::{Forge, Forger};
use crate::lapse::Lapses;
use crate::model::{ClientIx, Model};
use crate::node::Node;
use crate::options::{Acts, Options};
use crate::plan::Plan;
use crate::registry::{Registry, Task};

/// How often the harness looks after clients while it waits for the end.
pub(crate) const STEP_NS: u64 = 1_000_000;

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) plan: Plan,
    pub(crate) net: SimNet,
    pub(crate) gids: Vec<Gid>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) registry: Registry,
    pub(crate) model: Model,
    pub(crate) trace: Journal,
    pub(crate) planter: Planter<Canary>,
    pub(crate) acts: Acts,
    /// What the cores counted that are gone.
    pub(crate) counters: Acts,
    /// And their devices.
    pub(crate) device_counters: Acts,
    /// What will happen at some time besides packets and timers.
    tasks: BTreeMap<(Time, u64), Task>,
    serial: u64,
    /// Randomness of what is made, posted, injected and polled.
    pub(crate) making: Rng,
    pub(crate) posting: Rng,
    pub(crate) meddling: Rng,
    pub(crate) polling: Rng,
    pub(crate) colliding: Rng,
    pub(crate) suspending: Rng,
    /// How many in a hundred actions suspend nodes.
    pub(crate) suspend_percent: u32,
    pub(crate) lapsing: Rng,
    /// How many in a hundred actions are lapses.
    pub(crate) lapse_percent: u32,
    /// Who forges packets, if anybody does.
    pub(crate) forge: Option<Box<Forge>>,
    /// Up to when some node does not reach another, or stands still.
    pub(crate) hindered_until: Time,
    /// Up to when a node may count on a lease that its owner's clock holds for over.
    pub(crate) apart_until: Time,
    /// When the last suspend was over.
    pub(crate) suspended_until: Option<Time>,
    /// Faults are over.
    pub(crate) healed: bool,
    /// And everything that they led to has had its time.
    pub(crate) quiet: bool,
}

impl World {
    /// A world whose nodes are down yet.
    pub(crate) fn new(seed: u64, options: &Options) -> World {
        let root = Rng::new(seed);
        let mut plan = Plan::generate(&mut root.split("plan"));
        if options.no_keep_alive {
            plan.config.keep_alive_ns = 0;
        }
        let needs_lapses = options.canary.is_some_and(Canary::needs_lapses);
        let lapses = if needs_lapses { Lapses::Always } else { options.lapses };
        let forge = Forge::of(options.forgers, options.canary, root.split("forger"));
        // Who is on the path can repeat for others what he has heard, also when it is forgotten.
        let may_lapse = forge.as_ref().is_none_or(|forge| forge.kind() != Forger::OnPath);
        let lapse_percent = if may_lapse { lapses.percent(&root) } else { 0 };
        if lapse_percent > 0 {
            plan.forget_soon();
        }
        let addresses = (0..plan.nodes).map(Plan::address).collect();
        let net = SimNet::new(addresses, &plan.faults, root.split("net").next_u64());
        if options.trace {
            net.keep_whole_trace();
        }
        net.mark_arrivals(answers::is_answer);
        let world = World {
            now: Time::ZERO,
            gids: (0..plan.nodes).map(|node| net.gid(node)).collect(),
            nodes: (0..plan.nodes).map(|_| Node::new()).collect(),
            registry: Registry::default(),
            model: Model::default(),
            trace: Journal::new(options.trace),
            planter: Planter::new(options.canary, root.split("canary")),
            acts: Acts::new(),
            counters: Acts::new(),
            device_counters: Acts::new(),
            tasks: BTreeMap::new(),
            serial: 0,
            making: root.split("making"),
            posting: root.split("posting"),
            meddling: root.split("meddling"),
            polling: root.split("polling"),
            colliding: root.split("colliding"),
            suspending: root.split("suspending"),
            suspend_percent: options.suspends.percent(&root),
            lapsing: root.split("lapsing"),
            lapse_percent,
            forge,
            hindered_until: Time::ZERO,
            apart_until: Time::ZERO,
            suspended_until: None,
            healed: false,
            quiet: false,
            net,
            plan,
        };
        if world.forge.is_some() {
            world.net.overhear();
        }
        world
    }

    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        self.trace.add(self.now, event);
    }

    pub(crate) fn count(&mut self, act: &'static str) {
        *self.acts.entry(act).or_default() += 1;
    }

    /// Takes over what a core and its device have counted.
    pub(crate) fn add_counters(&mut self, core: &mut SimCore) {
        let gauges = ["clients", "vqps", "mrs", "peers", "rc_qps"];
        for (name, count) in core.stats().iter().filter(|(name, _)| !gauges.contains(name)) {
            *self.counters.entry(name).or_default() += count;
        }
        for (name, count) in core.device().counters().iter() {
            *self.device_counters.entry(name).or_default() += count;
        }
    }

    /// What a node's clock says.
    pub(crate) fn time_at(&self, node: usize) -> Time {
        self.net.time_at(node)
    }

    /// A number that comes once in a run.
    pub(crate) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn plan_task(&mut self, at: Time, task: Task) {
        let serial = self.serial();
        self.tasks.insert((at, serial), task);
    }

    /// What was planned for now or before, the oldest first.
    pub(crate) fn due_task(&mut self) -> Option<Task> {
        let entry = self.tasks.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        Some(entry.remove())
    }

    /// When what was planned happens next.
    pub(crate) fn next_task(&self) -> Option<Time> {
        self.tasks.keys().next().map(|(at, _)| *at)
    }

    /// The core of a node, for a call: it runs after it.
    pub(crate) fn core(&mut self, node: usize) -> Option<&mut SimCore> {
        let node = &mut self.nodes[node];
        node.called = true;
        node.engine.call()
    }

    /// A core's node and a client's id there.
    pub(crate) fn at(&self, client: ClientIx) -> (usize, elver_core::ClientId) {
        let client = &self.model.clients[client];
        (client.place.0, client.id)
    }

    /// Whether a node takes calls: it is up, and its engine does not stand still.
    pub(crate) fn serves(&self, node: usize) -> bool {
        self.nodes[node].engine.is_up() && self.net.stalled_until(node) <= self.now
    }

    /// Whether anything will happen that the harness planned.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Open clients of nodes that take calls.
    pub(crate) fn clients(&self) -> Vec<ClientIx> {
        let up = (0..self.nodes.len()).filter(|node| self.serves(*node));
        up.flat_map(|node| self.nodes[node].clients.iter().copied()).collect()
    }
}
