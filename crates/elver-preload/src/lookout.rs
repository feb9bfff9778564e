//! When the device's thread goes on looking for packets before it sleeps: one that sleeps handles a packet long after it
//! has come, and who serves READs and WRITEs of others has nobody else to handle them.

use std::time::Duration;

use elver_verbs::Time;

/// How long it looks on: as long as it takes to wake a thread, in which a peer has answered twice.
pub(crate) const LOOKS: Duration = Duration::from_nanos(LOOKS_NS);
const LOOKS_NS: u64 = 50_000;
/// What it may look in vain is a part of all time, one in so many,
const PART: u64 = 32;
/// and what it saves where a look finds something and nobody has to wake it, in nanoseconds;
const SAVES_NS: u64 = 5_000;
/// of which so much is kept for later: a few looks.
const KEPT_NS: i64 = 8 * LOOKS_NS as i64;
/// A look that took so long, in nanoseconds, was the turn of somebody else who has this core. Who sleeps is let in when he
/// wakes, who looks has to wait: it costs all of that time, and the more of them come in a row the more.
const TURN_NS: u64 = 20_000;
const TURNS_MAX: u32 = 6;
/// The most that it owes, in nanoseconds: it is paid for within a second.
const OWED_NS: i64 = -(1_000_000_000 / PART as i64);

/// Whether the thread looks on: where packets come often, and nobody else wants its core.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// What it may look in vain, in nanoseconds, or owes; and when that was true.
    left_ns: i64,
    at: Time,
    /// Turns of others in a row.
    turns: u32,
}

impl Lookout {
    pub(crate) fn new(now: Time) -> Lookout {
        Lookout { left_ns: KEPT_NS, at: now, turns: 0 }
    }

    /// Looks on, if that pays: whether something was found, as `look` says. `rest` lets others run.
    pub(crate) fn look_on(
        &mut self,
        now: impl Fn() -> Time,
        mut look: impl FnMut() -> bool,
        mut rest: impl FnMut(),
    ) -> bool {
        let began = now();
        self.earn(began.ns_since(self.at) / PART);
        self.at = began;
        if self.left_ns < LOOKS_NS as i64 {
            return false;
        }
        let mut last = began;
        loop {
            if look() {
                self.turns = 0;
                self.earn(SAVES_NS);
                return true;
            }
            rest();
            let time = now();
            let turn = time.ns_since(last);
            if turn >= TURN_NS {
                self.spend(turn.saturating_mul(1 << self.turns), time);
                self.turns = (self.turns + 1).min(TURNS_MAX);
                return false;
            }
            let looked = time.ns_since(began);
            if looked >= LOOKS_NS {
                self.spend(looked, time);
                return false;
            }
            last = time;
        }
    }

    fn earn(&mut self, ns: u64) {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_add(ns).min(KEPT_NS);
    }

