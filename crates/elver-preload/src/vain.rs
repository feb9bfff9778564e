//! When a thread that polls in vain lets others run: the one that it waits for may need this core.

use std::cell::Cell;

use elver_soft::now;
use elver_verbs::Time;
use rustix::time::{ClockId, clock_gettime};

/// How long is long. Time and not polls: where all comes past the link a poll takes a tenth of one that looks at the link,
/// and who lets others run may have to wait until they have had their turn, while what nobody acknowledges overflows.
const LONG_NS: u64 = 10_000;
/// Polls for each look at the clock, which costs as much as a short one.
const POLLS_A_LOOK: u32 = 8;

/// What another thread takes that does not let others run by itself, in nanoseconds: its slice.
const SLICE_NS: u64 = 1_000_000;

/// Polls of a thread that found nothing, in a row.
#[derive(Clone, Copy)]
struct Vain {
    polls: u32,
    since: Time,
    long: bool,
    /// Somebody took a slice the last time: whether that is this process is to be seen.
    suspects: bool,
    /// It lets nobody run before then.
    runs_until: Time,
}

impl Vain {
    const NONE: Vain =
        Vain { polls: 0, since: Time::ZERO, long: false, suspects: false, runs_until: Time::ZERO };

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

    /// It has let others run, and this process ran meanwhile for so long, if that was looked at. Programs poll with a lock
    /// of theirs held. A thread of theirs that waits for it without sleeping would have the core whenever it cannot get the
    /// lock, and at no other time: so this one runs for as long as that did, and may be stopped anywhere. What other
    /// processes take does not count: with peers on its core that did as it does, each would wait for the other's slice.
    #[inline]
    fn rested(&mut self, began: Time, ended: Time, own_ns: Option<u64>) {
        let took = ended.ns_since(began);
        self.suspects = took >= SLICE_NS;
        if self.suspects && own_ns.is_some_and(|own| own >= took / 2) {
            self.runs_until = ended.saturating_add_ns(took);
            self.long = false;
        }
    }
}

/// How long this process has run, in nanoseconds.
#[cold]
fn process_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lets others run, once this thread has polled for long in vain.
#[inline]
pub(crate) fn rest(found: bool) {
    rest_by(found, std::thread::yield_now);
}

/// A handler of a signal may interrupt it anywhere and poll too, or leave by `siglongjmp`: nothing is held.
#[inline]
fn rest_by(found: bool, others_run: impl FnOnce()) {
    thread_local! {
        static VAIN: Cell<Vain> = const { Cell::new(Vain::NONE) };
    }
    VAIN.with(|cell| {
        let mut vain = cell.get();
        let long = vain.polled(found, now);
        cell.set(vain);
        if long {
            let (ran, began) = (vain.suspects.then(process_ns), now());
            others_run();
            let mut vain = cell.get();
            vain.rested(began, now(), ran.map(|ran| process_ns() - ran));
            cell.set(vain);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As handlers of signals do, which programs end by.
    #[test]
    fn a_thread_that_is_interrupted_while_others_run_may_poll() {
        let mut polled = false;
        while !polled {
            rest_by(false, || {
                rest(true);
                polled = true;
            });
        }
        // It found something meanwhile, so that polling in vain begins anew.
        rest_by(false, || panic!("it lets others run at once"));
    }

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
    fn who_let_its_own_process_run_for_a_slice_runs_as_long() {
        let mut vain = Vain::NONE;
        let rests = |vain: &mut Vain, time: u64| (0..20).any(|_| vain.polled(false, || Time(time)));
        assert!(!rests(&mut vain, 100));
        assert!(rests(&mut vain, 100 + LONG_NS));
        // What is short does not count, and nobody looks who it was.
        vain.rested(Time(20_000), Time(20_000 + SLICE_NS - 1), None);
        assert!(!vain.suspects && rests(&mut vain, 1_100_000));
        // The first slice may be anybody's; another process's does not count.
        for own in [None, Some(0), Some(1_499_999)] {
            vain.rested(Time(2_000_000), Time(5_000_000), own);
            assert!(vain.suspects && rests(&mut vain, 5_000_001));
        }
        vain.rested(Time(6_000_000), Time(9_000_000), Some(1_500_000));
        assert!(!rests(&mut vain, 9_000_000 + LONG_NS));
        // A completion does not make up for it.
        assert!(!vain.polled(true, || Time(10_000_000)));
        assert!(!rests(&mut vain, 11_000_000));
        assert!(!rests(&mut vain, 11_999_999));
        assert!(rests(&mut vain, 12_000_000));
    }
}
