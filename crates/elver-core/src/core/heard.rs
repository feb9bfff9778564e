use elver_verbs::{Intake, Time};

/// Up to when all that had arrived was taken.
///
/// A poll that takes completions does not say so: where some wait the device gives them without a look at the
/// network, and what waits there may have been sent long ago, if this node stood still.
#[derive(Debug)]
pub(crate) struct Heard {
    until: Time,
    /// When the device said last how far it is.
    said: Time,
}

impl Heard {
    pub(crate) fn new(now: Time) -> Heard {
        Heard { until: now, said: now }
    }

    /// What the device says in a poll that began now.
    #[inline]
    pub(crate) fn take(&mut self, intake: Intake, now: Time) {
        self.until = match intake {
            Intake::Behind => return,
            Intake::Past => self.said,
            Intake::Empty => now,
        };
        self.said = now;
    }

    #[inline]
    pub(crate) fn until(&self) -> Time {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_has_looked_for_counts() {
        let mut heard = Heard::new(Time(1));
        heard.take(Intake::Behind, Time(2));
        assert_eq!(heard.until(), Time(1));
        heard.take(Intake::Past, Time(3));
        assert_eq!(heard.until(), Time(1), "what came between may wait still");
        heard.take(Intake::Past, Time(4));
        assert_eq!(heard.until(), Time(3));
        heard.take(Intake::Empty, Time(5));
        assert_eq!(heard.until(), Time(5));
    }
}
