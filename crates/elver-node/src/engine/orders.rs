//! What other threads do for the engine, and how it comes back.

use std::io;

use elver_portal::memfd::HUGE_PAGE;
use elver_soft::{SoftMemory, Sought};
use elver_verbs::AccessFlags;

use super::account::Account;
use super::room::Backing;

/// Bytes of a page of memory that is made.
pub(super) const PAGE: u64 = 4_096;

/// What memory is wanted, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(super) slot: u32,
    pub(super) serial: u32,
    pub(super) request: u32,
    /// Who pays for the bytes.
    pub(super) account: Account,
    pub(super) len: u64,
    /// Where the client will map it.
    pub(super) addr: u64,
    pub(super) access: AccessFlags,
    pub(super) huge: bool,
    /// Bytes that its account has already, if it must leave some to others.
    pub(super) held: Option<u64>,
}

impl Order {
    /// The bytes that it takes at most.
    pub(super) fn bytes(&self) -> u64 {
        let page = if self.huge { HUGE_PAGE } else { PAGE };
        self.len.max(1).checked_next_multiple_of(page).unwrap_or(u64::MAX)
    }
}

/// An order that was carried out.
pub(crate) struct Made {
    pub(super) order: Order,
    pub(super) result: io::Result<Piece>,
}

/// Memory that both ends map.
pub(super) struct Piece {
    pub(super) file: Backing,
    pub(super) memory: SoftMemory,
    /// Bytes of the file.
    pub(super) bytes: u64,
}

/// The file that is wanted for sessions which are made ahead, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetFile {
    pub(super) set: u32,
    /// The session that prepares the set, and its request.
    pub(super) token: u64,
    pub(super) request: u32,
    /// Who pays for the bytes.
    pub(super) account: Account,
    pub(super) bytes: u64,
    /// As of an [`Order`].
    pub(super) held: Option<u64>,
}

/// A file that was made, or not.
pub(crate) struct Filed {
    pub(super) order: SetFile,
    pub(super) result: io::Result<Backing>,
}

/// What was found.
pub(crate) struct Looked {
    pub(super) id: u64,
    pub(super) sought: Sought,
}
