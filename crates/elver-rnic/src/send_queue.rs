use alloc::vec::Vec;

use elver_verbs::{Dest, Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};
use elver_wire::Psn;

/// SGEs of a WR that has few: a header and a body.
const FEW: usize = 2;

/// The send WQEs of a QP: a pool that its lanes share. It grows to the number of WRs that were
/// outstanding at once, at most to the QP's capacity, and is then used again, latest first.
#[derive(Debug)]
pub(crate) struct SendPool {
    wqes: Vec<SendWqe>,
    /// The SGEs of WRs that have few, which most are: so that they lie close together.
    few: Vec<[Sge; FEW]>,
    /// Of each WQE `max_sge` SGEs; empty until a WR comes that has more than a few.
    many: Vec<Sge>,
    inline: Vec<u8>,
    free: Vec<u32>,
    capacity: u32,
    max_sge: usize,
    max_inline: usize,
}

/// A send WR on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) dest: Option<Dest>,
    /// Bytes of the message.
    pub(crate) length: u32,
    num_sge: u16,
    inline: bool,
    /// Whether PSNs were given to it.
    pub(crate) started: bool,
    pub(crate) first_psn: Psn,
    /// PSNs that it takes; 0 for an operation that sends nothing.
    pub(crate) packets: u32,
    /// Responses of a READ or an atomic taken so far, in packets.
    pub(crate) responses: u32,
    /// How it ends, once that is known and while WRs before it are still on their way.
    pub(crate) outcome: Option<WcStatus>,
}

/// The local bytes of a WQE.
pub(crate) enum Local<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

impl SendWqe {
    #[inline]
    pub(crate) fn last_psn(&self) -> Psn {
        self.first_psn.wrapping_add(self.packets.wrapping_sub(1))
    }

    /// Whether it waits for data from the peer.
    #[inline]
    pub(crate) fn expects_data(&self) -> bool {
        matches!(self.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

impl SendPool {
    pub(crate) fn new(capacity: u32, max_sge: u32, max_inline: u32) -> SendPool {
        SendPool {
            wqes: Vec::new(),
            few: Vec::new(),
            many: Vec::new(),
            inline: Vec::new(),
            free: Vec::new(),
            capacity,
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// WRs that it takes before it is full.
    pub(crate) fn room(&self) -> usize {
        self.capacity as usize - self.len()
    }

    /// WRs that are outstanding.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.wqes.len() - self.free.len()
    }

    /// Whether no WR is outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.wqes.len()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.wqes.len() as u32 >= self.capacity
    }

    /// Takes a WR that was checked against the pool's sizes; returns its slot.
    #[inline(always)] // For the same reason as where it is checked.
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, length: u32, signal_all: bool) -> u32 {
        let mut flags = wr.flags;
        if signal_all {
            flags |= SendFlags::SIGNALED;
        }
        let (num_sge, inline) = match wr.payload {
            Payload::Sges(sges) => (sges.len() as u16, false),
            Payload::Inline(_) => (0, true),
        };
        let wqe = SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags,
            dest: wr.dest,
            length,
            num_sge,
            inline,
            started: false,
            first_psn: Psn::from_wrapping(0),
            packets: 0,
            responses: 0,
            outcome: None,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.wqes[slot as usize] = wqe;
                slot
            }
            None => {
                self.wqes.push(wqe);
                self.few.push([Sge::default(); FEW]);
                self.inline.resize(self.wqes.len() * self.max_inline, 0);
                (self.wqes.len() - 1) as u32
            }
        };
        match wr.payload {
            Payload::Sges(sges) if sges.len() <= FEW => {
                for (to, sge) in self.few[slot as usize].iter_mut().zip(sges) {
                    *to = *sge;
                }
            }
            Payload::Sges(sges) => self.put_many(slot, sges),
            Payload::Inline(bytes) => {
                let at = slot as usize * self.max_inline;
                self.inline[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        slot
    }

    #[cold]
    fn put_many(&mut self, slot: u32, sges: &[Sge]) {
        self.many.resize(self.wqes.len() * self.max_sge, Sge::default());
        let at = slot as usize * self.max_sge;
        self.many[at..at + sges.len()].copy_from_slice(sges);
    }

    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &SendWqe {
        &self.wqes[slot as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut SendWqe {
        &mut self.wqes[slot as usize]
    }

    #[inline]
    pub(crate) fn local(&self, slot: u32) -> Local<'_> {
        let wqe = self.get(slot);
        if wqe.inline {
            let at = slot as usize * self.max_inline;
            Local::Inline(&self.inline[at..at + wqe.length as usize])
        } else if usize::from(wqe.num_sge) <= FEW {
            Local::Sges(&self.few[slot as usize][..usize::from(wqe.num_sge)])
        } else {
            let at = slot as usize * self.max_sge;
            Local::Sges(&self.many[at..at + usize::from(wqe.num_sge)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrs_of_any_number_of_sges_are_kept_as_they_came() {
        let mut pool = SendPool::new(64, 5, 0);
        let sges = |n: u64| [0, 1, 2, 3, 4].map(|at| Sge { addr: 8 * n + at, length: 1, lkey: 7 });
        let push = |pool: &mut SendPool, n: u64| {
            let sges = sges(n);
            let payload = Payload::Sges(&sges[..n as usize % 6]);
            let (op, flags) = (SendOp::Send, SendFlags::empty());
            pool.push(&SendWr { wr_id: n, op, flags, payload, dest: None }, n as u32 % 6, false)
        };
        let mut held: Vec<(u32, u64)> = (0..64).map(|n| (push(&mut pool, n), n)).collect();
        assert!(pool.is_full());
        // Slots are used again by WRs of other sizes.
        for n in 64..256 {
            let (slot, _) = held.remove(n as usize * 7 % 64);
            pool.release(slot);
            held.push((push(&mut pool, n), n));
            for &(slot, n) in &held {
                let Local::Sges(kept) = pool.local(slot) else { panic!("it is not inline") };
                assert_eq!((kept, pool.get(slot).wr_id), (&sges(n)[..n as usize % 6], n));
            }
        }
    }
}
