//! What can be told of a work request from itself alone: how many pieces and bytes it has.

use crate::{Payload, PostError, RecvWr, SendOp, SendWr, Sge};

/// How large a work request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrLimits {
    /// Pieces.
    pub max_sge: u32,
    /// Bytes inline, where the operation sends its local bytes.
    pub max_inline: u32,
    /// Bytes in all.
    pub max_length: u64,
    /// Whether the peer reads what is sent to a receive of its own: such a SEND has no bytes inline.
    pub confirm_sends: bool,
}

impl SendOp {
    /// Whether the local bytes are sent, and could be inline.
    #[inline]
    fn sends(&self) -> bool {
        use SendOp::{Send, SendWithImm, SendWithInv, Write, WriteWithImm};

        matches!(self, Send | SendWithImm(_) | SendWithInv(_) | Write(_) | WriteWithImm(..))
    }

    #[inline]
    fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Checks that an atomic's word is aligned, for who refuses at once what else the peer would (IBTA vol. 1,
    /// 9.4.5).
    ///
    /// # Errors
    /// [`PostError::AtomicAlignment`].
    #[inline]
    pub fn check_alignment(&self) -> Result<(), PostError> {
        match self {
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }
                if remote.addr % 8 != 0 =>
            {
                Err(PostError::AtomicAlignment { addr: remote.addr })
            }
            _ => Ok(()),
        }
    }
}

impl SendWr<'_> {
    /// The local bytes, if it may have so many, in so many pieces (IBTA vol. 1, 11.4.1.1).
    ///
    /// # Errors
    /// [`PostError::TooManySges`], [`PostError::InlineTooLong`], [`PostError::MessageTooLong`],
    /// [`PostError::AtomicLength`].
    #[inline(always)] // What is plain, as most are, is told by three comparisons.
    pub fn check_shape(&self, limits: &WrLimits) -> Result<u32, PostError> {
        match self.payload {
            Payload::Sges(&[Sge { length, .. }])
                if u64::from(length) <= limits.max_length
                    && limits.max_sge > 0
                    && !self.op.is_atomic() =>
            {
                Ok(length)
            }
            _ => self.check_any_shape(limits),
        }
    }

    #[inline]
    fn check_any_shape(&self, limits: &WrLimits) -> Result<u32, PostError> {
        let given = match self.payload {
            Payload::Sges(sges) => {
                sges_fit(sges.len(), limits.max_sge)?;
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
            Payload::Inline(bytes) => {
                let is_read = limits.confirm_sends
                    && matches!(self.op, SendOp::Send | SendOp::SendWithImm(_));
                let max = if self.op.sends() && !is_read { limits.max_inline } else { 0 };
                let given = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if given > max || is_read {
                    return Err(PostError::InlineTooLong { given, max });
                }
                u64::from(given)
            }
        };
        let length = u32::try_from(given).ok().filter(|_| given <= limits.max_length);
        let Some(length) = length else {
            return Err(PostError::MessageTooLong { given, max: limits.max_length });
        };
        if self.op.is_atomic() && length != 8 {
            return Err(PostError::AtomicLength { given });
        }
        Ok(length)
    }
}

impl RecvWr<'_> {
    /// Checks that it has no more than so many pieces.
    ///
    /// # Errors
    /// [`PostError::TooManySges`].
    #[inline]
    pub fn check_shape(&self, max_sge: u32) -> Result<(), PostError> {
        sges_fit(self.sges.len(), max_sge)
    }
}

#[inline]
fn sges_fit(given: usize, max: u32) -> Result<(), PostError> {
    match u32::try_from(given) {
        Ok(given) if given <= max => Ok(()),
        given => Err(PostError::TooManySges { given: given.unwrap_or(u32::MAX), max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RemoteAddr, SendFlags};

    const AT: RemoteAddr = RemoteAddr { addr: 64, rkey: 1 };
    const LIMITS: WrLimits =
        WrLimits { max_sge: 2, max_inline: 16, max_length: 1_000, confirm_sends: false };

    fn wr(op: SendOp, payload: Payload<'_>) -> SendWr<'_> {
        SendWr { wr_id: 0, op, flags: SendFlags::empty(), payload, dest: None }
    }

    fn pieces<const N: usize>(length: u32) -> [Sge; N] {
        [Sge { addr: 0, length, lkey: 1 }; N]
    }

    #[test]
    fn pieces_and_their_bytes_are_bounded() {
        let of = |sges: &[Sge]| wr(SendOp::Write(AT), Payload::Sges(sges)).check_shape(&LIMITS);
        assert_eq!(of(&[]), Ok(0));
        assert_eq!(of(&pieces::<1>(1_000)), Ok(1_000));
        assert_eq!(of(&pieces::<2>(500)), Ok(1_000));
        let too_many = PostError::TooManySges { given: 3, max: 2 };
        assert_eq!(of(&pieces::<3>(1)), Err(too_many));
        let too_long = PostError::MessageTooLong { given: 1_002, max: 1_000 };
        assert_eq!(of(&pieces::<2>(501)), Err(too_long));
        // The sum of 32-bit lengths has more bits.
        let too_long = PostError::MessageTooLong { given: 2 * u64::from(u32::MAX), max: 1_000 };
        assert_eq!(of(&pieces::<2>(u32::MAX)), Err(too_long));
        let none = WrLimits { max_sge: 0, ..LIMITS };
        let one = pieces::<1>(1);
        let refused = wr(SendOp::Send, Payload::Sges(&one)).check_shape(&none);
        assert_eq!(refused, Err(PostError::TooManySges { given: 1, max: 0 }));
    }

    #[test]
    fn only_what_is_sent_is_inline() {
        let of = |op, bytes: &[u8], limits: &WrLimits| {
            wr(op, Payload::Inline(bytes)).check_shape(limits)
        };
        let too_long = |given, max| Err(PostError::InlineTooLong { given, max });
        assert_eq!(of(SendOp::Send, &[0; 16], &LIMITS), Ok(16));
        assert_eq!(of(SendOp::WriteWithImm(AT, 1), &[0; 17], &LIMITS), too_long(17, 16));
        assert_eq!(of(SendOp::Read(AT), &[0; 1], &LIMITS), too_long(1, 0));
        assert_eq!(of(SendOp::Read(AT), &[], &LIMITS), Ok(0));
        let confirmed = WrLimits { confirm_sends: true, ..LIMITS };
        assert_eq!(of(SendOp::SendWithImm(1), &[], &confirmed), too_long(0, 0));
        assert_eq!(of(SendOp::Write(AT), &[0; 16], &confirmed), Ok(16));
    }

    #[test]
    fn an_atomic_has_a_word_at_both_ends() {
        let op = |addr| SendOp::FetchAdd { remote: RemoteAddr { addr, rkey: 1 }, add: 1 };
        let (word, half) = (pieces::<1>(8), pieces::<1>(4));
        assert_eq!(wr(op(64), Payload::Sges(&word)).check_shape(&LIMITS), Ok(8));
        let refused = wr(op(64), Payload::Sges(&half)).check_shape(&LIMITS);
        assert_eq!(refused, Err(PostError::AtomicLength { given: 4 }));
        assert_eq!(op(64).check_alignment(), Ok(()));
        assert_eq!(op(60).check_alignment(), Err(PostError::AtomicAlignment { addr: 60 }));
        assert_eq!(SendOp::Read(RemoteAddr { addr: 1, rkey: 1 }).check_alignment(), Ok(()));
    }
}
