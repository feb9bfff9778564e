//! What waits for memory that is not at hand takes so many bytes of a device, in all and for each payer.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes in all.
const BYTES_MAX: u64 = 32 << 20;
/// What each counts for at least, in bytes: what a device remembers of it.
const BYTES_MIN: u64 = 1_024;
/// Payers of whom nothing waits, beyond which they are forgotten.
const IDLE_MAX: usize = 64;

/// Who has what waiting. None gets more than half of what the others leave.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    all: Arc<AtomicU64>,
    payers: RefCell<BTreeMap<u64, Arc<AtomicU64>>>,
}

/// What one thing takes; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    all: Arc<AtomicU64>,
    own: Arc<AtomicU64>,
    bytes: u64,
}

impl Ledger {
    /// Room for so many bytes, if the payer may have it.
    pub(crate) fn ask(&self, payer: u64, bytes: usize) -> Option<Room> {
        let bytes = cost(bytes);
        let own = self.own(payer);
        let (all, mine) = (self.all.load(Ordering::Relaxed), own.load(Ordering::Relaxed));
        let others = all - mine;
        (mine + bytes <= BYTES_MAX.saturating_sub(others) / 2).then(|| self.take(own, bytes))
    }

    /// Room for so many bytes, whoever has how many.
    pub(crate) fn insist(&self, payer: u64, bytes: usize) -> Room {
        self.take(self.own(payer), cost(bytes))
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    fn take(&self, own: Arc<AtomicU64>, bytes: u64) -> Room {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        own.fetch_add(bytes, Ordering::Relaxed);
        Room { all: self.all.clone(), own, bytes }
    }

    fn own(&self, payer: u64) -> Arc<AtomicU64> {
        let mut payers = self.payers.borrow_mut();
        if payers.len() > IDLE_MAX && !payers.contains_key(&payer) {
            payers.retain(|_, own| Arc::strong_count(own) > 1);
        }
        payers.entry(payer).or_default().clone()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.own.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn cost(bytes: usize) -> u64 {
    (bytes as u64).max(BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Whoever comes later finds as much as others left him, however many take all they get.
    #[test]
    fn nobody_takes_what_another_needs() {
        let ledger = Ledger::default();
        let mut rooms = Vec::new();
        let mut last = BYTES_MAX;
        for payer in 0..8 {
            let before = ledger.bytes();
            while let Some(room) = ledger.ask(payer, 4_096) {
                rooms.push(room);
            }
            let got = ledger.bytes() - before;
            assert!(got > 0 && got <= (BYTES_MAX - before) / 2, "{got} of {before}");
            assert!(got < last);
            last = got;
        }
        assert!(ledger.bytes() < BYTES_MAX);
        rooms.clear();
        assert_eq!(ledger.bytes(), 0);
        // Even what must be counts.
        let room = ledger.insist(1, BYTES_MAX as usize);
        assert!(ledger.ask(1, 1).is_none() && ledger.ask(2, 1).is_none());
        drop(room);
        assert!(ledger.ask(2, 1).is_some());
    }

    #[test]
    fn payers_of_whom_nothing_waits_are_forgotten() {
        let ledger = Ledger::default();
        let room = ledger.insist(0, 1);
        for payer in 1..10_000 {
            assert!(ledger.ask(payer, 1).is_some());
            assert!(ledger.payers.borrow().len() <= IDLE_MAX + 2);
        }
        assert!(ledger.payers.borrow().contains_key(&0));
        drop(room);
    }
}
