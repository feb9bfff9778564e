use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{RecvWr, Sge};

/// Posted receives, oldest first: the receive queue of a QP, or an SRQ.
///
/// Most receives have one SGE, which stands with the rest of them. Posting allocates nothing once the
/// queue has been as full as it gets.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    entries: VecDeque<Entry>,
    /// Of each entry the SGEs behind its first.
    more: VecDeque<Sge>,
    capacity: u32,
    max_sge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wr_id: u64,
    num_sge: u32,
    first: Sge,
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
        RecvQueue { entries: VecDeque::new(), more: VecDeque::new(), capacity, max_sge }
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

    /// Changes how many it holds; the caller has checked that those fit that wait.
    pub(crate) fn resize(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Appends a receive; the caller has checked that it fits.
    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        self.entries.push_back(Entry::new(wr.wr_id, wr.sges));
        if wr.sges.len() > 1 {
            self.more.extend(&wr.sges[1..]);
        }
    }

    /// Takes the oldest receive.
    #[inline]
    pub(crate) fn pop(&mut self, recv: &mut Recv) -> bool {
        let Some(Entry { wr_id, num_sge, first }) = self.entries.pop_front() else {
            return false;
        };
        recv.wr_id = wr_id;
        recv.sges.clear();
        recv.sges.push(first);
        recv.capacity = u64::from(first.length);
        if num_sge != 1 {
            self.pop_more(num_sge, recv);
        }
        true
    }

    /// Completes a receive that has another number of SGEs than one.
    #[cold]
    fn pop_more(&mut self, num_sge: u32, recv: &mut Recv) {
        recv.sges.truncate(num_sge as usize);
        recv.sges.extend(self.more.drain(..Entry::more(num_sge)));
        recv.capacity = recv.sges.iter().map(|sge| u64::from(sge.length)).sum();
    }

    /// Puts back a receive whose message will never end.
    pub(crate) fn unpop(&mut self, recv: &Recv) {
        self.entries.push_front(Entry::new(recv.wr_id, &recv.sges));
        for sge in recv.sges.iter().skip(1).rev() {
            self.more.push_front(*sge);
        }
    }

    /// Takes the oldest receive's `wr_id` alone, to flush it.
    pub(crate) fn pop_wr_id(&mut self) -> Option<u64> {
        let entry = self.entries.pop_front()?;
        self.more.drain(..Entry::more(entry.num_sge));
        Some(entry.wr_id)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.more.clear();
    }
}

impl Entry {
    #[inline]
    fn new(wr_id: u64, sges: &[Sge]) -> Entry {
        let first = sges.first().copied().unwrap_or_default();
        Entry { wr_id, num_sge: sges.len() as u32, first }
    }

    /// SGEs of a receive that do not stand in its entry.
    fn more(num_sge: u32) -> usize {
        num_sge.saturating_sub(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_of_any_number_of_sges_come_out_as_they_went_in() {
        let mut queue = RecvQueue::new(64, 3);
        let sges = |n: u64| [0, 1, 2].map(|at| Sge { addr: n, length: at + 1, lkey: 7 });
        for n in 0..40 {
            queue.push(&RecvWr { wr_id: n, sges: &sges(n)[..n as usize % 4] });
        }
        let mut recv = Recv::default();
        for n in 0..40 {
            // One in five is put back first, one in seven is flushed.
            assert!(n % 7 == 6 || queue.pop(&mut recv));
            if n % 7 == 6 {
                assert_eq!(queue.pop_wr_id(), Some(n));
                continue;
            }
            if n % 5 == 0 {
                queue.unpop(&recv);
                assert!(queue.pop(&mut recv));
            }
            let expected = &sges(n)[..n as usize % 4];
            let bytes: u64 = expected.iter().map(|sge| u64::from(sge.length)).sum();
            assert_eq!((recv.wr_id, &recv.sges[..], recv.capacity), (n, expected, bytes));
        }
        assert!(!queue.pop(&mut recv) && queue.pop_wr_id().is_none());
    }
}
