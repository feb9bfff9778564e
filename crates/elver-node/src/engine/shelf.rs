//! The files in memory that processes of an account have, and how much of them is there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Times that a look is wanted while one is under way: from then on nothing counts as there. Its owner may keep it from
/// being seen, and what was not seen might be missing.
const UNSEEN_MAX: u32 = 100;

/// An account's files.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// Where each stands, and its bytes.
    files: Mutex<Vec<(Weak<OwnedFd>, u64)>>,
    bytes: AtomicU64,
    /// Bytes of them that were not there when that was last seen.
    missing: AtomicU64,
    /// Times that it was to be seen since a look began; 0 while there is none.
    wanted: AtomicU32,
}

/// A file, on a shelf once somebody has it.
#[derive(Debug)]
pub(super) struct Shelved {
    file: Arc<OwnedFd>,
    bytes: u64,
    shelf: OnceLock<Arc<Shelf>>,
}

impl Shelved {
    /// A file of so many bytes that have to come when somebody touches them.
    pub(super) fn new(file: OwnedFd, bytes: u64) -> Shelved {
        Shelved { file: Arc::new(file), bytes, shelf: OnceLock::new() }
    }

    /// Puts it on a shelf, if it is on none.
    pub(super) fn put_on(&self, shelf: &Arc<Shelf>) {
        if self.bytes > 0 && self.shelf.set(shelf.clone()).is_ok() {
            shelf.bytes.fetch_add(self.bytes, Ordering::Relaxed);
            let mut files = shelf.files();
            if files.len() == files.capacity() {
                files.retain(|(file, _)| file.strong_count() > 0);
            }
            files.push((Arc::downgrade(&self.file), self.bytes));
        }
    }
}

impl AsFd for Shelved {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Shelved {
    fn drop(&mut self) {
        if let Some(shelf) = self.shelf.get() {
            shelf.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Shelf {
    fn files(&self) -> MutexGuard<'_, Vec<(Weak<OwnedFd>, u64)>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of them that are not there, as far as is known.
    pub(super) fn missing(&self) -> u64 {
        if self.wanted.load(Ordering::Relaxed) > UNSEEN_MAX {
            return self.bytes();
        }
        self.missing.load(Ordering::Relaxed).min(self.bytes())
    }

    /// A look is wanted: the one that somebody has to finish, if none is under way.
    pub(super) fn begin(self: &Arc<Shelf>) -> Option<Look> {
        (self.wanted.fetch_add(1, Ordering::Relaxed) == 0).then(|| Look(self.clone()))
    }

    /// Looks at all files. Who has one can keep waiting whoever does that.
    fn look(&self) {
        let files: Vec<_> = {
            let mut files = self.files();
            files.retain(|(file, _)| file.strong_count() > 0);
            files.iter().filter_map(|(file, bytes)| Some((file.upgrade()?, *bytes))).collect()
        };
        let missing = |(file, bytes): &(Arc<OwnedFd>, u64)| {
            // What the system does not tell counts as if nothing were there.
            let there = rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512);
            bytes.saturating_sub(there)
        };
        self.missing.store(files.iter().map(missing).sum(), Ordering::Relaxed);
    }
}

/// A look at a shelf's files that is under way, until it is finished or given up.
#[derive(Debug)]
pub(super) struct Look(Arc<Shelf>);

impl Look {
    /// Looks. Who has one of the files can keep waiting whoever does that.
    pub(super) fn finish(self) {
        self.0.look();
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.wanted.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use elver_portal::memfd::{self, Pages};

    use super::*;

    /// Whoever held the lock of a file could have kept from sight what it gave back.
    #[test]
    fn what_is_kept_from_being_seen_counts_as_missing() {
        let shelf = Arc::<Shelf>::default();
        let file = memfd::create("test", 8_192, Pages::Small).unwrap();
        let file = Shelved::new(file, 8_192);
        file.put_on(&shelf);
        let look = shelf.begin().unwrap();
        for _ in 0..UNSEEN_MAX {
            assert!(shelf.missing() == 0 && shelf.begin().is_none());
        }
        assert_eq!(shelf.missing(), 8_192);
        look.finish();
        assert_eq!(shelf.missing(), 0);
        // One that is given up, with the node or by a panic, is begun anew.
        drop(shelf.begin().unwrap());
        let look = shelf.begin().unwrap();
        drop(file);
        look.finish();
        assert_eq!((shelf.bytes(), shelf.missing(), shelf.files().len()), (0, 0, 0));
    }
}
