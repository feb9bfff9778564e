use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{RecvWr, Sge};

/// Posted receives, oldest first: the receive queue of a QP, or an SRQ.
///
/// Each receive takes a fixed stride of SGEs, so that posting allocates nothing once the queue has
/// been as full as it gets.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    entries: VecDeque<Entry>,
    sges: VecDeque<Sge>,
    capacity: u32,
    max_sge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wr_id: u64,
    num_sge: u32,
}

/// A receive taken from its queue, being filled. Its buffer of SGEs is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
    /// Bytes that the SGEs hold.
    pub(crate) capacity: u64,
}

impl RecvQueue {
    pub(crate) fn new(capacity: u32, max_sge: u32) -> RecvQueue {
        RecvQueue { entries: VecDeque::new(), sges: VecDeque::new(), capacity, max_sge }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Appends a receive; the caller has checked that it fits.
    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        self.entries.push_back(Entry { wr_id: wr.wr_id, num_sge: wr.sges.len() as u32 });
        self.sges.extend(wr.sges);
    }

    /// Takes the oldest receive.
    #[inline]
    pub(crate) fn pop(&mut self, recv: &mut Recv) -> bool {
        let Some(entry) = self.entries.pop_front() else {
            return false;
        };
        recv.wr_id = entry.wr_id;
        recv.sges.clear();
        recv.sges.extend(self.sges.drain(..entry.num_sge as usize));
        recv.capacity = recv.sges.iter().map(|sge| u64::from(sge.length)).sum();
        true
    }

    /// Puts back a receive whose message will never end.
    pub(crate) fn unpop(&mut self, recv: &Recv) {
        self.entries.push_front(Entry { wr_id: recv.wr_id, num_sge: recv.sges.len() as u32 });
        for sge in recv.sges.iter().rev() {
            self.sges.push_front(*sge);
        }
    }

    /// Takes the oldest receive's `wr_id` alone, to flush it.
    pub(crate) fn pop_wr_id(&mut self) -> Option<u64> {
        let entry = self.entries.pop_front()?;
        self.sges.drain(..entry.num_sge as usize);
        Some(entry.wr_id)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
    }
}
