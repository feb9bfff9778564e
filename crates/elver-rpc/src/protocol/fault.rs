use thiserror::Error;

use super::kind::{CallId, Kind};

/// What a peer sent that cannot be. The connection is over: nothing that comes behind it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A frame that is shorter than its header.
    #[error("a frame of {bytes} bytes is shorter than its header")]
    Short {
        /// Its bytes.
        bytes: usize,
    },
    /// Another version than the one that both ends agreed on.
    #[error("a frame is of version {version}")]
    Version {
        /// Its version.
        version: u8,
    },
    /// A kind that nobody knows.
    #[error("a frame is of kind {kind}, which is none")]
    Kind {
        /// Its kind.
        kind: u8,
    },
    /// Flags that a kind does not have.
    #[error("a {kind:?} frame has flags {flags:#04x}")]
    Flags {
        /// Its kind.
        kind: Kind,
        /// Its flags.
        flags: u8,
    },
    /// A body that is not as long as its header has it.
    #[error("a frame claims a body of {claimed} bytes, and has {bytes}")]
    Length {
        /// What the header says.
        claimed: u32,
        /// What came.
        bytes: usize,
    },
    /// Something stands where its kind has nothing, or does not fit the rest.
    #[error("a field of a {kind:?} frame cannot be")]
    Field {
        /// Its kind.
        kind: Kind,
    },
    /// A greeting that is none.
    #[error("the greeting makes no sense")]
    Greeting,
    /// A frame that has no place here: a response to a server, a second greeting, a call before one.
    #[error("a {kind:?} frame has no place here")]
    Unexpected {
        /// Its kind.
        kind: Kind,
    },
    /// A call of a slot that the server does not have.
    #[error("a call of slot {slot}, of {slots}")]
    Slot {
        /// The slot.
        slot: u32,
        /// How many there are.
        slots: u32,
    },
    /// A call begins in a slot that has one, or with a turn that is no later one.
    #[error("call {call:?} begins where turn {turn} is or was")]
    Turn {
        /// The call.
        call: CallId,
        /// The slot's.
        turn: u32,
    },
    /// An answer or a piece of a call that is not under way.
    #[error("a {kind:?} frame of call {call:?}, which is not under way")]
    NoCall {
        /// Its kind.
        kind: Kind,
        /// The call.
        call: CallId,
    },
    /// More bytes than the message has.
    #[error("a message of {total} bytes is sent {bytes}")]
    TooMuch {
        /// What it should have.
        total: u32,
        /// What came.
        bytes: u64,
    },
    /// A stream that goes on beyond its credit, or behind its end.
    #[error("a stream has {bytes} bytes where {allowed} are allowed")]
    Credit {
        /// Bytes that came.
        bytes: u64,
        /// Bytes that may come.
        allowed: u64,
    },
}
