//! What other threads do for the engine, and how it comes back.

use std::io;

use elver_core::ClientId;
use elver_portal::memfd::HUGE_PAGE;
use elver_portal::{NodeEnd, NodeHeir};
use elver_soft::{SoftMemory, Sought};
use elver_verbs::AccessFlags;

use super::account::Account;
use super::gate::Gate;
use super::quota::Usage;
use super::room::Backing;
use super::translate::Refused;

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
    /// The NUMA node that it is to lie at, if there are several.
    pub(super) near: Option<u16>,
    /// Bytes that its account has already, if it must leave some to others.
    pub(super) held: Option<u64>,
}

impl Order {
    /// Of the session that wants it.
    pub(super) fn token(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    /// What was taken for it of its account's quota.
    pub(super) fn usage(&self) -> Usage {
        Usage::region(self.bytes())
    }

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
    /// Whether the system took the wish where it is to lie, if there was one.
    pub(super) is_near: bool,
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

/// What is to be made.
pub(super) enum Job {
    Make(Order),
    File(SetFile),
}

impl Job {
    pub(super) fn account(&self) -> Account {
        match self {
            Job::Make(Order { account, .. }) | Job::File(SetFile { account, .. }) => *account,
        }
    }

    /// The session that has ordered it.
    pub(super) fn token(&self) -> u64 {
        match self {
            Job::Make(order) => order.token(),
            Job::File(file) => file.token,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        match self {
            Job::Make(order) => order.usage(),
            Job::File(file) => Usage::file(file.bytes),
        }
    }
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

/// What a process may still map, and is its no more.
#[derive(Default)]
pub(super) struct Leavings {
    pub(super) memory: Vec<SoftMemory>,
    pub(super) rings: Option<NodeEnd>,
    pub(super) files: Vec<Backing>,
    pub(super) gate: Option<Gate>,
}

impl Leavings {
    /// Gives it back to the system, whoever maps it.
    pub(super) fn clear(self) {
        let Leavings { memory, rings, files, gate } = self;
        for memory in &memory {
            memory.discard();
        }
        if let Some(rings) = &rings {
            rings.discard();
        }
        drop((memory, rings, files, gate));
    }
}

/// Memory was given back to the system, and counts no more.
pub(crate) struct Cleared {
    pub(super) account: Account,
    pub(super) usage: Usage,
    pub(super) awaited_by: Awaiting,
}

/// What waits until memory was given back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaiting {
    /// The answer to a deregistration, in a session that has such a token; whether nobody was left inside.
    Region { token: u64, request: u32, is_free: bool },
    /// The answer to a goodbye.
    Goodbye { token: u64, request: u32 },
    /// What an ended session had.
    Session(ClientId),
    /// Nothing.
    Nobody,
}

/// Where a session is that is made ahead: its record and rings, and its arena.
pub(super) struct Place {
    pub(super) heir: NodeHeir,
    pub(super) arena: SoftMemory,
}

/// A place was made empty for one, or not.
pub(crate) struct Readied {
    pub(super) set: u32,
    /// The session that prepares the set, and who pays for it.
    pub(super) token: u64,
    pub(super) account: Account,
    pub(super) heir: u32,
    pub(super) result: Result<(Place, NodeEnd), Refused>,
}
