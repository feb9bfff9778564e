//! Completions: from physical WRs to those of VQPs, in order.

use elver_control::Class;
use elver_verbs::{AccessFault, Device, Memory, SendFlags, SendOpcode, Time, Wc, WcStatus};

use crate::datapath::qos::Qos;
use crate::datapath::recovery::Verdict;
use crate::datapath::wr_id::SEQ_MASK;
use crate::memory::mr::Users;
use crate::pool::Pool;
use crate::vqp::send_ring::{NONE, SqEntry};
use crate::vqp::{Vqp, Wait};
use crate::{Completion, Core, VqpId, VqpState};

impl<D: Device> Core<D> {
    /// A physical WR of a VQP has completed: on success, all WRs of the VQP up to this one.
    pub(crate) fn complete_user(
        &mut self,
        id: u32,
        seq: u32,
        second: bool,
        status: WcStatus,
        now: Time,
    ) {
        let Core { vqps, pool, qos, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else {
            self.stats.completions_unknown += 1;
            return;
        };
        let (lane, watched) = (vqp.lane, vqp.watch);
        let behind = seq.wrapping_sub(vqp.sq.done) & SEQ_MASK;
        if status != WcStatus::Success {
            return self.complete_failed(id, behind, second, status, now);
        }
        if behind >= vqp.sq.posted.wrapping_sub(vqp.sq.done) {
            self.stats.completions_unknown += 1;
            return;
        }
        let count = vqp.execute(pool, behind + 1, qos, now);
        self.account(lane, count);
        self.retire(id, now);
        if watched {
            self.drained(id, now);
        }
    }

    /// A physical WR of a VQP failed, or was flushed. `behind` counts from the VQP's first WR that
    /// is not done.
    #[cold]
    fn complete_failed(&mut self, id: u32, behind: u32, second: bool, status: WcStatus, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP with WRs on a lane is gone");
        };
        let (lane, to) = (vqp.lane, (vqp.peer, vqp.dest));
        let verdict = self.lane_failed(lane, status, to, now);
        if verdict == Verdict::Unsure {
            return self.user_flushed(id, behind, second, now);
        }
        if verdict == Verdict::Guilty(WcStatus::RemAccessErr) {
            // ValidMR had permitted it.
            self.stats.mr_leases_outlived += 1;
        }
        let mut count = 1;
        let Core { vqps, pool, qos, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP with WRs on a lane is gone") };
        // Otherwise it is the second half of a WR that has ended with its first.
        let on_lane = behind < vqp.sq.posted.wrapping_sub(vqp.sq.done);
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
        let seq = vqp.sq.done.wrapping_add(if vqp.rewound { behind } else { 0 });
        let reads = vqp.sq.entry(seq).opcode == SendOpcode::Read;
        match verdict {
            Verdict::Innocent if vqp.state == VqpState::Connected => self.rewind(id),
            Verdict::Repeatable if vqp.state == VqpState::Connected && reads => self.rewind(id),
            Verdict::Repeatable if vqp.state == VqpState::Connected => self.fail_unsure(id, now),
            verdict => {
                let status = match verdict {
                    Verdict::Guilty(status) if vqp.state == VqpState::Connected => status,
                    _ => WcStatus::WrFlushErr,
                };
                self.end_failed(id, status, on_lane, now);
            }
        }
        self.account(lane, count);
        self.drained(id, now);
        self.try_restart(lane, now);
    }

    /// The WRs of a VQP from the first that is not done on were not executed, or may be executed again:
    /// they are posted again when its lane is set going, or over another one.
    pub(crate) fn rewind(&mut self, id: u32) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone is rewound") };
        if !vqp.rewound {
            vqp.rewound = true;
            self.stats.wrs_reposted += u64::from(vqp.sq.posted.wrapping_sub(vqp.sq.done));
            vqp.sq.posted = vqp.sq.done;
            self.lanes.lanes[vqp.lane as usize].rewound.push(id);
        }
    }

