//! What a server's end tells who drives it.

use crate::protocol::kind::CallId;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call, with its whole message.
    Call {
        /// Which.
        call: CallId,
        /// Its method.
        method: u32,
        /// When nobody waits for it any more.
        deadline_us: Option<u64>,
        /// Whether a stream follows.
        uploads: bool,
        /// The message.
        message: &'a [u8],
    },
    /// Bytes of a call's stream.
    Piece {
        /// Which call.
        call: CallId,
        /// The bytes.
        bytes: &'a [u8],
        /// No more will come.
        ends: bool,
    },
    /// A call was cancelled, and has its answer: it may be forgotten.
    Cancelled(CallId),
}
