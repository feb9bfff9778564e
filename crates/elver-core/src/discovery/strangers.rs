//! Who may ask this node something: nodes that the registry or a meta server's table knows.
//!
//! A request says who sends it, by the packet's source. Only a node's record tells whether that is
//! so: it has the QPN that the node sends requests from, and the Q_Key without which no answer gets
//! there. So a request of a node whose record is not known, or is another, causes a look-up, and
//! waits for it. Both are bounded, whoever sends: there are as many packets as anybody likes, from
//! as many addresses.

mod admit;

use alloc::vec::Vec;

use elver_control::Request;
use elver_verbs::{Gid, Time};

/// Most requests that wait for look-ups of their senders,
const HELD_MAX: usize = 1_024;
/// and of one node.
const HELD_OF_NODE_MAX: usize = 32;
/// Look-ups for strangers: so many at once, and then one in so many nanoseconds.
const LOOKUPS_AT_ONCE: u64 = 1_024;
const LOOKUP_NS: u64 = 100_000;
/// Requests of nodes that are not known.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    held: Vec<Held>,
    /// Up to when look-ups are used up; never more than [`LOOKUPS_AT_ONCE`] ahead of the clock.
    spent: Time,
}

/// A request that waits for the look-up of its sender.
#[derive(Clone, Copy, Debug)]
struct Held {
    gid: Gid,
    qpn: u32,
    id: u64,
    request: Request,
}

impl Strangers {
    /// Requests that wait.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// The nodes whose look-ups they wait for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = Gid> {
        self.held.iter().map(|held| held.gid)
    }

    fn holds(&self, one: &Held) -> bool {
        self.held.iter().any(|held| (held.gid, held.qpn, held.id) == (one.gid, one.qpn, one.id))
    }

    fn has_room(&self, gid: Gid) -> bool {
        let of_node = self.held.iter().filter(|held| held.gid == gid).count();
        self.held.len() < HELD_MAX && of_node < HELD_OF_NODE_MAX
    }

    /// Takes leave to look a stranger up.
    fn spend(&mut self, now: Time) -> bool {
        let next = self.spent.max(now).saturating_add_ns(LOOKUP_NS);
        let allowed = next <= now.saturating_add_ns(LOOKUPS_AT_ONCE * LOOKUP_NS);
        if allowed {
            self.spent = next;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_ups_for_strangers_are_so_many_at_once_and_then_so_many_a_second() {
        let mut strangers = Strangers::default();
        let now = Time(1);
        let burst = (0..2 * LOOKUPS_AT_ONCE).filter(|_| strangers.spend(now)).count() as u64;
        assert_eq!(burst, LOOKUPS_AT_ONCE);
        let second = (0..1_000_000u64)
            .filter(|n| strangers.spend(now.saturating_add_ns(n * 1_000)))
            .count() as u64;
        assert!((9_999..=10_001).contains(&second), "{second}");
    }
}
