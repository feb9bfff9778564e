//! Shared memory as words. Everything in it is read and written through atomics of 8 bytes, so that another process may
//! change any word at any time.

use std::ops::Deref;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(loom))]
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

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

/// A place in this process's memory for shared words, by which nobody reaches them until a part is opened.
#[cfg(not(loom))]
pub struct Closed {
    mapping: Arc<Mapping>,
    opened: AtomicBool,
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
impl Mapping {
    /// Maps a range of a file in bytes, which begins at a page.
    fn new(
        fd: impl std::os::fd::AsFd,
        (offset, bytes): (u64, usize),
        protection: ProtFlags,
        populate: bool,
    ) -> std::io::Result<Mapping> {
        crate::memfd::check(fd.as_fd(), offset.saturating_add(bytes as u64))?;
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
        Ok(Mapping { start, bytes, shared })
    }

    /// Puts pages of this process's own in the place of some, which begin and end at one. If that fails the mapping stays
    /// for good.
    fn replace(
        self: &Arc<Mapping>,
        bytes: std::ops::Range<usize>,
        protection: ProtFlags,
    ) -> std::io::Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "{bytes:?} of {}", self.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the pages lie in the mapping, which is ours while it lives; its words may change at any time, and those
        // that are made inaccessible have no references ([`Closed`]).
        let replaced = unsafe {
            let start = self.start.as_ptr().byte_add(bytes.start).cast();
            rustix::mm::mmap_anonymous(start, bytes.len(), protection, flags)
        };
        if replaced.is_err() {
            // The system may have taken the pages already, and given their place to others, who would lose it.
            std::mem::forget(self.clone());
        }
        Ok(replaced.map(drop)?)
    }
}

#[cfg(not(loom))]
impl Closed {
    /// Makes a place for `bytes` bytes of a file from a page on, as [`Words::map_from`].
    ///
    /// # Errors
    ///
    /// As that.
    pub fn map(fd: impl std::os::fd::AsFd, offset: u64, bytes: usize) -> std::io::Result<Closed> {
        let mapping = Mapping::new(fd, (offset, bytes), ProtFlags::empty(), false)?;
        Ok(Closed { mapping: Arc::new(mapping), opened: AtomicBool::new(false) })
    }

    /// The first byte.
    pub fn start(&self) -> std::ptr::NonNull<u8> {
        self.mapping.start.cast()
    }

    /// Opens `bytes` bytes from `start` on, both of whole pages. Once, until they are closed.
    ///
    /// # Errors
    ///
    /// [`std::io::ErrorKind::AlreadyExists`] the second time; what the system said.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn open(&self, start: usize, bytes: usize) -> std::io::Result<Words> {
        let end = start + bytes;
        assert!(end <= self.mapping.bytes, "{start}..{end} of {}", self.mapping.bytes);
        if self.opened.swap(true, Ordering::Relaxed) {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        if let Err(error) = self.protect((start, bytes), MprotectFlags::READ | MprotectFlags::WRITE)
        {
            self.opened.store(false, Ordering::Relaxed);
            return Err(error);
        }
        // SAFETY: they lie in the mapping.
        let start = unsafe { self.mapping.start.byte_add(start) };
        Ok(Words { start, len: bytes / 8, mapping: self.mapping.clone() })
    }

    /// Gives up all but what was opened: this process has no way to it any more.
    ///
    /// # Errors
    ///
    /// What the system said.
    pub fn keep(&self, start: usize, bytes: usize) -> std::io::Result<()> {
        self.mapping.replace(0..start, ProtFlags::empty())?;
        self.mapping.replace(start + bytes..self.mapping.bytes, ProtFlags::empty())
    }

    /// Closes what was opened, after which as much can be opened elsewhere.
    ///
    /// # Errors
    ///
    /// What the system said: it is open still.
    ///
    /// # Panics
    /// If somebody has some of its words.
    pub fn close(&self, start: usize, bytes: usize) -> std::io::Result<()> {
        assert_eq!(Arc::strong_count(&self.mapping), 1, "what is closed is somebody's");
        self.protect((start, bytes), MprotectFlags::empty())?;
        self.opened.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn protect(&self, (start, bytes): (usize, usize), to: MprotectFlags) -> std::io::Result<()> {
        // SAFETY: the pages lie in the mapping, which is ours while `self` lives. Either more is allowed on them than before,
        // or nobody has a reference to them.
        unsafe {
            let start = self.mapping.start.byte_add(start);
            Ok(rustix::mm::mprotect(start.as_ptr().cast(), bytes, to)?)
        }
    }
}

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
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(fd, (offset, bytes), protection, populate)?;
        Ok(Words { start: mapping.start, len: bytes / 8, mapping: Arc::new(mapping) })
    }

    /// As [`Words::map`], for words that are stored to by nobody in this process: such a store is a fault, and where
    /// `/proc` is there the process can make it no other (`mprotect`).
    ///
    /// # Errors
    ///
    /// As [`Words::map`].
    pub fn map_to_read(fd: impl std::os::fd::AsFd, bytes: usize) -> std::io::Result<Words> {
        let mapping = match crate::memfd::reopen(fd.as_fd()) {
            Ok(file) => Mapping::new(file, (0, bytes), ProtFlags::READ, false),
            Err(_) => Mapping::new(fd, (0, bytes), ProtFlags::READ, false),
        }?;
        Ok(Words { start: mapping.start, len: bytes / 8, mapping: Arc::new(mapping) })
    }

    /// Puts zeros of this process's own in the place of the whole mapping, which nobody shares from then on. For a child of
    /// `fork`, which has its parent's: what still points there stays valid.
    ///
    /// # Errors
    ///
    /// What the system said: it has no memory.
    pub fn leave(&self) -> std::io::Result<()> {
        self.mapping.replace(0..self.mapping.bytes, ProtFlags::READ | ProtFlags::WRITE)
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
