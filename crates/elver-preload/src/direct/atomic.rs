//! What the orders of lanes and tables rest on, so that a model can put its own in its place.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that both processes reach.
pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl Atomic for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}
