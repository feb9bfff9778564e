//! Mappings of this process: zeroed memory, and files that it shares with others.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::MapError;
use crate::fault;
use crate::populate::{self, steps};

pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    /// That others share it.
    pub(crate) shared: Option<fault::Shared>,
}

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Bytes of which the pages are unmapped at once: whole huge pages. So long all others of this process wait who map or unmap
/// something, for what they allocate too.
pub(crate) const UNMAP_STEP: usize = 64 << 20;

// SAFETY: a mapping is owned by no thread in particular and only unmapped on drop.
unsafe impl Send for Mapping {}
// SAFETY: nothing is reachable through a shared mapping but its address and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn of(start: NonNull<u8>, len: usize) -> Mapping {
        Mapping { start, len, shared: None }
    }

    /// A file that others may take pages from.
    pub(crate) fn of_file(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        flags: MapFlags,
    ) -> Result<Mapping, MapError> {
        let refused = |error| unmappable(bytes as u64, error);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, READ_WRITE, flags, &file, offset) }
                .map_err(refused)?;
        let start = NonNull::new(start.cast()).ok_or_else(|| refused(Errno::NOMEM))?;
        Ok(Mapping::of(start, bytes).share())
    }

    /// Of a file that others may take pages from.
    pub(crate) fn share(mut self) -> Mapping {
        // SAFETY: the mapping is whole and stays until it is dropped, which drops this first; all
        // accesses tolerate that its bytes change.
        self.shared = unsafe { fault::Shared::new(self.start.as_ptr() as usize, self.len) };
        self
    }

    /// Maps its first pages, so that nobody has to wait for them later. A single `MAP_POPULATE` would keep all others of this
    /// process who map something from it until it is done: for seconds.
    pub(crate) fn populate(&self, bytes: usize) {
        let start = self.start.as_ptr().expose_provenance();
        if bytes > populate::STEP {
            // SAFETY: the mapping is ours and whole.
            unsafe { populate::populate(start..start + bytes) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Nobody mends it from now on.
        self.shared = None;
        for (at, len) in steps(self.len, UNMAP_STEP) {
            // SAFETY: the mapping is ours, of this length, and the last owner is going. An error would
            // mean that it was unmapped behind our back, and leaves nothing to do.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().add(at).cast(), len) };
        }
    }
}

/// How so many bytes of a file are mapped: their pages too, if they are few ([`Mapping::populate`]).
pub(crate) fn shared(bytes: usize) -> MapFlags {
    let mut flags = MapFlags::SHARED;
    flags.set(MapFlags::POPULATE, bytes <= populate::STEP);
    flags
}

pub(crate) fn unmappable(len: u64, error: Errno) -> MapError {
    MapError::Map { len, reason: error.into() }
}

/// Checks that a file has `len` bytes from `offset` on and keeps them.
pub(crate) fn sealed(file: impl AsFd, offset: u64, len: u64) -> Result<usize, MapError> {
    let refused = |error| unmappable(len, error);
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused)?;
    let size = rustix::fs::fstat(&file).map_err(refused)?.st_size;
    let fits = |len: &u64| {
        let end = offset.checked_add(*len);
        *len > 0 && end.is_some_and(|end| end <= size as u64)
    };
    match Some(len).filter(fits).and_then(|len| usize::try_from(len).ok()) {
        Some(bytes) if seals.contains(rustix::fs::SealFlags::SHRINK) => Ok(bytes),
        _ => Err(refused(Errno::INVAL)),
    }
}
