//! CQs whose events wait for more completions, or for a while (`ibv_modify_cq`(3)).

use std::collections::HashMap;

use elver_verbs::{Cq as Handle, Time};

/// The most completions, and microseconds, that an event waits for: all that programs can ask for.
pub(crate) const MOST: [u16; 2] = [u16::MAX; 2];
const NS_A_MICROSECOND: u64 = 1_000;

/// What an event of a CQ waits for; for nothing, if either is 0, as with devices that have it.
struct Moderation {
    count: u64,
    period_ns: u64,
    /// How many completions there had been when the program last asked for an event.
    asked_at: u64,
    /// The event waits, and at most until then.
    until: Option<Time>,
}

/// Those of a process. Completions are counted by who stamps them, so that such a CQ's are stamped.
#[derive(Default)]
pub(crate) struct Moderated(HashMap<Handle, Moderation>);

impl Moderated {
    /// A CQ that has had so many completions: its events wait for `count` more, and for `period_us` at most.
    pub(crate) fn set(&mut self, cq: Handle, seen: u64, [count, period_us]: [u16; 2]) {
        let (count, period_ns) = (count.into(), u64::from(period_us) * NS_A_MICROSECOND);
        let fresh = Moderation { count, period_ns, asked_at: seen, until: None };
        let moderation = self.0.entry(cq).or_insert(fresh);
        (moderation.count, moderation.period_ns) = (count, period_ns);
    }

    /// A program asks for an event of what comes after so many completions.
    pub(crate) fn ask(&mut self, cq: Handle, seen: impl FnOnce() -> u64) {
        if let Some(moderation) = self.0.get_mut(&cq) {
            moderation.asked_at = seen();
        }
    }

    /// An event has come: whether it waits.
    pub(crate) fn holds(&mut self, cq: Handle, now: impl FnOnce() -> Time) -> bool {
        let Some(moderation) = self.0.get_mut(&cq).filter(|moderation| moderation.is_on()) else {
            return false;
        };
        let until = now().saturating_add_ns(moderation.period_ns);
        moderation.until.get_or_insert(until);
        true
    }

    /// When the first event has waited for long enough.
    pub(crate) fn due(&self) -> Option<Time> {
        self.0.values().filter_map(|moderation| moderation.until).min()
    }

    /// An event that need not wait any longer, if there is one.
    pub(crate) fn next(&mut self, now: Time, seen: impl Fn(Handle) -> u64) -> Option<Handle> {
        let is_over = |cq: Handle, moderation: &Moderation| {
            moderation.until.is_some_and(|until| until <= now)
                || moderation.until.is_some()
                    && (!moderation.is_on()
                        || seen(cq).saturating_sub(moderation.asked_at) >= moderation.count)
        };
        let mut all = self.0.iter_mut();
        let (cq, moderation) = all.find(|(cq, moderation)| is_over(**cq, moderation))?;
        moderation.until = None;
        Some(*cq)
    }

    /// A CQ is destroyed.
    pub(crate) fn forget(&mut self, cq: Handle) {
        self.0.remove(&cq);
    }
}

impl Moderation {
    fn is_on(&self) -> bool {
        self.count > 1 && self.period_ns > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CQ: Handle = Handle(3);

    /// Its period is in microseconds.
    fn moderated(count: u16, period: u16) -> Moderated {
        let mut all = Moderated::default();
        all.set(CQ, 0, [count, period]);
        all
    }

    #[test]
    fn an_event_waits_for_so_many_or_for_so_long() {
        let mut all = moderated(3, 50);
        all.ask(CQ, || 10);
        assert_eq!(all.next(Time(1_000_000), |_| 99), None);
        assert!(all.holds(CQ, || Time(100)));
        assert_eq!(all.due(), Some(Time(50_100)));
        assert_eq!(all.next(Time(120), |_| 12), None);
        assert_eq!(all.next(Time(120), |_| 13), Some(CQ));
        assert_eq!((all.due(), all.next(Time(500_000), |_| 20)), (None, None));

        all.ask(CQ, || 20);
        assert!(all.holds(CQ, || Time(200)));
        assert_eq!(all.next(Time(50_199), |_| 21), None);
        assert_eq!(all.next(Time(50_200), |_| 21), Some(CQ));
    }

    #[test]
    fn without_a_count_or_a_period_nothing_waits() {
        for (count, period) in [(0, 0), (1, 50), (3, 0)] {
            assert!(!moderated(count, period).holds(CQ, || unreachable!("nobody asks the time")));
        }
        let mut all = moderated(3, 50);
        assert!(!all.holds(Handle(4), || Time(1)));
        // It is turned off while an event waits.
        assert!(all.holds(CQ, || Time(100)));
        all.set(CQ, 9, [0, 0]);
        assert_eq!(all.next(Time(100), |_| 0), Some(CQ));
        all.forget(CQ);
        assert_eq!(all.due(), None);
    }
}
