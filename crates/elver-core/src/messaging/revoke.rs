//! Taking messages back whose VQP has failed.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::VqpId;
use crate::messaging::message::Kind;

impl<D: Device> Core<D> {
    /// Takes back the messages of a VQP in its error state, of which nothing is on a lane.
    pub(crate) fn revoke(&mut self, id: VqpId, now: Time) {
        let until = self.unread_from(now);
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone takes messages back");
        };
        if vqp.read_until.is_some() {
            return;
        }
        vqp.read_until = Some(until);
        let (first, count) = (vqp.sq.head, vqp.sq.len());
        for seq in (0..count).map(|n| first.after(n)) {
            let Some(vqp) = self.vqps.get(id) else {
                return bug!("a VQP that takes messages back is gone");
            };
            if vqp.awaits(seq)
                && let Some((peer, note)) = vqp.note(Kind::Revoke, seq)
            {
                self.messaging.notes.tell(&mut self.stats, peer, note);
            }
        }
    }
}
