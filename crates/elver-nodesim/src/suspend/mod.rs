//! What a suspend does to nodes: time passes in which they do nothing, and their clocks count it.
//!
//! A node's clock does not stop in suspend, so that it goes as those of others do. Who slept wakes among
//! others that took him for gone; a machine that slept with all nodes on it wakes with all that was under
//! way, and every timer due at once. A virtual machine's clock does stop while it is held: those of the
//! others are ahead of it from then on, and what it counts on by its own time may be over by theirs.

mod kinds;

use elver_sim::Rng;
use elver_verbs::Time;

use crate::model::Violation;
use crate::registry::Task;
use crate::world::World;

pub use self::kinds::{Suspends, UnknownSuspends};

/// A node sleeps no longer than this while others are awake: longer than anything is waited for.
const SLEEP_NS: [u64; 4] = [1_000_000, 100_000_000, 2_500_000_000, 12_000_000_000];
/// A clock jumps no further than this.
const JUMP_NS: [u64; 4] = [1_000_000, 200_000_000, 10_000_000_000, 600_000_000_000];
/// For so long a message may be read that was taken back, and its receiver is told so now and then.
const TOLD_NS: u64 = 1_250_000_000;

impl World {
    /// Suspends some node, or all.
    pub(crate) fn suspend(&mut self) -> Result<(), Violation> {
        // Nobody falls asleep again before what was under way has had its time.
        let rested = |until: Time| until.saturating_add_ns(self.plan.retries_ns()) < self.now;
        if !self.suspended_until.is_none_or(rested) {
            return Ok(());
        }
        let node = self.suspending.index(self.plan.nodes);
        match self.suspending.below(3) {
            0 => self.sleep(node)?,
            1 => self.sleep_together(),
            _ => {
                let by = draw(&mut self.suspending, &JUMP_NS);
                self.hold_others(node, by);
            }
        }
        Ok(())
    }

    /// The machine sleeps that all nodes are on.
    fn sleep_together(&mut self) {
        let by = draw(&mut self.suspending, &JUMP_NS);
        self.net.jump_all(by);
        if by >= self.plan.device.dc_context_idle_ns / 2 {
            // Who sent over DC cannot know that his target slept too, and has not forgotten him.
            (0..self.plan.nodes).for_each(|node| self.net.disturb(node));
        }
        // What is under way was sent before, and leases are over.
        self.hindered_until = self.hindered_until.max(self.now);
        self.suspended_until = Some(self.now);
        self.note(format_args!("fault: suspend, all nodes, {by} ns"));
        self.count("all suspended");
    }

    /// All nodes are held but one, and do not know it.
    pub(crate) fn hold_others(&mut self, node: usize, by: u64) {
        self.net.jump(node, by);
        // By the clock of the one, leases are over, and so is the time in which messages may be read that it has taken back;
        // the others have not heard of that.
        let heard_ns = self.plan.config.mr_lease_ns.max(TOLD_NS);
        self.apart_until = self.apart_until.max(self.now.saturating_add_ns(heard_ns));
        self.suspended_until = Some(self.now);
        self.note(format_args!("fault: suspend, all nodes but {node}, {by} ns"));
        self.count("others suspended");
    }

    /// A node sleeps while others are awake. What is sent to it waits, or is lost.
    fn sleep(&mut self, node: usize) -> Result<(), Violation> {
        let until = self.now.saturating_add_ns(draw(&mut self.suspending, &SLEEP_NS));
        self.net.stall(node, until);
        if self.suspending.percent(50) {
            for other in 0..self.plan.nodes {
                self.net.partition(other, node, until);
            }
        }
        self.hindered_until = self.hindered_until.max(until);
        self.suspended_until = Some(until);
        self.note(format_args!("fault: suspend, node {node}, until {} ns", until.0));
        self.count("node suspended");
        self.miss_heartbeats(node, until);
        // Or whatever clients do next meets it.
        if self.suspending.percent(50) {
            self.run_until(until)?;
        }
        Ok(())
    }

    /// A node that sleeps tells the registry nothing: that gives it up, and hears of it again when it wakes.
    fn miss_heartbeats(&mut self, node: usize, until: Time) {
        let given_up = self.now.max(self.registry.down_until);
        let given_up = given_up.saturating_add_ns(self.plan.heartbeat_ns);
        let place = self.nodes[node].place(node);
        let registered = self.registry.records.get(&node);
        let Some((_, record)) = registered.filter(|(boot, _)| *boot == place.1) else { return };
        let record = *record;
        if given_up < until && self.suspending.percent(50) {
            let delay = self.suspending.between(1, self.plan.registry_ns);
            self.plan_task(given_up, Task::Expire(place));
            self.plan_task(until.saturating_add_ns(delay), Task::Register(place, record));
            self.count("sleeper given up");
        }
    }
}

/// A time of any length up to one of these.
fn draw(rng: &mut Rng, most: &[u64]) -> u64 {
    let most = rng.pick(most);
    rng.between(1, most)
}
