//! What a core takes from its device.

use alloc::vec::Vec;

use elver_verbs::{Time, Wc};

use super::heard::Heard;

/// Completions taken from the device at once.
pub(super) const BATCH: usize = 32;

/// What the device tells, between two polls and in one.
pub(crate) struct Arrivals {
    /// Up to when all that had arrived was taken from the device.
    pub(crate) heard: Heard,
    /// Receive buffers that were read, to be posted again.
    pub(crate) read_buffers: Vec<u32>,
    /// Room for completions.
    pub(super) wcs: Vec<Wc>,
}

impl Arrivals {
    pub(super) fn new(now: Time) -> Arrivals {
        Arrivals {
            heard: Heard::new(now),
            read_buffers: Vec::new(),
            wcs: alloc::vec![Wc::default(); BATCH],
        }
    }
}
