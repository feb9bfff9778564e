//! What QPs are set to as they come up.

use elver_verbs::{AccessFlags, QpAttr, QpAttrMask as M, QpType};

use crate::model::Endpoint;

/// The attributes that do not depend on a peer.
pub(crate) fn attributes(endpoint: &Endpoint) -> QpAttr {
    let setup = endpoint.setup;
    QpAttr {
        qp_access_flags: AccessFlags::REMOTE_CHANGES
            | AccessFlags::REMOTE_READ
            | AccessFlags::LOCAL_WRITE,
        qkey: setup.qkey,
        timeout: setup.timeout,
        retry_cnt: setup.retry_cnt,
        rnr_retry: setup.rnr_retry,
        min_rnr_timer: setup.min_rnr_timer,
        ..QpAttr::default()
    }
}

/// The attributes that each transition needs.
pub(crate) fn masks(qp_type: QpType) -> (Option<M>, Option<M>, Option<M>) {
    let basic = M::PKEY_INDEX | M::PORT;
    let peer = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let reliable = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => (
            Some(basic | M::ACCESS_FLAGS),
            Some(peer | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
            Some(reliable),
        ),
        QpType::Uc => (Some(basic | M::ACCESS_FLAGS), Some(peer), Some(M::SQ_PSN)),
        QpType::Ud => (Some(basic | M::QKEY), Some(M::empty()), Some(M::SQ_PSN)),
        QpType::Dci => (Some(basic), Some(M::PATH_MTU), Some(reliable)),
        QpType::Dct => {
            (Some(basic | M::ACCESS_FLAGS), Some(M::MIN_RNR_TIMER | M::AV | M::PATH_MTU), None)
        }
    }
}