    fn spend(&mut self, ns: u64, now: Time) {
        self.at = now;
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_sub(ns).max(OWED_NS);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How long a look and what lets others run take on a core of its own.
    const LOOK: u64 = 500;
    const REST: u64 = 300;

    /// Packets that come one after the other, and time, which passes by looks, rests and sleeps.
    struct World {
        now: Cell<u64>,
        lookout: Lookout,
        rest: u64,
        packets: u64,
        found: u64,
        vain_ns: u64,
    }

    impl World {
        fn new() -> World {
            let (now, lookout) = (Cell::new(0), Lookout::new(Time(0)));
            World { now, lookout, rest: REST, packets: 0, found: 0, vain_ns: 0 }
        }

        fn packet(&mut self, gap: u64) {
            let began = self.now.get();
            let pass = |ns| self.now.set(self.now.get() + ns);
            let look = || {
                pass(LOOK);
                self.now.get() >= began + gap
            };
            let found = self.lookout.look_on(|| Time(self.now.get()), look, || pass(self.rest));
            self.packets += 1;
            match found {
                true => self.found += 1,
                false => {
                    self.vain_ns += self.now.get() - began;
                    self.now.set(self.now.get().max(began + gap));
                }
            }
        }

        /// The part of all time that was looked in vain, and of all packets that were looked for.
        fn parts(&self) -> (f64, f64) {
            let part = |of: u64, all: u64| of as f64 / all as f64;
            (part(self.vain_ns, self.now.get()), part(self.found, self.packets))
        }
    }

    #[test]
    fn what_comes_often_is_found_without_a_sleep() {
        let mut world = World::new();
        for gap in [1_000, 10_000, 40_000].repeat(1_000) {
            world.packet(gap);
        }
        assert_eq!(world.parts(), (0.0, 1.0));
    }

    #[test]
    fn what_comes_seldom_is_slept_for() {
        for gap in [60_000, 200_000, 1_000_000, 50_000_000] {
            let mut world = World::new();
            while world.now.get() < 10_000_000_000 {
                world.packet(gap);
            }
            let (vain, found) = world.parts();
            assert!(vain > 0.0 && vain <= 1.1 / PART as f64 && found == 0.0, "{gap}: {vain}");
        }
    }

    /// However they come, no more is looked in vain than what was saved and a part of all time.
    #[test]
    fn packets_in_bursts_are_looked_for_as_far_as_that_saves() {
        for (burst, within, between) in
            [(17, 2_000, 200_000), (17, 2_000, 70_000), (64, 3_000, 60_000), (2, 1_000, 55_000)]
        {
            let mut world = World::new();
            while world.now.get() < 1_000_000_000 {
                (1..burst).for_each(|_| world.packet(within));
                world.packet(between);
            }
            let may = world.now.get() / PART + world.found * SAVES_NS + 2 * KEPT_NS as u64;
            assert!(world.vain_ns <= may, "{burst}: {} of {may}", world.vain_ns);
            assert!(world.found > 0);
        }
    }

    /// Gaps that are drawn, of 10 µs in the mean: few are longer than a look.
    #[test]
    fn packets_at_random_are_found() {
        for seed in 0..16 {
            let (mut random, mut world) = (elver_random::Rng::new(seed), World::new());
            for _ in 0..10_000 {
                let drawn = (f64::from(random.next_u32()) + 1.0) / (1_u64 << 32) as f64;
                world.packet((-drawn.ln() * 10_000.0) as u64 + 1);
            }
            let (_, found) = world.parts();
            assert!(found > 0.9, "seed {seed}: {found}");
        }
    }

    /// Whoever begins after a long silence is looked for at once.
    #[test]
    fn after_a_silence_it_looks() {
        let mut world = World::new();
        (0..100).for_each(|_| world.packet(1_000_000_000));
        let before = world.found;
        (0..100).for_each(|_| world.packet(15_000));
        assert_eq!(world.found - before, 100);
    }

    #[test]
    fn where_others_want_the_core_it_sleeps() {
        let mut world = World::new();
        world.rest = 3_000_000;
        while world.now.get() < 60_000_000_000 {
            world.packet(15_000);
        }
        let (vain, found) = world.parts();
        assert!(found == 0.0 && vain < 0.004, "{vain}");
        // And when they have gone, within a second.
        world.rest = REST;
        let gone = world.now.get();
        while world.found == 0 {
            world.packet(15_000);
        }
        assert!(world.now.get() - gone <= 1_100_000_000);
        (0..100).for_each(|_| world.packet(15_000));
        assert_eq!(world.found, 101);
    }

    /// As long as the machine slept, or this process was stopped.
    #[test]
    fn a_turn_of_hours_costs_a_second() {
        let mut world = World::new();
        world.rest = 8 * 3_600 * 1_000_000_000;
        world.packet(15_000);
        world.rest = REST;
        world.packet(1_100_000_000);
        world.packet(15_000);
        assert_eq!(world.found, 1);
    }
}
