//! Lets go on what waits on a lane that has failed.

use elver_verbs::{Device, Time, WcStatus};

use crate::Core;
use crate::effects::Effect;
use crate::ids::{LaneIx, OpId};
use crate::pool::lane::LaneState;

impl<D: Device> Core<D> {
    /// Lets go on what waits on a lane that has failed.
    pub(crate) fn resume(&mut self, lane: LaneIx, now: Time) {
        let (dead, waiting) = self.take_waiting(lane);
        let running = self.lanes.lanes[lane].state == LaneState::Running;
        for id in waiting {
            let Some(peer) = self.peer_waited_for(id, lane) else { continue };
            if dead == Some(peer) {
                self.fail_next(id, WcStatus::RetryExcErr, now);
            } else if running {
                self.enlist(id);
            } else if self.move_to_dc(id) {
                self.effects.push(Effect::Pump(id));
            } else {
                self.switch_lane(id);
            }
        }
        let ops = core::mem::take(&mut self.lanes.lanes[lane].ops);
        for op in ops {
            let Some(peer) = self.datapath.ops.get(op).map(|op| op.peer) else {
                bug!("an operation that waits on a lane is gone");
                continue;
            };
            if dead == Some(peer) {
                self.effects.push(Effect::Conclude { op, ok: false });
            } else if running {
                self.lanes.lanes[lane].ops.push_back(op);
            } else {
                self.send_op_elsewhere(op, lane, now);
            }
        }
        self.lanes.wait(lane);
        let qp = self.lanes.lanes[lane].qp;
        self.lanes.freed(qp, &mut self.datapath.dirty_qps);
    }

    /// An operation of the core's own takes another way than a lane that is gone, now or when there is
    /// one.
    fn send_op_elsewhere(&mut self, id: OpId, lane: LaneIx, now: Time) {
        let Some((peer, class)) = self.datapath.ops.get(id).map(|op| (op.peer, op.class)) else {
            return bug!("an operation that waits on a lane is gone");
        };
        if let Some((lane, dest)) = self.way_of_op(peer, class).filter(|(other, _)| *other != lane)
            && let Some(op) = self.datapath.ops.get_mut(id)
        {
            (op.lane, op.dest) = (Some(lane), dest);
            self.post_op(id, now);
        } else if self.way_comes(peer) {
            self.await_way(id, now);
        } else {
            self.effects.push(Effect::Conclude { op: id, ok: false });
        }
    }
}
