use thiserror::Error;

/// Memory that can be registered with a device.
///
/// A device works on it only through these calls, each of which checks its bounds: a fault in a
/// device cannot reach beyond the memory it was given. Many owners may hold the same memory, so
/// every call takes `&self`; concurrent access to the same bytes gives what hardware gives, some
/// mixture of old and new bytes, and never undefined behaviour.
pub trait Memory: Clone {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// The virtual address of the first byte: the base of remote addresses unless the region is
    /// registered zero-based or with an address of the caller's.
    fn base_addr(&self) -> u64;

    /// Who answers for its not being at hand ([`MemoryError::Later`]): what waits for the memory of one
    /// payer is counted together, and bounded so that others' finds room.
    fn payer(&self) -> u64 {
        0
    }

    /// Copies bytes from `offset` into `dst`.
    ///
    /// Neither this nor any other copy waits for somebody else: one that would have to is answered
    /// [`MemoryError::Later`], and has changed nothing.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfRange`]; [`MemoryError::Gone`] of a process's memory; [`MemoryError::Later`].
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`].
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError>;

    /// As [`Memory::read`], but it may wait for somebody else: for who is not a device.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`], but for [`MemoryError::Later`].
    fn read_waiting(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        self.read(offset, dst)
    }

    /// As [`Memory::write`], but it may wait for somebody else: for who is not a device.
    ///
    /// # Errors
    ///
    /// As [`Memory::write`], but for [`MemoryError::Later`].
    fn write_waiting(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        self.write(offset, src)
    }

    /// Copies `len` bytes from `src` at `src_offset` to `offset`, without an intermediate buffer.
    /// The two ranges may overlap.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`], of either memory.
    fn copy_from(
        &self,
        offset: u64,
        src: &Self,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError>;

    /// Replaces the 8-byte word at `offset`, which must be 8-byte aligned, by `swap` if it equals
    /// `compare`; returns what it held. The word is in the host's byte order.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfRange`]; [`MemoryError::Misaligned`]; [`MemoryError::NoAtomics`] where it is reached
    /// by copying alone.
    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError>;

    /// Adds `add`, wrapping, to the 8-byte word at `offset`, which must be 8-byte aligned; returns
    /// what it held.
    ///
    /// # Errors
    ///
    /// As [`Memory::compare_swap`].
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError>;
}

/// An access that the memory refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// The range does not lie inside the memory.
    #[error("range of {len} bytes at offset {offset} does not fit a memory of {size} bytes")]
    OutOfRange {
        /// First byte of the refused range.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// An atomic on a word that is not aligned to 8 bytes.
    #[error("atomic at offset {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// The refused offset.
        offset: u64,
    },
    /// The process that owns the memory has unmapped it, or has ended.
    #[error("{len} bytes at offset {offset} are gone: their process unmapped them or ended")]
    Gone {
        /// First byte of the range.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The copy would have to wait for somebody else. A device has it made elsewhere, and
    /// goes on with other work.
    #[error("the memory is not at hand; who reaches it must be able to wait")]
    Later,
    /// An atomic on memory that the device reaches only by copying.
    #[error("no atomics on memory of another process; allocate it at the node instead")]
    NoAtomics,
}

impl MemoryError {
    /// Checks that `offset .. offset + len` lies inside `size` bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfRange`] if it does not.
    #[inline]
    pub fn check_range(offset: u64, len: u64, size: u64) -> Result<(), MemoryError> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(MemoryError::OutOfRange { offset, len, size }),
        }
    }
}
