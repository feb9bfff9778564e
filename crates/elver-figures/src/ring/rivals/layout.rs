//! Where messages and pointers are in a ring's memory.

use super::choices::{Choices, Tail};

/// Where messages are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(super) slots: u64,
    pub(super) stride: u64,
    /// Bytes in front of a message.
    pub(super) header: u64,
    pub(super) size: u32,
}

/// The words that the other end writes or reads, each in a cache line, and behind them the messages.
pub(super) const TAIL: u64 = 0;
pub(super) const HEAD: u64 = 64;
pub(super) const MESSAGES: u64 = 128;

impl Layout {
    pub(crate) fn new(choices: &Choices, size: u32, slots: u32) -> Layout {
        let is_bare = choices.slotted && choices.tail != Tail::Length;
        let header = if is_bare { 0 } else { 8 };
        let unit = if choices.slotted { 64 } else { 8 };
        let stride = (header + u64::from(size)).next_multiple_of(unit);
        Layout { slots: slots.into(), stride, header, size }
    }

    /// Where a message begins, its header first.
    pub(super) fn offset(&self, message: u64) -> u64 {
        MESSAGES + message % self.slots * self.stride
    }

    pub(super) fn bytes(&self) -> u64 {
        MESSAGES + self.slots * self.stride
    }
}
