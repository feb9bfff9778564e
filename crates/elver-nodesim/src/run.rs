//! A run: a safety phase, in which anything may fail, and a liveness phase, in which everything
//! that is pending must end within the bound that its retries, leases and timers give.

use std::collections::BTreeMap;

use elver_sim::{Failure, OpCount};
use elver_verbs::{SendOpcode, Time};

use crate::model::{ClientIx, OpState, Phase, Violation, VqpIx};
use crate::options::{Options, Report};
use crate::world::{STEP_NS, World};

/// A partition lasts no longer than this.
const PARTITION_NS: u64 = 20_000_000;
/// An engine stands still no longer than this.
const PAUSE_NS: u64 = 5_000_000;
/// The registry is down no longer than this.
const REGISTRY_DOWN_NS: u64 = 20_000_000;
/// Most VQPs that a client makes.
pub(crate) const VQPS_MAX: usize = 24;
/// A port that nobody is bound to.
const NOBODYS_PORT: u16 = 9;
/// Of a hundred actions so many are collisions, where memory vanishes.
const COLLIDE_PERCENT: u32 = 30;
/// Actions between two looks at everything.
const CHECK_EVERY: u64 = 8;
/// What nobody waits for is over after this.
const REST_NS: u64 = 100_000_000;
/// Nothing more comes after this.
const QUIET_NS: u64 = 2_000_000_000;

/// Runs the simulation of a seed. The same seed and options always do the same.
///
/// # Errors
/// The rule that was broken, with the events that led to it. A run with a [`crate::Canary`] is
/// good if it fails.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let fail = |virtual_ns, violation: String, trace, canary_strikes| {
        Box::new(Failure { seed, virtual_ns, violation, trace, canary_strikes })
    };
    // What only a core itself can have brought about ends the run, also in a build that goes on.
    elver_verbs::bug::stop_at_bugs();
    let mut world = World::begin(seed, options).map_err(|what| fail(0, what.0, Vec::new(), 0))?;
    match world.play() {
        Ok(recovery_ns) => Ok(world.report(seed, recovery_ns)),
        Err(what) => {
            let packets = if options.trace { world.net.trace() } else { Vec::new() };
            let what = match &world.forge {
                Some(forge) => format!("{} (somebody forges: {})", what.0, forge.kind()),
                None => what.0,
            };
            Err(fail(world.now.0, what, world.trace.lines(packets), world.planter.struck()))
        }
    }
}

impl World {
    /// Both phases, and the last checks. Returns how long the liveness phase took.
    fn play(&mut self) -> Result<u64, Violation> {
        self.note(format_args!("---- safety"));
        // Let most runs begin with nodes that know each other.
        if self.posting.percent(80) {
            let head_start = 20 * self.plan.registry_ns;
            self.run_until(self.now.saturating_add_ns(head_start))?;
        }
        for action in 0..self.plan.actions {
            let gap = self.posting.between(1, self.plan.gap_ns);
            self.run_until(self.now.saturating_add_ns(gap))?;
            self.step()?;
            self.forge()?;
            if action % CHECK_EVERY == 0 {
                self.check_all()?;
            }
        }
        self.note(format_args!("---- liveness"));
        self.heal()?;
        let began = self.now;
        self.settle()?;
        let recovery_ns = self.now.ns_since(began);
        let vanished = self.model.regions.iter().any(|region| region.vanished);
        let slept = self.suspended_until.is_some();
        if vanished || slept || self.is_any_posting() || self.was_held_up() {
            // Who was given up while it slept is asked to leave links that its peers have left. Nobody waits for
            // the end of a READ that is not signalled, of what a node tells another that has started anew since, or
            // of what was sent to one that stood still, and all of these may break a queue pair yet.
            self.run_until(self.now.saturating_add_ns(REST_NS))?;
            self.settle()?;
        }
        self.note(format_args!("---- peace"));
        self.probe()?;
        self.run_until(self.now.saturating_add_ns(QUIET_NS))?;
        self.quiet = true;
        self.check_rest()?;
        self.note(format_args!("---- farewell"));
        self.part()?;
        Ok(recovery_ns)
    }

