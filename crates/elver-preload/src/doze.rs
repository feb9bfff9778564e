//! Until when the device's thread sleeps, for who sets a timer that is due before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use elver_verbs::Time;

/// The longest sleep, in nanoseconds; timers and packets end it earlier.
const LONGEST: u64 = 1_000_000_000;
/// It does not sleep.
const AWAKE: u64 = 0;

/// What the thread begins and ends, and all look at who have the device in hand.
pub(crate) struct Doze(AtomicU64);

impl Doze {
    pub(crate) const fn new() -> Doze {
        Doze(AtomicU64::new(AWAKE))
    }

    /// Begins a sleep, with the device in hand: how long it may be. It ends at `alarm` too, where the last one was to,
    /// though nothing may be due then any more: who sends one message after the other sets a timer with each, and would
    /// have to wake the thread for each.
    pub(crate) fn begin(&self, now: Time, due: Option<Time>, alarm: Time) -> Duration {
        let alarm = Some(alarm).filter(|alarm| *alarm > now);
        let longest = now.saturating_add_ns(LONGEST);
        let until = due.into_iter().chain(alarm).fold(longest, Time::min);
        self.0.store(until.0, Ordering::Relaxed);
        Duration::from_nanos(until.ns_since(now))
    }

    /// Ends it: when it was to end.
    pub(crate) fn end(&self) -> Time {
        Time(self.0.swap(AWAKE, Ordering::Relaxed))
    }

    /// Whether the thread is to be woken, which is asked with the device in hand: it sleeps, and longer than until what
    /// is due. It is asked to be once.
    #[inline]
    pub(crate) fn is_too_long(&self, due: impl FnOnce() -> Option<Time>) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != AWAKE && self.shorten(until, due())
    }

    #[cold]
    fn shorten(&self, until: u64, due: Option<Time>) -> bool {
        let Some(due) = due.filter(|due| due.0 < until) else { return false };
        // Who wakes meanwhile takes the device and sees for himself.
        self.0.compare_exchange(until, due.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sets_an_earlier_timer_wakes_it_once() {
        let doze = Doze::new();
        assert!(!doze.is_too_long(|| unreachable!("nobody sleeps")));
        assert_eq!(doze.begin(Time(5), None, Time(0)), Duration::from_nanos(LONGEST));
        assert!(!doze.is_too_long(|| None));
        assert!(!doze.is_too_long(|| Some(Time(5 + LONGEST))));
        assert!(doze.is_too_long(|| Some(Time(70))));
        assert!(!doze.is_too_long(|| Some(Time(70))));
        assert!(doze.is_too_long(|| Some(Time(60))));
        assert_eq!(doze.end(), Time(60));
        assert!(!doze.is_too_long(|| unreachable!("it has ended")));
    }

    /// Each message of a program's sets a timer, which its answer stops.
    #[test]
    fn a_timer_that_was_stopped_is_waited_for_all_the_same() {
        let doze = Doze::new();
        doze.begin(Time(5), None, Time(0));
        assert!(doze.is_too_long(|| Some(Time(70))));
        let alarm = doze.end();
        assert_eq!(doze.begin(Time(10), None, alarm), Duration::from_nanos(60));
        assert!(!doze.is_too_long(|| Some(Time(75))));
        // It is over.
        let alarm = doze.end();
        assert_eq!(doze.begin(Time(70), Some(Time(75)), alarm), Duration::from_nanos(5));
    }
}
