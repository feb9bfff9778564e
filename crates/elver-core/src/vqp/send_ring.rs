use alloc::vec::Vec;

use elver_verbs::{SendOp, SendOpcode, Sge};

use crate::vqp::seq::{LowSeq, SendSeq};
use crate::vqp::sq_entry::SqEntry;

/// Entries that a ring starts with.
const CAPACITY_MIN: usize = 4;

/// A VQP's send queue: each WR from the call that posts it until its completion is told.
///
/// ```text
///   head ──── done ──────── posted ──────── tail      sequence numbers, wrapping
///     │ executed, │ on the lane, │ waits to  │
///     │ not told  │ not done     │ be posted │
/// ```
///
/// `head` lags behind `done` only while a message waits for its receiver's FIN. The ring grows by
/// doubling when it is first that full, and allocates nothing afterwards.
#[derive(Debug)]
pub(crate) struct SendRing {
    entries: Vec<SqEntry>,
    /// Of each entry the SGEs of a message that has one at most: its header's and the user's. Empty
    /// until a message comes, and one over each connection.
    messages: Vec<[Sge; 2]>,
    /// Of each entry `stride` SGEs; empty until a WR comes that has more than one. The first is left
    /// for a message's header.
    sges: Vec<Sge>,
    /// Of each entry what an atomic compares and swaps, or adds; empty until an atomic comes.
    operands: Vec<(u64, u64)>,
    /// Of each entry `inline_max` bytes; empty until an inline WR comes.
    inline: Vec<u8>,
    stride: u32,
    inline_max: u32,
    /// Most WRs.
    max: u32,
    pub(crate) head: SendSeq,
    pub(crate) done: SendSeq,
    pub(crate) posted: SendSeq,
    pub(crate) tail: SendSeq,
    /// A message was sent over this connection whose header stands nowhere in here.
    pub(crate) sent_short: bool,
}

impl SendRing {
    pub(crate) fn new(max: u32, max_sge: u32, inline_max: u32) -> SendRing {
        SendRing {
            entries: Vec::new(),
            messages: Vec::new(),
            sges: Vec::new(),
            operands: Vec::new(),
            inline: Vec::new(),
            stride: max_sge + 1,
            inline_max,
            max,
            head: SendSeq::FIRST,
            done: SendSeq::FIRST,
            posted: SendSeq::FIRST,
            tail: SendSeq::FIRST,
            sent_short: false,
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.since(self.head)
    }

    /// WRs that it takes beside those in it.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        less!(self.max, self.len())
    }

    /// Whether a message was prepared since the VQP was connected, or may have been.
    pub(crate) fn has_sent_messages(&self) -> bool {
        self.sent_short || !self.messages.is_empty() || !self.sges.is_empty()
    }

    /// Whatever was sent was sent over an earlier connection. The ring is empty.
    pub(crate) fn forget_messages(&mut self) {
        debug_assert_eq!(self.len(), 0);
        self.sent_short = false;
        self.messages.clear();
        self.sges.clear();
    }

    /// WRs that wait to be posted.
    #[inline]
    pub(crate) fn unposted(&self) -> u32 {
        self.tail.since(self.posted)
    }

    /// Whether a WR is in the ring.
    #[inline]
    pub(crate) fn holds(&self, seq: SendSeq) -> bool {
        seq.since(self.head) < self.len()
    }

    /// The number of a WR on its lane, of which the low bits are known.
    #[inline]
    pub(crate) fn seq_of(&self, low: LowSeq) -> SendSeq {
        self.done.after(low.since(self.done))
    }

    #[inline]
    fn at(&self, seq: SendSeq) -> usize {
        seq.place(self.entries.len())
    }

    #[inline]
    pub(crate) fn entry(&self, seq: SendSeq) -> &SqEntry {
        &self.entries[self.at(seq)]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, seq: SendSeq) -> &mut SqEntry {
        let at = self.at(seq);
        &mut self.entries[at]
    }

    /// The operation of a WR.
    #[inline]
    pub(crate) fn op(&self, seq: SendSeq) -> SendOp {
        let entry = self.entry(seq);
        let remote = entry.remote_addr();
        match entry.opcode {
            SendOpcode::Write => SendOp::Write(remote),
            SendOpcode::Read => SendOp::Read(remote),
            SendOpcode::WriteWithImm => SendOp::WriteWithImm(remote, entry.imm),
            SendOpcode::SendWithImm => SendOp::SendWithImm(entry.imm),
            SendOpcode::CompareSwap => {
                let (compare, swap) = self.operands[self.at(seq)];
                SendOp::CompareSwap { remote, compare, swap }
            }
            SendOpcode::FetchAdd => SendOp::FetchAdd { remote, add: self.operands[self.at(seq)].0 },
            // Nothing else is taken in.
            _ => SendOp::Send,
        }
    }

