//! QP 1, where management datagrams go (IBTA vol. 1, 3.9.2).

use elver_verbs::Memory;

use crate::Rnic;

/// The number by which peers know it.
pub(crate) const GENERAL_SERVICES: u32 = 1;

impl<M: Memory> Rnic<M> {
    /// The id of the QP that a peer names by a number: the same, but for QP 1.
    #[inline]
    pub(crate) fn named(&self, qpn: u32) -> u32 {
        if qpn == GENERAL_SERVICES { self.general_services.unwrap_or(qpn) } else { qpn }
    }
}
