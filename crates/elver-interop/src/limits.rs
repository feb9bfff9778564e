//! What rdma_rxe itself does otherwise, by the place in its source.

use crate::axes::{Cell, Op, Role};
use crate::refusals::Wrong;

/// Why a cell that failed with this reason says nothing of ours. Places are in Linux's
/// `drivers/infiniband/sw/rxe` and in rdma-core's `providers/rxe`.
pub(crate) fn of_cell(cell: &Cell, why: &str) -> Option<&'static str> {
    match (cell.op, cell.role) {
        // 1 is the GRH's flag; 4 is IB_WC_WITH_INVALIDATE, where verbs.h has IBV_WC_WITH_INV as 8.
        (Op::SendInv, Role::Requester) if why.ends_with("has flags 5") => Some(
            "rxe_resp.c, do_complete: the kernel's flag IB_WC_WITH_INVALIDATE (1 << 2) reaches \
             programs as it is, where they expect IBV_WC_WITH_INV (1 << 3)",
        ),
        _ => None,
    }
}

/// The same for an unexpected report.
pub(crate) fn of_refusal(wrong: Wrong, role: Role) -> Option<&'static str> {
    match (wrong, role) {
        (Wrong::AtomicMisaligned, Role::Responder) => {
            Some("librxe's validate_send_wr refuses to post it: nothing reaches the wire")
        }
        (Wrong::ShortReceive, Role::Requester) => Some(
            "rxe_mr.c, copy_data: a message longer than its receive is EINVAL and not ENOSPC, so \
             that rxe_resp.c, send_data_in, takes the receive for malformed",
        ),
        (Wrong::PsnBehind, Role::Responder) => Some(
            "rxe_comp.c, check_psn: an acknowledgement beyond everything that was sent completes \
             what is outstanding",
        ),
        _ => None,
    }
}
