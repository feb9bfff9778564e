//! What clients may see only while something is wrong, or was a moment ago: whether it is or was.

use elver_verbs::Time;

use crate::world::{STEP_NS, World};

/// More than a look-up takes while nothing is lost, in nanoseconds.
const LOOKUP_NS: u64 = 1_000_000;

impl World {
    /// Whether anything between a node and any other was lost or late.
    pub(crate) fn disturbed(&self, node: usize) -> bool {
        (0..self.nodes.len()).any(|other| self.net.disturbed(node, other))
    }

    /// Whether a node may not learn who somebody is that asks it something, and so not answer: what is
    /// between it and a meta server is lost or late.
    pub(crate) fn cannot_look_up(&self, node: usize) -> bool {
        self.registry.served_at().iter().any(|(server, _)| self.net.disturbed(node, *server))
    }

    /// Whether the nodes knew each other before a moment, and nothing has changed since. Who asks joins
    /// a look-up that is under way, so it is that one which must have begun later.
    pub(crate) fn settled_since(&self, since: Time) -> bool {
        !self.has_tasks() && self.registry.changed_at.saturating_add_ns(LOOKUP_NS) < since
    }

    /// Whether what had to wait in a send queue, or whose node stood still, may be late now: for its lease,
    /// or for the time in which a message may be read.
    pub(crate) fn was_held_up(&self) -> bool {
        let since = self.hindered_until.max(self.apart_until);
        self.now <= since.saturating_add_ns(self.plan.retries_ns() + STEP_NS)
    }
}
