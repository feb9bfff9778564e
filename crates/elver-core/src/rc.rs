//! The RC QPs of the hybrid pool (KRCORE, sections 4.2 and 4.3): which there are, what they are
//! for, and which of them may go.

pub(crate) mod back_off;
pub(crate) mod fate;
pub(crate) mod heat;
pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod path;
pub(crate) mod pool;
pub(crate) mod suspect;
pub(crate) mod transfer;
pub(crate) mod ud;
mod wanted;
