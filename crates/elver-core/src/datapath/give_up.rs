//! Gives up what stands first on lanes without getting on.

use alloc::vec::Vec;

use elver_verbs::{Device, Time};

use crate::Core;
use crate::datapath::Datapath;
use crate::datapath::stalls::LOOK_NS;
use crate::due::Alarm;
use crate::ids::{LaneIx, QpIx};
use crate::pool::lane::{LaneKind, LaneState};

impl<D: Device> Core<D> {
    /// Ends what has stood first for too long on lanes that operations of the core's own wait on. Whether
    /// there was anything.
    #[inline]
    pub(crate) fn attend_stalls(&mut self, now: Time) -> bool {
        self.datapath.stalls.due.is_due(now) && self.look_at_heads(now)
    }

    #[cold]
    fn look_at_heads(&mut self, now: Time) -> bool {
        let due = self.datapath.stalls.due.get().unwrap_or(now);
        let late = now.ns_since(due) > LOOK_NS / 2;
        let mut lanes: Vec<LaneIx> =
            self.datapath.ops.iter().filter_map(|(_, op)| op.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let more = self.datapath.ops.len() > 0;
        self.datapath.stalls.due =
            if more { now.saturating_add_ns(LOOK_NS).into() } else { Alarm::NEVER };
        let Core { lanes: all, device, datapath: Datapath { stalls, .. }, .. } = self;
        let head = |lane: LaneIx| {
            let (qp, stream) = place_of(all.lanes[lane].kind, all.lanes[lane].qp);
            Some((lane, device.send_head(all.qps[qp].qp, stream)?))
        };
        let running = |lane: &LaneIx| all.lanes[*lane].state == LaneState::Running;
        let stalled = stalls.look(lanes.into_iter().filter(running).filter_map(head), late);
        let mut busy = false;
        for (lane, head) in stalled {
            let (qp, stream) = place_of(all.lanes[lane].kind, all.lanes[lane].qp);
            if device.give_up_head(all.qps[qp].qp, stream, head) {
                self.stats.lanes_stalled += 1;
                busy = true;
            }
        }
        busy
    }
}

/// The QP of a lane, and its stream there.
fn place_of(kind: LaneKind, qp: QpIx) -> (QpIx, u16) {
    match kind {
        LaneKind::Dc { stream } => (qp, stream),
        LaneKind::Rc { .. } => (qp, 0),
    }
}
