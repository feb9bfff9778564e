//! Sets DCIs going again, and sends what was on them another way meanwhile.

use elver_verbs::{Device, Qp, QpAttr, QpState, Time, WcStatus};

use super::{Outage, PATIENCE_NS, RETRY_NS_MAX, RETRY_NS_MIN};
use crate::Core;
use crate::datapath::Datapath;
use crate::effects::Effect;
use crate::ids::{LaneIx, QpIx};
use crate::pool::lane::LaneState;

impl Datapath {
    /// When a DCI that is down is tried again.
    pub(crate) fn next_restart(&self) -> Option<Time> {
        self.outages.iter().map(|outage| outage.due).min()
    }
}

impl<D: Device> Core<D> {
    /// Sets a DCI up anew, all streams of which failed at once, when nothing is outstanding on any.
    pub(crate) fn try_restart_dci(&mut self, qp: QpIx, now: Time) {
        let down = self.datapath.outages.iter().any(|outage| outage.qp == qp);
        if down || self.lanes.qps[qp].posted > 0 {
            return;
        }
        let (wait_ns, destroyed) = (RETRY_NS_MIN, false);
        self.restart_dci(Outage { qp, since: now, due: now, wait_ns, destroyed }, now);
    }

    /// Tries DCIs that are down and whose time has come. Returns whether there was one.
    pub(crate) fn retry_dcis(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(at) = self.datapath.outages.iter().position(|outage| outage.due <= now) {
            let outage = self.datapath.outages.swap_remove(at);
            self.restart_dci(outage, now);
            busy = true;
        }
        busy
    }

    fn restart_dci(&mut self, mut outage: Outage, now: Time) {
        let qp = outage.qp;
        let lanes = self.lanes.qps[qp].all_lanes();
        if self.start_anew(&mut outage) {
            self.lanes.qps[qp].broken = false;
            for lane in lanes {
                self.lanes.run(lane);
                self.resume(lane, now);
            }
            return;
        }
        self.stats.dci_restarts_refused += 1;
        let late = now.ns_since(outage.since) >= PATIENCE_NS;
        outage.due = now.saturating_add_ns(outage.wait_ns);
        outage.wait_ns = (2 * outage.wait_ns).min(RETRY_NS_MAX);
        self.datapath.outages.push(outage);
        for lane in lanes {
            // The device would refuse what the idle ones are given.
            self.lanes.lanes[lane].state = LaneState::Failing;
            self.leave_down_lane(lane, late, now);
        }
    }

    /// Takes a DCI through RESET, or another one in its place. Returns whether there is one that
    /// works.
    fn start_anew(&mut self, outage: &mut Outage) -> bool {
        let handle = self.lanes.qps[outage.qp].qp;
        if !outage.destroyed {
            if self.reset_dci(handle) {
                return true;
            }
            if self.device.destroy_qp(handle).is_err() {
                return false;
            }
            outage.destroyed = true;
        }
        let streams = self.lanes.streams;
        let Ok(made) = self.pool.create_dci(&mut self.device, &self.config, streams) else {
            return false;
        };
        outage.destroyed = false;
        self.lanes.qps[outage.qp].qp = made;
        self.stats.dcis_remade += 1;
        true
    }

    fn reset_dci(&mut self, handle: Qp) -> bool {
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        self.device.advance_qp(handle, &reset).is_ok()
            && self.pool.start_dci(&mut self.device, &self.config, handle).is_ok()
    }

    /// Has what waits on a lane of a DCI that is down go over another one. If there is none it
    /// waits on, or ends if it is late.
    fn leave_down_lane(&mut self, lane: LaneIx, late: bool, now: Time) {
        let (dead, waiting) = self.take_waiting(lane);
        for id in waiting {
            let Some(peer) = self.peer_waited_for(id, lane) else { continue };
            if dead == Some(peer) {
                self.fail_next(id, WcStatus::RetryExcErr, now);
                continue;
            }
            self.move_to_dc(id);
            let stays = self.vqps.get(id).is_some_and(|vqp| vqp.lane == Some(lane));
            if stays && late {
                self.fail_next(id, WcStatus::LocQpOpErr, now);
            } else {
                self.effects.push(Effect::Pump(id));
            }
        }
        let class = self.lanes.class_of(self.lanes.lanes[lane].qp);
        for id in core::mem::take(&mut self.lanes.lanes[lane].ops) {
            let Some(peer) = self.datapath.ops.get(id).map(|op| op.peer) else {
                bug!("an operation that waits on a lane is gone");
                continue;
            };
            let way = self.way_of_op(peer, class).filter(|(other, _)| *other != lane);
            if let Some(op) = self.datapath.ops.get_mut(id)
                && let Some((lane, dest)) = way
                && dead != Some(peer)
            {
                (op.lane, op.dest) = (Some(lane), dest);
                self.post_op(id, now);
            } else if late || dead == Some(peer) {
                self.effects.push(Effect::Conclude { op: id, ok: false });
            } else {
                self.lanes.lanes[lane].ops.push_back(id);
            }
        }
        self.lanes.wait(lane);
    }
}
