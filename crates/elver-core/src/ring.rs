use alloc::vec::Vec;

use elver_verbs::{SendFlags, SendOp, Sge, WcStatus};

/// No region, no slot, no peer: an index that nothing has.
pub(crate) const NONE: u32 = u32::MAX;
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
    /// Of each entry `stride` SGEs. The first is left for a message's header.
    sges: Vec<Sge>,
    /// Of each entry `inline_max` bytes; empty until an inline WR comes.
    inline: Vec<u8>,
    stride: u32,
    inline_max: u32,
    /// Most WRs.
    max: u32,
    pub(crate) head: u32,
    pub(crate) done: u32,
    pub(crate) posted: u32,
    pub(crate) tail: u32,
}

/// A send WR in its ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqEntry {
    /// The user's.
    pub(crate) wr_id: u64,
    /// The user's operation.
    pub(crate) op: SendOp,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// Local region of the first SGE, whose count of users it holds; [`NONE`] without one.
    pub(crate) mr: u32,
    /// Send slot that holds a message's header while it is on the lane; [`NONE`] without one.
    pub(crate) slot: u32,
    /// SGEs of the user's.
    pub(crate) num_sge: u8,
    /// The user's flags; signalled if all of the VQP's are.
    pub(crate) flags: SendFlags,
    /// The bytes were copied into the ring.
    pub(crate) inline: bool,
    /// How it ended, once it is done.
    pub(crate) status: WcStatus,
    /// A message whose bytes the receiver reads: it ends with the receiver's FIN.
    pub(crate) await_fin: bool,
    /// Its regions are shared for the receiver to read.
    pub(crate) shared: bool,
    /// The WRITE of a WRITE_WITH_IMM is executed, its message is not.
    pub(crate) first_done: bool,
}

impl SqEntry {
    /// Physical WRs that it takes.
    #[inline]
    pub(crate) fn cost(&self) -> u32 {
        u32::from(matches!(self.op, SendOp::WriteWithImm(..)) && !self.first_done) + 1
    }

    /// Whether it travels as a message, alone or behind a WRITE.
    #[inline]
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendWithImm(_) | SendOp::WriteWithImm(..))
    }
}

