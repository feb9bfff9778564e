//! How connects end that have waited.

use elver_verbs::{Device, Time, Via};

use crate::connect::attach::Onto;
use crate::effects::Effect;
use crate::ids::{LaneIx, PeerId};
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::{ConnectError, Core, Event, VqpId};

impl<D: Device> Core<D> {
    /// The link that a connect waited for is there, or will not come.
    pub(crate) fn link_found(
        &mut self,
        id: VqpId,
        attempt: u32,
        peer: PeerId,
        found: Result<(), ConnectError>,
        now: Time,
    ) {
        let waits = |vqp: &Vqp| vqp.phase == Phase::Connecting && vqp.attempt == attempt;
        if self.vqps.get(id).is_some_and(|vqp| waits(vqp)) {
            self.connect_ended(id, peer, found.map(|()| (Via::Rc, None)), now);
        }
    }

    /// A connect that was pending has ended: with what backs the VQP, and the lane of that if it is
    /// not the peer's.
    pub(crate) fn connect_ended(
        &mut self,
        id: VqpId,
        peer: PeerId,
        found: Result<(Via, Option<LaneIx>), ConnectError>,
        now: Time,
    ) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone has connected");
        };
        let (client, token) = (vqp.client, vqp.token);
        vqp.phase = Phase::Idle;
        count_off!(self.discovery.lookups.waiting, 1);
        let result = found.and_then(|(via, lane)| {
            let attached = self.attach(id, peer, via, lane.map_or(Onto::Shared, Onto::Own));
            attached
                .map(|()| via)
                .map_err(|_| ConnectError::Unreachable { gid: self.peers.gid_of(peer) })
        });
        match &result {
            Ok(via) => self.count_connect(*via),
            Err(_) => {
                self.stats.connects_failed += 1;
                self.fail(id, now);
            }
        }
        self.events.push_back(Event::Connected { client, token, vqp: id, result });
        if self.vqps.get(id).is_some_and(|vqp| vqp.lane.is_none() || vqp.sq.unposted() > 0) {
            self.effects.push(Effect::Pump(id));
        }
    }

    pub(crate) fn count_connect(&mut self, via: Via) {
        match via {
            Via::Rc | Via::Leased => self.stats.connects_rc += 1,
            Via::DcCached => self.stats.connects_cached += 1,
            Via::DcLookup => self.stats.connects_looked_up += 1,
        }
    }
}
