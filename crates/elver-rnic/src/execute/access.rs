//! What a peer may reach: READs, atomics, and the checks that all share.

use elver_verbs::{AccessFlags, AsyncEvent, Memory, Qp};
use elver_wire::{NakCode, Reth, RnrTimer};

use super::fault::Fault;
use crate::hw::Hw;
use crate::place::Place;
use crate::qp_core::QpCore;

/// What an atomic does to its word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

impl QpCore {
    /// Checks a READ, when `outstanding` READs and atomics of its stream wait for their answers.
    /// An access of no bytes is granted without a place.
    #[inline]
    pub(crate) fn grant_read<M: Memory>(
        &self,
        hw: &Hw<M>,
        reth: &Reth,
        outstanding: u32,
    ) -> Result<Option<Place>, Fault> {
        self.check_outstanding(outstanding)?;
        self.check_access(AccessFlags::REMOTE_READ)?;
        if reth.len > self.max_message {
            return Err(Fault::Invalid);
        }
        self.place(hw, reth.va, reth.rkey, reth.len, AccessFlags::REMOTE_READ)
    }

    /// Executes an atomic on the word at `va`; returns what the word held.
    #[inline]
    pub(crate) fn atomic<M: Memory>(
        &self,
        hw: &Hw<M>,
        va: u64,
        rkey: u32,
        outstanding: u32,
        change: Atomic,
    ) -> Result<u64, Fault> {
        self.check_outstanding(outstanding)?;
        self.check_access(AccessFlags::REMOTE_ATOMIC)?;
        if !va.is_multiple_of(8) {
            return Err(Fault::Invalid);
        }
        let place = self.place(hw, va, rkey, 8, AccessFlags::REMOTE_ATOMIC)?;
        let place = place.ok_or(Fault::Access)?;
        let original = match change {
            Atomic::CompareSwap { compare, swap } => hw.regions.compare_swap(place, compare, swap),
            Atomic::FetchAdd { add } => hw.regions.fetch_add(place, add),
        };
        Ok(original?)
    }

    /// Tells the target's owner that a request was refused.
    #[cold]
    pub(crate) fn tell_refused<M: Memory>(&self, hw: &mut Hw<M>, code: NakCode) {
        let qp = Qp(self.qpn.get());
        hw.event(match code {
            NakCode::RemoteAccess => AsyncEvent::QpAccessErr(qp),
            _ => AsyncEvent::QpReqErr(qp),
        });
    }

    /// The RNR NAK of a QP without a receive.
    pub(crate) fn rnr_timer(&self) -> RnrTimer {
        let timer = RnrTimer::new(self.attr.min_rnr_timer);
        timer.unwrap_or_else(|| RnrTimer::at_least_ns(0))
    }

    /// An initiator that has more READs and atomics outstanding than was agreed is refused (IBTA
    /// vol. 1, 9.7.4.1.3).
    #[inline]
    fn check_outstanding(&self, outstanding: u32) -> Result<(), Fault> {
        if outstanding >= u32::from(self.attr.max_dest_rd_atomic) {
            return Err(Fault::Invalid);
        }
        Ok(())
    }

    /// An operation that the QP does not take at all is none that is supported (IBTA vol. 1, 9.7.4.1.2), whatever key it has.
    #[inline]
    pub(crate) fn check_access(&self, access: AccessFlags) -> Result<(), Fault> {
        if self.attr.qp_access_flags.contains(access) { Ok(()) } else { Err(Fault::Invalid) }
    }

    /// Key, range and rights of a peer's access.
    #[inline]
    pub(crate) fn place<M: Memory>(
        &self,
        hw: &Hw<M>,
        va: u64,
        rkey: u32,
        length: u32,
        access: AccessFlags,
    ) -> Result<Option<Place>, Fault> {
        hw.regions
            .keys
            .remote(self.pd, self.qpn.get(), rkey, va, u64::from(length), access)
            .map_err(|_| Fault::Access)
    }
}
