//! The lists of a lane: who waits for it, and who was thrown back to it.

use alloc::vec::Vec;

use elver_verbs::Device;

use crate::Core;
use crate::VqpId;
use crate::ids::{LaneIx, PeerId};
use crate::pool::lane::{LaneKind, LaneState};

impl<D: Device> Core<D> {
    /// So many physical WRs of a lane have completed.
    #[inline(always)] // At each completion.
    pub(crate) fn account(&mut self, lane: LaneIx, count: u32) {
        let entry = &mut self.lanes.lanes[lane];
        count_off!(entry.uncompleted, count);
        let qp = entry.qp;
        let phys = &mut self.lanes.qps[qp];
        count_off!(phys.posted, count);
        self.lanes.freed(qp, &mut self.dirty_qps);
    }

    /// Puts a VQP behind the others that wait for its lane.
    pub(crate) fn enlist(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone takes its turn");
        };
        let Some(lane) = vqp.lane else { return };
        if vqp.ready || !vqp.may_post() || vqp.sq.unposted() == 0 {
            return;
        }
        vqp.ready = true;
        self.lanes.lanes[lane].ready.push_back(id);
        self.lanes.wait(lane);
    }

    /// Takes a VQP of which nothing is on its lane off that lane's lists.
    pub(crate) fn leave_lane(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone leaves its lane");
        };
        let Some(lane) = vqp.lane else { return };
        let lane = &mut self.lanes.lanes[lane];
        count_off!(lane.vqps, 1);
        if core::mem::take(&mut vqp.ready) {
            lane.ready.retain(|other| *other != id);
        }
        // What came back to it from a lane that fails it posts on the next one.
        if core::mem::take(&mut vqp.rewound) {
            lane.rewound.retain(|other| *other != id);
        }
    }

    /// The WRs of a VQP from the first that is not done on were not executed, or may be executed again:
    /// they are posted again when its lane is set going, or over another one.
    pub(crate) fn rewind(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone is rewound") };
        let Some(lane) = vqp.lane else { return bug!("a VQP without a lane is rewound") };
        if !vqp.rewound {
            vqp.rewound = true;
            self.stats.wrs_reposted += u64::from(vqp.sq.posted.wrapping_sub(vqp.sq.done));
            vqp.sq.posted = vqp.sq.done;
            self.lanes.lanes[lane].rewound.push(id);
        }
    }

    /// A lane takes WRs again.
    pub(crate) fn set_running(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes.lanes[lane];
        (entry.state, entry.unsure) = (LaneState::Running, None);
    }

    /// Takes what waits on a lane that has failed off its lists: VQPs, in order, and the peer that
    /// does not answer.
    pub(crate) fn take_waiting(&mut self, lane: LaneIx) -> (Option<PeerId>, Vec<VqpId>) {
        let entry = &mut self.lanes.lanes[lane];
        let dead = entry.dead.take();
        let mut waiting = core::mem::take(&mut entry.rewound);
        let mut turns = core::mem::take(&mut entry.ready);
        for id in &waiting {
            if let Some(vqp) = self.vqps.get_mut(*id) {
                (vqp.rewound, vqp.ready) = (false, false);
            }
        }
        // Who was on the lane comes before who waited for it; some did both.
        for id in turns.drain(..) {
            if self.vqps.get_mut(id).is_some_and(|vqp| core::mem::take(&mut vqp.ready)) {
                waiting.push(id);
            }
        }
        self.lanes.lanes[lane].ready = turns;
        (dead, waiting)
    }

    /// The peer of a VQP that waits on a lane, unless it has left it meanwhile, or failed.
    pub(crate) fn peer_waited_for(&self, id: VqpId, lane: LaneIx) -> Option<PeerId> {
        let vqp = self.vqps.get(id)?;
        vqp.peer.filter(|_| vqp.lane == Some(lane) && vqp.phase.is_connected())
    }

    /// Whether a lane is of a DCI that is down.
    pub(crate) fn is_down(&self, lane: LaneIx) -> bool {
        let entry = &self.lanes.lanes[lane];
        matches!(entry.kind, LaneKind::Dc { .. })
            && self.outages.iter().any(|outage| outage.qp == entry.qp)
    }
}
