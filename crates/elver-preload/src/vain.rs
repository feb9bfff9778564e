//! When a thread that polls in vain lets others run: the one that it waits for may need this core.

use std::cell::RefCell;

use elver_soft::now;
use elver_verbs::Time;

/// How long is long. Time and not polls: where all comes past the link a poll takes a tenth of one that looks at the link,
/// and who lets others run may have to wait until they have had their turn, while what nobody acknowledges overflows.
const LONG_NS: u64 = 10_000;
/// Polls for each look at the clock, which costs as much as a short one.
const POLLS_A_LOOK: u32 = 8;

/// Polls of a thread that found nothing, in a row.
struct Vain {
    polls: u32,
    since: Time,
    long: bool,
    /// It lets nobody run before then.
    runs_until: Time,
}

impl Vain {
    const NONE: Vain = Vain { polls: 0, since: Time::ZERO, long: false, runs_until: Time::ZERO };

    /// It has polled; whether it is to let others run now.
    #[inline]
    fn polled(&mut self, found: bool, now: impl FnOnce() -> Time) -> bool {
        if found {
            (self.polls, self.long) = (0, false);
            return false;
        }
        if self.long {
            return true;
        }
        if self.polls == 0 {
            self.since = now();
        } else if self.polls.is_multiple_of(POLLS_A_LOOK) {
            let now = now();
            self.long = now.ns_since(self.since) >= LONG_NS && now >= self.runs_until;
        }
        self.polls = self.polls.wrapping_add(1).max(1);
        self.long
    }

    /// It has let others run. If they took long it runs as long before it does again: programs poll with a lock of
    /// theirs held, and one that waits for that without sleeping would have the core whenever it cannot get the lock, and
    /// at no other time.
    #[inline]
    fn rested(&mut self, began: Time, ended: Time) {
        let took = ended.ns_since(began);
        if took >= LONG_NS {
            self.runs_until = ended.saturating_add_ns(took);
            self.long = false;
        }
    }
}

/// Lets others run, once this thread has polled for long in vain.
#[inline]
pub(crate) fn rest(found: bool) {
    thread_local! {
        static VAIN: RefCell<Vain> = const { RefCell::new(Vain::NONE) };
    }
    VAIN.with_borrow_mut(|vain| {
        if vain.polled(found, now) {
            let began = now();
            std::thread::yield_now();
            vain.rested(began, now());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However fast it polls.
    #[test]
    fn who_polls_fast_lets_nobody_run_before_it_is_long() {
        let mut vain = Vain::NONE;
        for (found, step) in [(0, 10), (1_000_000, 50), (2_000_000, 1)] {
            assert!(!vain.polled(true, || Time(found)));
            let start = found + 100;
            let mut time = start;
            while time < start + LONG_NS {
                assert!(!vain.polled(false, || Time(time)), "{} ns", time - start);
                time += step;
            }
            // Within a few polls it does, and then at each.
            let waits = (0..100).take_while(|_| !vain.polled(false, || Time(time))).count();
            assert!(waits <= POLLS_A_LOOK as usize, "{waits}");
            assert!((0..100).all(|_| vain.polled(false, || Time(time))));
        }
    }

    #[test]
    fn who_let_others_run_for_long_runs_as_long() {
        let mut vain = Vain::NONE;
        let rests = |vain: &mut Vain, time: u64| (0..20).any(|_| vain.polled(false, || Time(time)));
        assert!(!rests(&mut vain, 100));
        assert!(rests(&mut vain, 100 + LONG_NS));
        // What is short does not count.
        vain.rested(Time(20_000), Time(20_000 + LONG_NS - 1));
        assert!(rests(&mut vain, 30_000));
        vain.rested(Time(100_000), Time(3_100_000));
        assert!(!rests(&mut vain, 3_100_000 + LONG_NS));
        // A completion does not make up for it.
        assert!(!vain.polled(true, || Time(4_000_000)));
        assert!(!rests(&mut vain, 5_000_000));
        assert!(!rests(&mut vain, 6_099_999));
        assert!(rests(&mut vain, 6_100_000));
    }
}
