//! What rdma_rxe itself does otherwise, by the place in its source.

use crate::axes::{Cell, Role};
use crate::refusals::Wrong;

/// A limit of rxe's.
pub(crate) struct Limit {
    /// Why, with the place in Linux's `drivers/infiniband/sw/rxe`.
    pub(crate) reason: &'static str,
    cells: fn(&Cell) -> bool,
    refusals: fn(Wrong, Role) -> bool,
}

pub(crate) const LIMITS: &[Limit] = &[];

/// The limit that a failed cell falls under.
pub(crate) fn of_cell(cell: &Cell) -> Option<&'static str> {
    LIMITS.iter().find(|limit| (limit.cells)(cell)).map(|limit| limit.reason)
}

/// The limit that an unexpected report falls under.
pub(crate) fn of_refusal(wrong: Wrong, role: Role) -> Option<&'static str> {
    LIMITS.iter().find(|limit| (limit.refusals)(wrong, role)).map(|limit| limit.reason)
}
