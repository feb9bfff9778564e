use core::fmt;

use thiserror::Error;

use crate::{QpAttrMask, QpState, QpType, SendOpcode};

/// Why a verbs call was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerbsError {
    /// No such object on this device: never made, or destroyed since.
    #[error("{kind} {handle:#x} does not exist on this device")]
    InvalidHandle {
        /// Kind of the object.
        kind: ObjectKind,
        /// The handle as given.
        handle: u32,
    },
    /// The object is still used by others, which must be destroyed first.
    #[error("{kind} {handle:#x} is still used by {users} objects; destroy them first")]
    InUse {
        /// Kind of the object.
        kind: ObjectKind,
        /// Its handle.
        handle: u32,
        /// How many objects use it.
        users: u32,
    },
    /// The device's configured limit of such objects is reached.
    #[error("the device's limit of {limit} {kind}s is reached; raise `{setting}` or destroy some")]
    Limit {
        /// Kind of the object.
        kind: ObjectKind,
        /// The limit.
        limit: u64,
        /// The configuration field that sets it.
        setting: &'static str,
    },
    /// An attribute is out of its range.
    #[error("{name} is {value}, but must lie in {min}..={max}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// The value given.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The verbs know no such transition.
    #[error("a {qp_type} QP cannot go from {from} to {to}")]
    InvalidTransition {
        /// Transport service of the QP.
        qp_type: QpType,
        /// Its state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The attributes do not fit the transition.
    #[error("{qp_type} QP from {from} to {to}: missing: {missing}; unexpected: {unexpected}")]
    InvalidAttributeMask {
        /// Transport service of the QP.
        qp_type: QpType,
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
        /// Attributes that the transition needs and the call lacks.
        missing: QpAttrMask,
        /// Attributes that the call carries and the transition does not take.
        unexpected: QpAttrMask,
    },
    /// `cur_qp_state` does not say the state that the QP is in.
    #[error("cur_qp_state says {given}, but the QP is in {actual}")]
    WrongCurrentState {
        /// What the caller said.
        given: QpState,
        /// What is.
        actual: QpState,
    },
    /// The device cannot do this.
    #[error("this device does not support {what}")]
    Unsupported {
        /// What is missing.
        what: &'static str,
    },
    /// The combination of arguments has no meaning.
    #[error("invalid argument: {what}")]
    InvalidArgument {
        /// What is wrong and what to do.
        what: &'static str,
    },
    /// A WR was refused.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// Why a WR was refused when posted. WRs before it in the same call were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// No such QP or SRQ.
    #[error("{kind} {handle:#x} does not exist on this device")]
    InvalidHandle {
        /// Kind of the queue's owner.
        kind: ObjectKind,
        /// The handle as given.
        handle: u32,
    },
    /// The queue is full; poll completions first.
    #[error("the queue holds its {capacity} WRs already; poll its CQ first")]
    QueueFull {
        /// Capacity of the queue.
        capacity: u32,
    },
    /// The QP's state takes no such WR.
    #[error("a {qp_type} QP in {state} takes no such WR")]
    State {
        /// Transport service.
        qp_type: QpType,
        /// State of the QP.
        state: QpState,
    },
    /// The transport has no such operation.
    #[error("a {qp_type} QP cannot do {opcode:?}")]
    Opcode {
        /// Transport service.
        qp_type: QpType,
        /// The operation.
        opcode: SendOpcode,
    },
    /// More SGEs than the QP was created with.
    #[error("{given} SGEs, but the queue was created for {max}")]
    TooManySges {
        /// SGEs of the WR.
        given: u32,
        /// Most that the queue takes.
        max: u32,
    },
    /// More inline bytes than the QP was created with, or inline data on a READ or an atomic.
    #[error("{given} inline bytes, but {max} are allowed here")]
    InlineTooLong {
        /// Bytes of the WR.
        given: u32,
        /// Most that this WR may have.
        max: u32,
    },
    /// The message is longer than the transport carries.
    #[error("message of {given} bytes, but the transport carries at most {max}")]
    MessageTooLong {
        /// Bytes of the message.
        given: u64,
        /// Most that it may have.
        max: u64,
    },
    /// An atomic whose local buffer is not 8 bytes.
    #[error("an atomic needs 8 local bytes, but the WR has {given}")]
    AtomicLength {
        /// Bytes of the WR.
        given: u64,
    },
    /// A UD or DC WR without a destination, a WR on a connected QP with one, or one of the other
    /// kind.
    #[error("the WR's destination does not fit a {qp_type} QP")]
    Destination {
        /// Transport service.
        qp_type: QpType,
    },
    /// The address handle does not exist.
    #[error("AH {handle:#x} does not exist on this device")]
    Ah {
        /// The handle as given.
        handle: u32,
    },
    /// A number of the destination is wider than its 24 bits.
    #[error("remote QPN {qpn:#x} is wider than 24 bits")]
    Qpn {
        /// The number as given.
        qpn: u32,
    },
    /// Receives go to the QP's SRQ.
    #[error("the QP uses an SRQ; post receives there")]
    UsesSrq,
    /// A virtual QP's WR has a piece that lies in no region of its owner's, or in one that does not
    /// let the operation write. Physical QPs tell this by a completion.
    #[error("{length} bytes at {addr:#x} are not open to this WR under lkey {lkey:#x}")]
    LocalAccess {
        /// Address of the piece.
        addr: u64,
        /// Its length in bytes.
        length: u32,
        /// Its key.
        lkey: u32,
    },
    /// A virtual QP's atomic is on a word that is not aligned to 8 bytes. Physical QPs tell this by
    /// a completion.
    #[error("an atomic needs a word aligned to 8 bytes, and {addr:#x} is not")]
    AtomicAlignment {
        /// Address of the word.
        addr: u64,
    },
}

/// Kinds of objects, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Memory region.
    Mr,
    /// Memory window.
    Mw,
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Srq,
    /// XRC domain.
    Xrcd,
    /// Address handle.
    Ah,
    /// Queue pair.
    Qp,
    /// GID table entry.
    Gid,
    /// Multicast group.
    Group,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Pd => "PD",
            ObjectKind::Mr => "MR",
            ObjectKind::Mw => "MW",
            ObjectKind::Cq => "CQ",
            ObjectKind::Srq => "SRQ",
            ObjectKind::Xrcd => "XRC domain",
            ObjectKind::Ah => "AH",
            ObjectKind::Qp => "QP",
            ObjectKind::Gid => "GID",
            ObjectKind::Group => "multicast group",
        })
    }
}
