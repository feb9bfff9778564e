//! Messages that are under way: whose they are, and whether they may be refused.

use elver_core::{Config, VqpState};

use crate::model::{Addressee, Hold, OpIx, Phase, VqpIx};
use crate::world::World;

impl World {
    /// Whether a VQP's messages go to a VQP that is there; which one.
    pub(crate) fn addressee(&self, vqp: VqpIx) -> Option<VqpIx> {
        let target = self.model.vqps[vqp].target?;
        match target.to {
            Addressee::Port(port) => {
                let (node, _) = target.place;
                let place = (node, self.nodes.get(node)?.boot);
                self.model.ports.get(&(place, port)).copied().flatten()
            }
            Addressee::Vqp(to) => (self.model.vqps[to].phase != Phase::Gone).then_some(to),
        }
    }

    /// Whether a VQP's messages may find nobody, or one who lost some of them.
    pub(crate) fn may_refuse(&self, vqp: VqpIx) -> bool {
        let Some(target) = self.model.vqps[vqp].target else { return true };
        let (node, _) = target.place;
        if self.nodes.get(node).is_none_or(|there| target.place.1 != there.boot) {
            return true;
        }
        let Some(to) = self.addressee(vqp) else { return true };
        let receiver = &self.model.vqps[to];
        let sender = &self.model.vqps[vqp];
        let moved = match target.to {
            Addressee::Port(_) => receiver.bound_at > sender.connected_at,
            Addressee::Vqp(_) => receiver.connected_at > sender.connected_at || sender.stale,
        };
        let core = self.nodes[node].engine.core();
        let owner = self.model.clients[receiver.client].id;
        let info = core.and_then(|core| core.vqp_info(owner, receiver.id).ok());
        let down = info.is_none_or(|info| info.state == VqpState::Error);
        moved || down || receiver.ever_failed() || self.may_be_unfit(vqp)
    }

    /// Whether the receiver of a VQP's messages has receives that do not take all of them.
    pub(crate) fn may_be_unfit(&self, vqp: VqpIx) -> bool {
        let Some(to) = self.addressee(vqp) else { return true };
        let (node, _) = self.model.place(to);
        if self.disturbed(node) || self.was_held_up() {
            return true;
        }
        let receiver = &self.model.vqps[to];
        let mut arenas = self.model.clients[receiver.client].arenas.iter();
        receiver.has_unfit || arenas.any(|arena| self.model.arenas[*arena].hold != Hold::Open)
    }

    /// Whether the receiver of a VQP's messages may hold as many as it can, or did when one of them
    /// came: that it was refused may be told much later.
    pub(crate) fn may_overrun(&self, vqp: VqpIx) -> bool {
        self.addressee(vqp).is_none() || self.model.vqps[vqp].crowded || self.is_crowded()
    }

    /// Whether a VQP's messages found no room, as it was told, that a member took who sends some of his own, as any sender may.
    pub(crate) fn was_crowded_out(&self, vqp: VqpIx) -> bool {
        self.forger_sends() && self.model.vqps[vqp].crowded_out
    }

    /// Whether somebody who forges has sent messages that ports take.
    pub(crate) fn forger_sends(&self) -> bool {
        self.forge.as_ref().is_some_and(|forge| forge.has_sent_messages())
    }

    /// Whether somebody who forges has sent messages that are to be read from him.
    pub(crate) fn forger_sends_long(&self) -> bool {
        self.forge.as_ref().is_some_and(|forge| forge.has_sent_long_messages())
    }

    /// Whether one receiver may hold all that it can.
    fn is_crowded(&self) -> bool {
        if self.forger_sends() {
            return true;
        }
        // Also what senders have sent that are gone, or are connected elsewhere, may wait there.
        let (mut count, mut bytes) = (0, 0);
        for op in self.model.ops.iter().filter(|op| op.is_message() && !op.delivered) {
            count += 1;
            bytes += Config::HELD_MESSAGE_BYTES + u64::from(op.len);
        }
        let config = &self.plan.config;
        count >= config.backlog || bytes >= config.backlog_bytes
    }

    /// A VQP sends a message: all whose messages are under way may find no room.
    pub(crate) fn message_sent(&mut self, vqp: VqpIx, op: OpIx) {
        let known = &mut self.model.vqps[vqp];
        known.crowded &= !known.stream.is_empty();
        known.stream.push_back(op);
        if self.is_crowded() {
            self.model.crowd();
        }
    }
}
