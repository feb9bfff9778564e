//! Which process lends. Its children have what it had when they were forked.

use std::sync::OnceLock;

use super::table::Table;

struct Lender {
    table: Table,
    pid: u32,
}

static LENDER: OnceLock<Lender> = OnceLock::new();

/// This process lends from here on; the table of who came first.
pub(crate) fn is_this(table: Table) -> Table {
    LENDER.get_or_init(|| Lender { table, pid: std::process::id() }).table
}

/// The table, if anything was ever lent.
pub(crate) fn table() -> Option<Table> {
    LENDER.get().map(|lender| lender.table)
}

/// Whether this process is the lender.
pub(crate) fn is_lender() -> bool {
    LENDER.get().is_some_and(|lender| lender.pid == std::process::id())
}

/// Whether this process is none of the lender's children, or none any more: the lender has ended, or executes another program.
pub(crate) fn is_orphan() -> bool {
    // SAFETY: the call has no memory to do with.
    let parent = unsafe { libc::getppid() };
    LENDER
        .get()
        .is_none_or(|lender| parent as u32 != lender.pid || !lender.table.has_owner(lender.pid))
}
