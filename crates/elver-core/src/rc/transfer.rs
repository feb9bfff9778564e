//! VQPs that move between lanes (section 4.6): to an RC QP that was made for a hot peer, and off one
//! that is closed.
//!
//! A VQP that moves posts nothing until all that it has on its old lane has completed: what completes
//! keeps its order, and nothing is executed twice or not at all. KRCORE posts a fake signalled
//! request to know that moment; here the last WR of every burst is signalled anyway and plays that
//! part. The peer has agreed before: an RC QP takes WRs only when its other end is ready, and
//! vanishes only when both sides have left it. Meanwhile both lanes complete to the one queue of the
//! node, which is KRCORE's lazy switch. Messages arrive at whatever QP the sender takes.

use alloc::vec::Vec;

use elver_verbs::{Class, Device, Memory, Via};

use crate::VqpId;
use crate::discovery::peer::Peers;
use crate::effects::Effect;
use crate::ids::{LaneIx, PeerId};
use crate::keep_alive::Watched;
use crate::pool::lane::{LaneKind, LaneState};
use crate::rc::link::LinkState;
use crate::rc::links::Links;
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::{Core, Stats};

impl Peers {
    /// Whether what a VQP is connected to has gone, and its peer is another now: that one is not sent the rest of what the
    /// first had the beginning of.
    pub(crate) fn is_to_past(&self, vqp: &Vqp) -> bool {
        let record = vqp.peer.and_then(|peer| self.get(peer)).and_then(|entry| entry.record);
        vqp.phase.is_connected()
            && vqp.watched != Watched::Unknown
            && record.is_some_and(|record| record.tag() != vqp.peer_tag)
    }
}

impl<M: Memory> Links<M> {
    /// Whether all VQPs are to leave a lane.
    fn is_left(&self, lane: LaneIx) -> bool {
        let link = self.rc.by_lane(lane).and_then(|link| self.rc.get(link));
        link.is_some_and(|link| matches!(link.state, LinkState::Leaving(_)))
    }
}

impl<D: Device> Core<D> {
    /// Moves the VQPs of a class that are connected to a peer to its RC QP.
    pub(crate) fn move_onto_link(&mut self, peer: PeerId, class: Class) {
        let Some(target) = self.peers.get(peer).and_then(|entry| entry.rc[class as usize]) else {
            return;
        };
        let fits = |vqp: &Vqp| {
            vqp.class == class
                && vqp.lane != Some(target)
                && vqp.via != Some(Via::Leased)
                && vqp.phase.is_connected()
        };
        let found = self.vqps_to(peer).filter(|(_, vqp)| fits(vqp));
        let found: Vec<VqpId> = found.map(|(id, _)| id).collect();
        for id in found {
            self.transfer(id);
        }
    }

    /// Moves all VQPs off the lane of an RC QP.
    pub(crate) fn move_off(&mut self, lane: LaneIx) {
        let LaneKind::Rc { peer } = self.lanes.lanes[lane].kind else {
            return bug!("a link has a lane of DC");
        };
        let found = self.vqps_to(peer).filter(|(_, vqp)| vqp.lane == Some(lane));
        let found: Vec<VqpId> = found.map(|(id, _)| id).collect();
        for id in found {
            self.transfer(id);
        }
    }

    /// Has a VQP move to the lane that it should be on, as soon as nothing of its is on its old one.
    fn transfer(&mut self, id: VqpId) {
        // One that its client is done with may have gone when another before it moved.
        let Some(vqp) = self.vqps.get_mut(id) else { return };
        if vqp.inflight == 0 {
            return self.switch_lane(id);
        }
        // Its last completion tells. One that has failed leaves the lane then, if others are to, too.
        if vqp.phase == Phase::Connected {
            vqp.phase = Phase::Moving;
        }
    }

    /// Switches the VQPs that move and of which nothing is under way any longer.
    pub(crate) fn switch_moved(&mut self) {
        while let Some(id) = self.links.moved.pop() {
            // One that took another lane before its turn came here, and is asked to leave that one as
            // well, comes here anew when what it posted there has completed.
            if self.vqps.get(id).is_some_and(|vqp| self.is_to_move(vqp) && vqp.inflight == 0) {
                self.switch_lane(id);
            }
        }
    }

