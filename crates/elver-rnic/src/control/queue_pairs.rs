//! Queue pairs: making and destroying them, and what is asked of them.

use elver_verbs::{
    AsyncEvent, Memory, ObjectKind, Qp, QpAttr, QpInit, QpMade, QpState, QpType, Time, VerbsError,
};
use elver_wire::Qpn;

use super::{in_range, refuse_if_used};
use crate::qp::QueuePair;
use crate::services::GENERAL_SERVICES;
use crate::{Config, Rnic};

impl<M: Memory> Rnic<M> {
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
        check_sizes(&hw.config, &init)?;
        check_queues(&init)?;
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
}

/// Checks what the QP is to hold against what the device has.
fn check_sizes(config: &Config, init: &QpInit) -> Result<(), VerbsError> {
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
    in_range("log_num_errored", u64::from(init.dci.log_num_errored), 0, streams)
}

/// Checks that a QP of this type receives as it is to.
fn check_queues(init: &QpInit) -> Result<(), VerbsError> {
    match init.qp_type {
        QpType::Dct if init.srq.is_none() => Err(VerbsError::InvalidArgument {
            what: "a DCT receives from many initiators and needs an SRQ",
        }),
        QpType::XrcRecv => Err(VerbsError::InvalidArgument {
            what: "an XRC target is made in an XRC domain, with no PD and no CQ",
        }),
        QpType::XrcSend if init.srq.is_some() => Err(VerbsError::InvalidArgument {
            what: "an XRC initiator receives nothing and takes no SRQ",
        }),
        QpType::Dci if init.srq.is_some() => {
            Err(VerbsError::InvalidArgument { what: "a DCI receives nothing and takes no SRQ" })
        }
        _ => Ok(()),
    }
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
