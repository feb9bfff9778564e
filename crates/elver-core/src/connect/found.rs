//! Connects go on whose peer was looked up.

use elver_verbs::{Device, Policy, Time, Via};

use crate::VqpId;
use crate::ids::PeerId;
use crate::vqp::phase::Phase;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// The look-up that a connect waited for has ended.
    pub(crate) fn connect_found(
        &mut self,
        id: VqpId,
        attempt: u32,
        peer: PeerId,
        found: Result<(), ConnectError>,
        now: Time,
    ) {
        // It may have been destroyed meanwhile, or connected anew.
        let Some(vqp) = self.vqps.get_mut(id) else { return };
        if vqp.phase != Phase::Connecting || vqp.attempt != attempt {
            return;
        }
        let by_link = matches!(vqp.policy, Policy::Lite | Policy::Leased);
        if found.is_ok() && (by_link || self.lacks_dc(peer)) {
            return self.connect_by_link(id, attempt, peer, now);
        }
        self.connect_ended(id, peer, found.map(|()| (Via::DcLookup, None)), now);
    }

    /// A connect goes on with an RC QP: the peer's, or one of its own.
    pub(crate) fn connect_by_link(&mut self, id: VqpId, attempt: u32, peer: PeerId, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return bug!("a VQP that is gone connects") };
        let (class, policy) = (vqp.class, vqp.policy);
        if policy == Policy::Leased {
            return self.lease_link(id, attempt, peer, now);
        }
        match self.peers.get(peer).and_then(|entry| entry.rc[class as usize]) {
            Some(_) => self.link_found(id, attempt, peer, Ok(()), now),
            None => self.await_link(id, attempt, peer, now),
        }
    }
}