    /// All clients go, and nothing of them may be left.
    fn part(&mut self) -> Result<(), Violation> {
        for client in self.clients() {
            self.kill_client(client);
        }
        self.settle()?;
        let deadline = self.now.saturating_add_ns(self.patience_ns());
        while let Some(remains) = (0..self.nodes.len()).find_map(|node| self.remains(node)) {
            if self.now >= deadline {
                return Err(Violation(remains));
            }
            self.run_until(self.now.saturating_add_ns(STEP_NS))?;
            self.check_all()?;
        }
        self.lone_end().map_or(Ok(()), |lone| Err(Violation(lone)))
    }

    /// Does one thing that a client, an operator or fate does.
    fn step(&mut self) -> Result<(), Violation> {
        let faults = self.plan.faults;
        if self.suspending.percent(self.suspend_percent) {
            return self.suspend();
        }
        if self.lapsing.percent(self.lapse_percent) {
            return self.lapse();
        }
        let any = self.meddling.index(self.plan.nodes);
        if self.meddling.percent(faults.partition_percent) {
            let to = self.meddling.index(self.plan.nodes);
            let until = self.now.saturating_add_ns(self.meddling.between(1, PARTITION_NS));
            self.net.partition(any, to, until);
            self.hindered_until = self.hindered_until.max(until);
            self.note(format_args!("fault: partition, node {any} -> {to}"));
            if self.meddling.percent(50) {
                self.net.partition(to, any, until);
            }
            return Ok(());
        }
        if self.meddling.percent(faults.slow_percent) {
            let until = self.now.saturating_add_ns(self.meddling.between(1, PAUSE_NS));
            self.net.stall(any, until);
            self.hindered_until = self.hindered_until.max(until);
            self.note(format_args!("fault: slow engine, node {any}"));
            return Ok(());
        }
        if self.meddling.percent(faults.crash_percent) {
            self.crash(any);
            return Ok(());
        }
        if !self.plan.calm() && self.meddling.percent(1) {
            let until = self.now.saturating_add_ns(self.meddling.between(1, REGISTRY_DOWN_NS));
            self.registry.down_until = self.registry.down_until.max(until);
            self.count("registry down");
            return Ok(());
        }
        if self.plan.memory_vanishes && self.colliding.percent(COLLIDE_PERCENT) {
            return self.collide();
        }
        let clients = self.clients();
        if clients.is_empty() {
            return Ok(());
        }
        let client = self.posting.pick(&clients);
        self.client_step(client)
    }

    fn client_step(&mut self, client: ClientIx) -> Result<(), Violation> {
        let vqps: Vec<VqpIx> = self.model.clients[client].vqps.iter().copied().collect();
        match self.posting.below(100) {
            0..3 if self.plan.clients_die => {
                let (node, _) = self.model.clients[client].place;
                self.kill_client(client);
                self.open_client(node).map(|_| ())
            }
            3..4 if self.plan.memory_vanishes => {
                self.vanish(client);
                Ok(())
            }
            0..5 => self.add_region(client),
            5..8 => self.drop_region(client),
            8..9 => self.drop_arena(client),
            9..10 => self.warm(client),
            10..11 => self.use_foreign(client),
            11..12 => self.bind_taken(client),
            12..14 if vqps.len() < VQPS_MAX => match self.create_vqp(client)? {
                Some(vqp) => self.bind(vqp),
                None => Ok(()),
            },
            14..17 if vqps.len() > 2 => {
                let vqp = self.posting.pick(&vqps);
                self.destroy(vqp)
            }
            17..35 if vqps.len() < VQPS_MAX => match self.create_vqp(client)? {
                Some(vqp) => self.connect_somewhere(vqp),
                None => Ok(()),
            },
            35..40 => self.mend(&vqps),
            40..55 => {
                let Some(vqp) = self.any(&vqps) else { return Ok(()) };
                let count = self.posting.between(1, 6) as usize;
                self.supply(vqp, count)
            }
            _ => {
                let up = |vqp: &VqpIx| {
                    let known = &self.model.vqps[*vqp];
                    matches!(known.phase, Phase::Up | Phase::Connecting) && known.target.is_some()
                };
                let in_any_state = self.posting.percent(3);
                let may: Vec<VqpIx> =
                    vqps.iter().copied().filter(|vqp| in_any_state || up(vqp)).collect();
                match self.any(&may) {
                    Some(vqp) => self.post_some(vqp),
                    None => Ok(()),
                }
            }
        }
    }

