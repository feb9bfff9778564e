//! The QP state machine as one table (IBTA vol. 1, 10.3.1 and table 91).
//!
//! Each [`Transition`] names the attributes that `modify_qp` must carry and those that it may.
//! DCI and DCT follow mlx5: a DCI never names a peer, a DCT stops at RTR.

use crate::{QpAttrMask as M, QpState, QpType, VerbsError};

/// One row of the table: a transition that a `modify_qp` may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// State before.
    pub from: QpState,
    /// State after.
    pub to: QpState,
    /// Attributes that the call must carry, besides the state itself.
    pub required: M,
    /// Attributes that the call may carry.
    pub optional: M,
}

/// The row for a transition, or none if the verbs do not allow it.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Dci, Dct, Rc, Uc, Ud, XrcRecv, XrcSend};

    let none = M::empty();
    let (required, optional) = match (qp_type, from, to) {
        (_, _, Reset) | (_, Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (none, none),

        (Rc | Uc | XrcSend | XrcRecv, Reset, Init) => {
            (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, none)
        }
        (Ud, Reset, Init) => (M::PKEY_INDEX | M::PORT | M::QKEY, none),
        (Dci, Reset, Init) => (M::PKEY_INDEX | M::PORT, none),
        (Dct, Reset, Init) => (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, none),

        (Rc | Uc | XrcSend | XrcRecv, Init, Init) => {
            (none, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS)
        }
        (Ud, Init, Init) => (none, M::PKEY_INDEX | M::PORT | M::QKEY),
        (Dci, Init, Init) => (none, M::PKEY_INDEX | M::PORT),

        (Rc | XrcRecv, Init, Rtr) => (
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (Uc | XrcSend, Init, Rtr) => {
            (M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::ACCESS_FLAGS | M::PKEY_INDEX)
        }
        (Ud, Init, Rtr) => (none, M::PKEY_INDEX | M::QKEY),
        (Dci, Init, Rtr) => (M::PATH_MTU, M::PKEY_INDEX | M::AV),
        (Dct, Init, Rtr) => (M::MIN_RNR_TIMER | M::AV | M::PATH_MTU, none),

        (Rc, Rtr, Rts) => (
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER,
        ),
        (XrcSend, Rtr, Rts) => (
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
            M::CUR_STATE | M::ACCESS_FLAGS,
        ),
        (XrcRecv, Rtr, Rts) => {
            (M::TIMEOUT | M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER)
        }
        (Uc, Rtr, Rts) => (M::SQ_PSN, M::CUR_STATE | M::ACCESS_FLAGS),
        (Ud, Rtr, Rts) => (M::SQ_PSN, M::CUR_STATE | M::QKEY),
        (Dci, Rtr, Rts) => (
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
            M::MIN_RNR_TIMER,
        ),

        (Rc | XrcRecv, Rts, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER),
        (XrcSend, Rts | Sqd, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS),
        (Uc, Rts | Sqd | Sqe, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS),
        (Ud, Rts | Sqd | Sqe, Rts) => (none, M::CUR_STATE | M::QKEY),
        (Dci, Rts, Rts) => (none, M::MIN_RNR_TIMER),
        (Rc | XrcRecv, Sqd, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER),

        (Rc | Uc | Ud | XrcSend | XrcRecv, Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Rc, Sqd, Sqd) => (
            none,
            M::AV
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MIN_RNR_TIMER
                | M::PORT,
        ),
        (XrcSend, Sqd, Sqd) => (
            none,
            M::AV
                | M::MAX_QP_RD_ATOMIC
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::PORT,
        ),
        (XrcRecv, Sqd, Sqd) => (
            none,
            M::AV
                | M::MAX_DEST_RD_ATOMIC
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | M::TIMEOUT
                | M::MIN_RNR_TIMER
                | M::PORT,
        ),
        (Uc, Sqd, Sqd) => (none, M::AV | M::ACCESS_FLAGS | M::PKEY_INDEX),
        (Ud, Sqd, Sqd) => (none, M::PKEY_INDEX | M::QKEY),

        _ => return None,
    };
    Some(Transition { from, to, required, optional })
}

/// Checks a `modify_qp` call against the table: says which attributes are missing and which do not
/// belong to the transition.
///
/// # Errors
///
/// [`VerbsError::InvalidTransition`] if the verbs have no such one; [`VerbsError::InvalidAttributeMask`] with
/// what is missing and what does not belong.
pub fn check(qp_type: QpType, from: QpState, to: QpState, mask: M) -> Result<(), VerbsError> {
    let row =
        transition(qp_type, from, to).ok_or(VerbsError::InvalidTransition { qp_type, from, to })?;
    let missing = row.required - mask;
    let unexpected = mask - row.required - row.optional - M::STATE;
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(VerbsError::InvalidAttributeMask { qp_type, from, to, missing, unexpected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::{String, ToString};

    /// The whole matrix, every type, as one reviewed snapshot.
    #[test]
    fn transition_matrix() {
        let mut matrix = String::new();
        for qp_type in QpType::ALL {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    if let Some(row) = transition(qp_type, from, to) {
                        matrix += &format!(
                            "{qp_type} {from} -> {to}: requires {}; may {}\n",
                            row.required, row.optional
                        );
                    }
                }
            }
        }
        insta::assert_snapshot!(matrix);
    }

    #[test]
    fn rtr_without_path_mtu_says_so() {
        let mask =
            M::STATE | M::AV | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let error = check(QpType::Rc, QpState::Init, QpState::Rtr, mask).unwrap_err();
        assert!(error.to_string().contains("missing: path_mtu"), "{error}");
    }

    #[test]
    fn a_dct_stops_at_rtr() {
        let error = check(QpType::Dct, QpState::Rtr, QpState::Rts, M::STATE).unwrap_err();
        assert!(matches!(error, VerbsError::InvalidTransition { .. }));
    }

    #[test]
    fn a_dci_takes_no_peer() {
        let mask = M::STATE | M::PATH_MTU | M::DEST_QPN;
        let error = check(QpType::Dci, QpState::Init, QpState::Rtr, mask).unwrap_err();
        assert!(error.to_string().contains("unexpected: dest_qp_num"), "{error}");
    }
}
