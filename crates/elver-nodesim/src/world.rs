//! The nodes, the network, the registry and the clients under one clock.

use std::collections::BTreeMap;
use std::fmt;

use elver_core::Core;
use elver_sim::{Journal, Planter, Rng, SimNet};
use elver_verbs::{Gid, Time};

use crate::answers;
use crate::canary::Canary;
use crate::forge::{Forge, Forger};
use crate::lapse::Lapses;
use crate::model::{ClientIx, Model, Violation, broken};
use crate::node::Node;
use crate::options::{Acts, Options};
use crate::plan::Plan;
use crate::registry::{Registry, Task};

/// How often a node may ask to run at one moment: more means that it never rests.
const RUNS_MAX: u32 = 10_000;

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
    pub(crate) fn new(seed: u64, options: &Options) -> Result<World, Violation> {
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
        let mut world = World {
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
        for node in 0..world.plan.nodes {
            world.boot(node)?;
        }
        Ok(world)
    }

    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        self.trace.add(self.now, event);
    }

    pub(crate) fn count(&mut self, act: &'static str) {
        *self.acts.entry(act).or_default() += 1;
    }

    /// Takes over what a core and its device have counted.
    pub(crate) fn add_counters(&mut self, core: &mut Core<elver_sim::SimDevice>) {
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

    /// The core of a node, for a call: it runs after it.
    pub(crate) fn core(&mut self, node: usize) -> Option<&mut Core<elver_sim::SimDevice>> {
        let node = &mut self.nodes[node];
        node.called = true;
        node.engine.call()
    }

    /// Whether a node takes calls: it is up, and its engine does not stand still.
    pub(crate) fn serves(&self, node: usize) -> bool {
        self.nodes[node].engine.is_up() && self.net.stalled_until(node) <= self.now
    }

    /// A node comes up, with a new device and new clients.
    pub(crate) fn boot(&mut self, node: usize) -> Result<(), Violation> {
        let seed = self.making.next_u64();
        let mut config = self.plan.device.clone();
        if self.planter.strikes(Canary::UnboundedRepeat) {
            // It takes all targets for what remembers for ever, and is one.
            config.dc_context_idle_ns = u64::MAX / 4;
        }
        let device = self.net.device(node, config);
        let mut device = device.map_err(|error| Violation::new(format!("no device: {error}")))?;
        if self.planter.strikes(Canary::PostedAgain) {
            device.forget_packets();
        }
        if self.planter.strikes(Canary::SleepAsSilence) {
            device.count_sleep();
        }
        if self.planter.strikes(Canary::UnheardAnswer) {
            device.overlook(answers::is_answer_to_every_second);
        }
        let now = self.time_at(node);
        let core = match Core::new(device, self.plan.config_of(node), seed, now) {
            Ok(core) => core,
            Err(error) => broken!("a core was refused: {error}"),
        };
        let record = core.record();
        let booted = &mut self.nodes[node];
        booted.boot += 1;
        booted.engine.start(core);
        booted.called = true;
        booted.ready.clear();
        (booted.most, booted.kept_bytes, booted.refused) = Default::default();
        let place = booted.place(node);
        self.note(format_args!("node {node} boots, its DCT is {:#x}", record.dctn));
        self.count("node booted");
        self.register(place, record);
        for _ in 0..self.plan.clients {
            self.open_client(node)?;
        }
        Ok(())
    }

    /// A node goes down, with all that was in it.
    pub(crate) fn crash(&mut self, node: usize) {
        let Some(mut core) = self.nodes[node].engine.stop() else { return };
        self.note(format_args!("node {node} crashes"));
        self.count("node crashed");
        self.net.crash(node);
        self.add_counters(&mut core);
        drop(core);
        let place = self.nodes[node].place(node);
        self.model.node_gone(place);
        self.nodes[node].clients.clear();
        self.nodes[node].dying.clear();
        let heartbeat = self.plan.heartbeat_ns;
        let late = self.now.max(self.registry.down_until).saturating_add_ns(heartbeat);
        self.plan_task(late, Task::Expire(place));
        let down_ns = self.meddling.between(1, 3 * heartbeat);
        self.plan_task(self.now.saturating_add_ns(down_ns), Task::Boot(node));
    }

    /// Runs until nothing is due before or at `until`.
    pub(crate) fn run_until(&mut self, until: Time) -> Result<(), Violation> {
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.net.advance(self.now);
            while let Some(entry) = self.tasks.first_entry()
                && entry.key().0 <= self.now
            {
                let task = entry.remove();
                self.carry_out(task)?;
            }
            for node in 0..self.nodes.len() {
                if self.wakes_at(node).is_some_and(|wake| wake <= self.now) {
                    self.run_node(node)?;
                }
            }
        }
        self.now = self.now.max(until);
        self.net.advance(self.now);
        Ok(())
    }

    fn carry_out(&mut self, task: Task) -> Result<(), Violation> {
        self.registry.changed_at = self.now;
        match task {
            Task::Boot(node) => self.boot(node),
            Task::Register(place, record) => {
                self.registered(place, record);
                Ok(())
            }
            Task::Expire(place) => {
                self.expired(place);
                Ok(())
            }
            Task::Tell(place, notice) => self.told(place, notice),
        }
    }

    /// Whether anything will happen that the harness planned.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// When something happens next.
    pub(crate) fn next_event(&mut self) -> Option<Time> {
        let task = self.tasks.keys().next().map(|(at, _)| *at);
        let arrival = self.net.next_arrival();
        let wakes = (0..self.nodes.len()).filter_map(|node| self.wakes_at(node)).min();
        [task, arrival, wakes].into_iter().flatten().min()
    }

    /// When a node runs next.
    fn wakes_at(&mut self, number: usize) -> Option<Time> {
        let stalled = self.net.stalled_until(number);
        let ahead = self.time_at(number).ns_since(self.now);
        let node = &mut self.nodes[number];
        let timeout = node.engine.due().map(|due| Time(due.0.saturating_sub(ahead)));
        let core = node.engine.inspect()?;
        let called = node.called.then_some(self.now);
        let due = [called, core.device().wake_at(), timeout];
        let due = due.into_iter().flatten().min()?;
        Some(due.max(stalled).max(node.rests_until))
    }

    /// Lets a node do what is due, and its clients look at what came.
    fn run_node(&mut self, number: usize) -> Result<(), Violation> {
        let (now, here) = (self.now, self.time_at(number));
        let node = &mut self.nodes[number];
        let Some(core) = node.engine.call() else { return Ok(()) };
        let called = std::mem::take(&mut node.called);
        let mut runs = 0;
        while core.poll(here) {
            runs += 1;
            if runs > RUNS_MAX {
                broken!("node {number} never rests");
            }
        }
        // What is due and was not done must not stop the clock.
        node.rests_until = now.saturating_add_ns(1);
        let counters = core.device().counters();
        let packets = counters.rx_packets + counters.tx_packets;
        let rested = std::mem::replace(&mut node.packets, packets) == packets;
        // One that a client has called runs for that, and did not ask to.
        let idle = runs == 0 && rested && !called;
        node.idle_runs = if idle { node.idle_runs + 1 } else { 0 };
        if node.idle_runs > RUNS_MAX {
            broken!("node {number} asks to run again and again, and does nothing");
        }
        self.check_step(number)?;
        self.take_events(number)?;
        if self.healed || self.polling.percent(self.plan.poll_percent) {
            self.take_completions(number)?;
        }
        Ok(())
    }

    /// The clients of a node look at what came.
    pub(crate) fn take_events(&mut self, number: usize) -> Result<(), Violation> {
        loop {
            let Some(core) = self.nodes[number].engine.call() else { return Ok(()) };
            match core.poll_event() {
                Some(event) => self.event(number, event)?,
                None => break,
            }
        }
        let node = &mut self.nodes[number];
        if let Some(core) = node.engine.call() {
            while let Some(client) = core.poll_ready() {
                node.ready.insert(client);
            }
        }
        Ok(())
    }

    /// Open clients of nodes that take calls.
    pub(crate) fn clients(&self) -> Vec<ClientIx> {
        let up = (0..self.nodes.len()).filter(|node| self.serves(*node));
        up.flat_map(|node| self.nodes[node].clients.iter().copied()).collect()
    }
}
