//! What a process says of itself in one word each: that it may be reaching into a peer's memory, and that
//! it sleeps. Who looks at one and who says it have each done something before: of the two, one sees
//! what the other did.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::direct::atomic::Atomic;

/// Odd while a process may be reaching into a peer's memory, and another number each time.
#[repr(C, align(64))]
pub(super) struct Epoch<A = AtomicU64>(pub(super) A);

impl<A: Atomic> Epoch<A> {
    /// Goes in, until the value goes. One thread at a time.
    #[inline]
    pub(super) fn enter(&self) -> Inside<'_, A> {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now | 1, Ordering::Relaxed);
        // What peers take back after this they wait for; what they took back before is seen.
        A::fence(Ordering::SeqCst);
        Inside { epoch: &self.0, next: (now | 1).wrapping_add(1) }
    }

    /// For who has taken something back: whoever is seen outside after this sees that it is gone.
    #[inline]
    pub(super) fn taken_back() {
        A::fence(Ordering::SeqCst);
    }

    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// See [`Epoch::enter`].
pub(crate) struct Inside<'a, A: Atomic = AtomicU64> {
    epoch: &'a A,
    next: u64,
}

impl<A: Atomic> Drop for Inside<'_, A> {
    #[inline]
    fn drop(&mut self) {
        self.epoch.store(self.next, Ordering::Release);
    }
}

/// Not 0 while a process sleeps, and is to be woken when something is sent to it.
#[repr(C, align(64))]
pub(super) struct Sleeps<A = AtomicU64>(pub(super) A);

impl<A: Atomic> Sleeps<A> {
    /// Who says so before he sleeps looks once more at what was sent. One thread at a time.
    pub(super) fn say(&self, sleeps: bool) {
        self.0.store(sleeps.into(), Ordering::Relaxed);
        A::fence(Ordering::SeqCst);
    }

    /// For who has sent something: it is seen by who falls asleep after this, or his sleep is seen here.
    #[inline]
    pub(super) fn sent() {
        A::fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn are_said(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
