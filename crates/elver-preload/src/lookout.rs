//! When the device's thread goes on looking for packets before it sleeps: one that sleeps handles a packet long after it
//! has come, and who serves READs and WRITEs of others has nobody else to handle them.

use elver_verbs::Time;

/// How long it looks on, in nanoseconds: as long as it takes to wake a thread, in which a peer has answered twice.
const LOOKS_NS: u64 = 50_000;
/// How long it only sleeps after it has looked in vain, in nanoseconds, so that this costs a thirtieth of a core; each
/// time in a row twice as long, up to the longest.
const SLEEPS_NS: u64 = 1_500_000;
const LONGEST_NS: u64 = 1_000_000_000;
/// Sleeps in a row that ended this soon, in nanoseconds, for one that it looks again all the same.
const SHORT_NS: u64 = 2 * LOOKS_NS;
const SHORT_SLEEPS: u32 = 16;
/// A look that took so long, in nanoseconds, was the turn of somebody else who has this core; and for how many times as
/// long it only sleeps then: who sleeps is let in when he wakes, who looks has to wait.
const TURN_NS: u64 = 20_000;
const TURNS: u64 = 32;

/// Whether the thread looks on: where packets come often, and nobody else wants its core.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Times in a row that it has looked in vain.
    vain: u32,
    /// Sleeps in a row since then that were short.
    short: u32,
    /// It only sleeps before then, if sleeps are not short.
    sleeps_until: Time,
    /// It only sleeps before then, whatever comes.
    yields_until: Time,
}

impl Lookout {
    /// Looks on, if that pays: whether something was found, as `look` says. `rest` lets others run.
    pub(crate) fn look_on(
        &mut self,
        now: impl Fn() -> Time,
        mut look: impl FnMut() -> bool,
        mut rest: impl FnMut(),
    ) -> bool {
        let began = now();
        let pays = began >= self.sleeps_until || self.short >= SHORT_SLEEPS;
        if !pays || began < self.yields_until {
            return false;
        }
        self.short = 0;
        let mut last = began;
        loop {
            if look() {
                self.vain = 0;
                return true;
            }
            rest();
            let time = now();
            let turn = time.ns_since(last);
            if turn >= TURN_NS {
                self.yields_until = time.saturating_add_ns(turn.saturating_mul(TURNS));
                return false;
            }
            if time.ns_since(began) >= LOOKS_NS {
                let sleeps = (SLEEPS_NS << self.vain).min(LONGEST_NS);
                self.vain = (self.vain + 1).min(10);
                self.sleeps_until = time.saturating_add_ns(sleeps);
                return false;
            }
            last = time;
        }
    }

    /// It has slept for so long, until packets came or otherwise.
    pub(crate) fn slept(&mut self, ns: u64, until_packets: bool) {
        let short = until_packets && ns <= SHORT_NS;
        self.short = if short { self.short.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Time that passes by looks and rests.
    struct Clock(Cell<u64>);

    impl Clock {
        fn pass(&self, ns: u64) {
            self.0.set(self.0.get() + ns);
        }

        /// Looks on, at something that comes in so long: whether it was found, and how long that took.
        fn look_on(&self, lookout: &mut Lookout, comes_in: u64, turn: u64) -> (bool, u64) {
            let began = self.0.get();
            let look = || {
                self.pass(500);
                self.0.get() >= began + comes_in
            };
            let found = lookout.look_on(|| Time(self.0.get()), look, || self.pass(turn));
            (found, self.0.get() - began)
        }
    }

    #[test]
    fn what_comes_often_is_found_without_a_sleep() {
        let (clock, mut lookout) = (Clock(Cell::new(1)), Lookout::default());
        for gap in [1_000, 10_000, 40_000].repeat(100) {
            let (found, took) = clock.look_on(&mut lookout, gap, 300);
            assert!(found && took < gap + 1_000, "{gap}: {took}");
        }
    }

    #[test]
    fn what_comes_seldom_is_slept_for() {
        for gap in [60_000, 200_000, 1_000_000, 50_000_000] {
            let (clock, mut lookout) = (Clock(Cell::new(1)), Lookout::default());
            let mut looked = 0;
            while clock.0.get() < 10_000_000_000 {
                let (found, took) = clock.look_on(&mut lookout, gap, 300);
                assert!(!found);
                looked += took;
                clock.pass(gap - took);
                lookout.slept(gap - took, true);
            }
            let share = looked as f64 / clock.0.get() as f64;
            assert!(looked > 0 && share < 0.06, "{gap}: {share}");
        }
    }

    /// Whoever begins after a long silence is soon looked for.
    #[test]
    fn after_a_silence_some_sleeps_suffice() {
        let (clock, mut lookout) = (Clock(Cell::new(1)), Lookout::default());
        for _ in 0..20 {
            clock.look_on(&mut lookout, u64::MAX / 2, 300);
            clock.pass(LONGEST_NS);
            lookout.slept(LONGEST_NS, true);
        }
        clock.look_on(&mut lookout, u64::MAX / 2, 300);
        let sleeps = (0..).find(|_| {
            let (found, took) = clock.look_on(&mut lookout, 15_000, 300);
            clock.pass(15_000 - took.min(15_000));
            lookout.slept(15_000, true);
            found
        });
        assert_eq!(sleeps, Some(SHORT_SLEEPS));
    }

    #[test]
    fn where_others_want_the_core_it_sleeps() {
        let (clock, mut lookout) = (Clock(Cell::new(1)), Lookout::default());
        assert!(!clock.look_on(&mut lookout, 10_000, 3_000_000).0);
        for _ in 0..1_000 {
            clock.pass(15_000);
            lookout.slept(15_000, true);
            assert_eq!(clock.look_on(&mut lookout, 10_000, 3_000_000), (false, 0));
        }
        clock.pass(TURNS * 3_001_000);
        assert!(clock.look_on(&mut lookout, 10_000, 300).0);
    }
}