    /// The user's SGEs of a WR.
    #[inline]
    pub(crate) fn sges(&self, seq: SendSeq) -> &[Sge] {
        let at = self.at(seq);
        let entry = &self.entries[at];
        if entry.num_sge < 2 {
            return &core::slice::from_ref(&entry.sge)[..usize::from(entry.num_sge)];
        }
        &self.long_sges(at)[1..]
    }

    /// The header's SGE of a message that has one, then the user's.
    #[inline]
    pub(crate) fn message_sges(&self, seq: SendSeq) -> &[Sge] {
        let at = self.at(seq);
        let num_sge = usize::from(self.entries[at].num_sge);
        if num_sge < 2 {
            return &self.messages[at][..1 + num_sge];
        }
        self.long_sges(at)
    }

    /// The SGEs of what has several, with the one in front that a header's may take.
    fn long_sges(&self, at: usize) -> &[Sge] {
        let start = at * self.stride as usize;
        &self.sges[start..start + 1 + usize::from(self.entries[at].num_sge)]
    }

    /// Sets the header's SGE.
    #[inline]
    pub(crate) fn set_header(&mut self, seq: SendSeq, sge: Sge) {
        let at = self.at(seq);
        let entry = &self.entries[at];
        if entry.num_sge > 1 {
            self.sges[at * self.stride as usize] = sge;
            return;
        }
        if self.messages.len() < self.entries.len() {
            self.messages.resize(self.entries.len(), Default::default());
        }
        self.messages[at] = [sge, entry.sge];
    }

    /// The inline bytes of a WR.
    #[inline]
    pub(crate) fn inline(&self, seq: SendSeq) -> &[u8] {
        let at = self.at(seq);
        let start = at * self.inline_max as usize;
        // A WR of no bytes may stand in a ring that has none yet.
        self.inline.get(start..start + self.entries[at].length as usize).unwrap_or_default()
    }

