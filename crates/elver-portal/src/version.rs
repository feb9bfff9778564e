//! Which ends understand each other.
//!
//! A version is two numbers, which stand at the head of [`crate::Message::Hello`] and of both answers
//! to it, in the same place for ever. A process and a node of the same **major** version understand
//! each other, whichever is newer; of another major version the node refuses the session, and either
//! end says which version the other one has. What an end must do so that this holds:
//!
//! | what meets an end | what it does |
//! | --- | --- |
//! | another major version | [`crate::MessageError::Version`]; nothing more is looked at |
//! | another minor version, older or newer | goes on |
//! | a message that is longer than it knows | looks at what it knows; what is new stands behind |
//! | an entry with more words than it knows | the same |
//! | a command that it does not know ([`COMMANDS`]) | the node answers [`crate::RefusalCode::Unsupported`], and the session goes on |
//! | a notice that it does not know ([`NOTICES`]) | the process passes over it |
//! | a reason of a refusal that it does not know | [`crate::RefusalCode::Other`]; the text says the rest |
//! | any other entry or message that it does not know | the end of the session, as it is nonsense |
//!
//! So a minor version may add commands with answers of their own, first messages that only who was
//! answered one of those sends, notices, reasons, and fields behind those that there are. What
//! an older end leaves out of a message is not there, and a newer one takes the default for it; in an
//! entry the words behind its fields have no meaning, so that a newer end reads a field that came with
//! minor version N only if the other end has N. Everything else takes a new major version: the places
//! of the rings, what the fields mean that there are, and what a WR, a completion and an answer look
//! like.

use std::ops::RangeInclusive;

/// Two ends must have the same.
pub const VERSION: u16 = 4;
/// What was added since the version began.
pub const VERSION_MINOR: u16 = 7;

/// Kinds of entries that are commands: a node refuses those that it does not know.
pub const COMMANDS: RangeInclusive<u8> = 1..=63;
/// Kinds of entries that tell a process of something it need not know: it passes over those that it
/// does not know.
pub const NOTICES: RangeInclusive<u8> = 192..=255;

#[cfg(all(test, not(loom)))]
mod tests;
