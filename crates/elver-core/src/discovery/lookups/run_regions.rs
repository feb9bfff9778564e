//! Runs look-ups of regions at their owners.

use alloc::vec::Vec;

use elver_kv::Lookup;
use elver_verbs::{AccessFault, Class, Device, Time};

use crate::datapath::ops::{Op, OpKind, Work};
use crate::discovery::peer::Waiter;
use crate::effects::Effect;
use crate::ids::{OpId, PeerId};
use crate::vqp::{Vqp, Wait};
use crate::{Core, VqpId};

impl<D: Device> Core<D> {
    /// Has a region of a peer's looked up for a VQP, which waits for it; or else fails the VQP, if its
    /// account guesses.
    pub(crate) fn want_mr(&mut self, peer: PeerId, rkey: u32, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone uses a region");
        };
        let was_there = vqp.remote_key == rkey && vqp.remote.until != Vqp::NO_REMOTE.1.until;
        let account = self.clients.get(vqp.client).map_or(0, |client| client.limits.account);
        if !was_there && self.guesses.holds(account, now) {
            self.stats.mr_keys_refused += 1;
            return self.fail_access(id, AccessFault::Distrusted, now);
        }
        vqp.wait = Wait::Mr;
        if !self.lookups.mrs.join((peer, rkey), id) {
            self.lookups.mrs.begin((peer, rkey), account, was_there, id);
            self.start_mr_lookups(now);
        }
    }

    pub(crate) fn start_mr_lookups(&mut self, now: Time) {
        while let Some(((peer, rkey), guess)) = self.lookups.mrs.next() {
            if guess.is_some_and(|account| self.guesses.holds(account, now)) {
                // It has guessed too often while this waited.
                self.lookups.mrs.pass();
                self.effects.push(Effect::GuessRefused { peer, rkey });
                continue;
            }
            let Some(buffer) = self.pool.reads.take() else { return };
            self.lookups.mrs.pass();
            let record = self.peers.get(peer).and_then(|entry| entry.record);
            if record.is_none() && self.peers.get(peer).is_some() {
                // It did not answer over DC once, but it does over an RC QP.
                self.pool.reads.give(buffer);
                self.want_node(peer, Waiter::Region(rkey), now);
                continue;
            }
            let begun = record.and_then(|record| {
                let lookup = Lookup::new(&record.mrs().ok()?, &rkey.to_le_bytes()).ok()?;
                let read = lookup.read();
                let work = Work::Read { remote: read.remote, length: read.len, buffer };
                let kind = OpKind::Mr { rkey, lookup, asked_at: now };
                self.start_op(peer, Class::Low, kind, work).ok()
            });
            match begun {
                Some(op) => {
                    self.stats.mr_lookups += 1;
                    self.stats.mr_lookup_reads += 1;
                    self.post_op(op, now);
                }
                None => {
                    self.pool.reads.give(buffer);
                    self.effects.push(Effect::NoRegion { peer, rkey });
                }
            }
        }
    }

    /// A peer has started anew: none of the regions that it had is there any longer, and what is
    /// being asked about them is not answered by who has them now.
    pub(crate) fn forget_regions(&mut self, peer: PeerId) {
        self.store.forget_peer(peer);
        let vqps: Vec<VqpId> = self.vqps_to(peer).map(|(id, _)| id).collect();
        for id in vqps {
            if let Some(vqp) = self.vqps.get_mut(id) {
                (vqp.remote_key, vqp.remote) = Vqp::NO_REMOTE;
            }
        }
        let asks = |op: &Op| op.peer == peer && matches!(op.kind, OpKind::Mr { .. });
        let asked: Vec<OpId> =
            self.ops.iter().filter(|(_, op)| asks(op)).map(|(id, _)| id).collect();
        for id in asked {
            self.abandon_op(id);
        }
    }
}
