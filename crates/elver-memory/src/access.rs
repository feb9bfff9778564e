//! Reading and writing memory that a device registers: by words where that can be, else by copies.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::{Memory, MemoryError};

use crate::foreign::Foreign;
use crate::soft_memory::{Owner, SoftMemory};

impl SoftMemory {
    pub(crate) fn foreign(&self) -> Option<&Foreign> {
        match self.owner.as_deref() {
            Some(Owner::Foreign(foreign)) => Some(foreign),
            _ => None,
        }
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
    pub(crate) fn at(&self, offset: u64, len: u64) -> Result<*mut u8, MemoryError> {
        MemoryError::check_range(offset, len, self.len as u64)?;
        // SAFETY: the range was just checked to lie inside the allocation.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// The aligned word at `offset`.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> Result<&AtomicU64, MemoryError> {
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
        let no_atomics =
            |error| if self.foreign().is_some() { MemoryError::NoAtomics } else { error };
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
