//! Nodes come up, do what is due as time goes by, and go down.

use elver_core::Core;
use elver_verbs::Time;

use crate::answers;
use crate::canary::Canary;
use crate::model::{Violation, broken};
use crate::options::Options;
use crate::registry::Task;
use crate::world::World;

/// How often a node may ask to run at one moment: more means that it never rests.
const RUNS_MAX: u32 = 10_000;

impl World {
    /// A world in which all nodes have come up.
    pub(crate) fn begin(seed: u64, options: &Options) -> Result<World, Violation> {
        let mut world = World::new(seed, options);
        for node in 0..world.plan.nodes {
            world.boot(node)?;
        }
        Ok(world)
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
        device.take_at_once(self.plan.packets_at_once);
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
            while let Some(task) = self.due_task() {
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

    /// When something happens next.
    pub(crate) fn next_event(&mut self) -> Option<Time> {
        let task = self.next_task();
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
}
