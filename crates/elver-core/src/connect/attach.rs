//! Ties VQPs to peers and to lanes.

use elver_verbs::{Device, VerbsError, Via};

use crate::effects::Effect;
use crate::ids::{LaneIx, MaybeVqp, PeerId};
use crate::keep_alive::Watched;
use crate::pool::lane::LaneKind;
use crate::vqp::phase::Phase;
use crate::{Core, CoreError, VqpId};

/// The lane that a VQP is tied to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Onto {
    /// The one that others take which are backed by the same.
    Shared,
    /// One that is its alone.
    Own(LaneIx),
    /// None before what its peer is was looked up.
    Nothing,
}

impl<D: Device> Core<D> {
    /// Ties a VQP to a peer and to a lane. What it needs for that is at hand.
    pub(crate) fn attach(
        &mut self,
        id: VqpId,
        peer: PeerId,
        via: Via,
        onto: Onto,
    ) -> Result<(), CoreError> {
        let none = || {
            let what = "the device has no DC, and there is no RC QP to the peer";
            CoreError::Device(VerbsError::Unsupported { what })
        };
        if self.peers.get(peer).is_none_or(|entry| entry.ah.is_none()) {
            self.address_of(peer)?;
        }
        let (Some(entry), Some(vqp)) = (self.peers.get_mut(peer), self.vqps.get_mut(id)) else {
            bug!("a VQP that is gone has connected");
            return Err(CoreError::NoSuchVqp(id));
        };
        let shared = match via {
            Via::Rc | Via::Leased => entry.rc[vqp.class as usize],
            Via::DcCached | Via::DcLookup => {
                let lane = self.lanes.dc_lane(entry.hash, vqp.class);
                lane.filter(|_| entry.record.is_some())
            }
        };
        let lane = match onto {
            Onto::Own(lane) => Some(lane),
            Onto::Nothing => None,
            // It gets one when it needs it.
            Onto::Shared if via == Via::Rc || entry.record.is_none() => shared,
            Onto::Shared => Some(shared.ok_or_else(none)?),
        };
        vqp.dest = match lane.map(|lane| &mut self.lanes.lanes[lane]) {
            Some(lane) => {
                lane.vqps += 1;
                match lane.kind {
                    LaneKind::Dc { stream } => entry.dc_dest(stream),
                    LaneKind::Rc { .. } => None,
                }
            }
            None => None,
        };
        (vqp.lane, vqp.via) = (lane, Some(via));
        vqp.phase = Phase::Connected;
        if let Some(tag) = entry.tag {
            (vqp.peer_tag, vqp.watched) = (tag, Watched::No);
        }
        vqp.measure_room(entry.last.as_ref(), self.pool.rooms());
        // It is in no peer's list, and goes to the head of this one's.
        entry.vqps += 1;
        let behind = core::mem::replace(&mut entry.last_vqp, id.into());
        (vqp.peer, vqp.beside) = (Some(peer), [MaybeVqp::default(), behind]);
        let newcomer = core::mem::replace(&mut vqp.newcomer, true);
        if let Some(vqp) = behind.get().and_then(|behind| self.vqps.get_mut(behind)) {
            vqp.beside[0] = id.into();
        }
        if !newcomer {
            self.keep_alive.connected(id);
        }
        Ok(())
    }

    /// Moves a connected VQP of which nothing is in flight to a DC lane: the QP that it was on is
    /// gone, or down. Returns whether it is on one.
    pub(crate) fn move_to_dc(&mut self, id: VqpId) -> bool {
        let Some(vqp) = self.vqps.get(id) else {
            bug!("a VQP that is gone moves");
            return false;
        };
        let (class, old) = (vqp.class, vqp.lane);
        let Some(peer) = vqp.peer else {
            bug!("a VQP moves that is connected to nobody");
            return false;
        };
        let inflight = vqp.inflight;
        if self.peers.is_to_past(vqp) {
            self.effects.push(Effect::PeerPast(id));
            return false;
        }
        if inflight > 0 || self.lacks_dc(peer) || self.address_of(peer).is_err() {
            return false;
        }
        let Some(entry) = self.peers.get(peer) else {
            bug!("a VQP moves to a peer that is gone");
            return false;
        };
        let lane = self.lanes.dc_lane(entry.hash, class);
        let Some(lane) = lane.filter(|_| entry.record.is_some()) else { return false };
        if Some(lane) == old {
            return true;
        }
        let LaneKind::Dc { stream } = self.lanes.lanes[lane].kind else {
            bug!("a lane of DC is none");
            return false;
        };
        let dest = entry.dc_dest(stream);
        self.leave_lane(id);
        self.lanes.lanes[lane].vqps += 1;
        let Some(vqp) = self.vqps.get_mut(id) else {
            bug!("a VQP that moves is gone");
            return false;
        };
        (vqp.lane, vqp.dest) = (Some(lane), dest);
        vqp.count_move(Via::DcCached, &mut self.stats);
        true
    }

    /// Takes a VQP off its peer's list, if it is in one.
    #[inline]
    pub(crate) fn leave_peer(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone leaves its peer");
        };
        if let Some(key) = vqp.watched_node() {
            self.keep_alive.leave(key, id, vqp.watched_port());
        }
        vqp.watched = Watched::Unknown;
        let [before, behind] = core::mem::take(&mut vqp.beside);
        let Some(peer) = vqp.peer.take() else { return };
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("the peer of a VQP is gone");
        };
        count_off!(entry.vqps, 1);
        if entry.last_vqp == id.into() {
            entry.last_vqp = behind;
        }
        for (neighbour, side, other) in [(before, 1, behind), (behind, 0, before)] {
            let Some(neighbour) = neighbour.get() else { continue };
            match self.vqps.get_mut(neighbour) {
                Some(vqp) => vqp.beside[side] = other,
                None => bug!("a VQP that is gone stands in its peer's list"),
            }
        }
        self.peers.rest(peer);
    }
}
