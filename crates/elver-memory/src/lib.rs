//! Memory that the soft device registers: its own mappings, files that it shares with a process,
//! memory of the caller's, or memory of another process.
//!
//! The device, the application and, through the device, peers work on the same bytes at once, as
//! with hardware. Words of 8 aligned bytes are read and written whole; longer pieces are copied in
//! no particular order. Memory of another process is copied by the kernel, and its words are not
//! whole to a peer; see [`SoftMemory::of_process`].

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod copier;
mod error;
pub mod fault;
mod foreign;
pub mod peer;
mod populate;
mod words;

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::{Memory, MemoryError};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

pub use copier::{Copier, CopierCounters, Ended, LOOK};
pub use error::MapError;
use foreign::Foreign;
pub use foreign::{ProcessMemory, Sought};
use populate::steps;

/// A piece of memory; clones share it. It is unmapped when the last one goes.
#[derive(Clone)]
pub struct SoftMemory {
    start: NonNull<u8>,
    /// Bytes from `start` on; 0 for memory of another process, so that every access there fails its
    /// check, and no other access pays for asking.
    len: usize,
    owner: Option<Arc<Owner>>,
}

enum Owner {
    Mapping(Mapping),
    Foreign(Foreign),
}

struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// That others share it.
    shared: Option<fault::Shared>,
}

impl Mapping {
    fn of(start: NonNull<u8>, len: usize) -> Mapping {
        Mapping { start, len, shared: None }
    }

    /// Of a file that others may take pages from.
    fn share(mut self) -> Mapping {
        // SAFETY: the mapping is whole and stays until it is dropped, which drops this first; all
        // accesses tolerate that its bytes change.
        self.shared = unsafe { fault::Shared::new(self.start.as_ptr() as usize, self.len) };
        self
    }

