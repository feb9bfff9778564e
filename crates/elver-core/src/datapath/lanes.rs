//! The lists of a lane: who waits for it, and who was thrown back to it.

use alloc::vec::Vec;

use elver_verbs::Device;

use crate::Core;
use crate::VqpId;
use crate::ids::{LaneIx, PeerId};
use crate::pool::lane::LaneKind;
use crate::pool::lanes::Stands;

impl<D: Device> Core<D> {
    /// So many physical WRs of a lane have completed.
    #[inline(always)] // At each completion.
    pub(crate) fn account(&mut self, lane: LaneIx, count: u32) {
        self.lanes.completed(lane, count, &mut self.datapath.dirty_qps);
    }

    /// Puts a VQP behind the others that wait for its lane.
    pub(crate) fn enlist(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone takes its turn");
        };
        if let Some(lane) = vqp.wait_for_lane() {
            self.lanes.enlist(lane, id);
        }
    }

    /// Takes a VQP of which nothing is on its lane off that lane's lists.
    pub(crate) fn leave_lane(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone leaves its lane");
        };
        // What came back to it from a lane that fails it posts on the next one.
        if let Some(lane) = vqp.lane {
            self.lanes.leave(lane, id, vqp.leave_lists());
        }
    }

    /// The WRs of a VQP from the first that is not done on were not executed, or may be executed again:
    /// they are posted again when its lane is set going, or over another one.
    pub(crate) fn rewind(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone is rewound") };
        let Some(lane) = vqp.lane else { return bug!("a VQP without a lane is rewound") };
        if let Some(count) = vqp.rewind() {
            self.stats.wrs_reposted += u64::from(count);
            self.lanes.throw_back(lane, id);
        }
    }

    /// Takes what waits on a lane that has failed off its lists: VQPs, in order, and the peer that
    /// does not answer.
    pub(crate) fn take_waiting(&mut self, lane: LaneIx) -> (Option<PeerId>, Vec<VqpId>) {
        let vqps = &mut self.vqps;
        let leaves = |id| vqps.get_mut(id).map_or(Stands::default(), |vqp| vqp.leave_lists());
        self.lanes.take_waiting(lane, leaves)
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
            && self.datapath.outages.iter().any(|outage| outage.qp == entry.qp)
    }
}
