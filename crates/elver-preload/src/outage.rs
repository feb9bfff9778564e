//! A port that goes down on demand, and comes up again.

use std::time::Duration;

use elver_verbs::Time;

/// When, after the device was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) down_after: Duration,
    /// How long after that it comes up again.
    pub(crate) up_after: Option<Duration>,
}

/// What is left of a plan.
#[derive(Debug)]
pub(crate) struct Outage {
    down_at: Option<Time>,
    up_at: Option<Time>,
    is_up: bool,
}

impl Outage {
    pub(crate) fn new(plan: Plan, now: Time) -> Outage {
        let after = |time: Time, wait: Duration| {
            time.saturating_add_ns(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
        };
        let down_at = after(now, plan.down_after);
        let up_at = plan.up_after.map(|wait| after(down_at, wait));
        Outage { down_at: Some(down_at), up_at, is_up: true }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// When the port changes next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.down_at.or(self.up_at)
    }

    /// Whether the port goes down or comes up by now; each is told once.
    pub(crate) fn change(&mut self, now: Time) -> Option<bool> {
        self.due().filter(|due| *due <= now)?;
        self.is_up = self.down_at.take().is_none();
        if self.is_up {
            self.up_at = None;
        }
        Some(self.is_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_goes_down_and_comes_up_once() {
        let [down_after, up] = [5, 2].map(Duration::from_nanos);
        let mut outage = Outage::new(Plan { down_after, up_after: Some(up) }, Time(10));
        assert_eq!((outage.due(), outage.change(Time(14))), (Some(Time(15)), None));
        // However late somebody looks, it was down.
        assert_eq!((outage.change(Time(99)), outage.is_up()), (Some(false), false));
        assert_eq!((outage.due(), outage.change(Time(16))), (Some(Time(17)), None));
        assert_eq!((outage.change(Time(17)), outage.is_up()), (Some(true), true));
        assert_eq!((outage.due(), outage.change(Time(u64::MAX))), (None, None));
    }

    #[test]
    fn a_port_stays_down() {
        let plan = Plan { down_after: Duration::ZERO, up_after: None };
        let mut outage = Outage::new(plan, Time(10));
        assert_eq!(outage.change(Time(10)), Some(false));
        assert_eq!(
            (outage.due(), outage.change(Time(u64::MAX)), outage.is_up()),
            (None, None, false)
        );
    }
}
