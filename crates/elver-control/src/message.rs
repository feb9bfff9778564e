//! What cores ask and answer: see [`ControlMessage`].

mod codec;
#[cfg(test)]
pub(crate) mod tests;

use core::num::NonZeroU16;

use elver_verbs::{Class, Mtu};
use thiserror::Error;

use crate::record::{NODE_RECORD_BYTES, NodeRecord, RecordError};

/// PSNs have 24 bits.
pub const PSN_MASK: u32 = (1 << 24) - 1;
/// Longest control message in bytes.
pub const CONTROL_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

const VERSION: u8 = 4;
const HEADER_BYTES: usize = 16;
/// The body of the longest message: a record.
const BODY_BYTES_MAX: usize = NODE_RECORD_BYTES;
/// Ports that one [`Request::Alive`] asks about, at most.
pub const PORTS_ASKED: usize = 8;

/// A message between two cores over their UD QPs.
///
/// ```text
///   0  magic "ElvC"                           4
///   4  version (4), kind, zero                1, 1, 2
///   8  id of the request                      8
///   16 body, of the length that the kind has
/// ```
///
/// All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// Drawn at random by who asks; the answer repeats it.
    pub id: u64,
    /// What it says.
    pub body: ControlBody,
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlBody {
    /// Asks.
    Request(Request),
    /// Answers.
    Answer(Answer),
}

/// What one core asks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make an RC QP and connect it to this one.
    RcConnect {
        /// The asker's end.
        end: RcEnd,
        /// Whose traffic the QP is for.
        class: Class,
        /// Whether it serves one VQP alone instead of the pool.
        leased: bool,
    },
    /// Move all VQPs off an RC QP, let its work end and destroy it. The answer comes then.
    RcClose {
        /// The asked node's end.
        qpn: u32,
        /// The asker's end.
        peer_qpn: u32,
    },
    /// An end of an RC QP has failed: stop the other one, and tell how far it got. The asked node learns
    /// the same of the asker's.
    RcFate {
        /// The asked node's end.
        qpn: u32,
        /// The asker's end, which is in ERR.
        peer_qpn: u32,
        /// The PSN that the asker's end expects next: all before it was executed there.
        psn: u32,
    },
    /// Tell your record (the RPC that KRCORE compares its meta server with).
    Meta,
    /// Say that you are there, and who has these ports. It is answered whoever asks, so that nobody has to
    /// be looked up for it: who asks says where the answer gets in.
    Alive {
        /// The Q_Key of the UD QP that it comes from.
        qkey: u32,
        /// Ports of the asked node's.
        ports: [Option<NonZeroU16>; PORTS_ASKED],
    },
}

/// One end of an RC connection, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcEnd {
    /// Its QPN.
    pub qpn: u32,
    /// The PSN that it sends first.
    pub psn: u32,
    /// The largest path MTU that it carries.
    pub mtu: Mtu,
    /// READs and atomics that it serves at once (IBTA vol. 1, 9.4.4): the other end has never more
    /// outstanding.
    pub rd_atomic: u8,
}

/// What a core answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The RC QP is made and connected.
    Accepted(RcEnd),
    /// The RC QP is gone, or there was none.
    Closed,
    /// The end is in ERR, and this is the PSN that it expects next: all before it was executed, and
    /// nothing more will be. None: there is no such end, and nothing is known of it.
    Fate(Option<u32>),
    /// The record.
    Record(NodeRecord),
    /// Too much to do: ask again after so many microseconds.
    Busy {
        /// How long to wait.
        retry_after_us: u32,
    },
    /// No.
    Refused(Refusal),
    /// The request came and is worked on.
    Working,
    /// The node is there.
    Alive {
        /// Whether it turns by itself. One that turns only when its owner calls it may be silent for long,
        /// and is there.
        turns: bool,
        /// For each port that was asked about a number of the binding that it has: another one if somebody
        /// else is bound to it, none if nobody is.
        bound: [Option<NonZeroU16>; PORTS_ASKED],
    },
}

/// Why a core refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has as much of something as it may.
    Short {
        /// Of what.
        of: Shortage,
        /// How much is in use.
        used: u32,
        /// How much may be.
        limit: u32,
    },
    /// It asks the same of the asker, and its own request goes first.
    Crossed,
}

/// What there is too little of for another RC QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shortage {
    /// RC QPs of the pool.
    Pool = 1,
    /// Send WRs of RC QPs of single VQPs.
    Leased = 2,
    /// RC QPs that one peer may have made.
    Share = 3,
    /// Peers that are remembered.
    Peers = 4,
    /// Queue pairs of the device.
    Device = 5,
}

/// Bytes that are no control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// Too short, or not as long as its kind is.
    #[error("{given} bytes, but a message of this kind has {expected}")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// Not of this protocol.
    #[error("no control message")]
    Magic,
    /// Another version of it.
    #[error("control message of version {given}; this side knows version {VERSION} alone")]
    Version {
        /// The version that it names.
        given: u8,
    },
    /// Unknown kind.
    #[error("unknown kind {given:#04x}")]
    Kind {
        /// The kind as given.
        given: u8,
    },
    /// A field holds what it never holds, or a reserved one is not zero.
    #[error("field {name} holds {given:#x}")]
    Field {
        /// Name of the field.
        name: &'static str,
        /// What it holds.
        given: u32,
    },
    /// The record in it is none.
    #[error(transparent)]
    Record(#[from] RecordError),
}
