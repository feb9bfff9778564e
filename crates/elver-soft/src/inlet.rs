use elver_memory::SoftMemory;
use elver_rnic::{DropReason, Rnic, RxMeta, Time};

use crate::capture::Capture;
use crate::faults::FaultState;

/// Where received packets go.
pub(crate) struct Inlet<'a> {
    pub(crate) now: Time,
    pub(crate) rnic: &'a mut Rnic<SoftMemory>,
    pub(crate) capture: &'a mut Option<Box<Capture>>,
    pub(crate) faults: &'a mut Option<Box<FaultState>>,
}

impl Inlet<'_> {
    /// Whether the next packet is dropped by design.
    #[inline]
    pub(crate) fn loses(&mut self) -> bool {
        self.faults.as_mut().is_some_and(|faults| faults.loses(self.now))
    }

    /// Gives a packet to the RNIC, now or later.
    #[inline]
    pub(crate) fn give(&mut self, meta: &RxMeta, packet: &[u8]) {
        let Some(faults) = self.faults.as_mut().filter(|faults| faults.delays()) else {
            return hand(self.rnic, self.now, meta, packet);
        };
        if !faults.keep(self.now, meta, packet) {
            self.rnic.count_drop(DropReason::Driver);
        }
    }
}

/// Gives a packet to the RNIC as what its address says that it is.
#[inline]
pub(crate) fn hand(rnic: &mut Rnic<SoftMemory>, now: Time, meta: &RxMeta, packet: &[u8]) {
    if meta.flow.dst.ip().is_multicast() {
        rnic.handle_multicast(now, meta, packet);
    } else {
        rnic.handle_datagram(now, meta, packet);
    }
}