    /// Makes room for WRs, of which there may be so many more.
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) {
        while self.entries.len() < (self.len() + count) as usize {
            self.grow();
        }
    }

    /// Appends a WR that was checked, for which room was made. Its only SGE stands in the entry.
    #[inline]
    pub(crate) fn push(&mut self, entry: SqEntry) {
        let at = self.at(self.tail);
        self.entries[at] = entry;
        self.tail = self.tail.after(1);
    }

    /// Appends a WR with other SGEs than one, with inline bytes, or an atomic.
    #[cold]
    pub(crate) fn push_with(
        &mut self,
        mut entry: SqEntry,
        op: &SendOp,
        sges: &[Sge],
        inline: &[u8],
    ) {
        let at = self.at(self.tail);
        let operands = match *op {
            SendOp::CompareSwap { compare, swap, .. } => Some((compare, swap)),
            SendOp::FetchAdd { add, .. } => Some((add, 0)),
            _ => None,
        };
        if let Some(operands) = operands {
            self.operands.resize(self.entries.len(), (0, 0));
            self.operands[at] = operands;
        }
        if let [sge] = *sges {
            entry.sge = sge;
        }
        if sges.len() > 1 {
            let start = at * self.stride as usize + 1;
            self.sges.resize(self.entries.len() * self.stride as usize, Sge::default());
            self.sges[start..start + sges.len()].copy_from_slice(sges);
        }
        if !inline.is_empty() {
            let start = at * self.inline_max as usize;
            self.inline.resize(self.entries.len() * self.inline_max as usize, 0);
            self.inline[start..start + inline.len()].copy_from_slice(inline);
        }
        self.push(entry);
    }

    /// Doubles the ring. Every entry keeps its sequence number.
    #[cold]
    fn grow(&mut self) {
        let old = self.entries.len();
        let new = (old * 2).max(CAPACITY_MIN);
        let (stride, inline_max) = (self.stride as usize, self.inline_max as usize);
        self.entries.resize(new, SqEntry::BLANK);
        if !self.messages.is_empty() {
            self.messages.resize(new, Default::default());
        }
        if !self.sges.is_empty() {
            self.sges.resize(new * stride, Sge::default());
        }
        if !self.operands.is_empty() {
            self.operands.resize(new, (0, 0));
        }
        if !self.inline.is_empty() {
            self.inline.resize(new * inline_max, 0);
        }
        if old == 0 {
            return;
        }
        // Of every old place the entry belongs to it or to the one `old` further on.
        for seq in (0..self.len()).map(|n| self.head.after(n)) {
            let (from, to) = (seq.place(old), seq.place(new));
            if from == to {
                continue;
            }
            self.entries[to] = self.entries[from];
            if !self.messages.is_empty() {
                self.messages[to] = self.messages[from];
            }
            if !self.operands.is_empty() {
                self.operands[to] = self.operands[from];
            }
            if !self.sges.is_empty() {
                self.sges.copy_within(from * stride..(from + 1) * stride, to * stride);
            }
            if !self.inline.is_empty() {
                self.inline
                    .copy_within(from * inline_max..(from + 1) * inline_max, to * inline_max);
            }
        }
    }

    /// Bytes that it has allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<SqEntry>();
        let sges = self.messages.capacity() * 2 + self.sges.capacity();
        let operands = self.operands.capacity() * size_of::<(u64, u64)>();
        (entries + sges * size_of::<Sge>() + operands + self.inline.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use elver_verbs::{RemoteAddr, SendFlags};

    use super::*;
    use crate::vqp::sq_entry::Bytes;

    fn entry(wr_id: u64, length: u32, sges: &[Sge]) -> SqEntry {
        let bytes = if sges.is_empty() { Bytes::Inline } else { Bytes::Local };
        let sge = sges.first().copied().unwrap_or_default();
        SqEntry { wr_id, length, num_sge: sges.len() as u8, bytes, sge, ..SqEntry::BLANK }
    }

    fn push(ring: &mut SendRing, entry: SqEntry, sges: &[Sge], inline: &[u8]) {
        ring.reserve(1);
        match sges {
            [_] => ring.push(entry),
            _ => ring.push_with(entry, &SendOp::Send, sges, inline),
        }
    }

    #[test]
    fn every_operation_comes_out_as_it_went_in() {
        let remote = RemoteAddr { addr: 0x0123_4567_89ab_cdef, rkey: 77 };
        let ops = [
            SendOp::Send,
            SendOp::SendWithImm(5),
            SendOp::Write(remote),
            SendOp::WriteWithImm(remote, 6),
            SendOp::Read(remote),
            SendOp::CompareSwap { remote, compare: 1 << 40, swap: 2 << 40 },
            SendOp::FetchAdd { remote, add: 3 << 40 },
        ];
        let mut ring = SendRing::new(64, 2, 16);
        let sge = Sge { addr: 9, length: 8, lkey: 4 };
        for n in 0..64 {
            let op = &ops[n % ops.len()];
            ring.reserve(1);
            let entry = SqEntry { num_sge: 1, ..SqEntry::new(n as u64, op, SendFlags::FENCE) };
            match op {
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                    ring.push_with(entry, op, &[sge], &[]);
                }
                _ => ring.push(SqEntry { sge, ..entry }),
            }
            for (back, op) in ops.iter().cycle().take(n + 1).enumerate() {
                assert_eq!(
                    (
                        ring.op(SendSeq::FIRST.after(back as u32)),
                        ring.sges(SendSeq::FIRST.after(back as u32))
                    ),
                    (*op, &[sge][..])
                );
            }
        }
    }

    #[test]
    fn entries_keep_their_numbers_while_it_grows() {
        let mut ring = SendRing::new(64, 2, 16);
        // Start shortly before the numbers wrap, in the middle of the ring.
        let start = SendSeq::of_cookie(u64::from(u32::MAX - 5));
        (ring.head, ring.done, ring.posted, ring.tail) = (start, start, start, start);
        for n in 0..64u64 {
            let sges = [Sge { addr: n, length: 1, lkey: 7 }; 2];
            let bytes = [n as u8; 16];
            match n % 3 {
                0 => push(&mut ring, entry(n, 2, &sges), &sges, &[]),
                1 => push(&mut ring, entry(n, 1, &sges[..1]), &sges[..1], &[]),
                _ => push(&mut ring, entry(n, 16, &[]), &[], &bytes),
            }
            let header = Sge { addr: !n, length: 112, lkey: 8 };
            ring.set_header(start.after(n as u32), header);
            for back in 0..=n {
                let seq = start.after(back as u32);
                assert_eq!(ring.entry(seq).wr_id, back);
                assert_eq!(ring.message_sges(seq)[0].addr, !back);
                let sges = [Sge { addr: back, length: 1, lkey: 7 }; 2];
                match back % 3 {
                    0 => assert_eq!(ring.sges(seq), sges),
                    1 => assert_eq!(ring.sges(seq), &sges[..1]),
                    _ => assert_eq!(ring.inline(seq), [back as u8; 16]),
                }
            }
        }
        assert_eq!((ring.len(), ring.unposted(), ring.room()), (64, 64, 0));
    }

    #[test]
    fn a_first_inline_wr_of_no_bytes_has_none() {
        let mut ring = SendRing::new(8, 1, 16);
        push(&mut ring, entry(0, 0, &[]), &[], &[]);
        push(&mut ring, entry(1, 0, &[]), &[], &[]);
        assert!(ring.inline(SendSeq::FIRST.after(1)).is_empty());
    }
}
