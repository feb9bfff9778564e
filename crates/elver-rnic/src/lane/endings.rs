//! How the WRs of a lane end.

use elver_verbs::{Memory, SendFlags, Wc, WcFlags, WcStatus};

use super::{Env, Lane};
use crate::send_queue::SendPool;

impl Lane {
    /// Completes the WQEs at the front whose outcome is known. A failed one stops it.
    pub(crate) fn settle<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        while let Some(&slot) = self.queue.front() {
            match env.pool.get(slot).outcome {
                Some(WcStatus::Success) => self.retire(env, WcStatus::Success),
                Some(_) => {
                    self.fault = true;
                    return;
                }
                None => return,
            }
        }
    }

    /// Takes the front WQE off the queue and gives its completion.
    pub(crate) fn retire<M: Memory>(&mut self, env: &mut Env<'_, M>, status: WcStatus) {
        let Some(slot) = self.queue.pop_front() else {
            return bug!("a lane without WRs tells the end of one");
        };
        self.cursor = self.cursor.saturating_sub(1);
        if self.sending.is_some() {
            self.forget_read_ahead(slot);
        }
        let wqe = env.pool.get(slot);
        if status != WcStatus::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let wc = Wc {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.op.opcode().wc_opcode(),
                flags: WcFlags::empty(),
                byte_len: if wqe.expects_data() { wqe.length } else { 0 },
                qp_num: env.core.qpn.get(),
                ..Wc::default()
            };
            env.hw.complete(env.core.init.send_cq.0, wc, false);
        }
        env.pool.release(slot);
    }

    /// What was read ahead for a WQE is not its memory's any longer once its owner is told.
    #[cold]
    fn forget_read_ahead(&mut self, slot: u32) {
        self.sending.take_if(|aside| aside.ready && aside.tag.0 == slot);
    }

    /// Marks the front WQE as failed.
    pub(crate) fn fail_front<M: Memory>(&mut self, env: &mut Env<'_, M>, status: WcStatus) {
        let Some(slot) = self.queue.front() else {
            return bug!("the first WR of a lane that has none fails");
        };
        env.pool.get_mut(*slot).outcome = Some(status);
        self.fault = true;
    }

    /// The status of the failed front WQE.
    pub(crate) fn front_status(&self, pool: &SendPool) -> WcStatus {
        let slot = self.queue.front().copied();
        let Some(status) = slot.and_then(|slot| pool.get(slot).outcome) else {
            bug!("a lane has failed, and not for its first WR");
            return WcStatus::GeneralErr;
        };
        status
    }
}
