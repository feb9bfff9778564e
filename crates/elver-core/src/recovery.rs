//! A failed lane: who is to blame, and how the others go on.
//!
//! When a WR on a lane fails, the device flushes what stands behind it. The WR's own VQP goes to
//! its error state; if its peer does not answer at all, so do the other VQPs with something on the
//! lane to this peer, each of which would wait as long for nothing. The WRs of all others were not
//! executed: they go back to their rings. Once nothing is outstanding, the lane is set going again,
//! and they are posted anew, in order. [`crate::outage`] is about what is not set going.

use alloc::vec::Vec;

use elver_verbs::{Device, Time, WcStatus};

use crate::lane::{LaneKind, LaneState};
use crate::{Core, VqpState};

/// What a WR that did not succeed means for who posted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ends like this.
    Guilty(WcStatus),
    /// It was flushed for another's fault.
    Innocent,
}

impl<D: Device> Core<D> {
    /// A WR to `peer` on a lane completed with an error.
    pub(crate) fn lane_failed(&mut self, lane: u32, status: WcStatus, peer: u32) -> Verdict {
        let entry = &mut self.lanes.lanes[lane as usize];
        if entry.state == LaneState::Running {
            entry.state = LaneState::Failing;
            self.stats.lanes_reset += 1;
        }
        match status {
            WcStatus::WrFlushErr if entry.dead == Some(peer) => {
                Verdict::Guilty(WcStatus::RetryExcErr)
            }
            WcStatus::WrFlushErr => Verdict::Innocent,
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => {
                entry.dead = Some(peer);
                self.forget_record(peer);
                Verdict::Guilty(status)
            }
            _ => Verdict::Guilty(status),
        }
    }

    /// A peer did not answer, or no meta server knows it: who connects next asks anew. What this node
    /// knows of itself, and of meta servers, it does not have from them.
    pub(crate) fn forget_record(&mut self, peer: u32) {
        if self.is_meta_server(peer) {
            return;
        }
        if let Some(entry) = self.peers.get_mut(peer)
            && entry.gid != self.gid
        {
            // It does not answer as this one: perhaps the other news was the late one.
            if entry.record.is_some() {
                entry.before = None;
            }
            entry.set_record(None);
        }
    }

    /// A peer has not answered a request: it may take them elsewhere by now.
    pub(crate) fn doubt(&mut self, peer: u32) {
        self.forget_record(peer);
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.doubted = entry.gid != self.gid;
        }
    }

    /// Sets a failing lane going again, once nothing is outstanding on it.
    pub(crate) fn try_restart(&mut self, lane: u32, now: Time) {
        let entry = &self.lanes.lanes[lane as usize];
        if entry.state != LaneState::Failing || entry.uncompleted > 0 {
            return;
        }
        let (kind, qp) = (entry.kind, entry.qp);
        match kind {
            LaneKind::Dc { stream } => {
                let phys = &mut self.lanes.qps[qp as usize];
                if !phys.broken && self.device.reset_dci_stream(phys.qp, stream).is_ok() {
                    self.lanes.lanes[lane as usize].state = LaneState::Running;
                    return self.resume(lane, now);
                }
                phys.broken = true;
                self.try_restart_dci(qp, now);
            }
            LaneKind::Rc { .. } => {
                self.lanes.lanes[lane as usize].state = LaneState::Gone;
                self.resume(lane, now);
                self.link_broken(lane, now);
            }
        }
    }

    /// Takes what waits on a lane that has failed off its lists: VQPs, in order, and the peer that
    /// does not answer.
    pub(crate) fn take_waiting(&mut self, lane: u32) -> (Option<u32>, Vec<u32>) {
        let entry = &mut self.lanes.lanes[lane as usize];
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
        self.lanes.lanes[lane as usize].ready = turns;
        (dead, waiting)
    }

    /// The peer of a VQP that waits on a lane, unless it has left it meanwhile, or failed.
    pub(crate) fn peer_waited_for(&self, id: u32, lane: u32) -> Option<u32> {
        let vqp = self.vqps.get(id)?;
        (vqp.lane == lane && vqp.state == VqpState::Connected).then_some(vqp.peer)
    }

    /// Lets go on what waits on a lane that has failed.
    pub(crate) fn resume(&mut self, lane: u32, now: Time) {
        let (dead, waiting) = self.take_waiting(lane);
        let running = self.lanes.lanes[lane as usize].state == LaneState::Running;
        for id in waiting {
            let Some(peer) = self.peer_waited_for(id, lane) else { continue };
            if dead == Some(peer) {
                self.fail_next(id, WcStatus::RetryExcErr, now);
            } else if running {
                self.enlist(id);
            } else if self.move_to_dc(id) {
                self.pump(id, now);
            } else {
                self.fail_next(id, WcStatus::RetryExcErr, now);
            }
        }
        let ops = core::mem::take(&mut self.lanes.lanes[lane as usize].ops);
        for op in ops {
            let peer = self.ops.get(op).map(|op| op.peer);
            if !running || (dead.is_some() && peer == dead) {
                self.conclude_op(op, false, now);
            } else {
                self.lanes.lanes[lane as usize].ops.push_back(op);
            }
        }
        self.lanes.wait(lane);
        let qp = self.lanes.lanes[lane as usize].qp;
        self.lanes.freed(qp, &mut self.dirty_qps);
    }
}
