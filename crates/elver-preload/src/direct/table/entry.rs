//! An entry of a table: who reads it copies it, and looks whether it was being written meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::direct::atomic::Atomic;

/// Words of an entry, behind the one that tells whether it is being written.
pub(super) const WORDS: usize = 7;

#[repr(C, align(64))]
pub(super) struct Entry<A = AtomicU64, const N: usize = WORDS> {
    /// Odd while it is being written.
    pub(super) lap: A,
    pub(super) words: [A; N],
}

impl<A: Atomic, const N: usize> Entry<A, N> {
    /// A copy of it, unless it is being written.
    #[inline]
    pub(super) fn read(&self) -> Option<[u64; N]> {
        let lap = self.lap.load(Ordering::Acquire);
        let words = self.own();
        A::fence(Ordering::Acquire);
        (lap & 1 == 0 && self.lap.load(Ordering::Relaxed) == lap).then_some(words)
    }

    /// What it holds, for who writes it.
    #[inline]
    pub(super) fn own(&self) -> [u64; N] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    /// Of the table's owner alone, one thread at a time.
    pub(super) fn write(&self, words: &[u64; N]) {
        let lap = self.lap.load(Ordering::Relaxed);
        self.lap.store(lap.wrapping_add(1), Ordering::Relaxed);
        A::fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.lap.store(lap.wrapping_add(2), Ordering::Release);
    }
}
