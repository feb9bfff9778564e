//! WRs, and the memory that they use.

use elver_verbs::{SendOpcode, WcStatus};

use super::ids::{ArenaIx, RegionIx, VqpIx};

/// Why a WR must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// The call must refuse it.
    Local(&'static str),
    /// The peer must not let it happen.
    Remote(&'static str),
}

/// A send WR.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) vqp: VqpIx,
    pub(crate) epoch: u32,
    pub(crate) opcode: SendOpcode,
    pub(crate) signaled: bool,
    pub(crate) state: OpState,
    /// The steps at which it was posted, and at which it was known to have succeeded.
    pub(crate) posted: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: u32,
    pub(crate) remote: Option<(RegionIx, u64)>,
    pub(crate) planted: Option<Planted>,
    /// Operands of an atomic: what it adds; or what it compares with and swaps in.
    pub(crate) operands: (u64, u64),
    pub(crate) delivered: bool,
    /// The harness must see it succeed.
    pub(crate) must_succeed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpState {
    Outstanding,
    Succeeded,
    Failed(WcStatus),
    /// Its VQP, client or node went.
    Forgotten,
}

impl Op {
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.opcode, SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::WriteWithImm)
    }

    /// Whether the local pieces are filled by the device.
    pub(crate) fn fills(&self) -> bool {
        matches!(self.opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd)
    }
}

/// A receive WR.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) vqp: VqpIx,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: u32,
}

/// A piece of local memory that a WR uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) arena: ArenaIx,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}