    /// Maps its first pages, so that nobody has to wait for them later. A single `MAP_POPULATE` would keep all others of this
    /// process who map something from it until it is done: for seconds.
    fn populate(&self, bytes: usize) {
        let start = self.start.as_ptr().expose_provenance();
        if bytes > populate::STEP {
            // SAFETY: the mapping is ours and whole.
            unsafe { populate::populate(start..start + bytes) };
        }
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Bytes of which the pages are unmapped at once: whole huge pages. So long all others of this process wait who map or unmap
/// something, for what they allocate too.
const UNMAP_STEP: usize = 64 << 20;

/// Address space that was set aside, for a file to be mapped into.
pub struct Reservation(Mapping);

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
    ///
    /// # Errors
    ///
    /// [`MapError::Memory`] if there is no address space of that size, or the system refuses it.
    pub fn alloc(len: u64) -> Result<SoftMemory, MapError> {
        let refused = |reason| MapError::Memory { len, reason };
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
        Ok(SoftMemory::mapped(Mapping::of(start, bytes), len as usize))
    }

    /// Maps the first `len` bytes of a file that is shared with other processes, and its pages at
    /// once. The file must be sealed against becoming shorter (`F_SEAL_SHRINK`), since a page that
    /// goes away would kill whoever touches it; one without the seal is refused.
    ///
    /// # Errors
    ///
    /// [`MapError::Map`]: the file is shorter or not sealed (`EINVAL`), or cannot be mapped.
    pub fn map_file(file: impl AsFd, len: u64) -> Result<SoftMemory, MapError> {
        SoftMemory::map_file_from(file, 0, len)
    }

    /// As [`SoftMemory::map_file`], `len` bytes from `offset` on, a multiple of a page.
    ///
    /// # Errors
    ///
    /// As [`SoftMemory::map_file`].
    pub fn map_file_from(file: impl AsFd, offset: u64, len: u64) -> Result<SoftMemory, MapError> {
        let bytes = sealed(&file, offset, len)?;
        let mapping = SoftMemory::map(file, offset, bytes, shared(bytes))?;
        mapping.populate(bytes);
        Ok(SoftMemory::mapped(mapping, bytes))
    }

    /// A file that others may take pages from.
    fn map(
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

    /// As [`SoftMemory::map_file`], and none of its pages: see [`SoftMemory::populate`].
    ///
    /// # Errors
    ///
    /// As [`SoftMemory::map_file`].
    pub fn map_file_bare(file: impl AsFd, len: u64) -> Result<SoftMemory, MapError> {
        let bytes = sealed(&file, 0, len)?;
        SoftMemory::map(file, 0, bytes, MapFlags::SHARED).map(|all| SoftMemory::mapped(all, bytes))
    }

    /// Maps the pages of a part of it ahead, those that are to be had, so that nobody waits for them later. Does nothing to memory
    /// that was not mapped here, nor for what does not lie in it.
    pub fn populate(&self, offset: u64, len: u64) {
        if let Some(Owner::Mapping(_)) = self.owner.as_deref()
            && let Ok(start) = self.at(offset, len)
        {
            let start = start.expose_provenance();
            // SAFETY: the range lies in the mapping, which is ours while `self` lives.
            unsafe { populate::populate(start..start + len as usize) };
        }
    }

    /// A part of this memory, which it keeps mapped. Not of another process's.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfRange`].
    pub fn part(&self, offset: u64, len: u64) -> Result<SoftMemory, MemoryError> {
        self.at(offset, len)?;
        // SAFETY: the range was just checked to lie inside the memory.
        let start = unsafe { self.start.add(offset as usize) };
        Ok(SoftMemory { start, len: len as usize, owner: self.owner.clone() })
    }

    /// Gives the pages of a mapped file back to the system, all that were mapped with it and for all
    /// who map them: they read zeros from then on. Who maps the file cannot hold on to memory that
    /// is not its own any more. No device may have the memory registered. Does nothing to memory of
    /// other kinds.
    pub fn discard(&self) {
        if let Some(Owner::Mapping(mapping)) = self.owner.as_deref() {
            let remove = rustix::mm::Advice::LinuxRemove;
            // SAFETY: the mapping is ours while `self` lives; all accesses to it tolerate that its
            // bytes change. Private memory, which has no file, is refused.
            let _ =
                unsafe { rustix::mm::madvise(mapping.start.as_ptr().cast(), mapping.len, remove) };
        }
    }

    /// Whether a page of it could not be had, so that nobody shares it any more: see [`fault`].
    pub fn is_lost(&self) -> bool {
        match self.owner.as_deref() {
            Some(Owner::Mapping(Mapping { shared: Some(shared), .. })) => shared.is_lost(),
            _ => false,
        }
    }

    fn mapped(mapping: Mapping, len: usize) -> SoftMemory {
        SoftMemory { start: mapping.start, len, owner: Some(Arc::new(Owner::Mapping(mapping))) }
    }

    /// Memory of another process: `len` bytes from its address `addr` on. Each access is copied by
    /// the kernel, which costs a system call; an access to what is not mapped, or no more, is
    /// refused, and so is every one after [`ProcessMemory::revoke`] or the process's end.
    ///
    /// There are no atomics on such memory: they would not be atomic for the process. A device
    /// refuses to register it for them.
    ///
    /// # Errors
    ///
    /// [`MapError::Process`] if the memory is not there, or this process may not reach that one's; the error
    /// says what helps.
    pub fn of_process(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
    ) -> Result<SoftMemory, MapError> {
        let foreign = Foreign::new(process, addr, len)?;
        let owner = Some(Arc::new(Owner::Foreign(foreign)));
        Ok(SoftMemory { start: NonNull::dangling(), len: 0, owner })
    }

    /// As [`SoftMemory::of_process`], and nobody looks whether it is there now: each access finds out
    /// for itself.
    ///
    /// # Errors
    /// No bytes, or more than a file's offsets reach.
    pub fn of_process_unseen(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
    ) -> Result<SoftMemory, MapError> {
        let owner = Some(Arc::new(Owner::Foreign(Foreign::unseen(process, addr, len)?)));
        Ok(SoftMemory { start: NonNull::dangling(), len: 0, owner })
    }

    /// As [`SoftMemory::of_process`] of a guarded process, whose pages may not come: its copier looks
    /// whether the memory is there, and `told` is called on a thread of that one's, unless it is given
    /// up ([`Copier::overdue`]).
    ///
    /// # Errors
    ///
    /// [`MapError::Process`] if nobody is asked: there can be no such memory, or as much is sought as may be.
    pub fn of_process_later(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
        told: impl FnOnce(Sought) + Send + 'static,
    ) -> Result<(), MapError> {
        Foreign::seek(process, addr, len, told)
    }

    /// The memory that was sought, if it is there.
    ///
    /// # Errors
    ///
    /// [`MapError::Process`] if it is not.
    pub fn found(sought: Sought) -> Result<SoftMemory, MapError> {
        let owner = Some(Arc::new(Owner::Foreign(sought.found()?)));
        Ok(SoftMemory { start: NonNull::dangling(), len: 0, owner })
    }

    /// Whether this is memory of another process, which is copied by the kernel.
    pub fn is_foreign(&self) -> bool {
        self.foreign().is_some()
    }

    /// Has a copy made that could have to wait: of `bytes` to `offset`, or over them. `told` gets them
    /// back, on another thread. Returns for which account; none if it is not made.
    pub fn submit(
        &self,
        offset: u64,
        bytes: Vec<u8>,
        writes: bool,
        told: impl FnOnce(Ended) + Send + 'static,
    ) -> Option<(Arc<Copier>, u64)> {
        self.foreign()?.submit(offset, bytes, writes, told)
    }

    fn foreign(&self) -> Option<&Foreign> {
        match self.owner.as_deref() {
            Some(Owner::Foreign(foreign)) => Some(foreign),
            _ => None,
        }
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

    /// Address of the first byte, in the process that it belongs to.
    pub fn as_ptr(&self) -> *mut u8 {
        match self.foreign() {
            Some(foreign) => ptr::without_provenance_mut(foreign.addr as usize),
            None => self.start.as_ptr(),
        }
    }

    /// The word at `offset`, in the host's byte order.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`].
    pub fn read_u64(&self, offset: u64) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets the word at `offset`, in the host's byte order.
    ///
    /// # Errors
    ///
    /// As [`Memory::write`].
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

    #[inline]
    fn atomic(&self, offset: u64) -> Result<&AtomicU64, MemoryError> {
        let no_atomics = |error| if self.is_foreign() { MemoryError::NoAtomics } else { error };
        self.word(offset).map_err(no_atomics)
    }

    /// A copy that is no word. Not inlined, so that the copy of a word is; this one calls another
    /// function anyhow.
    #[inline(never)]
    fn copy_bytes(
        &self,
        offset: u64,
        src: &SoftMemory,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        let (Ok(to), Ok(from)) = (self.at(offset, len), src.at(src_offset, len)) else {
            return self.copy_foreign(offset, src, src_offset, len);
        };
        // SAFETY: both ranges were checked; `ptr::copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len as usize) };
        Ok(())
    }

    // What the three below are called for is another process's memory, or else out of range. They
    // stand apart so that accesses to ordinary memory stay as short as they can be.

    #[cold]
    fn read_foreign(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        match self.foreign() {
            Some(foreign) => foreign.read(offset, dst),
            None => self.at(offset, dst.len() as u64).map(drop),
        }
    }

    #[cold]
    fn write_foreign(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        match self.foreign() {
            Some(foreign) => foreign.write(offset, src),
            None => self.at(offset, src.len() as u64).map(drop),
        }
    }

    #[cold]
    fn copy_foreign(
        &self,
        offset: u64,
        src: &SoftMemory,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        match (self.foreign(), src.foreign()) {
            (Some(to), Some(from)) => to.copy_from(offset, from, src_offset, len),
            (Some(to), None) => {
                let from = src.at(src_offset, len)?;
                // SAFETY: `from` is valid for `len` bytes, which the kernel reads.
                unsafe { to.write_from(offset, from, len as usize) }
            }
            (None, Some(from)) => {
                let to = self.at(offset, len)?;
                // SAFETY: `to` is valid for `len` bytes, which the kernel writes.
                unsafe { from.read_into(src_offset, to, len as usize) }
            }
            (None, None) => self.at(offset, len).and(src.at(src_offset, len)).map(drop),
        }
    }
}

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

/// How so many bytes of a file are mapped: their pages too, if they are few ([`Mapping::populate`]).
fn shared(bytes: usize) -> MapFlags {
    let mut flags = MapFlags::SHARED;
    flags.set(MapFlags::POPULATE, bytes <= populate::STEP);
    flags
}

fn unmappable(len: u64, error: Errno) -> MapError {
    MapError::Map { len, reason: error.into() }
}

/// Checks that a file has `len` bytes from `offset` on and keeps them.
fn sealed(file: impl AsFd, offset: u64, len: u64) -> Result<usize, MapError> {
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

impl fmt::Debug for SoftMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftMemory")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("owned", &self.owner.is_some())
            .field("foreign", &self.foreign())
            .finish()
    }
}

impl Memory for SoftMemory {
    fn payer(&self) -> u64 {
        self.foreign().map_or(0, Foreign::payer)
    }

    #[inline]
    fn size(&self) -> u64 {
        self.foreign().map_or(self.len as u64, |foreign| foreign.len)
    }

    fn base_addr(&self) -> u64 {
        self.as_ptr() as u64
    }

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        if dst.len() == 8
            && let Ok(word) = self.word(offset)
        {
            dst.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
            return Ok(());
        }
        let Ok(at) = self.at(offset, dst.len() as u64) else {
            return self.read_foreign(offset, dst);
        };
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
        let Ok(at) = self.at(offset, src.len() as u64) else {
            return self.write_foreign(offset, src);
        };
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
        self.copy_bytes(offset, src, src_offset, len)
    }

    fn write_waiting(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        match self.foreign() {
            Some(foreign) => foreign.write_waiting(offset, src),
            None => self.write(offset, src),
        }
    }

    fn read_waiting(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        match self.foreign() {
            Some(foreign) => foreign.read_waiting(offset, dst),
            None => self.read(offset, dst),
        }
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let word = self.atomic(offset)?;
        let order = Ordering::AcqRel;
        let result = word.compare_exchange(compare, swap, order, Ordering::Acquire);
        Ok(result.unwrap_or_else(|found| found))
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        Ok(self.atomic(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::populate::tests::{bytes_of, file};
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

    /// All others of the process waited who mapped something, for as long as all of it took: a node's engine, for seconds.
    #[test]
    fn others_map_something_while_a_large_file_is_mapped() {
        use std::sync::atomic::{AtomicBool, AtomicU32};
        const BYTES: u64 = 256 << 20;
        const WANTED: u32 = 4;
        // The system may not let the other thread run meanwhile, but not again and again.
        let is_so = (0..20).any(|_| {
            let (is_there, others, file) = (AtomicBool::new(false), AtomicU32::new(0), file(BYTES));
            let is_half_done = || (1..BYTES as usize).contains(&bytes_of(&file));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while bytes_of(&file) < BYTES as usize {
                        let begins_meanwhile = is_half_done();
                        drop(SoftMemory::alloc(4_096).unwrap());
                        let is_meanwhile = begins_meanwhile && is_half_done();
                        others.fetch_add(u32::from(is_meanwhile), Ordering::Relaxed);
                        is_there.store(true, Ordering::Release);
                    }
                });
                while !is_there.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                drop(SoftMemory::map_file(&file, BYTES).unwrap());
            });
            others.into_inner() >= WANTED
        });
        assert!(is_so);
    }

