//! Which thread has the lock: a signal's handler that interrupts it there cannot wait for it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The thread that has it; 0 is none's.
static OWNER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: u8 = const { 0 };
}

/// This thread, by what is only its own.
fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Whether this one has it.
pub(crate) fn is_here() -> bool {
    OWNER.load(Ordering::Relaxed) == here()
}

/// This one has it from here on.
pub(crate) fn set_here() {
    OWNER.store(here(), Ordering::Relaxed);
}

/// It is about to be let go of.
pub(crate) fn clear() {
    OWNER.store(0, Ordering::Relaxed);
}
