use crate::{Cq, Qp, Srq};

/// An asynchronous event (IBTA vol. 1, 11.6.3; `enum ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The CQ overflowed: it takes no more completions and its QPs go to the error state.
    CqErr(Cq),
    /// The QP went to the error state for a fault that no completion tells.
    QpFatal(Qp),
    /// The responder refused a request: opcode or length out of order.
    QpReqErr(Qp),
    /// The responder refused a request: remote access violation.
    QpAccessErr(Qp),
    /// The first packet arrived at an RC or UC QP in RTR; told once until the QP is reset.
    CommEst(Qp),
    /// The send queue is drained (SQD).
    SqDrained(Qp),
    /// The last WQE of an errored QP that uses an SRQ was consumed.
    QpLastWqeReached(Qp),
    /// The SRQ failed.
    SrqErr(Srq),
    /// Fewer WRs stand in the SRQ than its limit.
    SrqLimitReached(Srq),
    /// A DCT refused a connection for a wrong access key, or had no room for its context.
    DctAccessErr(Qp),
}
