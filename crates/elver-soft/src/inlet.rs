use elver_memory::SoftMemory;
use elver_rnic::{Rnic, Time};

use crate::capture::Capture;
use crate::loss::LossState;

/// Where received packets go.
pub(crate) struct Inlet<'a> {
    pub(crate) now: Time,
    pub(crate) rnic: &'a mut Rnic<SoftMemory>,
    pub(crate) capture: &'a mut Option<Box<Capture>>,
    pub(crate) loss: &'a mut Option<LossState>,
}

impl Inlet<'_> {
    /// Whether the next packet is dropped by design.
    #[inline]
    pub(crate) fn loses(&mut self) -> bool {
        self.loss.as_mut().is_some_and(LossState::drops)
    }
}
