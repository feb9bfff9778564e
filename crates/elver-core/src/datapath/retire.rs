//! Tells the WRs that are done, in order, and flushes those of VQPs that have failed.

use elver_verbs::{Device, SendFlags, SendOpcode, Time, Wc, WcStatus};

use crate::client::all::Clients;
use crate::memory::Regions;
use crate::memory::mr::Users;
use crate::memory::regions::RELEASE_AGAIN_NS;
use crate::vqp::phase::Phase;
use crate::vqp::recv_ring::RecvOutcome;
use crate::vqp::sq_entry::{Bytes, SqEntry};
use crate::{Completion, Core, VqpId};

impl<D: Device> Core<D> {
    /// Tells the WRs that are done, in order.
    pub(crate) fn retire(&mut self, id: VqpId, now: Time) {
        while self.retire_plain(id, now) {
            self.retire_other(id, now);
        }
    }

    /// Tells the WRs that are done, which are `count` and end as one ([`Vqp::ends_in_run`]).
    #[inline]
    pub(crate) fn retire_run(&mut self, id: VqpId, count: u32, now: Time) {
        let Core {
            vqps,
            clients: Clients { all: clients, told, .. },
            regions: Regions { local: mrs, .. },
            ..
        } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that tells of a WR is gone") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        vqp.sq.head = vqp.sq.done;
        let entry = vqp.sq.entry(vqp.sq.head.before());
        debug_assert!(entry.ends_plainly() && entry.run() >= count);
        let freed = mrs.remove_users(Users::of(entry.mr, count));
        let signaled = entry.flags.contains(SendFlags::SIGNALED);
        client.tell_nothing(count - u32::from(signaled));
        if signaled {
            client.tell(vqp.client, completion_of(entry, vqp.id), told);
        }
        if self.latency.follows(id) {
            self.latency.done(vqp.sq.head, false, now);
        }
        if freed {
            self.release_mrs(now);
        }
    }

    /// Tells the WRs that are done up to one that does not end plainly. Returns whether there is
    /// one, and it may end.
    fn retire_plain(&mut self, id: VqpId, now: Time) -> bool {
        let Core {
            vqps,
            clients: Clients { all: clients, told, .. },
            regions: Regions { local: mrs, .. },
            ..
        } = self;
        // One that has failed, and that its client is done with, has told all that it had, and is gone.
        let Some(vqp) = vqps.get_mut(id) else { return false };
        let Some(client) = clients.get_mut(vqp.client) else {
            bug!("a VQP has no client");
            return false;
        };
        let (mut users, mut untold) = (Users::default(), 0);
        let (mut freed, mut other) = (false, false);
        while vqp.sq.head != vqp.sq.done {
            let entry = vqp.sq.entry(vqp.sq.head);
            if vqp.phase.flushes() || !entry.ends_plainly() {
                // Its receiver may read it, also when its VQP has failed.
                other = entry.bytes != Bytes::Shared;
                break;
            }
            if let Some(others) = users.next(entry.mr) {
                freed |= mrs.remove_users(others);
            }
            if entry.flags.contains(SendFlags::SIGNALED) {
                client.tell(vqp.client, completion_of(entry, vqp.id), told);
            } else {
                untold += 1;
            }
            vqp.sq.head = vqp.sq.head.after(1);
        }
        freed |= mrs.remove_users(users);
        client.tell_nothing(untold);
        if self.latency.follows(id) {
            self.latency.done(vqp.sq.head, vqp.phase.flushes(), now);
        }
        if freed {
            self.release_mrs(now);
        }
        other
    }

    /// Tells the next WR that is done: one of several pieces, one whose bytes the receiver has read,
    /// one that failed, or one that was flushed.
    #[inline(never)]
    fn retire_other(&mut self, id: VqpId, now: Time) {
        let Core {
            vqps,
            pool,
            device,
            clients: Clients { all: clients, told, .. },
            regions: Regions { local: mrs, .. },
            ..
        } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that tells of a WR is gone") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        let seq = vqp.sq.head;
        let entry = *vqp.sq.entry(seq);
        if let Some(slot) = entry.slot.get() {
            pool.sends.give(slot);
        }
        let mut freed = mrs.remove_users(Users::one(entry.mr));
        for (at, sge) in vqp.sq.sges(seq).iter().enumerate().filter(|(_, sge)| sge.length > 0) {
            let Some(slot) = mrs.slot_of(sge.lkey) else {
                bug!("a region that a WR uses is gone");
                continue;
            };
            // The first one's user was counted under `mr`.
            freed |= at > 0 && mrs.remove_users(Users::one(slot.into()));
        }
        if entry.was_shared() {
            mrs.close_ended((id, seq), now.saturating_add_ns(RELEASE_AGAIN_NS), device);
        }
        let entry = vqp.sq.entry_mut(seq);
        if vqp.phase.flushes() && entry.status == WcStatus::Success {
            // It may have been executed: a flushed WR tells nothing about that.
            entry.status = WcStatus::WrFlushErr;
        }
        if entry.status != WcStatus::Success {
            vqp.phase.told_failure();
        }
        let signaled = entry.flags.contains(SendFlags::SIGNALED);
        if vqp.phase == Phase::Destroyed || (entry.status == WcStatus::Success && !signaled) {
            client.tell_nothing(1);
        } else {
            client.tell(vqp.client, completion_of(entry, vqp.id), told);
        }
        vqp.sq.head = seq.after(1);
        if self.latency.follows(id) {
            self.latency.done(vqp.sq.head, vqp.phase.flushes(), now);
        }
        if freed {
            self.release_mrs(now);
        }
    }

    /// Ends all that a VQP in its error state holds. Nothing of its is on a lane.
    pub(crate) fn flush(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone is flushed") };
        let fault = vqp.fault.take();
        while vqp.sq.done != vqp.sq.tail {
            let own = fault.filter(|fault| fault.seq == vqp.sq.done);
            let status = own.map_or(WcStatus::WrFlushErr, |fault| fault.status);
            vqp.sq.entry_mut(vqp.sq.done).status = status;
            vqp.sq.done = vqp.sq.done.after(1);
        }
        vqp.sq.posted = vqp.sq.tail;
        self.retire(id, now);
        self.flush_receives(id);
    }

    /// Ends the receives of a VQP in its error state.
    fn flush_receives(&mut self, id: VqpId) {
        let Core { vqps, clients: Clients { all: clients, told, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that is gone is flushed") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        while vqp.rq.head != vqp.rq.tail {
            let entry = *vqp.rq.entry(vqp.rq.head);
            vqp.rq.head = vqp.rq.head.after(1);
            if vqp.phase == Phase::Destroyed {
                client.tell_nothing(1);
                continue;
            }
            client.tell(vqp.client, RecvOutcome::FLUSHED.completion(vqp.id, entry.wr_id), told);
        }
        vqp.rq.next = vqp.rq.tail;
    }
}

/// The completion of a WR, as its user sees it.
#[inline]
fn completion_of(entry: &SqEntry, vqp: VqpId) -> Completion {
    let reads =
        matches!(entry.opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd);
    let wc = Wc {
        wr_id: entry.wr_id,
        status: entry.status,
        opcode: entry.opcode.wc_opcode(),
        byte_len: if reads { entry.length } else { 0 },
        qp_num: vqp.0,
        vendor_err: entry.detail.map_or(0, |fault| fault as u32),
        ..Wc::default()
    };
    Completion { vqp, source: None, wc }
}
