//! Noticing that the process has forked, without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A number that is another one in a child process. What calls `clone` itself is not noticed.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Begins to watch.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only changes an atomic, which is allowed after `fork`. Without memory
        // for the handler forks are not noticed, and nothing else changes.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
