//! How the core's own operations end, and who goes on then.

use elver_verbs::{Device, Time, WcStatus};

use crate::Core;
use crate::datapath::ops::{Op, OpKind};
use crate::datapath::recovery::Verdict;
use crate::datapath::wr_id::WrId;
use crate::ids::OpId;

impl<D: Device> Core<D> {
    /// The WR of an operation has completed.
    pub(crate) fn complete_op(&mut self, id: OpId, status: WcStatus, now: Time) {
        let Some(op) = self.datapath.ops.get(id) else {
            self.stats.completions_unknown += 1;
            return;
        };
        let to = (op.peer, op.dest);
        let Some(lane) = op.lane else {
            return bug!("an operation completes that has no lane");
        };
        let verdict = match status {
            WcStatus::Success => None,
            status => Some(self.lane_failed(lane, status, to, now)),
        };
        if verdict == Some(Verdict::Unsure) {
            let Some(path) = &self.lanes.lanes[lane].path else {
                return bug!("the fate of an operation over DC is asked for");
            };
            let psns = self.datapath.ops.get(id).map_or(1, |op| path.psns_of_op(op));
            return self.hold_flushed(lane, WrId::Op(id), psns);
        }
        self.account(lane, 1);
        match verdict {
            None => self.conclude_op(id, true, now),
            Some(Verdict::Guilty(_)) => self.conclude_op(id, false, now),
            Some(Verdict::Repeatable) if !self.datapath.is_repeatable(id) => {
                self.conclude_op(id, false, now);
            }
            Some(Verdict::Innocent | Verdict::Repeatable | Verdict::Unsure) => {
                self.lanes.op_again(id, lane);
            }
        }
        self.try_restart(lane, now);
    }

    /// The WR of an operation succeeded or did not: the operation goes on, or ends.
    pub(crate) fn conclude_op(&mut self, id: OpId, ok: bool, now: Time) {
        match self.datapath.ops.get(id).map(|op| &op.kind) {
            Some(OpKind::Node { .. } | OpKind::Mr { .. }) => self.complete_lookup(id, ok, now),
            Some(OpKind::Probe { .. }) => self.probe_ended(id, ok, now),
            Some(OpKind::Gather(_)) => self.conclude_gather(id, ok, now),
            Some(OpKind::Message(_)) => {
                let Some(Op { peer, kind: OpKind::Message(note), .. }) = self.end_op(id) else {
                    return bug!("an operation that has ended is gone");
                };
                self.note_ended(peer, note, ok, now);
            }
            None => bug!("an operation that is gone ends"),
        }
    }
}
