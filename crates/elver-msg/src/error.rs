use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::protocol::{Fault, Refused, Status};
use crate::rank::TAG_MAX;

/// Why a call failed, and what to do.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody started this process as one of a group.
    #[error(
        "this process is no rank of a group: {name} is not set; start it with `elver launch -n N -- PROGRAM`, \
         or make the group with Group::meet or Group::join"
    )]
    NotLaunched {
        /// The variable that is missing.
        name: &'static str,
    },
    /// What the environment says makes no sense.
    #[error("{name} is {value:?}, and must be {must}; `elver launch` sets it")]
    Environment {
        /// The variable.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// A group cannot have these measures.
    #[error("{what}")]
    Options {
        /// Which one, and what it must be.
        what: &'static str,
    },
    /// There is no such rank.
    #[error("there is no rank {rank}: the group has ranks 0 to {}", .size - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// The tag is kept for collective operations.
    #[error("the tag {tag} is kept for collective operations: take one up to {TAG_MAX}")]
    Tag {
        /// The tag.
        tag: u32,
    },
    /// The receiver takes no message that is so long.
    #[error(
        "a message of {len} bytes is longer than the {max} that its receiver takes (Limits::message_bytes)"
    )]
    TooLong {
        /// Its bytes.
        len: u64,
        /// Most that it takes.
        max: u64,
    },
    /// The message that fits is longer than the room for it. It stays.
    #[error(
        "the message of rank {} with tag {} has {} bytes, and there is room for {room}: receive it with more, \
         or ask first (Group::probe)", .status.source, .status.tag, .status.len
    )]
    Truncated {
        /// The message.
        status: Status,
        /// Bytes that there was room for.
        room: u64,
    },
    /// A rank is not there any more.
    #[error("rank {rank} {loss}")]
    Lost {
        /// Its rank.
        rank: u32,
        /// How it went.
        loss: Loss,
    },
    /// What is waited for only this rank could send, and it waits.
    #[error("this rank waits for a message of its own, which it cannot send while it waits")]
    Itself,
    /// What is waited for cannot be sent: as many messages as may be wait for a receive of this rank's, which waits.
    #[error(
        "this rank waits for a message that rank {rank} cannot send: {messages} of its messages have come and wait for \
         receives, and more may not (Limits::unexpected_messages): receive those first, or allow for more"
    )]
    Crowded {
        /// The rank.
        rank: u32,
        /// Messages that wait.
        messages: u32,
    },
    /// Ranks call different collective operations, or in another order.
    #[error(
        "rank {rank} is in {theirs}, and this rank in {ours}: all ranks call the same, in one order"
    )]
    Disagree {
        /// The other rank.
        rank: u32,
        /// What it calls.
        theirs: &'static str,
        /// What this one calls.
        ours: &'static str,
    },
    /// A rank ended a collective operation without its result: its own error says why.
    #[error("rank {rank} gave up {operation}, to whose end it is needed: its own error says why")]
    GaveUp {
        /// The other rank.
        rank: u32,
        /// What this one calls.
        operation: &'static str,
    },
    /// Ranks give different numbers of elements to a collective operation.
    #[error(
        "rank {rank} sends {theirs} bytes in {operation}, and this rank expects {ours}: all give as many elements"
    )]
    Length {
        /// The other rank.
        rank: u32,
        /// Bytes that came.
        theirs: u64,
        /// Bytes that were expected.
        ours: u64,
        /// What they do.
        operation: &'static str,
    },
    /// Too many requests go on.
    #[error("{max} requests go on or were not waited for: wait for some (Options::requests)")]
    TooMany {
        /// How many there may be.
        max: usize,
    },
    /// Not all ranks came together.
    #[error("the group did not come together in {seconds} s: {what}{why}")]
    Join {
        /// How long it was waited for.
        seconds: u64,
        /// Who is missing.
        what: String,
        /// What was met last, if anything.
        why: String,
    },
    /// Another rank, or the rendezvous, does not want this one.
    #[error("{who} refuses this rank: {why}")]
    Unwanted {
        /// Who.
        who: String,
        /// Why.
        why: Unwanted,
    },
    /// Memory or a port could not be had, or the node is gone.
    #[error(transparent)]
    Session(Arc<elver::Error>),
    /// A ring could not be made.
    #[error(transparent)]
    Ring(Arc<elver_ring::Error>),
}

/// How a rank was lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// It has finished (`Group::finish`), as all may.
    Finished,
    /// It has left before: its end was dropped.
    Left,
    /// It died, its node, or the way to it.
    Gone(Arc<elver_ring::Error>),
    /// It sent what cannot be.
    Fault(Fault),
    /// What it offered cannot be READ.
    Unreadable(Arc<elver::Error>),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Finished => f.write_str("has finished"),
            Loss::Left => f.write_str("has left the group before it finished"),
            Loss::Gone(error) => write!(f, "is gone: {error}"),
            Loss::Fault(fault) => write!(f, "broke the rules, and is heard no more: {fault}"),
            Loss::Unreadable(error) => {
                write!(f, "offered memory that cannot be READ, and is heard no more: {error}")
            }
        }
    }
}

/// Why an end does not want another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u32)]
#[non_exhaustive]
pub enum Unwanted {
    /// It is of another version.
    #[error("it speaks another version; build all ranks with one version of elver-msg")]
    Version = 1,
    /// It is of another group.
    #[error("it is of another group (ELVER_TOKEN)")]
    Group = 2,
    /// It counts ranks otherwise.
    #[error("it counts another number of ranks (ELVER_SIZE)")]
    Size = 3,
    /// That rank is there already, or is no rank that could connect.
    #[error("that rank is there already, or there is none such (ELVER_RANK)")]
    Rank = 4,
    /// It says nothing that makes sense.
    #[error("it makes no sense of what this rank says")]
    Nonsense = 5,
}

impl Unwanted {
    /// By its number.
    pub(crate) fn of(number: u32) -> Unwanted {
        match number {
            1 => Unwanted::Version,
            2 => Unwanted::Group,
            3 => Unwanted::Size,
            4 => Unwanted::Rank,
            _ => Unwanted::Nonsense,
        }
    }
}

impl From<elver::Error> for Error {
    fn from(error: elver::Error) -> Error {
        Error::Session(Arc::new(error))
    }
}

impl From<elver_ring::Error> for Error {
    fn from(error: elver_ring::Error) -> Error {
        Error::Ring(Arc::new(error))
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Full { max } => Error::TooMany { max },
            Refused::TooLong { len, max } => Error::TooLong { len, max },
        }
    }
}
