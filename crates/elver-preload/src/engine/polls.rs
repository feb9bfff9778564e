//! What the polls of a program tell the thread: that it does nothing else, or is about to wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Polls between two looks of the thread by which it knows a program that does nothing else.
const POLLS_A_ROUND: u64 = 16;

pub(super) struct Polls {
    /// Rises whenever a program polls.
    count: AtomicU64,
    /// What that was when a program last asked to be told of an event.
    asked: AtomicU64,
    /// Whether the thread does not look at the socket just now.
    naps: AtomicBool,
}

impl Polls {
    pub(super) fn new() -> Polls {
        Polls {
            count: AtomicU64::new(0),
            asked: AtomicU64::new(0u64.wrapping_sub(POLLS_A_ROUND)),
            naps: AtomicBool::new(false),
        }
    }

    /// A program polls.
    #[inline]
    pub(super) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub(super) fn seen(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a program does little else, if there were so many between two looks.
    pub(super) fn are_many(before: u64, seen: u64) -> bool {
        seen.wrapping_sub(before) >= POLLS_A_ROUND
    }

    /// A program is about to wait for an event. Says whether the thread must be woken for it.
    pub(super) fn ask(&self) -> bool {
        self.asked.store(self.seen(), Ordering::SeqCst);
        self.naps.load(Ordering::SeqCst)
    }

    /// Whether a program waits for an event, or is about to: it looks once or twice more after it asked for one, and may then
    /// wait at a descriptor, which nobody sees. One that goes on polling does not.
    pub(super) fn is_awaited(&self) -> bool {
        let asked = self.asked.load(Ordering::SeqCst);
        !Polls::are_many(asked, self.seen())
    }

    /// Whether the thread leaves the socket to the program from now on.
    pub(super) fn nap(&self, naps: bool) {
        self.naps.store(naps, Ordering::SeqCst);
    }
}
