//! VQPs that go to their error state.

use elver_verbs::{AccessFault, Device, Time, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::vqp::phase::Phase;
use crate::vqp::{Fault, Wait};

impl<D: Device> Core<D> {
    /// A VQP goes to its error state. What is on its lane ends first, then the rest is flushed.
    pub(crate) fn fail(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if !vqp.phase.is_over() {
            vqp.phase = Phase::Failing;
            vqp.wait = Wait::Nothing;
            self.stats.vqp_errors += 1;
        }
        self.settle(id, now);
    }

    /// The next WR of a VQP that is to be posted ends with an error, and the VQP with it.
    pub(crate) fn fail_next(&mut self, id: VqpId, status: WcStatus, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if !vqp.phase.is_over() {
            vqp.fault = Some(Fault { seq: vqp.sq.posted, status });
        }
        self.fail(id, now);
    }

    /// The next WR of a VQP that is to be posted may not do to the peer's memory what it wants.
    pub(crate) fn fail_access(&mut self, id: VqpId, fault: AccessFault, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if vqp.sq.unposted() > 0 {
            vqp.sq.entry_mut(vqp.sq.posted).detail = Some(fault);
        }
        self.fail_next(id, WcStatus::RemAccessErr, now);
    }

    /// The first WR of a VQP that is not done may have been executed, or its result is lost: it ends
    /// with an error, and the VQP with it.
    pub(crate) fn fail_unsure(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP with WRs on a lane is gone");
        };
        vqp.sq.posted = vqp.sq.done;
        vqp.fault = Some(Fault { seq: vqp.sq.done, status: WcStatus::RespTimeoutErr });
        self.stats.wrs_unsure += 1;
        self.fail(id, now);
    }

    /// Somebody may wait for a VQP to have nothing on its lane.
    #[inline]
    pub(crate) fn drained(&mut self, id: VqpId, now: Time) {
        // One that its client is done with goes with its last WR.
        let Some(vqp) = self.vqps.get(id) else { return };
        if vqp.inflight > 0 {
            return;
        }
        let is_over = vqp.phase.is_over();
        if self.is_to_move(vqp) {
            self.links.moved.push(id);
        }
        if is_over {
            self.settle(id, now);
        }
    }
}
