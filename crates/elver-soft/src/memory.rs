//! Memory that the soft device registers: its own mappings, files that other processes map too,
//! memory of the caller's, or of another process.
//!
//! The device, the application and, through the device, peers work on the same bytes at once, as
//! with hardware. Words of 8 aligned bytes are read and written whole; longer pieces are copied in
//! no particular order.

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::{Memory, MemoryError};
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{ProcessMemory, SoftError};

/// Bytes that are copied at once between two other processes.
const BOUNCE_BYTES: usize = 16 * 1024;

/// A piece of memory; clones share it. It is unmapped when the last one goes.
#[derive(Clone)]
pub struct SoftMemory {
    start: NonNull<u8>,
    len: usize,
    owner: Option<Arc<Mapping>>,
    /// Whose it is, if another process's: `start` is an address there.
    process: Option<Arc<ProcessMemory>>,
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
        Ok(SoftMemory { start, len: len as usize, owner, process: None })
    }

    /// Maps the first `len` bytes of a file in memory that other processes may map too. The file
    /// must be at least so long, and sealed against shrinking (`F_SEAL_SHRINK`), so that nobody can
    /// make the device fault.
    pub fn map_file(file: impl AsFd, len: u64) -> Result<SoftMemory, SoftError> {
        let refused = |reason| SoftError::Memory { len, reason };
        let invalid = || refused(rustix::io::Errno::INVAL);
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused)?;
        let size = rustix::fs::fstat(&file).map_err(refused)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || i64::try_from(len).is_ok_and(|len| len > size) {
            return Err(invalid());
        }
        let bytes = usize::try_from(len).ok().filter(|len| (1..=isize::MAX as usize).contains(len));
        let bytes = bytes.ok_or_else(invalid)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use;
        // the file was just seen to be long enough, and to stay so.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, file, 0) }
            .map_err(refused)?;
        let start = NonNull::new(start.cast()).ok_or_else(invalid)?;
        let owner = Some(Arc::new(Mapping { start, len: bytes }));
        Ok(SoftMemory { start, len: bytes, owner, process: None })
    }

    /// `len` bytes at `addr` in another process; none if that is no range of addresses. Copies go
    /// through a system call. An atomic is atomic among accesses through devices that the same
    /// thread drives, not against the process itself.
    pub fn of_process(process: Arc<ProcessMemory>, addr: u64, len: u64) -> Option<SoftMemory> {
        let (start, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        start.checked_add(len).filter(|end| *end <= isize::MAX as usize)?;
        let start = NonNull::new(ptr::without_provenance_mut(start))?;
        Some(SoftMemory { start, len, owner: None, process: Some(process) })
    }

    /// Memory that the caller owns.
    ///
    /// # Safety
    /// `start .. start + len` must stay readable and writable until the value and all its clones
    /// are gone, deregistration from devices included; and nothing may hold a reference to it while
    /// a device may write it.
    pub unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> SoftMemory {
        SoftMemory { start, len, owner: None, process: None }
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
        // Wrapping, since it may be an address of another process's.
        Ok(self.start.as_ptr().wrapping_add(offset as usize))
    }

    /// The aligned word at `offset`; none of another process's.
    #[inline]
    fn word(&self, offset: u64) -> Result<&AtomicU64, MemoryError> {
        let at = self.at(offset, 8)?;
        if !(at as usize).is_multiple_of(8) || self.process.is_some() {
            return Err(MemoryError::Misaligned { offset });
        }
        // SAFETY: `at` is valid for 8 bytes while `self` lives, and aligned; other accesses to the
        // word are atomic too, or are copies whose mixture the registrant accepts.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Replaces an aligned word of another process's; returns what it held.
    fn replace(&self, offset: u64, by: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        if !(self.at(offset, 8)? as usize).is_multiple_of(8) {
            return Err(MemoryError::Misaligned { offset });
        }
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        self.write(offset, &by(found).to_ne_bytes())?;
        Ok(found)
    }

    /// Copies between two ranges that were checked, through a buffer.
    fn copy_by_pieces(
        &self,
        offset: u64,
        src: &SoftMemory,
        src_offset: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        let mut buffer = [0; BOUNCE_BYTES];
        let pieces = len.div_ceil(BOUNCE_BYTES);
        // From the end that an overlap would overwrite first.
        let backwards =
            self.start.as_ptr() as u64 + offset > src.start.as_ptr() as u64 + src_offset;
        for piece in 0..pieces {
            let piece = if backwards { pieces - 1 - piece } else { piece };
            let at = piece * BOUNCE_BYTES;
            let bytes = &mut buffer[..(len - at).min(BOUNCE_BYTES)];
            src.read(src_offset + at as u64, bytes)?;
            self.write(offset + at as u64, bytes)?;
        }
        Ok(())
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
        if let Some(process) = &self.process {
            // SAFETY: the slice is valid for its length.
            let done = unsafe { process.read(at as usize, dst.as_mut_ptr(), dst.len()) };
            return here(done, offset, dst.len());
        }
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
        if let Some(process) = &self.process {
            // SAFETY: the slice is valid for its length.
            let done = unsafe { process.write(at as usize, src.as_ptr(), src.len()) };
            return here(done, offset, src.len());
        }
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
        let len = len as usize;
        match (&self.process, &src.process) {
            (None, None) => {
                // SAFETY: both ranges were checked; `ptr::copy` allows them to overlap.
                unsafe { ptr::copy(from, to, len) };
                Ok(())
            }
            (None, Some(process)) => {
                // SAFETY: the range of this process was checked.
                let done = unsafe { process.read(from as usize, to, len) };
                here(done, src_offset, len)
            }
            (Some(process), None) => {
                // SAFETY: the range of this process was checked.
                let done = unsafe { process.write(to as usize, from, len) };
                here(done, offset, len)
            }
            (Some(_), Some(_)) => self.copy_by_pieces(offset, src, src_offset, len),
        }
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        if self.process.is_some() {
            return self.replace(offset, |found| if found == compare { swap } else { found });
        }
        let word = self.word(offset)?;
        let order = Ordering::AcqRel;
        let result = word.compare_exchange(compare, swap, order, Ordering::Acquire);
        Ok(result.unwrap_or_else(|found| found))
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        if self.process.is_some() {
            return self.replace(offset, |found| found.wrapping_add(add));
        }
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

/// What an access to another process came to.
fn here(done: bool, offset: u64, len: usize) -> Result<(), MemoryError> {
    if done { Ok(()) } else { Err(MemoryError::Gone { offset, len: len as u64 }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

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
    fn a_file_must_be_sealed_and_long_enough() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, 8_192).unwrap();
        assert!(SoftMemory::map_file(&file, 8_192).is_err());
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(SoftMemory::map_file(&file, 8_193).is_err());
        assert!(SoftMemory::map_file(&file, 0).is_err());
        let one = SoftMemory::map_file(&file, 8_192).unwrap();
        let other = SoftMemory::map_file(&file, 4_096).unwrap();
        one.write_u64(8, 5).unwrap();
        assert_eq!(other.fetch_add(8, 2).unwrap(), 5);
        assert_eq!(one.read_u64(8).unwrap(), 7);
    }

    /// This process as if it were another.
    fn process() -> Arc<ProcessMemory> {
        let pid = std::process::id() as i32;
        Arc::new(ProcessMemory::open(pid, rustix::process::geteuid().as_raw()).unwrap())
    }

    #[test]
    fn the_memory_of_a_process_is_copied() {
        let real = SoftMemory::alloc(100_000).unwrap();
        let addr = real.base_addr();
        let far = SoftMemory::of_process(process(), addr, 100_000).unwrap();
        assert_eq!((far.base_addr(), far.size()), (addr, 100_000));
        far.write(5, b"elver").unwrap();
        let mut bytes = [0; 5];
        real.read(5, &mut bytes).unwrap();
        assert_eq!(&bytes, b"elver");
        assert_eq!(far.fetch_add(80, 3), Ok(0));
        assert_eq!(far.compare_swap(80, 3, 9), Ok(3));
        assert_eq!(far.compare_swap(80, 3, 1), Ok(9));
        assert_eq!(real.read_u64(80), Ok(9));
        assert_eq!(far.fetch_add(81, 3), Err(MemoryError::Misaligned { offset: 81 }));
        assert!(far.write(99_999, &[0; 2]).is_err());

        let pattern: Vec<u8> = (0..60_000u32).map(|i| (i * 7 >> 3) as u8).collect();
        for (to, from) in [(100, 0), (0, 100)] {
            far.write(from, &pattern).unwrap();
            far.copy_from(to, &far, from, 60_000).unwrap();
            let mut copied = vec![0; 60_000];
            real.read(to, &mut copied).unwrap();
            assert!(copied == pattern, "overlapping from {from} to {to}");
        }
        let near = SoftMemory::alloc(60_000).unwrap();
        near.copy_from(0, &far, 0, 60_000).unwrap();
        far.copy_from(40_000, &near, 0, 60_000).unwrap();
        assert_eq!(real.read_u64(40_080), real.read_u64(80));
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        // The first page is never mapped.
        let far = SoftMemory::of_process(process(), 64, 1_024).unwrap();
        assert_eq!(far.read_u64(0), Err(MemoryError::Gone { offset: 0, len: 8 }));
        assert_eq!(far.write_u64(8, 0), Err(MemoryError::Gone { offset: 8, len: 8 }));
        assert!(SoftMemory::of_process(process(), u64::MAX, 1).is_none());
        assert!(SoftMemory::of_process(process(), 0, 1).is_none());
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
