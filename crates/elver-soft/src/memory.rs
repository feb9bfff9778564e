//! Memory that the soft device registers: its own mappings, or memory of the caller's.
//!
//! The device, the application and, through the device, peers work on the same bytes at once, as
//! with hardware. Words of 8 aligned bytes are read and written whole; longer pieces are copied in
//! no particular order.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::{Memory, MemoryError};
use rustix::mm::{MapFlags, ProtFlags};

use crate::SoftError;

/// A piece of memory; clones share it. It is unmapped when the last one goes.
#[derive(Clone)]
pub struct SoftMemory {
    start: NonNull<u8>,
    len: usize,
    owner: Option<Arc<Mapping>>,
}

struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer names memory that stays mapped while the value lives, and every access goes
// through copies that tolerate concurrent writers, as registered memory must.
unsafe impl Send for SoftMemory {}
// SAFETY: as for `Send`; the methods take `&self` and hold no references into the memory.
unsafe impl Sync for SoftMemory {}
// SAFETY: a mapping is owned by no thread in particular and only unmapped on drop.
unsafe impl Send for Mapping {}
// SAFETY: nothing is reachable through a shared mapping but its address and length.
unsafe impl Sync for Mapping {}

impl SoftMemory {
    /// Maps `len` zeroed bytes, aligned to a page.
    pub fn alloc(len: u64) -> Result<SoftMemory, SoftError> {
        let refused = |reason| SoftError::Memory { len, reason };
        let bytes = usize::try_from(len.max(1))
            .ok()
            .filter(|len| *len <= isize::MAX as usize)
            .ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that
        // is in use.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }
                .map_err(refused)?;
        let start = NonNull::new(start.cast()).ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let owner = Some(Arc::new(Mapping { start, len: bytes }));
        Ok(SoftMemory { start, len: len as usize, owner })
    }

    /// Memory that the caller owns.
    ///
    /// # Safety
    /// `start .. start + len` must stay readable and writable until the value and all its clones
    /// are gone, deregistration from devices included; and nothing may hold a reference to it while
    /// a device may write it.
    pub unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> SoftMemory {
        SoftMemory { start, len, owner: None }
    }

    /// The word at `offset`, in the host's byte order.
    pub fn read_u64(&self, offset: u64) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets the word at `offset`, in the host's byte order.
    pub fn write_u64(&self, offset: u64, value: u64) -> Result<(), MemoryError> {
        self.write(offset, &value.to_ne_bytes())
    }

    /// The address of a checked range.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, MemoryError> {
        MemoryError::check_range(offset, len, self.len as u64)?;
        // SAFETY: the range was just checked to lie inside the allocation.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// The aligned word at `offset`.
    #[inline]
    fn word(&self, offset: u64) -> Result<&AtomicU64, MemoryError> {
        let at = self.at(offset, 8)?;
        if !(at as usize).is_multiple_of(8) {
            return Err(MemoryError::Misaligned { offset });
        }
        // SAFETY: `at` is valid for 8 bytes while `self` lives, and aligned; other accesses to the
        // word are atomic too, or are copies whose mixture the registrant accepts.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and the last owner is going. An error would
        // mean that it was unmapped behind our back, and leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SoftMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftMemory")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}

impl Memory for SoftMemory {
    #[inline]
    fn size(&self) -> u64 {
        self.len as u64
    }

    fn base_addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        if dst.len() == 8
            && let Ok(word) = self.word(offset)
        {
            dst.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
            return Ok(());
        }
        let at = self.at(offset, dst.len() as u64)?;
        // SAFETY: `at` is valid for `dst.len()` bytes; `ptr::copy` lets the caller's slice be any
        // memory.
        unsafe { ptr::copy(at, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        if let Ok(bytes) = <[u8; 8]>::try_from(src)
            && let Ok(word) = self.word(offset)
        {
            word.store(u64::from_ne_bytes(bytes), Ordering::Release);
            return Ok(());
        }
        let at = self.at(offset, src.len() as u64)?;
        // SAFETY: `at` is valid for `src.len()` bytes; `ptr::copy` lets the caller's slice be any
        // memory.
        unsafe { ptr::copy(src.as_ptr(), at, src.len()) };
        Ok(())
    }

    #[inline]
    fn copy_from(
        &self,
        offset: u64,
        src: &Self,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        if len == 8
            && let (Ok(to), Ok(from)) = (self.word(offset), src.word(src_offset))
        {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
            return Ok(());
        }
        let to = self.at(offset, len)?;
        let from = src.at(src_offset, len)?;
        // SAFETY: both ranges were checked; `ptr::copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len as usize) };
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let word = self.word(offset)?;
        let order = Ordering::AcqRel;
        let result = word.compare_exchange(compare, swap, order, Ordering::Acquire);
        Ok(result.unwrap_or_else(|found| found))
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        let memory = SoftMemory::alloc(100).unwrap();
        assert!(memory.write(92, &[1; 8]).is_ok());
        assert!(memory.write(93, &[1; 8]).is_err());
        assert!(memory.write(u64::MAX, &[1]).is_err());
        assert!(memory.read(100, &mut []).is_ok());
        assert_eq!(memory.fetch_add(12, 1), Err(MemoryError::Misaligned { offset: 12 }));
    }

    #[test]
    fn copies_may_overlap() {
        let memory = SoftMemory::alloc(64).unwrap();
        memory.write(0, &[1, 2, 3, 4, 5]).unwrap();
        memory.copy_from(2, &memory.clone(), 0, 5).unwrap();
        let mut bytes = [0; 7];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn words_are_atomic_and_in_host_order() {
        let memory = SoftMemory::alloc(16).unwrap();
        memory.write_u64(8, 40).unwrap();
        assert_eq!(memory.fetch_add(8, 2).unwrap(), 40);
        assert_eq!(memory.compare_swap(8, 42, 7).unwrap(), 42);
        assert_eq!(memory.compare_swap(8, 42, 9).unwrap(), 7);
        assert_eq!(memory.read_u64(8).unwrap(), 7);
    }
}
