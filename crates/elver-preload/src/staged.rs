//! WRs between `ibv_wr_start` and `ibv_wr_complete`: kept until all are posted, or none.

use std::ffi::c_int;
use std::ops::Range;

use elver_verbs::{Dest, Payload, SendFlags, SendOp, SendWr, Sge};

/// WRs that a program is making.
pub(crate) struct Batch {
    wrs: Vec<Staged>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// The first thing that was wrong: then none of them is posted.
    error: Option<c_int>,
    limits: Limits,
}

/// What a QP takes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) wrs: usize,
    pub(crate) sges: usize,
    pub(crate) inline: usize,
}

struct Staged {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    dest: Option<Dest>,
    sges: Range<usize>,
    /// Of inline data, which takes the place of SGEs.
    bytes: Option<Range<usize>>,
}

impl Batch {
    pub(crate) fn new(limits: Limits) -> Batch {
        Batch { wrs: Vec::new(), sges: Vec::new(), bytes: Vec::new(), error: None, limits }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }

    /// Remembers what was wrong, unless something was before.
    pub(crate) fn fail(&mut self, error: c_int) {
        self.error.get_or_insert(error);
    }

    pub(crate) fn error(&self) -> Option<c_int> {
        self.error
    }

    /// Begins another WR.
    pub(crate) fn begin(&mut self, wr_id: u64, flags: SendFlags, op: SendOp) {
        if self.wrs.len() >= self.limits.wrs {
            return self.fail(libc::ENOMEM);
        }
        let sges = self.sges.len()..self.sges.len();
        self.wrs.push(Staged { wr_id, flags, op, dest: None, sges, bytes: None });
    }

    /// Says where the last WR goes.
    pub(crate) fn send_to(&mut self, dest: Dest) {
        match self.wrs.last_mut() {
            Some(wr) => wr.dest = Some(dest),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Gives the last WR its SGEs, of which `all` says how many there are.
    pub(crate) fn gather(&mut self, count: usize, all: impl Iterator<Item = Sge>) {
        if count > self.limits.sges {
            return self.fail(libc::EINVAL);
        }
        let begun = self.sges.len();
        // An SGE of no bytes says nothing, whatever its key.
        self.sges.extend(all.take(count).filter(|sge| sge.length > 0));
        match self.wrs.last_mut() {
            Some(wr) => wr.sges = begun..self.sges.len(),
            None => self.fail(libc::EINVAL),
        }
    }

    /// How many more inline bytes the last WR takes.
    pub(crate) fn inline_room(&self) -> usize {
        let used = self.wrs.last().and_then(|wr| wr.bytes.as_ref()).map_or(0, Range::len);
        self.limits.inline - used.min(self.limits.inline)
    }

    /// Appends to the last WR's inline data; the caller has asked for the room.
    pub(crate) fn carry(&mut self, bytes: &[u8]) {
        let Some(wr) = self.wrs.last_mut() else { return self.fail(libc::EINVAL) };
        let begun = wr.bytes.as_ref().map_or(self.bytes.len(), |bytes| bytes.start);
        self.bytes.extend_from_slice(bytes);
        wr.bytes = Some(begun..self.bytes.len());
    }

    /// The WRs, in order.
    pub(crate) fn wrs(&self) -> impl Iterator<Item = SendWr<'_>> {
        self.wrs.iter().map(|wr| SendWr {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            payload: match &wr.bytes {
                Some(bytes) => Payload::Inline(&self.bytes[bytes.clone()]),
                None => Payload::Sges(&self.sges[wr.sges.clone()]),
            },
            dest: wr.dest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { wrs: 2, sges: 2, inline: 8 };

    fn begun() -> Batch {
        let mut batch = Batch::new(LIMITS);
        batch.begin(7, SendFlags::SIGNALED, SendOp::Send);
        batch
    }

    #[test]
    fn wrs_come_out_as_they_were_made() {
        let sge = |addr| Sge { addr, length: 4, lkey: 1 };
        let mut batch = begun();
        batch.gather(2, [sge(1), Sge::default()].into_iter());
        batch.begin(8, SendFlags::empty(), SendOp::SendWithImm(3));
        batch.carry(b"abc");
        batch.carry(b"de");
        assert_eq!(batch.inline_room(), 3);
        let wrs: Vec<_> = batch.wrs().collect();
        assert_eq!((wrs[0].wr_id, wrs[1].wr_id), (7, 8));
        assert!(matches!(wrs[0].payload, Payload::Sges([only]) if *only == sge(1)));
        assert!(matches!(wrs[1].payload, Payload::Inline(b"abcde")));
        batch.clear();
        assert_eq!((batch.wrs().count(), batch.error()), (0, None));
    }

    #[test]
    fn what_does_not_fit_fails_them_all() {
        let mut many = begun();
        many.gather(usize::MAX, std::iter::empty());
        assert_eq!(many.error(), Some(libc::EINVAL));
        let mut full = begun();
        for _ in 0..3 {
            full.begin(9, SendFlags::empty(), SendOp::Send);
        }
        assert_eq!((full.wrs().count(), full.error()), (2, Some(libc::ENOMEM)));
        let mut nothing = Batch::new(LIMITS);
        nothing.carry(b"a");
        assert_eq!(nothing.error(), Some(libc::EINVAL));
    }
}
