use thiserror::Error;

use super::kind::Kind;

/// What a peer sent that cannot be. Its connection is over: nothing that comes behind it is believed.
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
    /// Something stands where its kind has nothing, or does not fit the rest.
    #[error("a field of a {kind:?} frame cannot be")]
    Field {
        /// Its kind.
        kind: Kind,
    },
    /// A frame that has no place here: a second greeting, a refusal behind one.
    #[error("a {kind:?} frame has no place here")]
    Unexpected {
        /// Its kind.
        kind: Kind,
    },
    /// More messages, or bytes of them, than there was credit for.
    #[error("{messages} messages of {bytes} bytes wait, more than there was credit for")]
    Overrun {
        /// Messages that were not matched.
        messages: u32,
        /// Bytes of them.
        bytes: u64,
    },
    /// Credit for more than was sent.
    #[error("credit for {messages} messages of {bytes} bytes, more than were sent")]
    Credit {
        /// Messages.
        messages: u32,
        /// Bytes of them.
        bytes: u32,
    },
    /// A message that is longer than this end takes.
    #[error("a message of {len} bytes, where {max} are the most")]
    TooLong {
        /// Its bytes.
        len: u64,
        /// Most that are taken.
        max: u64,
    },
    /// A tag that is no user's, and no operation's.
    #[error("a message of tag {tag:#x}, which no operation has")]
    Tag {
        /// The tag.
        tag: u32,
    },
    /// An offer under a number that is in use.
    #[error("the number {id} is offered twice")]
    Twice {
        /// The number.
        id: u32,
    },
    /// A frame about an offer that is not open, or not so.
    #[error("a {kind:?} frame of offer {id}, which is not open for it")]
    NoOffer {
        /// Its kind.
        kind: Kind,
        /// The number.
        id: u32,
    },
    /// More bytes than the message has.
    #[error("a message of {len} bytes is sent {bytes}")]
    TooMuch {
        /// What it should have.
        len: u64,
        /// What came.
        bytes: u64,
    },
    /// A greeting that is none.
    #[error("the greeting makes no sense")]
    Greeting,
}
