//! Completions: from physical WRs to those of VQPs, in order.

use elver_verbs::{AccessFault, Class, Device, MaybeSlot, Memory, SendOpcode, Time, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::datapath::Datapath;
use crate::datapath::qos::Qos;
use crate::datapath::recovery::Verdict;
use crate::pool::Pool;
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::vqp::seq::LowSeq;

impl<D: Device> Core<D> {
    /// A physical WR of a VQP has completed: on success, all WRs of the VQP up to this one.
    #[inline]
    pub(crate) fn complete_user(
        &mut self,
        id: VqpId,
        seq: LowSeq,
        second: bool,
        status: WcStatus,
        now: Time,
    ) {
        let Core { vqps, pool, datapath: Datapath { qos, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else {
            self.stats.completions_unknown += 1;
            return;
        };
        let (lane, awaited) = (vqp.lane, vqp.phase != Phase::Connected);
        let behind = seq.since(vqp.sq.done);
        if status != WcStatus::Success {
            return self.complete_failed(id, behind, second, status, now);
        }
        if behind >= vqp.sq.posted.since(vqp.sq.done) {
            self.stats.completions_unknown += 1;
            return;
        }
        let Some(lane) = lane else { return bug!("a VQP with WRs on a lane has none") };
        let wrs = behind + 1;
        if vqp.ends_in_run(vqp.sq.done.after(behind), wrs) {
            vqp.sq.done = vqp.sq.done.after(wrs);
            vqp.off_lane(wrs, qos, now);
            self.account(lane, wrs);
            self.retire_run(id, wrs, now);
        } else {
            let count = vqp.execute(pool, wrs, qos, now);
            self.account(lane, count);
            self.retire(id, now);
        }
        if awaited {
            self.drained(id, now);
        }
    }

    /// A physical WR of a VQP failed, or was flushed. `behind` counts from the VQP's first WR that
    /// is not done.
    #[cold]
    fn complete_failed(
        &mut self,
        id: VqpId,
        behind: u32,
        second: bool,
        status: WcStatus,
        now: Time,
    ) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP with WRs on a lane is gone");
        };
        let dest = vqp.dest;
        let (Some(lane), Some(peer)) = (vqp.lane, vqp.peer) else {
            return bug!("a VQP with WRs on a lane has none, or is connected to nobody");
        };
        let verdict = self.lane_failed(lane, status, (peer, dest), now);
        if verdict == Verdict::Unsure {
            return self.user_flushed(id, behind, second, now);
        }
        if verdict == Verdict::Guilty(WcStatus::RemAccessErr) {
            // ValidMR had permitted it.
            self.stats.mr_leases_outlived += 1;
        }
        let mut count = 1;
        let Core { vqps, pool, datapath: Datapath { qos, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP with WRs on a lane is gone") };
        // Otherwise it is the second half of a WR that has ended with its first.
        let on_lane = behind < vqp.sq.posted.since(vqp.sq.done);
        if on_lane {
            // What stood before it on the lane was executed, signalled or not. That goes for flushed
            // ones too: an RC QP also fails for what its peer asks, amid a burst of ours.
            count += vqp.execute(pool, behind, qos, now);
        }
        if on_lane && second && !vqp.rewound {
            let entry = vqp.sq.entry_mut(vqp.sq.done);
            if !core::mem::replace(&mut entry.first_done, true) {
                vqp.off_lane(1, qos, now);
                count += 1;
            }
        }
        vqp.off_lane(1, qos, now);
        // Once a VQP is rewound, what of its comes stands behind what is posted again.
        let seq = vqp.sq.done.after(if vqp.rewound { behind } else { 0 });
        let reads = vqp.sq.entry(seq).opcode == SendOpcode::Read;
        match verdict {
            Verdict::Innocent if vqp.phase.is_connected() => self.rewind(id),
            Verdict::Repeatable if vqp.phase.is_connected() && reads => self.rewind(id),
            Verdict::Repeatable if vqp.phase.is_connected() => self.fail_unsure(id, now),
            verdict => {
                let status = match verdict {
                    Verdict::Guilty(status) if vqp.phase.is_connected() => status,
                    _ => WcStatus::WrFlushErr,
                };
                self.end_failed(id, status, on_lane, now);
            }
        }
        self.account(lane, count);
        self.drained(id, now);
        self.try_restart(lane, now);
    }

    /// The first WR of a VQP that is not done ends with an error, if that is the one which failed,
    /// and the VQP in any case.
    fn end_failed(&mut self, id: VqpId, status: WcStatus, on_lane: bool, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP with WRs on a lane is gone");
        };
        if on_lane {
            let entry = vqp.sq.entry_mut(vqp.sq.done);
            entry.status = status;
            if status == WcStatus::RemAccessErr {
                entry.detail = Some(AccessFault::Region);
            }
            vqp.sq.done = vqp.sq.done.after(1);
        }
        self.fail(id, now);
        self.retire(id, now);
    }
}

impl Vqp {
    /// The first `entries` WRs that are on the lane have been executed. Returns how many physical
    /// WRs these were.
    #[inline]
    pub(crate) fn execute<M: Memory>(
        &mut self,
        pool: &mut Pool<M>,
        entries: u32,
        qos: &mut Qos,
        now: Time,
    ) -> u32 {
        let mut count = 0;
        for _ in 0..entries {
            let entry = self.sq.entry_mut(self.sq.done);
            if entry.is_message() {
                count += entry.cost() - 1;
                if let Some(slot) = entry.slot.get() {
                    pool.sends.give(slot);
                    entry.slot = MaybeSlot::NONE;
                }
            }
            self.sq.done = self.sq.done.after(1);
        }
        count += entries;
        self.off_lane(count, qos, now);
        count
    }

    /// So many of its physical WRs are no longer on the lane.
    #[inline(always)] // At each completion.
    pub(crate) fn off_lane(&mut self, count: u32, qos: &mut Qos, now: Time) {
        count_off!(self.inflight, count);
        if self.class == Class::High {
            qos.high_ended(count, now);
        }
    }
}
