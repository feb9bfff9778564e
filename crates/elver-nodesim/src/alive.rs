//! When a node may be taken for gone, and when it must be.
//!
//! The model knows what answers have arrived at a node's device, and not what its core made of them.

use elver_core::VqpState;
use elver_verbs::Time;

use crate::model::{Phase, Target, VqpIx};
use crate::world::World;

/// In this many sixteenths of the time to tell before a peer is given up, nothing of it may have been heard.
const SILENT_PARTS: u64 = 8;
/// So many answers may have been spoilt on their way, which the network does not tell from others.
const SPOILT_MAX: usize = 4;

impl World {
    /// Whether the node that a VQP is connected to may be taken for gone: it is, or nothing of it has arrived
    /// for long.
    pub(crate) fn may_be_silent(&self, vqp: VqpIx, target: Target) -> bool {
        let (node, _) = self.model.place(vqp);
        let (peer, _) = target.place;
        if self.may_be_past(vqp, target) {
            return true;
        }
        let span = self.plan.config.keep_alive_ns / 16 * SILENT_PARTS;
        let recent = |at: &Time| self.now.ns_since(*at) < span;
        let heard = self.net.marked(peer, node).iter().filter(|at| recent(at)).count();
        // Who forges answers in a node's name is not heard, and one on the path loses them.
        self.net.disturbed(node, peer) && (heard <= SPOILT_MAX || self.forge.is_some())
    }

    /// Whether the node that a VQP is connected to may be one that has gone, or has started anew since.
    pub(crate) fn may_be_past(&self, vqp: VqpIx, target: Target) -> bool {
        let (peer, _) = target.place;
        let started_anew = self.nodes.get(peer).is_none_or(|there| there.boot > 1);
        self.is_past(target) || self.model.vqps[vqp].outdated && started_anew
    }

    /// Whether a node is not there, or not what it was.
    pub(crate) fn is_past(&self, target: Target) -> bool {
        let (peer, boot) = target.place;
        self.nodes.get(peer).is_none_or(|there| !there.engine.is_up() || there.boot != boot)
    }

    /// Whether a VQP stands that must have failed by now, since its node has gone long ago.
    pub(crate) fn should_have_failed(&self, vqp: VqpIx) -> bool {
        let known = &self.model.vqps[vqp];
        let stands = known.phase == Phase::Up && !known.outdated;
        let has_gone = known.target.is_some_and(|target| self.is_past(target));
        if self.plan.config.keep_alive_ns == 0 || !stands || !has_gone {
            return false;
        }
        // Of one that was accepted it is told before its client knows it by its first message.
        let (node, _) = self.model.place(vqp);
        let owner = self.model.clients[known.client].id;
        let core = self.nodes[node].engine.core();
        let info = core.and_then(|core| core.vqp_info(owner, known.id).ok());
        info.is_some_and(|info| info.state == VqpState::Connected)
    }
}
