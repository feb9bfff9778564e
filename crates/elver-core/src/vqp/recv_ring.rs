use alloc::vec::Vec;

use elver_verbs::{RecvWr, Sge, Wc, WcFlags, WcOpcode, WcStatus};

use crate::messaging::incoming::Incoming;
use crate::vqp::seq::RecvSeq;
use crate::{Completion, VqpId};

/// Entries that a ring starts with.
const CAPACITY_MIN: usize = 4;

/// A VQP's receive queue.
///
/// ```text
///   head ──── next ──────── tail      sequence numbers, wrapping
///     │ taken by │ posted    │
///     │ messages │           │
/// ```
///
/// Receives complete in order. `head` lags behind `next` while a message is being read that is too
/// long to be copied.
#[derive(Debug)]
pub(crate) struct RecvRing {
    entries: Vec<RqEntry>,
    /// Of each entry `stride` SGEs; empty until a receive comes that has more than one.
    sges: Vec<Sge>,
    stride: u32,
    max: u32,
    pub(crate) head: RecvSeq,
    pub(crate) next: RecvSeq,
    pub(crate) tail: RecvSeq,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RqEntry {
    pub(crate) wr_id: u64,
    /// Bytes that its SGEs hold.
    pub(crate) capacity: u64,
    pub(crate) num_sge: u8,
    /// Its SGE, if there is no more than one.
    pub(crate) sge: Sge,
    /// How it ended, if that was ahead of its turn.
    pub(crate) outcome: Option<RecvOutcome>,
}

/// How a receive ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvOutcome {
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) flags: WcFlags,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    /// The VQP that is connected to the sender, of a message to a port.
    pub(crate) source: Option<VqpId>,
}

impl RecvOutcome {
    /// That of a receive which took no message.
    pub(crate) const FLUSHED: RecvOutcome = RecvOutcome {
        status: WcStatus::WrFlushErr,
        opcode: WcOpcode::Recv,
        flags: WcFlags::empty(),
        byte_len: 0,
        imm: 0,
        source: None,
    };

    /// How the receive of a message ended.
    #[inline]
    pub(crate) fn of(incoming: &Incoming, status: WcStatus, opcode: WcOpcode) -> RecvOutcome {
        let &Incoming { imm, length: byte_len, source, .. } = incoming;
        let flags = if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        RecvOutcome { status, opcode, flags, byte_len, imm: imm.unwrap_or(0), source }
    }

    /// The completion of a receive, as its user sees it.
    #[inline]
    pub(crate) fn completion(&self, vqp: VqpId, wr_id: u64) -> Completion {
        let wc = Wc {
            wr_id,
            status: self.status,
            opcode: self.opcode,
            flags: self.flags,
            byte_len: self.byte_len,
            imm_data: self.imm,
            qp_num: vqp.0,
            ..Wc::default()
        };
        Completion { vqp, source: self.source, wc }
    }
}

impl RecvRing {
    pub(crate) fn new(max: u32, max_sge: u32) -> RecvRing {
        RecvRing {
            entries: Vec::new(),
            sges: Vec::new(),
            stride: max_sge,
            max,
            head: RecvSeq::FIRST,
            next: RecvSeq::FIRST,
            tail: RecvSeq::FIRST,
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    pub(crate) fn len(&self) -> u32 {
        self.tail.since(self.head)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// Whether a message finds a receive.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.next != self.tail
    }

    #[inline]
    fn at(&self, seq: RecvSeq) -> usize {
        seq.place(self.entries.len())
    }

    #[inline]
    pub(crate) fn entry(&self, seq: RecvSeq) -> &RqEntry {
        &self.entries[self.at(seq)]
    }

    pub(crate) fn entry_mut(&mut self, seq: RecvSeq) -> &mut RqEntry {
        let at = self.at(seq);
        &mut self.entries[at]
    }

    #[inline]
    pub(crate) fn sges(&self, seq: RecvSeq) -> &[Sge] {
        let at = self.at(seq);
        let entry = &self.entries[at];
        if entry.num_sge < 2 {
            return &core::slice::from_ref(&entry.sge)[..usize::from(entry.num_sge)];
        }
        let start = at * self.stride as usize;
        &self.sges[start..start + usize::from(entry.num_sge)]
    }

    /// Appends a receive; the caller has checked that it fits.
    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        if self.len() as usize >= self.entries.len() {
            self.grow();
        }
        let at = self.at(self.tail);
        let (wr_id, num_sge) = (wr.wr_id, wr.sges.len() as u8);
        let (sge, capacity) = match *wr.sges {
            [sge] => (sge, u64::from(sge.length)),
            _ => (Sge::default(), self.keep(at, wr.sges)),
        };
        self.entries[at] = RqEntry { wr_id, capacity, num_sge, sge, outcome: None };
        self.tail = self.tail.after(1);
    }

    /// Keeps the SGEs of a receive that has another number than one; returns their bytes.
    #[inline(never)]
    fn keep(&mut self, at: usize, sges: &[Sge]) -> u64 {
        if !sges.is_empty() {
            let start = at * self.stride as usize;
            self.sges.resize(self.entries.len() * self.stride as usize, Sge::default());
            self.sges[start..start + sges.len()].copy_from_slice(sges);
        }
        sges.iter().map(|sge| u64::from(sge.length)).sum()
    }

    #[cold]
    fn grow(&mut self) {
        let old = self.entries.len();
        let new = (old * 2).max(CAPACITY_MIN);
        let stride = self.stride as usize;
        let sge = Sge::default();
        self.entries.resize(new, RqEntry { wr_id: 0, capacity: 0, num_sge: 0, sge, outcome: None });
        if !self.sges.is_empty() {
            self.sges.resize(new * stride, Sge::default());
        }
        if old == 0 {
            return;
        }
        for seq in (0..self.len()).map(|n| self.head.after(n)) {
            let (from, to) = (seq.place(old), seq.place(new));
            if from != to {
                self.entries[to] = self.entries[from];
                if !self.sges.is_empty() {
                    self.sges.copy_within(from * stride..(from + 1) * stride, to * stride);
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<RqEntry>();
        (entries + self.sges.capacity() * size_of::<Sge>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_keep_their_numbers_while_it_grows() {
        let mut ring = RecvRing::new(40, 2);
        let start = RecvSeq::FIRST.after(u32::MAX - 2);
        (ring.head, ring.next, ring.tail) = (start, start, start);
        for n in 0..40 {
            let sges = [Sge { addr: n, length: 5, lkey: 1 }; 2];
            ring.push(&RecvWr { wr_id: n, sges: &sges[..n as usize % 3] });
            for back in 0..=n {
                let seq = start.after(back as u32);
                let (entry, sges) = (ring.entry(seq), ring.sges(seq));
                assert_eq!((entry.wr_id, entry.capacity), (back, back % 3 * 5));
                assert_eq!(sges, &[Sge { addr: back, length: 5, lkey: 1 }; 2][..back as usize % 3]);
            }
        }
        assert!(ring.is_full() && ring.has_next());
    }
}
