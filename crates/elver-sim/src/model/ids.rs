//! How the parts of a run are numbered, by which bytes of a message its WR is known, and what a broken rule
//! is told as.

use std::fmt;

pub(crate) type ArenaId = usize;
pub(crate) type OpId = usize;
pub(crate) type RecvId = usize;
pub(crate) type LaneId = usize;
pub(crate) type EndpointId = usize;
pub(crate) type QueueId = usize;
pub(crate) type CellId = usize;
pub(crate) type WindowId = usize;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl Violation {
    pub(crate) fn new(what: impl Into<String>) -> Violation {
        Violation(what.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The `wr_id` of a send WR. Receives have odd ones, so that a mix-up of the two shows.
pub(crate) const fn send_wr_id(op: OpId) -> u64 {
    (op as u64) << 1
}

/// The `wr_id` of a receive.
pub(crate) const fn recv_wr_id(recv: RecvId) -> u64 {
    (recv as u64) << 1 | 1
}

/// The number that a WR's message carries, as its first bytes and as immediate data; never 0.
pub(crate) const fn message_id(op: OpId) -> u32 {
    op as u32 + 1
}
