//! Shared memory as words. Everything in it is read and written through atomics of 8 bytes, so that another process may
//! change any word at any time.

use std::ops::Deref;
use std::sync::Arc;

use crate::sync::AtomicU64;

/// A part of a session's shared memory. Parts keep the whole mapped.
#[cfg(not(loom))]
pub struct Words {
    start: std::ptr::NonNull<AtomicU64>,
    len: usize,
    mapping: Arc<Mapping>,
}

/// A part of a session's memory, in a model.
#[cfg(loom)]
pub struct Words {
    all: Arc<Vec<AtomicU64>>,
    start: usize,
    len: usize,
}

#[cfg(not(loom))]
struct Mapping {
    start: std::ptr::NonNull<AtomicU64>,
    bytes: usize,
    /// That both ends share it.
    shared: Option<elver_memory::fault::Shared>,
}

#[cfg(not(loom))]
// SAFETY: the words are atomics in memory that stays mapped while the value lives; no thread in
// particular owns it.
unsafe impl Send for Words {}
#[cfg(not(loom))]
// SAFETY: a shared `Words` gives shared atomics only.
unsafe impl Sync for Words {}
#[cfg(not(loom))]
// SAFETY: a mapping is owned by no thread in particular and only unmapped on drop.
unsafe impl Send for Mapping {}
#[cfg(not(loom))]
// SAFETY: nothing is reachable through a shared mapping.
unsafe impl Sync for Mapping {}

#[cfg(not(loom))]
impl Words {
    /// Maps the first `bytes` bytes, a multiple of 8, of a file that [`crate::memfd::create`]
    /// made; its pages at once, or when they are first touched. Refuses a file that is shorter or
    /// that may become so.
    ///
    /// # Errors
    ///
    /// [`std::io::ErrorKind::InvalidInput`] for a file that is refused; what the system said if it cannot be
    /// mapped.
    pub fn map(fd: impl std::os::fd::AsFd, bytes: usize, populate: bool) -> std::io::Result<Words> {
        Words::map_from(fd, 0, bytes, populate)
    }

    /// As [`Words::map`], `bytes` bytes from a page on.
    ///
    /// # Errors
    ///
    /// As [`Words::map`].
    pub fn map_from(
        fd: impl std::os::fd::AsFd,
        offset: u64,
        bytes: usize,
        populate: bool,
    ) -> std::io::Result<Words> {
        use rustix::mm::{MapFlags, ProtFlags};

        crate::memfd::check(fd.as_fd(), offset.saturating_add(bytes as u64))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::POPULATE, populate);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset)
        }?;
        let start = std::ptr::NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: the mapping is whole and stays until it is dropped, which drops this first; its words
        // may change at any time.
        let shared = unsafe { elver_memory::fault::Shared::new(start.as_ptr() as usize, bytes) };
        let mapping = Arc::new(Mapping { start, bytes, shared });
        Ok(Words { start, len: bytes / 8, mapping })
    }

    /// `len` words from `start` on.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn part(&self, start: usize, len: usize) -> Words {
        let first = &self[start..start + len];
        // The words of an empty part are never looked at.
        let start = std::ptr::NonNull::from(first).cast();
        Words { start, len, mapping: self.mapping.clone() }
    }

    /// Whether a page of it could not be had, so that the other end shares it no more.
    pub fn is_lost(&self) -> bool {
        self.mapping.shared.as_ref().is_some_and(elver_memory::fault::Shared::is_lost)
    }

    /// The first byte.
    pub fn start(&self) -> std::ptr::NonNull<u8> {
        self.start.cast()
    }

    /// Maps all of its pages, in one call of the system. It begins at one.
    pub fn touch(&self) {
        let populate = rustix::mm::Advice::LinuxPopulateWrite;
        // SAFETY: the words lie in the mapping, which is ours while `self` lives; their values stay. Before Linux 5.14
        // nothing happens, and each page is mapped when it is first used.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len * 8, populate) };
    }

    /// Gives the pages of the file back to the system, all that were mapped with it: both ends read
    /// zeros from then on.
    pub fn discard(&self) {
        let Mapping { start, bytes, .. } = *self.mapping;
        let remove = rustix::mm::Advice::LinuxRemove;
        // SAFETY: the mapping is ours while `self` lives, and its words may change at any time.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, remove) };
    }
}

#[cfg(not(loom))]
impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `len` words from `start` on lie in the mapping, which lives as long as `self`,
        // cannot shrink, and is aligned to a page; any bytes are a valid `AtomicU64`, and nobody
        // in this process holds another kind of reference to them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(not(loom))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // Nobody mends it from now on.
        self.shared = None;
        // SAFETY: the mapping is ours, of this length, and the last owner is going. An error would
        // mean that it was unmapped behind our back, and leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(loom)]
impl Words {
    /// Zeroed words that the threads of a model share.
    pub fn zeroed(len: usize) -> Words {
        let all = Arc::new((0..len).map(|_| AtomicU64::new(0)).collect());
        Words { all, start: 0, len }
    }

    /// `len` words from `start` on.
    pub fn part(&self, start: usize, len: usize) -> Words {
        assert!(start + len <= self.len);
        Words { all: self.all.clone(), start: self.start + start, len }
    }
}

#[cfg(loom)]
impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.all[self.start..self.start + self.len]
    }
}
