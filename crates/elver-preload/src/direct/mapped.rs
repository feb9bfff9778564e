//! Files that processes share, as what lies in them.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// What may lie in memory that others write: any bytes are one.
///
/// # Safety
/// It consists of atomic integers, or of arrays and structures of them.
pub(crate) unsafe trait Shared {}

/// A mapping of a file, which is as long and cannot become shorter.
pub(crate) struct Mapped<T: Shared> {
    start: NonNull<T>,
    _is: PhantomData<T>,
}

// SAFETY: it is shared memory of atomics, which stays mapped while the value lives.
unsafe impl<T: Shared> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    pub(crate) fn of(file: impl AsFd, protection: ProtFlags) -> Result<Mapped<T>, Errno> {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            mmap(ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapped { start, _is: PhantomData })
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: the file is as long and cannot shrink; any bytes are a `T`.
        unsafe { self.start.as_ref() }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }
}

impl<T: Shared> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody borrows it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), size_of::<T>()) };
    }
}
