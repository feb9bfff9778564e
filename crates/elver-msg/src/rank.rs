//! Names of ranks and messages.

use crate::protocol::Wanted;
use crate::protocol::tags::COLLECTIVE;

/// The largest tag of a user's message. Those above are the collective operations'.
pub const TAG_MAX: u32 = COLLECTIVE - 1;

/// Whose message a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Anybody's, the own one's included (`MPI_ANY_SOURCE`).
    Any,
    /// This rank's.
    Rank(u32),
}

/// Which message a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Any (`MPI_ANY_TAG`).
    Any,
    /// One with this tag.
    Is(u32),
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Tag {
        Tag::Is(tag)
    }
}

/// What a receive of a user's takes.
pub(crate) fn wanted(source: Source, tag: Tag) -> Wanted {
    let source = match source {
        Source::Any => None,
        Source::Rank(rank) => Some(rank),
    };
    match tag {
        Tag::Any => Wanted { source, tag: 0, mask: !TAG_MAX },
        Tag::Is(tag) => Wanted { source, tag, mask: u32::MAX },
    }
}
