//! Memory that a device registers: what it is, and how it comes to be.

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use elver_verbs::MemoryError;
use rustix::mm::{MapFlags, ProtFlags};

use crate::copier::{Copier, Ended};
use crate::error::MapError;
use crate::foreign::Foreign;
use crate::mapping::{Mapping, sealed, shared};
use crate::populate;
use crate::process::ProcessMemory;
use crate::sought::Sought;

/// A piece of memory; clones share it. It is unmapped when the last one goes.
#[derive(Clone)]
pub struct SoftMemory {
    pub(crate) start: NonNull<u8>,
    /// Bytes from `start` on; 0 for memory of another process, so that every access there fails its
    /// check, and no other access pays for asking.
    pub(crate) len: usize,
    pub(crate) owner: Option<Arc<Owner>>,
}

pub(crate) enum Owner {
    Mapping(Mapping),
    Foreign(Foreign),
}

// SAFETY: the pointer names memory that stays mapped while the value lives, and every access goes
// through copies that tolerate concurrent writers, as registered memory must.
unsafe impl Send for SoftMemory {}
// SAFETY: as for `Send`; the methods take `&self` and hold no references into the memory.
unsafe impl Sync for SoftMemory {}

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
        let mapping = Mapping::of_file(file, offset, bytes, shared(bytes))?;
        mapping.populate(bytes);
        Ok(SoftMemory::mapped(mapping, bytes))
    }

    /// As [`SoftMemory::map_file`], and none of its pages: see [`SoftMemory::populate`].
    ///
    /// # Errors
    ///
    /// As [`SoftMemory::map_file`].
    pub fn map_file_bare(file: impl AsFd, len: u64) -> Result<SoftMemory, MapError> {
        let bytes = sealed(&file, 0, len)?;
        Mapping::of_file(file, 0, bytes, MapFlags::SHARED).map(|all| SoftMemory::mapped(all, bytes))
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

    /// Whether a page of it could not be had, so that nobody shares it any more: see [`crate::fault`].
    pub fn is_lost(&self) -> bool {
        match self.owner.as_deref() {
            Some(Owner::Mapping(Mapping { shared: Some(shared), .. })) => shared.is_lost(),
            _ => false,
        }
    }

    pub(crate) fn mapped(mapping: Mapping, len: usize) -> SoftMemory {
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
        Sought::seek(process, addr, len, told)
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

    /// Memory that the caller owns.
    ///
    /// # Safety
    /// `start .. start + len` must stay readable and writable until the value and all its clones
    /// are gone, deregistration from devices included; and nothing may hold a reference to it while
    /// a device may write it.
    pub unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> SoftMemory {
        SoftMemory { start, len, owner: None }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use elver_verbs::Memory;

    use super::*;
    use crate::mapping::UNMAP_STEP;
    use crate::populate::tests::{bytes_of, file};

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
