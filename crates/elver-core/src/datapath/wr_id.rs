use core::num::NonZeroU32;

use crate::VqpId;
use crate::ids::{Id, LandingId, OpId};
use crate::vqp::seq::LowSeq;

/// What a physical WR was posted for, as its `wr_id` says (Algorithm 2).
///
/// A completion of a VQP's WR stands for all WRs of this VQP up to the sequence number that it
/// names: that is the count of KRCORE's encoding, kept where it needs no bookkeeping.
///
/// ```text
///   63..61 kind   60..29 id of the VQP, operation or buffer   28..0 sequence number
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrId {
    /// The WR of a VQP, or the second of the two that stand for a WRITE_WITH_IMM.
    User {
        /// The VQP.
        vqp: VqpId,
        /// Its number in the send ring, as far as there is room.
        seq: LowSeq,
        /// Whether it is the second of two.
        second: bool,
    },
    /// An operation of the core's own.
    Op(OpId),
    /// A message buffer of the shared receive queue.
    Recv(u32),
    /// A receive or a send of the UD QP.
    Control(u32),
    /// A message that is written to a receive.
    Landing(LandingId),
}

impl WrId {
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        let (kind, id, seq) = match self {
            WrId::User { vqp, seq, second } => (u64::from(second), vqp.0, seq.bits()),
            WrId::Op(op) => (2, op.bits(), 0),
            WrId::Recv(buffer) => (3, buffer, 0),
            WrId::Control(slot) => (4, slot, 0),
            WrId::Landing(id) => (5, id.bits(), 0),
        };
        kind << 61 | u64::from(id) << LowSeq::BITS | u64::from(seq)
    }

    /// What `code` says; none if [`WrId::encode`] gives no such code.
    #[inline]
    pub(crate) fn decode(code: u64) -> Option<WrId> {
        let id = (code >> LowSeq::BITS) as u32;
        match code >> 61 {
            kind @ 0..=1 => {
                Some(WrId::User { vqp: VqpId(id), seq: LowSeq::of(code), second: kind == 1 })
            }
            2 => NonZeroU32::new(id).map(OpId::of).map(WrId::Op),
            3 => Some(WrId::Recv(id)),
            4 => Some(WrId::Control(id)),
            5 => NonZeroU32::new(id).map(LandingId::of).map(WrId::Landing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(id in 1..=u32::MAX, seq in any::<u64>(), second in any::<bool>()) {
            let user = WrId::User { vqp: VqpId(id), seq: LowSeq::of(seq), second };
            let bits = NonZeroU32::new(id).unwrap();
            let (op, landing) = (WrId::Op(OpId::of(bits)), WrId::Landing(LandingId::of(bits)));
            for kind in [user, op, WrId::Recv(id), WrId::Control(id), landing] {
                prop_assert_eq!(WrId::decode(kind.encode()), Some(kind));
            }
        }
    }
}
