//! A failed lane: who is to blame, and how the others go on.
//!
//! When a WR on a lane fails, the device flushes what stands behind it. The WR's own VQP goes to
//! its error state; if its peer does not answer at all, so do the other VQPs with something on the
//! lane to this peer, each of which would wait as long for nothing. The WRs of others that were not
//! executed go back to their rings. Once nothing is outstanding, the lane is set going again, and
//! they are posted anew, in order. [`crate::datapath::outage`] is about what is not set going.
//!
//! # Why nothing is executed twice
//!
//! A flushed WR may have been executed, and its acknowledgement lost with the queue pair. So each
//! place that posts a WR again has a reason why it was not:
//!
//! - The peer has refused a WR that stood before it: a responder that refuses executes nothing after
//!   that, be it an RC QP or a context of a DCT (IBTA vol. 1, 9.9.3). One that finds the memory of a READ
//!   gone when it answers says so by an operation error, and then this is no reason.
//! - It goes to another target than the WR of the same DCI stream that failed, another peer's or the
//!   one that the peer has now: the stream turns to another target only when all that went to the one
//!   before was acknowledged.
//! - It stood on an RC QP, and the peer has told that it did not get so far: [`crate::rc::fate`].
//! - It reads, and reads again: the result of the first READ went nowhere.
//!
//! What is none of these ends with an error. What is *moved* to another lane was never on this one,
//! or completed there: see [`crate::rc::transfer`]. A long message is found out about by its own
//! protocol, see [`crate::messaging::inquiry`]; its header goes to the lane like any WR.

use alloc::vec::Vec;

use elver_verbs::{Dest, Device, Time, WcStatus};

use crate::pool::lane::{LaneKind, LaneState};
use crate::{Core, VqpState};

/// What a WR that did not succeed means for who posted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ends like this.
    Guilty(WcStatus),
    /// It was flushed for another's fault, and not executed.
    Innocent,
    /// It was flushed, and nothing will tell whether it was executed: it is posted again only if that
    /// does no harm.
    Repeatable,
    /// It was flushed, and its fate is found out first: see [`crate::rc::fate`].
    Unsure,
}

impl<D: Device> Core<D> {
    /// A WR to `peer`, which went to `dest` there, completed with an error on a lane.
    pub(crate) fn lane_failed(
        &mut self,
        lane: u32,
        status: WcStatus,
        (peer, dest): (u32, Option<Dest>),
        now: Time,
    ) -> Verdict {
        let is_past = self.is_past(peer, dest);
        let entry = &mut self.lanes.lanes[lane as usize];
        let rc = matches!(entry.kind, LaneKind::Rc { .. });
        if entry.state == LaneState::Running {
            entry.state = LaneState::Failing;
            // What a peer has refused stopped it: it executed nothing behind that. A failure of this
            // side's, or none at all, says nothing of what was sent.
            entry.unsure = (!refused_by_peer(status)).then_some((peer, dest));
            self.stats.lanes_reset += 1;
            if rc {
                self.lane_broke(lane, now);
            }
        }
        let entry = &mut self.lanes.lanes[lane as usize];
        match status {
            WcStatus::WrFlushErr if entry.dead == Some(peer) => {
                Verdict::Guilty(WcStatus::RetryExcErr)
            }
            // A DCI turns to another target only when all that it sent was acknowledged: what goes
            // elsewhere than the WR that failed was not sent.
            WcStatus::WrFlushErr if entry.unsure != Some((peer, dest)) => Verdict::Innocent,
            WcStatus::WrFlushErr if rc => Verdict::Unsure,
            WcStatus::WrFlushErr => Verdict::Repeatable,
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => {
                if !is_past {
                    entry.dead = Some(peer);
                    self.forget_record(peer);
                }
                Verdict::Guilty(status)
            }
            _ => Verdict::Guilty(status),
        }
    }

    /// Whether a WR went to where its peer is known to be no longer: that nobody answers there says nothing
    /// of the peer.
    fn is_past(&self, peer: u32, dest: Option<Dest>) -> bool {
        let record = self.peers.get(peer).and_then(|entry| entry.record);
        matches!((dest, record), (Some(Dest::Dc { remote_dctn, .. }), Some(record))
            if record.dctn != remote_dctn)
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
        // What was flushed and may have been executed counts until its fate is known.
        if entry.state != LaneState::Failing || entry.uncompleted as usize > entry.flushed.len() {
            return;
        }
        let (kind, qp) = (entry.kind, entry.qp);
        match kind {
            LaneKind::Dc { stream } => {
                let phys = &mut self.lanes.qps[qp as usize];
                if !phys.broken && self.device.reset_dci_stream(phys.qp, stream).is_ok() {
                    self.set_running(lane);
                    return self.resume(lane, now);
                }
                phys.broken = true;
                self.try_restart_dci(qp, now);
            }
            LaneKind::Rc { .. } => {
                if !self.settle_flushed(lane, now) {
                    return;
                }
                self.lanes.lanes[lane as usize].state = LaneState::Gone;
                self.resume(lane, now);
                self.link_broken(lane, now);
            }
        }
    }

    /// A lane takes WRs again.
    pub(crate) fn set_running(&mut self, lane: u32) {
        let entry = &mut self.lanes.lanes[lane as usize];
        (entry.state, entry.unsure) = (LaneState::Running, None);
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
                self.switch_lane(id, now);
            }
        }
        let ops = core::mem::take(&mut self.lanes.lanes[lane as usize].ops);
        for op in ops {
            let Some(peer) = self.ops.get(op).map(|op| op.peer) else {
                bug!("an operation that waits on a lane is gone");
                continue;
            };
            if dead == Some(peer) {
                self.conclude_op(op, false, now);
            } else if running {
                self.lanes.lanes[lane as usize].ops.push_back(op);
            } else {
                self.send_op_elsewhere(op, lane, now);
            }
        }
        self.lanes.wait(lane);
        let qp = self.lanes.lanes[lane as usize].qp;
        self.lanes.freed(qp, &mut self.dirty_qps);
    }

    /// An operation of the core's own takes another way than a lane that is gone, now or when there is
    /// one.
    fn send_op_elsewhere(&mut self, id: u32, lane: u32, now: Time) {
        let Some((peer, class)) = self.ops.get(id).map(|op| (op.peer, op.class)) else {
            return bug!("an operation that waits on a lane is gone");
        };
        if let Some(way) = self.way_of_op(peer, class).filter(|(other, _)| *other != lane)
            && let Some(op) = self.ops.get_mut(id)
        {
            (op.lane, op.dest) = way;
            self.post_op(id, now);
        } else if self.way_comes(peer) {
            self.await_way(id, now);
        } else {
            self.conclude_op(id, false, now);
        }
    }
}

/// Whether a status says that the peer executed neither the WR nor what stood behind it. An operation
/// error does not: a READ finds its memory gone only when it is answered, and what came behind it was
/// executed before.
fn refused_by_peer(status: WcStatus) -> bool {
    matches!(status, WcStatus::RemInvReqErr | WcStatus::RemAccessErr)
}