    /// Whether a VQP is to leave its lane, as soon as nothing of its is on it.
    pub(crate) fn is_to_move(&self, vqp: &Vqp) -> bool {
        let ends = |at: LaneIx| vqp.phase.is_over() && self.links.is_left(at);
        vqp.phase == Phase::Moving || vqp.lane.is_some_and(ends)
    }

    /// Puts a VQP of which nothing is on a lane onto the lane that it should be on now.
    pub(crate) fn switch_lane(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone takes another lane");
        };
        if vqp.inflight > 0 {
            return bug!("a VQP takes another lane with WRs on its old one");
        }
        if vqp.phase == Phase::Moving {
            vqp.phase = Phase::Connected;
        }
        let unsure = vqp.accepted.as_mut().map(|accepted| &mut accepted.peer_unsure);
        if unsure.is_some_and(core::mem::take) {
            self.measure_room(id);
        }
        let Some(vqp) = self.vqps.get(id) else {
            return bug!("a VQP that was measured is gone");
        };
        if self.peers.is_to_past(vqp) {
            self.leave_lane(id);
            if let Some(vqp) = self.vqps.get_mut(id) {
                (vqp.lane, vqp.dest) = (None, None);
            }
            return self.effects.push(Effect::PeerPast(id));
        }
        let (old, class) = (vqp.lane, vqp.class);
        let Some(peer) = vqp.peer else {
            return bug!("a VQP takes another lane that is connected to nobody");
        };
        let connected = vqp.phase.is_connected();
        let target = if connected { self.shared_lane(peer, class) } else { None };
        if target.is_some() && target == old {
            return self.effects.push(Effect::Pump(id));
        }
        self.leave_lane(id);
        let dest = target.and_then(|lane| match self.lanes.lanes[lane].kind {
            LaneKind::Dc { stream } => self.peers.get(peer)?.dc_dest(stream),
            LaneKind::Rc { .. } => None,
        });
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that takes another lane is gone");
        };
        match target {
            Some(lane) => {
                let rc = dest.is_none();
                (vqp.lane, vqp.dest) = (Some(lane), dest);
                vqp.count_move(if rc { Via::Rc } else { Via::DcCached }, &mut self.stats);
                self.lanes.lanes[lane].vqps += 1;
                self.effects.push(Effect::Pump(id));
            }
            None => {
                (vqp.lane, vqp.dest) = (None, None);
                // It stays connected: its WRs wait in its ring for the next lane. One without any finds
                // its lane when it has some. Else a peer that agrees to each RC QP, and then answers
                // nothing over it, would be asked for the next one for ever.
                let waits = connected && self.vqps.get(id).is_some_and(|vqp| vqp.sq.unposted() > 0);
                if waits {
                    self.effects.push(Effect::WantLane(peer, class));
                }
            }
        }
    }

    /// Where the VQPs of a class that are connected to a peer should be: on the RC QP to it if there
    /// is one, else on a lane of DC.
    fn shared_lane(&mut self, peer: PeerId, class: Class) -> Option<LaneIx> {
        let entry = self.peers.get(peer)?;
        let works = |lane: &LaneIx| self.lanes.lanes[*lane].state != LaneState::Gone;
        if let Some(lane) = entry.rc[class as usize].filter(works) {
            return Some(lane);
        }
        entry.record?;
        if self.lacks_dc(peer) {
            return None;
        }
        let lane = self.lanes.dc_lane(entry.hash, class)?;
        self.address_of(peer).ok()?;
        Some(lane)
    }
}

impl Vqp {
    /// What backs it is another QP now; from one DCI to another is no transfer.
    pub(crate) fn count_move(&mut self, via: Via, stats: &mut Stats) {
        let was_rc = matches!(self.via, Some(Via::Rc | Via::Leased));
        let is_rc = matches!(via, Via::Rc | Via::Leased);
        self.via = Some(via);
        if was_rc || is_rc {
            self.transfers += 1;
            let count = if is_rc { &mut stats.transfers_to_rc } else { &mut stats.transfers_to_dc };
            *count += 1;
        }
    }
}