impl SendRing {
    pub(crate) fn new(max: u32, max_sge: u32, inline_max: u32) -> SendRing {
        SendRing {
            entries: Vec::new(),
            sges: Vec::new(),
            inline: Vec::new(),
            stride: max_sge + 1,
            inline_max,
            max,
            head: 0,
            done: 0,
            posted: 0,
            tail: 0,
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// WRs that wait to be posted.
    #[inline]
    pub(crate) fn unposted(&self) -> u32 {
        self.tail.wrapping_sub(self.posted)
    }

    /// Whether a WR is in the ring.
    #[inline]
    pub(crate) fn holds(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.head) < self.len()
    }

    #[inline]
    fn at(&self, seq: u32) -> usize {
        seq as usize & (self.entries.len() - 1)
    }

    #[inline]
    pub(crate) fn entry(&self, seq: u32) -> &SqEntry {
        &self.entries[self.at(seq)]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, seq: u32) -> &mut SqEntry {
        let at = self.at(seq);
        &mut self.entries[at]
    }

    /// The user's SGEs of a WR.
    #[inline]
    pub(crate) fn sges(&self, seq: u32) -> &[Sge] {
        let at = self.at(seq);
        let start = at * self.stride as usize + 1;
        &self.sges[start..start + usize::from(self.entries[at].num_sge)]
    }

    /// The header's SGE, then the user's.
    #[inline]
    pub(crate) fn message_sges(&self, seq: u32) -> &[Sge] {
        let at = self.at(seq);
        let start = at * self.stride as usize;
        &self.sges[start..start + 1 + usize::from(self.entries[at].num_sge)]
    }

    /// Sets the header's SGE.
    pub(crate) fn set_header(&mut self, seq: u32, sge: Sge) {
        let at = self.at(seq);
        self.sges[at * self.stride as usize] = sge;
    }

    /// The inline bytes of a WR.
    #[inline]
    pub(crate) fn inline(&self, seq: u32) -> &[u8] {
        let at = self.at(seq);
        let start = at * self.inline_max as usize;
        // A WR of no bytes may stand in a ring that has none yet.
        self.inline.get(start..start + self.entries[at].length as usize).unwrap_or_default()
    }

    /// Appends a WR that was checked, as was that there is room.
    #[inline]
    pub(crate) fn push(&mut self, entry: SqEntry, sges: &[Sge], inline: &[u8]) {
        if self.len() as usize >= self.entries.len() {
            self.grow();
        }
        let at = self.at(self.tail);
        self.entries[at] = entry;
        let start = at * self.stride as usize + 1;
        if let [sge] = sges {
            self.sges[start] = *sge;
        } else {
            self.sges[start..start + sges.len()].copy_from_slice(sges);
        }
        if !inline.is_empty() {
            if self.inline.is_empty() {
                self.inline.resize(self.entries.len() * self.inline_max as usize, 0);
            }
            let start = at * self.inline_max as usize;
            self.inline[start..start + inline.len()].copy_from_slice(inline);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Doubles the ring. Every entry keeps its sequence number.
    #[cold]
    fn grow(&mut self) {
        let old = self.entries.len();
        let new = (old * 2).max(CAPACITY_MIN);
        let (stride, inline_max) = (self.stride as usize, self.inline_max as usize);
        let blank = SqEntry {
            wr_id: 0,
            op: SendOp::Send,
            length: 0,
            mr: NONE,
            slot: NONE,
            num_sge: 0,
            flags: SendFlags::empty(),
            inline: false,
            status: WcStatus::Success,
            await_fin: false,
            shared: false,
            first_done: false,
        };
        self.entries.resize(new, blank);
        self.sges.resize(new * stride, Sge::default());
        if !self.inline.is_empty() {
            self.inline.resize(new * inline_max, 0);
        }
        if old == 0 {
            return;
        }
        // Of every old place the entry belongs to it or to the one `old` further on.
        for seq in (0..self.len()).map(|n| self.head.wrapping_add(n)) {
            let (from, to) = (seq as usize & (old - 1), seq as usize & (new - 1));
            if from == to {
                continue;
            }
            self.entries[to] = self.entries[from];
            self.sges.copy_within(from * stride..(from + 1) * stride, to * stride);
            if !self.inline.is_empty() {
                self.inline
                    .copy_within(from * inline_max..(from + 1) * inline_max, to * inline_max);
            }
        }
    }

    /// Bytes that it has allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<SqEntry>();
        (entries + self.sges.capacity() * size_of::<Sge>() + self.inline.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64, length: u32, num_sge: u8) -> SqEntry {
        SqEntry {
            wr_id,
            op: SendOp::Send,
            length,
            mr: NONE,
            slot: NONE,
            num_sge,
            flags: SendFlags::empty(),
            inline: num_sge == 0,
            status: WcStatus::Success,
            await_fin: false,
            shared: false,
            first_done: false,
        }
    }

    #[test]
    fn entries_keep_their_numbers_while_it_grows() {
        let mut ring = SendRing::new(64, 2, 16);
        // Start shortly before the numbers wrap, in the middle of the ring.
        let start = u32::MAX - 5;
        (ring.head, ring.done, ring.posted, ring.tail) = (start, start, start, start);
        for n in 0..64u64 {
            let sge = Sge { addr: n, length: 1, lkey: 7 };
            let bytes = [n as u8; 16];
            if n % 2 == 0 {
                ring.push(entry(n, 2, 2), &[sge, sge], &[]);
            } else {
                ring.push(entry(n, 16, 0), &[], &bytes);
            }
            for back in 0..=n {
                let seq = start.wrapping_add(back as u32);
                assert_eq!(ring.entry(seq).wr_id, back);
                if back % 2 == 0 {
                    assert_eq!(ring.sges(seq), [Sge { addr: back, length: 1, lkey: 7 }; 2]);
                } else {
                    assert_eq!(ring.inline(seq), [back as u8; 16]);
                }
            }
        }
        assert!(ring.is_full());
        assert_eq!((ring.len(), ring.unposted()), (64, 64));
    }

    #[test]
    fn a_first_inline_wr_of_no_bytes_has_none() {
        let mut ring = SendRing::new(8, 1, 16);
        ring.push(entry(0, 0, 0), &[], &[]);
        ring.push(entry(1, 0, 0), &[], &[]);
        assert!(ring.inline(1).is_empty());
    }
}
