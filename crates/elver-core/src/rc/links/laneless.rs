//! Operations of the core's own that have no lane: the RC QP that they were on, or were to take, is
//! gone, and its peer, or this node, has no DC. They wait for the next link as VQPs do: that an RC QP
//! breaks is no reason for a message not to be read, or a region not to be found.

use alloc::vec::Vec;

use elver_control::Class;
use elver_verbs::{Device, Time};

use super::SILENCE_NS;
use super::waiting::Laneless;
use crate::Core;
use crate::vqp::send_ring::NONE;

impl<D: Device> Core<D> {
    /// Whether an operation to a peer that has no way there now may have one soon.
    pub(crate) fn way_comes(&self, peer: u32) -> bool {
        self.lacks_dc(peer) && self.peers.get(peer).is_some_and(|entry| entry.control.is_some())
    }

    /// An operation waits for a link to its peer.
    pub(crate) fn await_way(&mut self, op: u32, now: Time) {
        let Some(entry) = self.ops.get_mut(op) else {
            return bug!("an operation that is gone waits for a way");
        };
        (entry.lane, entry.dest) = (NONE, None);
        let (peer, class) = (entry.peer, entry.class);
        let until = now.saturating_add_ns(SILENCE_NS);
        self.links.waiting.ops.push(Laneless { op, peer, class, until });
        self.stats.ops_waited += 1;
        // The sweep asks for the link, and not this call: what follows if it cannot may be that another
        // operation waits.
        self.sweep_at(now);
    }

    /// A link to a peer works: the operations that waited for one go on.
    pub(crate) fn ops_go_on(&mut self, peer: u32, now: Time) {
        for waiting in self.take_laneless(|one| one.peer == peer) {
            if !self.go_on(waiting, now) {
                self.links.waiting.ops.push(waiting);
            }
        }
    }

    /// No link to a peer comes: what waits for one ends.
    pub(crate) fn fail_laneless_ops(&mut self, peer: u32, class: Class, now: Time) {
        for waiting in self.take_laneless(|one| (one.peer, one.class) == (peer, class)) {
            if !self.go_on(waiting, now) {
                self.conclude_op(waiting.op, false, now);
            }
        }
    }

    /// A peer went away, or is another now: what was meant for it as it was ends. The keys that it names
    /// may be others' by now.
    pub(super) fn drop_laneless_ops(&mut self, peer: u32, now: Time) {
        for waiting in self.take_laneless(|one| one.peer == peer) {
            if self.ops.get(waiting.op).is_some_and(|op| op.lane == NONE) {
                self.conclude_op(waiting.op, false, now);
            }
        }
    }

    /// Lets go on what can, ends what has waited for too long, and asks anew for what does not come.
    pub(super) fn sweep_laneless(&mut self, now: Time) {
        for waiting in self.take_laneless(|_| true) {
            if self.go_on(waiting, now) {
                continue;
            }
            if waiting.until <= now {
                self.conclude_op(waiting.op, false, now);
                continue;
            }
            self.links.waiting.ops.push(waiting);
            // For links to meta servers each sweep asks anyway.
            if !self.is_meta_server(waiting.peer) {
                self.want_lane(waiting.peer, waiting.class, now);
            }
        }
        if !self.links.waiting.ops.is_empty() {
            self.sweep_soon(now);
        }
    }

    /// Whether an operation need not wait any longer.
    fn go_on(&mut self, waiting: Laneless, now: Time) -> bool {
        if self.ops.get(waiting.op).is_none_or(|op| op.lane != NONE) {
            return true;
        }
        let Some(way) = self.way_of_op(waiting.peer, waiting.class) else { return false };
        if let Some(op) = self.ops.get_mut(waiting.op) {
            (op.lane, op.dest) = way;
            self.post_op(waiting.op, now);
        }
        true
    }

    fn take_laneless(&mut self, which: impl Fn(&Laneless) -> bool) -> Vec<Laneless> {
        self.links.waiting.ops.extract_if(.., |one| which(one)).collect()
    }

    /// For [`Core::audit`]: operations that wait.
    pub(crate) fn laneless_ops(&self) -> impl Iterator<Item = u32> {
        self.links.waiting.ops.iter().map(|one| one.op)
    }

    /// Whether an operation to a peer waits for a link of a class.
    pub(crate) fn has_laneless_op(&self, peer: u32, class: Class) -> bool {
        self.links.waiting.ops.iter().any(|one| (one.peer, one.class) == (peer, class))
    }
}