    /// All of it was unmapped by one call, for as long as that took.
    #[test]
    fn others_have_their_turn_while_a_large_file_is_unmapped() {
        use std::sync::atomic::AtomicBool;
        const BYTES: u64 = 4 * UNMAP_STEP as u64;
        let is_mapped = |at: usize| {
            let mut is_there = 0;
            // SAFETY: it touches nothing of the range, and writes one byte for its one page.
            let told = unsafe {
                libc::mincore(ptr::with_exposed_provenance_mut(at), 4_096, &raw mut is_there)
            };
            told == 0
        };
        // The system may not let the other thread run meanwhile, but not again and again.
        let is_so = (0..20).any(|_| {
            let memory = SoftMemory::map_file(file(BYTES), BYTES).unwrap();
            let first = memory.as_ptr().expose_provenance();
            let last = first + BYTES as usize - 4_096;
            assert!(is_mapped(first) && is_mapped(last));
            let (is_there, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let seen = scope.spawn(|| {
                    let mut seen = false;
                    while !is_over.load(Ordering::Acquire) {
                        is_there.store(true, Ordering::Release);
                        seen |= !is_mapped(first) && is_mapped(last);
                    }
                    seen
                });
                while !is_there.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                drop(memory);
                is_over.store(true, Ordering::Release);
                seen.join().unwrap()
            })
        });
        assert!(is_so);
    }

    #[test]
    fn pages_of_a_bare_mapping_come_when_they_are_asked_for() {
        const BYTES: u64 = 3 << 20;
        let file = file(BYTES);
        let memory = SoftMemory::map_file_bare(&file, BYTES).unwrap();
        assert_eq!(bytes_of(&file), 0);
        memory.populate(1 << 20, 1 << 20);
        assert_eq!(bytes_of(&file), 1 << 20);
        memory.populate(1 << 20, BYTES);
        assert_eq!(bytes_of(&file), 1 << 20, "it does not lie in it");
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
