//! What a core knows of how far its device has taken what arrives.

use elver_verbs::{Intake, Time};

/// Who is so far behind looks once more, in nanoseconds: far less than any time that counts.
const BEHIND_NS: u64 = 10_000_000;

/// Up to when all that had arrived was taken.
///
/// A poll that takes completions does not say so: where some wait the device gives them without a look at the
/// network, and what waits there may have been sent long ago, if this node stood still.
#[derive(Debug)]
pub(crate) struct Heard {
    until: Time,
    /// When the device said last how far it is.
    said: Time,
    /// When the last poll began.
    now: Time,
}

impl Heard {
    pub(crate) fn new(now: Time) -> Heard {
        Heard { until: now, said: now, now }
    }

    /// A poll begins.
    #[inline]
    pub(crate) fn polled(&mut self, now: Time) {
        self.now = now;
    }

    /// What the device says in this poll, when all that it has completed was taken.
    #[inline]
    pub(crate) fn take(&mut self, intake: Intake) {
        self.until = match intake {
            Intake::Behind => return,
            Intake::Past => self.said,
            Intake::Empty => self.now,
        };
        self.said = self.now;
    }

    #[inline]
    pub(crate) fn until(&self) -> Time {
        self.until
    }

    /// Whether it is long since all was taken.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.now.ns_since(self.until) >= BEHIND_NS
    }

    /// When the last poll began: the time for what is told none.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_has_looked_for_counts() {
        let mut heard = Heard::new(Time(1));
        let mut poll = |now: u64, intake| {
            heard.polled(Time(now));
            heard.take(intake);
            (heard.until(), heard.is_behind())
        };
        assert_eq!(poll(2, Intake::Behind), (Time(1), false));
        assert_eq!(poll(3, Intake::Past), (Time(1), false), "what came between may wait still");
        assert_eq!(poll(4, Intake::Past), (Time(3), false));
        assert_eq!(poll(5, Intake::Empty), (Time(5), false));
        assert_eq!(poll(5 + BEHIND_NS, Intake::Behind), (Time(5), true));
    }
}
