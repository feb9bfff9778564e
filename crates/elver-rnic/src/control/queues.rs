//! Completion queues and shared receive queues.

use core::num::NonZeroU32;

use elver_verbs::{Cq, CqInit, Memory, ObjectKind, Srq, SrqAttr, SrqInit, VerbsError, Xrcd};

use super::{in_range, refuse_if_used};
use crate::Rnic;
use crate::cq::CompletionQueue;
use crate::hw::{SharedReceiveQueue, XrcSrq};
use crate::recv_queue::RecvQueue;

impl<M: Memory> Rnic<M> {
    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if `cqe` is 0 or more than `max_cqe`; [`VerbsError::Limit`] if there are
    /// `max_cq` of them.
    pub fn create_cq(&mut self, init: CqInit) -> Result<Cq, VerbsError> {
        let hw = &mut self.hw;
        in_range("cqe", u64::from(init.cqe), 1, u64::from(hw.config.max_cqe))?;
        hw.cqs.insert(&mut hw.rng, |_| CompletionQueue::new(init.cqe)).map(Cq)
    }

    /// Destroys a CQ that no QP uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while a QP or an SRQ completes there.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        let users = self.hw.cqs.require(cq.0)?.users;
        refuse_if_used(ObjectKind::Cq, cq.0, users)?;
        self.hw.cqs.remove(cq.0);
        self.hw.cq_events.retain(|event| *event != cq);
        Ok(())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::OutOfRange`] if `max_wr` or
    /// `max_sge` is 0 or more than the device's; [`VerbsError::Limit`] if there are `max_srq` of them.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<Srq, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(init.pd.0)?;
        in_range("srq max_wr", u64::from(init.max_wr), 1, u64::from(hw.config.max_srq_wr))?;
        in_range("srq max_sge", u64::from(init.max_sge), 1, u64::from(hw.config.max_sge))?;
        let id = hw.srqs.insert(&mut hw.rng, |_| SharedReceiveQueue {
            pd: init.pd.0,
            queue: RecvQueue::new(init.max_wr, init.max_sge),
            limit: None,
            users: 0,
            xrc: None,
        })?;
        hw.use_pd(init.pd.0)?;
        Ok(Srq(id))
    }

    /// Creates a shared receive queue of an XRC domain, whose receives complete at `cq`. Its handle is its
    /// number, by which peers name it.
    ///
    /// # Errors
    /// As [`Rnic::create_srq`]; an unknown domain or CQ.
    pub fn create_xrc_srq(&mut self, init: SrqInit, xrcd: Xrcd, cq: Cq) -> Result<Srq, VerbsError> {
        self.hw.xrcds.require(xrcd.0)?;
        self.hw.cqs.require(cq.0)?;
        let srq = self.create_srq(init)?;
        self.hw.srqs.require_mut(srq.0)?.xrc = Some(XrcSrq { xrcd: xrcd.0, cq: cq.0 });
        self.hw.xrcds.require_mut(xrcd.0)?.users += 1;
        self.hw.cqs.require_mut(cq.0)?.users += 1;
        Ok(srq)
    }

    /// Arms the limit event of an SRQ; 0 disarms it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::OutOfRange`] if the limit is more than the SRQ holds.
    pub fn modify_srq(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        let shared = self.hw.srqs.require_mut(srq.0)?;
        in_range("srq_limit", u64::from(limit), 0, u64::from(shared.queue.capacity()))?;
        shared.limit = NonZeroU32::new(limit);
        Ok(())
    }

    /// Sizes of an SRQ and its armed limit.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such SRQ.
    pub fn query_srq(&self, srq: Srq) -> Result<SrqAttr, VerbsError> {
        let shared = self.hw.srqs.require(srq.0)?;
        Ok(SrqAttr {
            max_wr: shared.queue.capacity(),
            max_sge: shared.queue.max_sge(),
            limit: shared.limit.map_or(0, NonZeroU32::get),
        })
    }

    /// Destroys an SRQ that no QP uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while a QP receives from it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        let users = self.hw.srqs.require(srq.0)?.users;
        refuse_if_used(ObjectKind::Srq, srq.0, users)?;
        if let Some(shared) = self.hw.srqs.remove(srq.0) {
            self.hw.release_pd(shared.pd);
            if let Some(xrc) = shared.xrc {
                self.forget_xrc_srq(srq, xrc);
            }
        }
        Ok(())
    }

    /// Receives that all SRQs hold, and those that unfinished messages to DCTs have of them.
    pub fn shared_receives(&self) -> u32 {
        let queues = self.hw.srqs.ids().filter_map(|id| self.hw.srqs.get(id));
        let posted: u32 = queues.map(|shared| shared.queue.len()).sum();
        let dcts = self.qps.ids().filter_map(|id| self.qps.get(id)?.dct.as_ref());
        posted + dcts.map(|dct| dct.receives_held()).sum::<u32>()
    }
}
