use elver_verbs::Time;

/// A link that lived for so long was of use, in nanoseconds; and the longest that a peer is not asked
/// for one in the background.
const LIFE_NS: u64 = 8_000_000_000;

/// Keeps two nodes from making a link again and again that one of them has no room for: where many
/// want the few places that there are, each would be made at the expense of another that was just
/// made.
///
/// A peer, the links to which end soon after they were asked for, is asked in the background after
/// [`BackOff::WAIT_NS`], then after twice as long, and so on. Whoever waits for a link has it
/// asked for at once all the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackOff {
    /// It is not asked before.
    until: Time,
    wait_ns: u64,
}

impl BackOff {
    /// The first wait, in nanoseconds.
    pub(crate) const WAIT_NS: u64 = 50_000_000;

    /// A link that was made, or begun, at `since` has ended, or did not come.
    pub(crate) fn link_ended(&mut self, since: Time, now: Time) {
        let fresh = now.ns_since(since) < LIFE_NS && now.ns_since(self.until) < LIFE_NS;
        let wait_ns = if fresh && self.wait_ns > 0 { 2 * self.wait_ns } else { Self::WAIT_NS };
        self.wait_ns = wait_ns.min(LIFE_NS);
        self.until = now.saturating_add_ns(self.wait_ns);
    }

    /// When a link may be asked for, if that is not yet.
    pub(crate) fn holds(&self, now: Time) -> Option<Time> {
        (self.until > now).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn who_closes_new_links_is_asked_ever_later() {
        let (mut back_off, mut now) = (BackOff::default(), Time(5));
        assert_eq!(back_off.holds(now), None);
        let mut waits = Vec::new();
        for _ in 0..10 {
            back_off.link_ended(now, Time(now.0 + 7));
            let until = back_off.holds(Time(now.0 + 7)).unwrap();
            waits.push(until.ns_since(now) - 7);
            now = until;
            assert_eq!(back_off.holds(now), None);
        }
        let wait = BackOff::WAIT_NS;
        let doubling = (0..10).map(|n| (wait << n).min(LIFE_NS));
        assert_eq!(waits, doubling.collect::<Vec<_>>());
        let later = Time(now.0 + LIFE_NS);
        back_off.link_ended(now, later);
        assert_eq!(back_off.holds(later), Some(Time(later.0 + wait)), "it was of use");
    }
}
