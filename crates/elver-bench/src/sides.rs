//! What the counter looks for by name: it counts inside of one side at a time, and forgets what it
//! counted when the warm-up ends.

use std::hint::black_box;

/// Work of the side that posts WRs or builds packets.
#[inline(never)]
pub(crate) fn initiator_side<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Work of the side that answers or checks packets.
#[inline(never)]
pub(crate) fn target_side<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// The warm-up is over.
#[inline(never)]
pub(crate) fn counting_starts() {
    black_box(());
}
