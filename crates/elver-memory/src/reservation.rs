//! Address space that is set aside, for a file to be mapped into.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::MapError;
use crate::mapping::{Mapping, READ_WRITE, sealed, shared, unmappable};
use crate::soft_memory::SoftMemory;

/// Address space that was set aside, for a file to be mapped into.
pub struct Reservation(Mapping);

impl Reservation {
    /// Sets `len` bytes of address space aside, beginning at a multiple of `align`, a power of two.
    ///
    /// # Errors
    ///
    /// [`MapError::Memory`] if there is not so much address space, or `align` is no power of two.
    pub fn new(len: u64, align: u64) -> Result<Reservation, MapError> {
        let refused = |reason| MapError::Memory { len, reason };
        let align = usize::try_from(align.max(4096)).map_err(|_| refused(Errno::INVAL))?;
        let bytes = usize::try_from(len.max(1))
            .ok()
            .and_then(|len| len.checked_next_multiple_of(4096))
            .filter(|len| *len <= isize::MAX as usize / 2 && align.is_power_of_two())
            .ok_or_else(|| refused(Errno::NOMEM))?;
        let all = bytes + align - 4096;
        let (protection, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that
        // is in use.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), all, protection, flags) }
            .map_err(refused)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| refused(Errno::NOMEM))?;
        let skip = start.as_ptr().align_offset(align);
        // What stands before and behind goes back when it is dropped.
        // SAFETY: `skip` is less than `align` and a multiple of a page, so that all three parts lie
        // inside the mapping of `all` bytes.
        let (first, last) = unsafe { (start.add(skip), start.add(skip + bytes)) };
        if skip > 0 {
            drop(Mapping::of(start, skip));
        }
        if all > skip + bytes {
            drop(Mapping::of(last, all - skip - bytes));
        }
        Ok(Reservation(Mapping::of(first, bytes)))
    }

    /// Where it begins.
    pub fn addr(&self) -> u64 {
        self.0.start.as_ptr() as u64
    }

    /// Maps a file there, as [`SoftMemory::map_file`]. It must not be longer than the
    /// reservation.
    ///
    /// # Errors
    ///
    /// As [`SoftMemory::map_file`]; [`MapError::Map`] with `ENOSPC` if it is longer.
    pub fn map_file(self, file: impl AsFd, len: u64) -> Result<SoftMemory, MapError> {
        let bytes = sealed(&file, 0, len)?;
        if bytes > self.0.len {
            return Err(unmappable(len, Errno::NOSPC));
        }
        let flags = shared(bytes) | MapFlags::FIXED;
        let at = self.0.start.as_ptr().cast();
        // SAFETY: the address range is ours, and nothing was ever there.
        unsafe { rustix::mm::mmap(at, bytes, READ_WRITE, flags, &file, 0) }
            .map_err(|error| unmappable(len, error))?;
        self.0.populate(bytes);
        Ok(SoftMemory::mapped(self.0, bytes))
    }
}
