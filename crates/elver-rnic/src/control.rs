//! Making, changing and destroying objects.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use elver_verbs::{
    AccessFlags, AddressVector, Ah, AsyncEvent, Cq, CqInit, Memory, Mr, MrInfo, Mw, MwInfo,
    ObjectKind, Pd, Qp, QpAttr, QpAttrMask, QpInit, QpMade, QpState, QpType, Srq, SrqAttr, SrqInit,
    Time, VerbsError, Xrcd, qp_state, qpn_valid,
};
use elver_wire::{Psn, Qpn};

use crate::Rnic;
use crate::cq::CompletionQueue;
use crate::dct::Dct;
use crate::hw::{AddressHandle, ProtectionDomain, SharedReceiveQueue, XrcSrq};
use crate::qp::QueuePair;
use crate::recv_queue::RecvQueue;
use crate::responder::Responder;
use crate::route::Whither;
use crate::services::GENERAL_SERVICES;

/// Widest value of a field of so many bits.
const fn bits(count: u32) -> u64 {
    (1 << count) - 1
}

pub(crate) fn in_range(
    name: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), VerbsError> {
    if value < min || value > max {
        return Err(VerbsError::OutOfRange { name, value, min, max });
    }
    Ok(())
}

impl<M: Memory> Rnic<M> {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`] if there are `max_pd` of them.
    pub fn alloc_pd(&mut self) -> Result<Pd, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.insert(&mut hw.rng, |_| ProtectionDomain::default()).map(Pd)
    }

    /// Frees a protection domain that nothing uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while anything is made in it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        let users = self.hw.pds.require(pd.0)?.users;
        refuse_if_used(ObjectKind::Pd, pd.0, users)?;
        self.hw.pds.remove(pd.0);
        Ok(())
    }

    /// Registers memory; see [`elver_verbs::Device::reg_mr`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::OutOfRange`] and
    /// [`VerbsError::InvalidArgument`] if memory, address and rights do not go together; [`VerbsError::Limit`]
    /// if there are `max_mr` regions and windows.
    pub fn reg_mr(
        &mut self,
        pd: Pd,
        memory: M,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.register(pd, (memory, None), iova, access)
    }

    /// Registers a part of a memory; see [`elver_verbs::Device::reg_mr_part`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the part does not lie in the memory; otherwise as [`Self::reg_mr`].
    pub fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: M,
        (offset, length): (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.register(pd, (memory, Some((offset, length))), iova, access)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: (M, Option<(u64, u64)>),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let info = hw.regions.reg_mr(&mut hw.rng, pd.0, memory, iova, access)?;
        hw.use_pd(pd.0)?;
        Ok(info)
    }

    /// Deregisters a region that no window is bound to.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while windows are bound to it, or bytes are copied
    /// that were not at hand.
    pub fn dereg_mr(&mut self, mr: Mr) -> Result<(), VerbsError> {
        let pd = self.hw.regions.dereg_mr(mr)?;
        self.hw.release_pd(pd);
        Ok(())
    }

    /// Allocates a type 2 memory window, unbound.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::Limit`] if there are `max_mr`
    /// regions and windows.
    pub fn alloc_mw(&mut self, pd: Pd) -> Result<MwInfo, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let info = hw.regions.alloc_mw(&mut hw.rng, pd.0, false)?;
        hw.use_pd(pd.0)?;
        Ok(info)
    }

    /// Frees a memory window, bound or not.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while bytes are copied through it that were not at
    /// hand.
    pub fn dealloc_mw(&mut self, mw: Mw) -> Result<(), VerbsError> {
        let pd = self.hw.regions.dealloc_mw(mw)?;
        self.hw.release_pd(pd);
        Ok(())
    }

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

    /// Creates an address handle of a host.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain or no such entry of the GID table;
    /// [`VerbsError::InvalidArgument`] if no packet can go there from that address;
    /// [`VerbsError::OutOfRange`] for a flow label of more than 20 bits; [`VerbsError::Limit`] if there are
    /// `max_ah` of them, or `max_paths` paths are held.
    pub fn create_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.handle_to(pd, av, Whither::Host)
    }

    /// Creates an address handle of a multicast group, which datagrams to QP 0xffffff are sent with.
    ///
    /// # Errors
    ///
    /// As [`Rnic::create_ah`]; [`VerbsError::InvalidArgument`] also for what is no group.
    pub fn create_multicast_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.handle_to(pd, av, Whither::Group)
    }

    fn handle_to(&mut self, pd: Pd, av: AddressVector, whither: Whither) -> Result<Ah, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let route = hw.resolve(&av, whither)?;
        match hw.ahs.insert(&mut hw.rng, |_| AddressHandle { pd: pd.0, av, route }) {
            Ok(id) => {
                hw.use_pd(pd.0)?;
                Ok(Ah(id))
            }
            Err(error) => {
                hw.paths.close(route.path);
                Err(error)
            }
        }
    }

    /// The address vector that an address handle was created with.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such address handle.
    pub fn query_ah(&self, ah: Ah) -> Result<AddressVector, VerbsError> {
        Ok(self.hw.ahs.require(ah.0)?.av)
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such address handle.
    pub fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        let AddressHandle { pd, route, .. } = *self.hw.ahs.require(ah.0)?;
        self.hw.ahs.remove(ah.0);
        self.hw.release_pd(pd);
        self.hw.paths.close(route.path);
        Ok(())
    }

    /// Creates a QP in RESET.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain, CQ or SRQ; [`VerbsError::OutOfRange`] for a
    /// size that the device does not have; [`VerbsError::InvalidArgument`] for what a QP of this type must have
    /// or cannot, and for a second QP 1; [`VerbsError::Limit`] if there are `max_qp` of them.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qp, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(init.pd.0)?;
        hw.cqs.require(init.send_cq.0)?;
        hw.cqs.require(init.recv_cq.0)?;
        if let Some(srq) = init.srq {
            hw.srqs.require(srq.0)?;
        }
        let config = &hw.config;
        let cap = &init.cap;
        let (wr_max, sge_max) = (u64::from(config.max_qp_wr), u64::from(config.max_sge));
        in_range("max_send_wr", u64::from(cap.max_send_wr), 0, wr_max)?;
        in_range("max_recv_wr", u64::from(cap.max_recv_wr), 0, wr_max)?;
        in_range("max_send_sge", u64::from(cap.max_send_sge), 0, sge_max)?;
        in_range("max_recv_sge", u64::from(cap.max_recv_sge), 0, sge_max)?;
        let inline_max = u64::from(config.max_inline_data);
        in_range("max_inline_data", u64::from(cap.max_inline_data), 0, inline_max)?;
        let streams = u64::from(config.log_max_dci_streams);
        in_range("log_num_concurrent", u64::from(init.dci.log_num_concurrent), 0, streams)?;
        in_range("log_num_errored", u64::from(init.dci.log_num_errored), 0, streams)?;
        match init.qp_type {
            QpType::Dct if init.srq.is_none() => {
                return Err(VerbsError::InvalidArgument {
                    what: "a DCT receives from many initiators and needs an SRQ",
                });
            }
            QpType::XrcRecv => {
                return Err(VerbsError::InvalidArgument {
                    what: "an XRC target is made in an XRC domain, with no PD and no CQ",
                });
            }
            QpType::XrcSend if init.srq.is_some() => {
                return Err(VerbsError::InvalidArgument {
                    what: "an XRC initiator receives nothing and takes no SRQ",
                });
            }
            QpType::Dci if init.srq.is_some() => {
                return Err(VerbsError::InvalidArgument {
                    what: "a DCI receives nothing and takes no SRQ",
                });
            }
            _ => {}
        }
        if init.general_services {
            if init.qp_type != QpType::Ud {
                return Err(VerbsError::InvalidArgument { what: "QP 1 is a UD QP" });
            }
            if self.general_services.is_some() {
                return Err(VerbsError::InvalidArgument { what: "there is a QP 1 already" });
            }
        }
        let number = |id| if init.general_services { GENERAL_SERVICES } else { id };
        let qp = self
            .qps
            .insert(&mut hw.rng, |id| QueuePair::new(Qpn::from_wrapping(number(id)), init))?;
        if init.general_services {
            self.general_services = Some(qp);
        }
        hw.use_pd(init.pd.0)?;
        hw.cqs.require_mut(init.send_cq.0)?.users += 1;
        hw.cqs.require_mut(init.recv_cq.0)?.users += 1;
        if let Some(srq) = init.srq {
            hw.srqs.require_mut(srq.0)?.users += 1;
        }
        Ok(Qp(qp))
    }

    /// Changes attributes and state of a QP; see [`elver_verbs::qp_state`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::WrongCurrentState`]; [`VerbsError::InvalidTransition`] and
    /// [`VerbsError::InvalidAttributeMask`] by the table of [`elver_verbs::qp_state`];
    /// [`VerbsError::OutOfRange`] for an attribute that cannot be; [`VerbsError::InUse`] if it is to go to
    /// RESET while bytes are copied that were not at hand; of a QP that is connected, what [`Rnic::create_ah`]
    /// says of its address.
    pub fn modify_qp(
        &mut self,
        now: Time,
        qp: Qp,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), VerbsError> {
        let core = &self.qps.require(qp.0)?.core;
        let from = core.state;
        if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_qp_state != from {
            return Err(VerbsError::WrongCurrentState { given: attr.cur_qp_state, actual: from });
        }
        let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { from };
        qp_state::check(core.qp_type, from, to, mask)?;
        self.check_attributes(attr, mask)?;
        let hw = &mut self.hw;
        let queue_pair = self.qps.require_mut(qp.0)?;
        match to {
            QpState::Reset => {
                refuse_if_used(ObjectKind::Qp, qp.0, queue_pair.landing())?;
                queue_pair.reset(hw);
                return Ok(());
            }
            QpState::Err => {
                queue_pair.enter_error(hw, now);
                queue_pair.responder.fall_silent();
                if let Some(dct) = &mut queue_pair.dct {
                    dct.fall_silent();
                }
                self.stop_cut_off(now);
                return Ok(());
            }
            _ => {}
        }
        if mask.contains(QpAttrMask::AV) && queue_pair.core.qp_type.is_connected() {
            let remote = hw.resolve(&attr.ah_attr, Whither::Host)?;
            if let Some(before) = queue_pair.core.remote.replace(remote) {
                // What is under way was sent to there.
                for lane in &mut queue_pair.lanes {
                    lane.uncharge(Some(before), hw);
                }
                hw.paths.close(before.path);
            }
        }
        assign(&mut queue_pair.core.attr, attr, mask);
        queue_pair.enter(hw, from, to);
        if to == QpState::Rts {
            self.schedule(qp.0);
        }
        Ok(())
    }

    /// Checks the attributes that a call names against their ranges.
    fn check_attributes(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let config = &self.hw.config;
        let rd_atomic = u64::from(config.max_rd_atomic);
        let ranges = [
            (QpAttrMask::PKEY_INDEX, "pkey_index", u64::from(attr.pkey_index), 0, 0),
            (QpAttrMask::PORT, "port_num", u64::from(attr.port_num), 1, 1),
            (QpAttrMask::TIMEOUT, "timeout", u64::from(attr.timeout), 0, bits(5)),
            (QpAttrMask::RETRY_CNT, "retry_cnt", u64::from(attr.retry_cnt), 0, bits(3)),
            (QpAttrMask::RNR_RETRY, "rnr_retry", u64::from(attr.rnr_retry), 0, bits(3)),
            (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer", u64::from(attr.min_rnr_timer), 0, bits(5)),
            (QpAttrMask::RQ_PSN, "rq_psn", u64::from(attr.rq_psn), 0, bits(24)),
            (QpAttrMask::SQ_PSN, "sq_psn", u64::from(attr.sq_psn), 0, bits(24)),
            (
                QpAttrMask::MAX_QP_RD_ATOMIC,
                "max_rd_atomic",
                u64::from(attr.max_rd_atomic),
                0,
                rd_atomic,
            ),
            (
                QpAttrMask::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                u64::from(attr.max_dest_rd_atomic),
                0,
                rd_atomic,
            ),
            (
                QpAttrMask::PATH_MTU,
                "path_mtu in bytes",
                u64::from(attr.path_mtu.bytes()),
                256,
                u64::from(config.active_mtu.bytes()),
            ),
        ];
        for (flag, name, value, min, max) in ranges {
            if mask.contains(flag) {
                in_range(name, value, min, max)?;
            }
        }
        if mask.contains(QpAttrMask::DEST_QPN) && !qpn_valid(attr.dest_qp_num) {
            let value = u64::from(attr.dest_qp_num);
            return Err(VerbsError::OutOfRange {
                name: "dest_qp_num",
                value,
                min: 0,
                max: bits(24),
            });
        }
        Ok(())
    }

    /// All attributes of a QP, and what it was created with. The `rq_psn` of an RC QP is the PSN that
    /// its responder expects next: all before it was executed. In ERR it is final,
    /// unless `rq_waiting` says that it waits for memory.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such QP.
    pub fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpMade), VerbsError> {
        let qp = self.qps.require(qp.0)?;
        let core = &qp.core;
        let mut attr = QpAttr { qp_state: core.state, cur_qp_state: core.state, ..core.attr };
        if matches!(core.qp_type, QpType::Rc | QpType::XrcRecv) {
            attr.rq_psn = qp.responder.expected_psn().get();
            attr.rq_waiting = qp.responder.is_waiting();
        }
        attr.sq_draining = qp.is_draining();
        Ok((attr, core.init.made()))
    }

    /// The QP's number on the wire. A DCT has one only from RTR on.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InvalidArgument`] of a DCT that is not in RTR.
    pub fn qp_num(&self, qp: Qp) -> Result<u32, VerbsError> {
        let core = &self.qps.require(qp.0)?.core;
        if core.qp_type == QpType::Dct && core.state != QpState::Rtr {
            return Err(VerbsError::InvalidArgument {
                what: "a DCT has a number only in RTR; move it there first",
            });
        }
        Ok(core.qpn.get())
    }

    /// All queue pairs, in no order that means anything.
    pub fn qps(&self) -> impl Iterator<Item = Qp> + '_ {
        self.qps.ids().map(Qp)
    }

    /// How many regions there are, windows included.
    pub fn mr_count(&self) -> u32 {
        self.hw.regions.len()
    }

    /// How many address handles there are.
    pub fn ah_count(&self) -> u32 {
        self.hw.ahs.len()
    }

    /// What address handles, connected QPs and streams of DCIs hold of paths: each one. A path is
    /// what the device knows of an address; one that nothing holds gives way when room is needed.
    pub fn paths_held(&self) -> u32 {
        self.hw.paths.users()
    }

    /// Receives that all SRQs hold, and those that unfinished messages to DCTs have of them.
    pub fn shared_receives(&self) -> u32 {
        let queues = self.hw.srqs.ids().filter_map(|id| self.hw.srqs.get(id));
        let posted: u32 = queues.map(|shared| shared.queue.len()).sum();
        let dcts = self.qps.ids().filter_map(|id| self.qps.get(id)?.dct.as_ref());
        posted + dcts.map(|dct| dct.receives_held()).sum::<u32>()
    }

    /// Streams of a DCI that failed and were not set going again.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such QP.
    pub fn errored_streams(&self, qp: Qp) -> Result<u32, VerbsError> {
        Ok(self.qps.require(qp.0)?.errored_streams)
    }

    /// Initiators that a DCT holds a context for.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such QP.
    pub fn dct_contexts(&self, qp: Qp) -> Result<usize, VerbsError> {
        Ok(self.qps.require(qp.0)?.dct.as_ref().map_or(0, |dct| dct.len()))
    }

    /// Has all DCTs give up the contexts that they would for initiators who need room: of those that were silent
    /// for [`crate::Config::dc_context_idle_ns`]. How many.
    pub fn make_room(&mut self) -> u32 {
        let mut given_up = 0;
        let ids: Vec<u32> = self.qps.ids().collect();
        for id in ids {
            let Some(queue_pair) = self.qps.get_mut(id) else { continue };
            let QueuePair { core, dct: Some(dct), .. } = queue_pair else { continue };
            while dct.reclaim(core, &mut self.hw) {
                given_up += 1;
            }
        }
        given_up
    }

    /// Destroys a QP; see [`elver_verbs::Device::destroy_qp`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while it is attached to a multicast group, or bytes
    /// are copied that were not at hand.
    pub fn destroy_qp(&mut self, _now: Time, qp: Qp) -> Result<(), VerbsError> {
        let hw = &mut self.hw;
        let queue_pair = self.qps.require_mut(qp.0)?;
        refuse_if_used(ObjectKind::Qp, qp.0, queue_pair.landing())?;
        refuse_if_used(ObjectKind::Qp, qp.0, self.groups.of(qp.0))?;
        let init = queue_pair.core.init;
        queue_pair.reset(hw);
        let target = queue_pair.xrc.take();
        self.qps.remove(qp.0);
        self.general_services = self.general_services.filter(|id| *id != qp.0);
        self.active.retain(|id| *id != qp.0);
        hw.events.retain(|event| !names_qp(event, qp));
        if let Some(target) = target {
            hw.release_xrcd(target.xrcd);
            return Ok(());
        }
        hw.release_pd(init.pd.0);
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = hw.cqs.get_mut(cq.0) {
                queue.users -= 1;
            }
        }
        if let Some(srq) = init.srq
            && let Some(shared) = hw.srqs.get_mut(srq.0)
        {
            shared.users -= 1;
        }
        Ok(())
    }

    /// Whether a QP sends but little in each of its turns; see
    /// [`elver_verbs::Device::take_short_turns`].
    pub fn take_short_turns(&mut self, qp: Qp, short: bool) {
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.short_turns = short;
        }
    }

    /// Sets an errored stream of a DCI going again.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InvalidArgument`] of what is no DCI, or is not in RTS.
    pub fn reset_dci_stream(
        &mut self,
        _now: Time,
        qp: Qp,
        stream_id: u16,
    ) -> Result<(), VerbsError> {
        let queue_pair = self.qps.require_mut(qp.0)?;
        let core = &queue_pair.core;
        if core.qp_type != QpType::Dci {
            return Err(VerbsError::InvalidArgument { what: "only a DCI has streams" });
        }
        if core.state != QpState::Rts {
            return Err(VerbsError::InvalidArgument {
                what: "the DCI is not in RTS; move it through RESET instead",
            });
        }
        let count = queue_pair.lanes.len();
        let lane = &mut queue_pair.lanes[usize::from(stream_id) % count];
        if lane.errored {
            lane.errored = false;
            queue_pair.errored_streams -= 1;
        }
        Ok(())
    }
}

