//! Memory that is another's, of which this process has been handed the file.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use elver_verbs::{Memory, MemoryError};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::MapError;
use crate::mapping::{Mapping, sealed, unmappable};
use crate::soft_memory::SoftMemory;

/// Memory of another process, which this one maps too. Who has it keeps it as it likes: it may change at any time, and
/// be given back to the system, after which zeros are read.
#[derive(Debug)]
pub struct PeerMemory {
    memory: SoftMemory,
    /// Bytes that may be written: all or none.
    writable: u64,
}

impl PeerMemory {
    /// Maps the first `len` bytes of a file, each page when it is first touched. The file must be sealed against becoming
    /// shorter; one that may only be read is mapped so.
    ///
    /// # Errors
    /// The system does not map it: it is shorter, not sealed, or may not be written though it is to be.
    pub fn map(file: impl AsFd, len: u64, writable: bool) -> Result<PeerMemory, MapError> {
        let bytes = sealed(&file, 0, len)?;
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)
        }
        .map_err(|error| unmappable(len, error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| unmappable(len, Errno::NOMEM))?;
        let memory = SoftMemory::mapped(Mapping::of(start, bytes).share(), bytes);
        Ok(PeerMemory { memory, writable: if writable { len } else { 0 } })
    }

    /// Copies bytes there.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], also where nothing may be written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, bytes.len() as u64, self.writable)?;
        self.memory.write(offset, bytes)
    }

    /// Copies bytes there from memory of this process's.
    ///
    /// # Errors
    /// As [`PeerMemory::write`]; and what `from` refuses.
    #[inline]
    pub fn write_from(
        &self,
        offset: u64,
        from: &SoftMemory,
        from_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len, self.writable)?;
        self.memory.copy_from(offset, from, from_offset, len)
    }

    /// Copies bytes from there into memory of this process's.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]; and what `into` refuses.
    #[inline]
    pub fn read_into(
        &self,
        offset: u64,
        into: &SoftMemory,
        into_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        into.copy_from(into_offset, &self.memory, offset, len)
    }

    /// As [`PeerMemory::write_from`], of memory that other threads may write by words meanwhile.
    ///
    /// # Errors
    /// As [`PeerMemory::write_from`].
    pub fn write_from_words(
        &self,
        offset: u64,
        from: &SoftMemory,
        from_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        staged(len, |at, stage| {
            from.read_words(from_offset.saturating_add(at), stage)?;
            self.write(offset.saturating_add(at), stage)
        })
    }

    /// As [`PeerMemory::read_into`], into memory that other threads may read and write by words meanwhile.
    ///
    /// # Errors
    /// As [`PeerMemory::read_into`].
    pub fn read_into_words(
        &self,
        offset: u64,
        into: &SoftMemory,
        into_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        staged(len, |at, stage| {
            self.memory.read(offset.saturating_add(at), stage)?;
            into.write_words(into_offset.saturating_add(at), stage)
        })
    }
}

/// Goes through so many bytes by pieces that fit on the stack; each begins with a word if the first one does.
fn staged(
    len: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    const STAGE: u64 = 4096;
    let mut stage = [0; STAGE as usize];
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(STAGE);
        each(at, &mut stage[..piece as usize])?;
        at += piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

    use super::*;

    fn file(len: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn both_ways_and_no_further() {
        let file = file(8_192, SealFlags::SHRINK);
        let (theirs, own) =
            (SoftMemory::map_file(&file, 8_192).unwrap(), SoftMemory::alloc(64).unwrap());
        let peer = PeerMemory::map(&file, 100, true).unwrap();
        own.write(0, b"from here").unwrap();
        peer.write_from(40, &own, 0, 9).unwrap();
        peer.write(49, b"!").unwrap();
        let mut bytes = [0; 10];
        theirs.read(40, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from here!");
        theirs.write_u64(88, 7).unwrap();
        peer.read_into(88, &own, 8, 8).unwrap();
        assert_eq!(own.read_u64(8).unwrap(), 7);
        assert!(peer.write(92, &[1; 9]).is_err() && peer.write(u64::MAX, &[1]).is_err());
        assert!(peer.write_from(92, &own, 0, 9).is_err());
        assert!(peer.read_into(92, &own, 0, 9).is_err());
        assert!(peer.read_into(0, &own, 60, 9).is_err());
    }

    #[test]
    fn the_same_by_words() {
        const LEN: usize = 10_000;
        let file = file(1 << 16, SealFlags::SHRINK);
        let own = SoftMemory::alloc(1 << 16).unwrap();
        let peer = PeerMemory::map(&file, 1 << 16, true).unwrap();
        let bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut back = vec![0; LEN];
        for (at, there) in [(0, 0), (3, 5), (8, 1), (4_095, 8)] {
            own.write(at, &bytes).unwrap();
            peer.write_from_words(there, &own, at, LEN as u64).unwrap();
            own.write(at, &[0; LEN]).unwrap();
            peer.read_into_words(there, &own, at, LEN as u64).unwrap();
            own.read(at, &mut back).unwrap();
            assert!(back == bytes, "{at}, {there}");
        }
        assert!(peer.write_from_words((1 << 16) - 9, &own, 0, 10).is_err());
        assert!(peer.read_into_words(u64::MAX, &own, 0, 10).is_err());
        assert!(peer.read_into_words(0, &own, (1 << 16) - 9, 10).is_err());
    }

    #[test]
    fn what_may_only_be_read_is_not_written() {
        let file = file(4_096, SealFlags::SHRINK);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(PeerMemory::map(&read, 4_096, true).is_err());
        let (peer, own) =
            (PeerMemory::map(&read, 4_096, false).unwrap(), SoftMemory::alloc(8).unwrap());
        assert!(peer.write(0, &[1]).is_err() && peer.write_from(0, &own, 0, 8).is_err());
        SoftMemory::map_file(&file, 4_096).unwrap().write_u64(0, 5).unwrap();
        peer.read_into(0, &own, 0, 8).unwrap();
        assert_eq!(own.read_u64(0).unwrap(), 5);
    }

    #[test]
    fn a_file_that_may_become_shorter_is_refused() {
        for (len, seals) in [(4_096, SealFlags::empty()), (64, SealFlags::SHRINK)] {
            assert!(PeerMemory::map(file(len, seals), 4_096, true).is_err());
        }
    }
}
