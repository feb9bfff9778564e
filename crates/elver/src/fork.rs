//! Noticing that the process has forked, without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A number that is another one in a child process. What calls `clone` itself is not noticed, unless it says so ([`note_child`]).
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The process that a session belongs to: a child of `fork` is another. To be asked where memory of the session's is about to
/// be written, which parent and child have in common.
#[derive(Clone, Copy, Debug)]
pub struct Origin(pub(crate) u32);

impl Origin {
    /// Whether this is that process.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == generation()
    }
}

/// This process is a child of which no handler is told, as `clone` makes them. To be called in it before anything of a session's.
pub fn note_child() {
    in_child();
}

/// Has forks noticed from here on. A session does so when it is opened; a handler of `pthread_atfork` in the child that was
/// registered before runs too early for what it does with the session, unless this was called before that.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only changes an atomic, which is allowed after `fork`. Without memory
        // for the handler forks are not noticed, and nothing else changes.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
