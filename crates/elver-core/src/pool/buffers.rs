//! Buffers of the node's own.

use alloc::vec::Vec;

/// Send slots kept for the core's own messages.
pub(crate) const SLOTS_RESERVED: u32 = 32;

/// Buffers of one size in the node's region.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// First byte in the memory.
    start: u64,
    /// Bytes of each.
    pub(crate) bytes: u64,
    pub(crate) count: u32,
    free: Vec<u32>,
}

impl Buffers {
    pub(super) fn new(start: u64, bytes: u64, count: u32) -> Buffers {
        Buffers { start, bytes, count, free: (0..count).rev().collect() }
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes * u64::from(self.count)
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    #[inline]
    pub(crate) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    pub(crate) fn available(&self) -> u32 {
        self.free.len() as u32
    }

    /// First byte of a buffer in the memory.
    #[inline]
    pub(crate) fn offset(&self, buffer: u32) -> u64 {
        self.start + self.bytes * u64::from(buffer)
    }
}