    fn any(&mut self, vqps: &[VqpIx]) -> Option<VqpIx> {
        (!vqps.is_empty()).then(|| self.posting.pick(vqps))
    }

    /// Connects a VQP to some port that somebody is bound to, or to one where nobody is.
    fn connect_somewhere(&mut self, vqp: VqpIx) -> Result<(), Violation> {
        if !self.healed && self.posting.percent(self.plan.bad_percent) {
            return match self.posting.below(2) {
                0 => self.connect(vqp, None, 1),
                _ => {
                    let node = self.posting.index(self.plan.nodes);
                    self.connect(vqp, Some(node), NOBODYS_PORT)
                }
            };
        }
        let bound = self.model.ports.iter().filter(|(_, by)| by.is_some());
        let ports: Vec<(usize, u16)> = bound.map(|(((node, _), port), _)| (*node, *port)).collect();
        if ports.is_empty() {
            return Ok(());
        }
        let (node, port) = self.posting.pick(&ports);
        self.connect(vqp, Some(node), port)
    }

    /// Connects a VQP again that failed, or gives it up.
    fn mend(&mut self, vqps: &[VqpIx]) -> Result<(), Violation> {
        let down = |vqp: &VqpIx| self.model.vqps[*vqp].phase == Phase::Down;
        let down: Vec<VqpIx> = vqps.iter().copied().filter(down).collect();
        let Some(vqp) = self.any(&down) else { return Ok(()) };
        let known = &self.model.vqps[vqp];
        let plain = known.origin.is_none() && known.bound.is_none() && !known.accepted_unknown;
        if plain && self.posting.percent(70) {
            return self.connect_somewhere(vqp);
        }
        self.destroy(vqp)
    }

    /// Ends all faults.
    fn heal(&mut self) -> Result<(), Violation> {
        self.net.heal();
        self.hindered_until = self.hindered_until.min(self.now);
        self.registry.down_until = self.now;
        // Nodes that are down come back, and the registry tells everybody of it.
        while self.has_tasks() {
            let next = self.next_event().unwrap_or(self.now).max(self.now);
            self.run_until(next)?;
        }
        self.healed = true;
        for node in 0..self.nodes.len() {
            self.take_events(node)?;
            self.take_completions(node)?;
        }
        self.supply_all()
    }

    fn report(&mut self, seed: u64, recovery_ns: u64) -> Report {
        for node in 0..self.nodes.len() {
            if let Some(mut core) = self.nodes[node].engine.stop() {
                self.add_counters(&mut core);
                self.nodes[node].engine.start(core);
            }
        }
        let mut ops: BTreeMap<SendOpcode, OpCount> = BTreeMap::new();
        for op in &self.model.ops {
            let count = ops.entry(op.opcode).or_default();
            count.posted += 1;
            match op.state {
                OpState::Succeeded => count.succeeded += 1,
                OpState::Failed(_) => count.failed += 1,
                OpState::Outstanding | OpState::Forgotten => count.forgotten += 1,
            }
        }
        Report {
            seed,
            nodes: self.nodes.len(),
            forger: self.forge.as_ref().map(|forge| forge.kind()),
            ops,
            messages: self.model.messages,
            acts: self.acts.clone(),
            counters: self.counters.clone(),
            device_counters: self.device_counters.clone(),
            faults: self.net.faults(),
            packets: self.net.packets(),
            virtual_ns: self.now.ns_since(Time::ZERO),
            recovery_ns,
            canary_strikes: self.planter.struck(),
            trace_hash: self.trace.hash() ^ self.net.trace_hash(),
        }
    }
}
