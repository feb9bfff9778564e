//! Operations of the core's own that have no lane: the RC QP that they were on, or were to take, is
//! gone, and its peer, or this node, has no DC. They wait for the next link as VQPs do: that an RC QP
//! breaks is no reason for a message not to be read, or a region not to be found.

use elver_verbs::{Class, Device, Time};

use super::waiting::Laneless;
use crate::Core;
use crate::effects::Effect;
use crate::ids::PeerId;

impl<D: Device> Core<D> {
    /// A link to a peer works: the operations that waited for one go on.
    pub(crate) fn ops_go_on(&mut self, peer: PeerId, now: Time) {
        for waiting in self.links.take_laneless(|one| one.peer == peer) {
            if !self.go_on(waiting, now) {
                self.links.waiting.ops.push(waiting);
            }
        }
    }

    /// No link to a peer comes: what waits for one ends.
    pub(crate) fn fail_laneless_ops(&mut self, peer: PeerId, class: Class, now: Time) {
        for waiting in self.links.take_laneless(|one| (one.peer, one.class) == (peer, class)) {
            if !self.go_on(waiting, now) {
                self.effects.push(Effect::Conclude { op: waiting.op, ok: false });
            }
        }
    }

    /// A peer went away, or is another now: what was meant for it as it was ends. The keys that it names
    /// may be others' by now.
    pub(super) fn drop_laneless_ops(&mut self, peer: PeerId) {
        for waiting in self.links.take_laneless(|one| one.peer == peer) {
            if self.datapath.ops.get(waiting.op).is_some_and(|op| op.lane.is_none()) {
                self.effects.push(Effect::Conclude { op: waiting.op, ok: false });
            }
        }
    }

    /// Lets go on what can, ends what has waited for too long, and asks anew for what does not come.
    pub(super) fn sweep_laneless(&mut self, now: Time) {
        for waiting in self.links.take_laneless(|_| true) {
            if self.go_on(waiting, now) {
                continue;
            }
            if waiting.until <= now {
                self.effects.push(Effect::Conclude { op: waiting.op, ok: false });
                continue;
            }
            self.links.waiting.ops.push(waiting);
            // For links to meta servers each sweep asks anyway.
            if !self.discovery.is_meta_server(waiting.peer) {
                self.effects.push(Effect::WantLane(waiting.peer, waiting.class));
            }
        }
        if !self.links.waiting.ops.is_empty() {
            self.links.sweep_soon(now);
        }
    }

    /// Whether an operation need not wait any longer.
    fn go_on(&mut self, waiting: Laneless, now: Time) -> bool {
        if self.datapath.ops.get(waiting.op).is_none_or(|op| op.lane.is_some()) {
            return true;
        }
        let Some(way) = self.way_of_op(waiting.peer, waiting.class) else { return false };
        if let Some(op) = self.datapath.ops.get_mut(waiting.op) {
            (op.lane, op.dest) = (Some(way.0), way.1);
            self.post_op(waiting.op, now);
        }
        true
    }
}
