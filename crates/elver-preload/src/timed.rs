//! CQs whose completions have time stamps: of when this host saw them, at the end of the step of the
//! device that made them.

use std::collections::VecDeque;

use elver_soft::SoftDevice;
use elver_verbs::{Cq, Wc};
use rustix::time::{ClockId, clock_gettime};

/// A moment, in nanoseconds of the system's two clocks: since some start, and since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) raw: u64,
    pub(crate) wall: u64,
}

impl Stamp {
    pub(crate) fn now() -> Stamp {
        let ns = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        Stamp { raw: ns(ClockId::Monotonic), wall: ns(ClockId::Realtime) }
    }
}

/// Completions of a CQ that were stamped, and wait to be taken.
pub(crate) struct Timed {
    waiting: VecDeque<(Wc, Stamp)>,
    /// How many it holds; the device's own CQ holds those behind.
    capacity: usize,
    /// How many there have been.
    seen: u64,
}

impl Timed {
    pub(crate) fn new(capacity: usize) -> Timed {
        Timed { waiting: VecDeque::new(), capacity, seen: 0 }
    }

    /// Stamps what the device has made since.
    pub(crate) fn stamp(&mut self, device: &mut SoftDevice, cq: Cq) {
        let mut wc = [Wc::default()];
        let mut now = None;
        while self.waiting.len() < self.capacity && device.take_completions(cq, &mut wc) == Ok(1) {
            let now = *now.get_or_insert_with(Stamp::now);
            self.waiting.push_back((wc[0], now));
            self.seen += 1;
        }
    }

    /// How many completions it has had.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// The oldest.
    pub(crate) fn take(&mut self) -> Option<(Wc, Stamp)> {
        self.waiting.pop_front()
    }

    /// Forgets those of a QP that is destroyed.
    pub(crate) fn forget(&mut self, qp_num: u32) {
        self.waiting.retain(|(wc, _)| wc.qp_num != qp_num);
    }

    /// Whether those that wait fit where so many do.
    pub(crate) fn fits(&self, capacity: usize) -> bool {
        self.waiting.len() <= capacity
    }

    /// Changes how many it holds.
    pub(crate) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }
}