    /// The first WR of a VQP that is not done ends with an error, if that is the one which failed,
    /// and the VQP in any case.
    fn end_failed(&mut self, id: u32, status: WcStatus, on_lane: bool, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP with WRs on a lane is gone");
        };
        if on_lane {
            let entry = vqp.sq.entry_mut(vqp.sq.done);
            entry.status = status;
            if status == WcStatus::RemAccessErr {
                entry.detail = AccessFault::Region as u8;
            }
            vqp.sq.done = vqp.sq.done.wrapping_add(1);
        }
        self.fail(id, now);
        self.retire(id, now);
    }

    /// Somebody may wait for a VQP to have nothing on its lane.
    #[inline]
    pub(crate) fn drained(&mut self, id: u32, now: Time) {
        // One that its client is done with goes with its last WR.
        let Some(vqp) = self.vqps.get_mut(id) else { return };
        if vqp.inflight > 0 {
            return;
        }
        if vqp.moving {
            self.links.moved.push(id);
        }
        if vqp.state == VqpState::Error || vqp.zombie {
            if vqp.watch {
                self.settle(id, now);
            }
        } else {
            vqp.watch = false;
        }
    }

    /// Tells the WRs that are done, in order.
    pub(crate) fn retire(&mut self, id: u32, now: Time) {
        while self.retire_plain(id, now) {
            self.retire_other(id, now);
        }
    }

    /// Tells the WRs that are done up to one that does not end plainly. Returns whether there is
    /// one, and it may end.
    fn retire_plain(&mut self, id: u32, now: Time) -> bool {
        let Core { vqps, clients, mrs, stats, ready_clients, .. } = self;
        // One that has failed, and that its client is done with, has told all that it had, and is gone.
        let Some(vqp) = vqps.get_mut(id) else { return false };
        let Some(client) = clients.get_mut(vqp.client) else {
            bug!("a VQP has no client");
            return false;
        };
        let (mut users, mut untold, mut told) = (Users::default(), 0, 0);
        let (mut freed, mut other) = (false, false);
        while vqp.sq.head != vqp.sq.done {
            let entry = vqp.sq.entry(vqp.sq.head);
            if vqp.failed || !entry.ends_plainly() {
                // Its receiver may read it, also when its VQP has failed.
                other = !entry.await_fin;
                break;
            }
            if let Some(others) = users.next(entry.mr) {
                freed |= mrs.remove_users(others);
            }
            if entry.flags.contains(SendFlags::SIGNALED) && !vqp.zombie {
                client.completions.push_back(completion_of(entry, vqp.id));
                told += 1;
            } else {
                untold += 1;
            }
            vqp.sq.head = vqp.sq.head.wrapping_add(1);
        }
        freed |= mrs.remove_users(users);
        count_off!(client.pending, untold);
        stats.completions += told;
        if told > 0 && !client.ready {
            client.ready = true;
            ready_clients.push_back(vqp.client);
        }
        if freed {
            self.release_mrs(now);
        }
        other
    }

    /// Tells the next WR that is done: one of several pieces, one whose bytes the receiver has read,
    /// one that failed, or one that was flushed.
    #[inline(never)]
    fn retire_other(&mut self, id: u32, now: Time) {
        // A READ that the receiver posted before it learned of a failure may still arrive.
        let peer = self.vqps.get(id).map_or(NONE, |vqp| vqp.peer);
        let grace = now.saturating_add_ns(self.flight_ns_of(peer));
        let Core { vqps, clients, mrs, pool, stats, ready_clients, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that tells of a WR is gone") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        let seq = vqp.sq.head;
        let entry = *vqp.sq.entry(seq);
        if entry.slot != NONE {
            pool.sends.give(entry.slot);
        }
        let mut freed = mrs.remove_users(Users::one(entry.mr));
        for (at, sge) in vqp.sq.sges(seq).iter().enumerate().filter(|(_, sge)| sge.length > 0) {
            let Some(slot) = mrs.slot_of(sge.lkey) else {
                bug!("a region that a WR uses is gone");
                continue;
            };
            // The first one's user was counted under `mr`.
            freed |= at > 0 && mrs.remove_users(Users::one(slot));
            if entry.shared && mrs.unshare(slot) {
                mrs.unshare_at(slot, grace);
            }
        }
        let entry = vqp.sq.entry_mut(seq);
        if vqp.failed && entry.status == WcStatus::Success {
            // It may have been executed: a flushed WR tells nothing about that.
            entry.status = WcStatus::WrFlushErr;
        }
        vqp.failed |= entry.status != WcStatus::Success;
        let signaled = entry.flags.contains(SendFlags::SIGNALED);
        if vqp.zombie || (entry.status == WcStatus::Success && !signaled) {
            count_off!(client.pending, 1);
        } else {
            client.completions.push_back(completion_of(entry, vqp.id));
            stats.completions += 1;
            if !client.ready {
                client.ready = true;
                ready_clients.push_back(vqp.client);
            }
        }
        vqp.sq.head = seq.wrapping_add(1);
        if freed {
            self.release_mrs(now);
        }
    }

    /// Deregistrations that waited for WRs in flight alone go through.
    #[cold]
    pub(crate) fn release_mrs(&mut self, now: Time) {
        let due = |closing: crate::memory::mr::Closing| closing.due <= now;
        let slots = self.mrs.iter().filter(|(_, mr)| mr.refs == 0 && mr.closing.is_some_and(due));
        let slots: alloc::vec::Vec<u32> = slots.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.try_release_mr(slot, now);
        }
    }

    /// A VQP goes to its error state. What is on its lane ends first, then the rest is flushed.
    pub(crate) fn fail(&mut self, id: u32, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if vqp.state != VqpState::Error {
            vqp.state = VqpState::Error;
            vqp.wait = Wait::Nothing;
            self.stats.vqp_errors += 1;
        }
        self.settle(id, now);
    }

    /// The next WR of a VQP that is to be posted ends with an error, and the VQP with it.
    pub(crate) fn fail_next(&mut self, id: u32, status: WcStatus, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if vqp.state != VqpState::Error {
            (vqp.fault, vqp.fault_at) = (Some(status), vqp.sq.posted);
        }
        self.fail(id, now);
    }

    /// The next WR of a VQP that is to be posted may not do to the peer's memory what it wants.
    pub(crate) fn fail_access(&mut self, id: u32, fault: AccessFault, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone fails") };
        if vqp.sq.unposted() > 0 {
            vqp.sq.entry_mut(vqp.sq.posted).detail = fault as u8;
        }
        self.fail_next(id, WcStatus::RemAccessErr, now);
    }

    /// Ends all that a VQP in its error state holds. Nothing of its is on a lane.
    pub(crate) fn flush(&mut self, id: u32, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone is flushed") };
        let fault = vqp.fault.take().map(|status| (vqp.fault_at, status));
        while vqp.sq.done != vqp.sq.tail {
            let own = fault.filter(|(seq, _)| *seq == vqp.sq.done);
            let status = own.map_or(WcStatus::WrFlushErr, |(_, status)| status);
            vqp.sq.entry_mut(vqp.sq.done).status = status;
            vqp.sq.done = vqp.sq.done.wrapping_add(1);
        }
        vqp.sq.posted = vqp.sq.tail;
        self.retire(id, now);
        self.flush_receives(id);
    }

    /// Ends the receives of a VQP in its error state.
    fn flush_receives(&mut self, id: u32) {
        let Core { vqps, clients, stats, ready_clients, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that is gone is flushed") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        while vqp.rq.head != vqp.rq.tail {
            let entry = *vqp.rq.entry(vqp.rq.head);
            vqp.rq.head = vqp.rq.head.wrapping_add(1);
            if vqp.zombie {
                count_off!(client.pending, 1);
                continue;
            }
            let wc = Wc {
                wr_id: entry.wr_id,
                status: WcStatus::WrFlushErr,
                opcode: elver_verbs::WcOpcode::Recv,
                qp_num: vqp.id,
                ..Wc::default()
            };
            client.completions.push_back(Completion { vqp: VqpId(vqp.id), source: None, wc });
            stats.completions += 1;
            if !client.ready {
                client.ready = true;
                ready_clients.push_back(vqp.client);
            }
        }
        vqp.rq.next = vqp.rq.tail;
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
                if entry.slot != NONE {
                    pool.sends.give(entry.slot);
                    entry.slot = NONE;
                }
            }
            self.sq.done = self.sq.done.wrapping_add(1);
        }
        count += entries;
        self.off_lane(count, qos, now);
        count
    }

    /// So many of its physical WRs are no longer on the lane.
    #[inline]
    pub(crate) fn off_lane(&mut self, count: u32, qos: &mut Qos, now: Time) {
        count_off!(self.inflight, count);
        if self.class == Class::High {
            qos.high_ended(count, now);
        }
    }
}

/// The completion of a WR, as its user sees it.
#[inline]
fn completion_of(entry: &SqEntry, vqp: u32) -> Completion {
    let reads =
        matches!(entry.opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd);
    let wc = Wc {
        wr_id: entry.wr_id,
        status: entry.status,
        opcode: entry.opcode.wc_opcode(),
        byte_len: if reads { entry.length } else { 0 },
        qp_num: vqp,
        vendor_err: entry.detail.into(),
        ..Wc::default()
    };
    Completion { vqp: VqpId(vqp), source: None, wc }
}
