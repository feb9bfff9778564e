//! Changing what was made: the calls that few programs make, which [`elver_verbs::Device`] has not.

use core::num::NonZeroU32;

use elver_verbs::{Cq, Memory, Mr, MwInfo, Pd, PostError, Qp, SendWr, Srq, VerbsError};

use crate::Rnic;
use crate::control::in_range;
use crate::regions::MrChange;

impl<M: Memory> Rnic<M> {
    /// Changes a region: its memory, its PD, its rights (`ibv_rereg_mr`). Its keys stay.
    ///
    /// # Errors
    /// As [`elver_verbs::Device::reg_mr`] and [`elver_verbs::Device::dereg_mr`]; the region is as it
    /// was then.
    pub fn rereg_mr(&mut self, mr: Mr, change: MrChange<M>) -> Result<(), VerbsError> {
        let hw = &mut self.hw;
        let pd = change.pd;
        if let Some(pd) = pd {
            hw.pds.require(pd.0)?;
        }
        let before = hw.regions.keys.rereg_mr(mr, change)?;
        if let Some(pd) = pd {
            hw.use_pd(pd.0)?;
            hw.release_pd(before);
        }
        Ok(())
    }

    /// Allocates a type 1 memory window, unbound: any QP of the PD may bind it, and it may be bound
    /// again while it is; bound to no bytes it is unbound (IBTA vol. 1, 10.6.7.2.1).
    ///
    /// # Errors
    /// An unknown PD, or the limit of regions and windows.
    pub fn alloc_mw_type_1(&mut self, pd: Pd) -> Result<MwInfo, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let info = hw.regions.keys.alloc_mw(&mut hw.rng, pd.0, true)?;
        hw.use_pd(pd.0)?;
        Ok(info)
    }

    /// Changes how many completions a CQ holds (`ibv_resize_cq`).
    ///
    /// # Errors
    /// More than [`crate::Config::max_cqe`], or fewer than wait in it now.
    pub fn resize_cq(&mut self, cq: Cq, cqe: u32) -> Result<(), VerbsError> {
        let max = u64::from(self.hw.config.max_cqe);
        let queue = self.hw.cqs.require_mut(cq.0)?;
        in_range("cqe", u64::from(cqe), queue.len().max(1), max)?;
        queue.resize(cqe);
        Ok(())
    }

    /// Changes how many receives an SRQ holds (`IBV_SRQ_MAX_WR` of `ibv_modify_srq`).
    ///
    /// # Errors
    /// More than [`crate::Config::max_srq_wr`], or fewer than wait in it now or than its armed limit.
    pub fn resize_srq(&mut self, srq: Srq, max_wr: u32) -> Result<(), VerbsError> {
        let max = u64::from(self.hw.config.max_srq_wr);
        let shared = self.hw.srqs.require_mut(srq.0)?;
        let min = shared.queue.len().max(shared.limit.map_or(1, NonZeroU32::get)).max(1);
        in_range("srq max_wr", u64::from(max_wr), u64::from(min), max)?;
        shared.queue.resize(max_wr);
        Ok(())
    }

    /// Whether all of these send WRs would be taken now, one after the other; otherwise the first that
    /// would not, and why. For who posts all or none.
    ///
    /// # Errors
    /// As [`Rnic::post_send`].
    pub fn check_sends<'a>(
        &self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let Some(queue_pair) = self.qps.get(qp.0) else {
            let kind = elver_verbs::ObjectKind::Qp;
            return Err((0, PostError::InvalidHandle { kind, handle: qp.0 }));
        };
        for (index, wr) in wrs.enumerate() {
            queue_pair.would_take(&self.hw, &wr, index).map_err(|error| (index, error))?;
        }
        Ok(())
    }
}