fn refuse_if_used(kind: ObjectKind, handle: u32, users: u32) -> Result<(), VerbsError> {
    if users > 0 {
        return Err(VerbsError::InUse { kind, handle, users });
    }
    Ok(())
}

fn names_qp(event: &AsyncEvent, qp: Qp) -> bool {
    match *event {
        AsyncEvent::QpFatal(named)
        | AsyncEvent::QpReqErr(named)
        | AsyncEvent::QpAccessErr(named)
        | AsyncEvent::CommEst(named)
        | AsyncEvent::SqDrained(named)
        | AsyncEvent::QpLastWqeReached(named)
        | AsyncEvent::DctAccessErr(named) => named == qp,
        AsyncEvent::CqErr(_) | AsyncEvent::SrqErr(_) | AsyncEvent::SrqLimitReached(_) => false,
    }
}

/// Takes over the attributes that a call names.
fn assign(into: &mut QpAttr, from: &QpAttr, mask: QpAttrMask) {
    macro_rules! take {
        ($($flag:ident => $field:ident),+ $(,)?) => {
            $(if mask.contains(QpAttrMask::$flag) { into.$field = from.$field; })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
        ACCESS_FLAGS => qp_access_flags,
        PKEY_INDEX => pkey_index,
        PORT => port_num,
        QKEY => qkey,
        AV => ah_attr,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        MAX_QP_RD_ATOMIC => max_rd_atomic,
        MIN_RNR_TIMER => min_rnr_timer,
        SQ_PSN => sq_psn,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        DEST_QPN => dest_qp_num,
    }
}

impl QueuePair {
    /// Does what a transition other than to RESET or ERR asks for.
    fn enter<M: Memory>(&mut self, hw: &mut crate::hw::Hw<M>, from: QpState, to: QpState) {
        if to == QpState::Sqd && from != QpState::Sqd {
            self.drain(hw);
            return;
        }
        self.core.state = to;
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                let core = &mut self.core;
                let psn = Psn::from_wrapping(core.attr.rq_psn);
                match core.qp_type {
                    QpType::Rc | QpType::XrcRecv => {
                        let (mtu, peer) = (core.attr.path_mtu.bytes(), core.attr.ah_attr.dgid);
                        self.responder = Responder::new(psn, mtu, peer);
                    }
                    QpType::Uc => self.assembly.expect(psn),
                    QpType::Ud => core.attr.path_mtu = hw.config.active_mtu,
                    QpType::Dct => {
                        core.attr.max_dest_rd_atomic = crate::DC_RD_ATOMIC;
                        self.dct = Some(Box::new(Dct::new()));
                    }
                    QpType::XrcSend | QpType::Dci => {}
                }
            }
            (QpState::Rtr, QpState::Rts) => {
                let psn = Psn::from_wrapping(self.core.attr.sq_psn);
                for lane in &mut self.lanes {
                    lane.start_sending(psn, &self.core);
                }
            }
            _ => {}
        }
    }
}
