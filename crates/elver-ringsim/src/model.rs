//! What was sent one way of a pair, and must be read there.

use std::collections::VecDeque;
use std::fmt;

use elver_ring::protocol::{Frame, HEADER_BYTES, Span};
use elver_sim::SimMemory;

/// A rule that was broken.
#[derive(Debug)]
pub(crate) struct Violation(pub(crate) String);

/// Says what was broken.
macro_rules! broken {
    ($($what:tt)*) => { return Err($crate::model::Violation(format!($($what)*))) };
}
pub(crate) use broken;

/// What one end sends and the other reads.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Lengths of what was sent and not read.
    expected: VecDeque<u32>,
    pub(crate) sent: u64,
    pub(crate) read: u64,
    /// Slots that were sent, as the tail counts them.
    pub(crate) slots: u64,
    /// The sender has ended, and the receiver reads no more.
    pub(crate) ended: bool,
    pub(crate) stopped: bool,
}

impl Way {
    /// What the next message has in it.
    pub(crate) fn next(&self, salt: u64, len: u32) -> Vec<u8> {
        content(salt, self.sent, len)
    }

    pub(crate) fn sends(&mut self, len: u32, slot_bytes: u32) {
        self.expected.push_back(len);
        self.sent += 1;
        self.slots += (u64::from(len) + HEADER_BYTES).div_ceil(slot_bytes.into());
    }

    /// Whether all that was sent was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.expected.is_empty()
    }

    /// A message begins to be read.
    pub(crate) fn reads(&mut self) -> Result<Reading, Violation> {
        let Some(len) = self.expected.pop_front() else {
            broken!("message {} is read, which was never sent", self.read)
        };
        self.read += 1;
        Ok(Reading { id: self.read - 1, len })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent, {} read", self.sent, self.read)
    }
}

/// A message that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) id: u64,
    pub(crate) len: u32,
}

impl Reading {
    /// Whether what lies there is what was sent.
    pub(crate) fn check(
        &self,
        salt: u64,
        frame: &Frame,
        memory: &SimMemory,
    ) -> Result<(), Violation> {
        let mut found = Vec::new();
        let view = memory.view();
        for Span { offset, len } in frame.spans() {
            found.extend_from_slice(&view[offset as usize..(offset + len) as usize]);
        }
        if found.len() != self.len as usize {
            broken!("message {} has {} bytes in place of {}", self.id, found.len(), self.len);
        }
        let sent = content(salt, self.id, self.len);
        match found.iter().zip(&sent).position(|(found, sent)| found != sent) {
            Some(at) => broken!("message {} of {} bytes differs at byte {at}", self.id, self.len),
            None => Ok(()),
        }
    }
}

/// What a message has in it: its own, so that no other passes for it, nor part of one.
fn content(salt: u64, id: u64, len: u32) -> Vec<u8> {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = (salt ^ id).wrapping_mul(MIX);
    let word = |at: u64| (start ^ at).wrapping_mul(MIX) >> 56;
    (0..u64::from(len)).map(|at| word(at) as u8).collect()
}
