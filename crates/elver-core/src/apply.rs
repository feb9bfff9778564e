//! Has parts of a core go on that others have found work for.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::effects::Effect;

impl<D: Device> Core<D> {
    /// Whether something is left to be done: an effect, or a note that can be told.
    #[inline]
    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty() || self.may_tell()
    }

    /// Does what parts have left to be done, until nothing is. Returns whether there was anything.
    #[inline]
    pub(crate) fn apply(&mut self, now: Time) -> bool {
        self.has_effects() && self.apply_all(now)
    }

    #[cold]
    fn apply_all(&mut self, now: Time) -> bool {
        while self.has_effects() {
            self.tell_waiting(now);
            while let Some(effect) = self.effects.pop() {
                self.apply_one(effect, now);
            }
        }
        true
    }

    fn apply_one(&mut self, effect: Effect, now: Time) {
        match effect {
            Effect::Pump(vqp) => {
                if self.vqps.get(vqp).is_some() {
                    self.pump(vqp, now);
                }
            }
            Effect::Conclude { op, ok } => self.conclude_op(op, ok, now),
            Effect::SeekMetaLink => {
                self.seek_meta_link(now);
                self.start_lookups(now);
            }
            Effect::NodeFound { peer, found } => {
                self.node_found(peer, found, now);
                self.start_lookups(now);
            }
            Effect::NoRegion { peer, rkey } => self.mr_found(peer, rkey, None, now, now),
            Effect::StartMrLookups => self.start_mr_lookups(now),
            Effect::WantLane(peer, class) => {
                if self.peers.get(peer).is_some() {
                    self.want_lane(peer, class, now);
                }
            }
            Effect::PeerPast(id) => self.fail_past(id, now),
            Effect::LinkErrored(qp) => self.link_errored(qp, now),
            Effect::Restart(lane) => self.try_restart(lane, now),
        }
    }

    /// A node is to be looked up. If no meta server can be asked, since the link to it was refused or
    /// not answered, the next one is asked for now and not at the next sweep.
    fn seek_meta_link(&mut self, now: Time) {
        if !self.reaches_meta_server() && !self.awaits_meta_link() {
            self.sweep_links(now);
        }
    }
}
