//! Changing a queue pair: its attributes, its state.

use alloc::boxed::Box;

use elver_verbs::{
    Memory, ObjectKind, Qp, QpAttr, QpAttrMask, QpState, QpType, Time, VerbsError, qp_state,
    qpn_valid,
};
use elver_wire::Psn;

use super::{in_range, refuse_if_used};
use crate::Rnic;
use crate::dct::Dct;
use crate::hw::Hw;
use crate::qp::QueuePair;
use crate::responder::Responder;
use crate::route::Whither;

impl<M: Memory> Rnic<M> {
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

    /// Whether a QP sends but little in each of its turns; see
    /// [`elver_verbs::Device::take_short_turns`].
    pub fn take_short_turns(&mut self, qp: Qp, short: bool) {
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.short_turns = short;
        }
    }
}

/// Widest value of a field of so many bits.
const fn bits(count: u32) -> u64 {
    (1 << count) - 1
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
    fn enter<M: Memory>(&mut self, hw: &mut Hw<M>, from: QpState, to: QpState) {
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
