use crate::{ParseError, RnrTimer, Transport};

/// What an AETH says (IBTA 9.7.5.2, table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledged, with room for so many more messages.
    Ack(Credits),
    /// The receiver was not ready: wait, then send again.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
}

/// How many receives a responder has left, as a code of 5 bits (IBTA 9.7.7.2.1, table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(u8);

impl Credits {
    /// The responder does not count them.
    pub const UNCOUNTED: Credits = Credits(0x1f);

    /// The credits of a code of 5 bits.
    pub const fn new(code: u8) -> Option<Credits> {
        if code < 32 { Some(Credits(code)) } else { None }
    }

    /// Their code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Why a request was refused (IBTA 9.7.5.2.8, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence,
    /// The request is malformed or not allowed.
    InvalidRequest,
    /// The memory may not be accessed so.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
    /// Invalid reliable datagram request.
    InvalidRdRequest,
    /// Ours, on DC alone: the target holds no such session.
    DcNoContext,
    /// Ours, on DC alone: first the initiator has to prove that he is where he says.
    DcProve,
}

impl Syndrome {
    /// Whether a transport has it: [`NakCode::DcNoContext`] and [`NakCode::DcProve`] are of DC
    /// alone, the rest of any.
    #[inline]
    pub const fn exists_on(self, transport: Transport) -> bool {
        matches!(transport, Transport::Dc)
            || !matches!(self, Syndrome::Nak(NakCode::DcNoContext | NakCode::DcProve))
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits.code(),
            Syndrome::RnrNak(timer) => 0x20 | timer.code(),
            Syndrome::Nak(code) => {
                0x60 | match code {
                    NakCode::PsnSequence => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperation => 3,
                    NakCode::InvalidRdRequest => 4,
                    NakCode::DcProve => 0x1e,
                    NakCode::DcNoContext => 0x1f,
                }
            }
        }
    }

    /// What a byte says.
    ///
    /// # Errors
    /// [`ParseError::Syndrome`] for a code that table 43 or 46 reserves.
    #[inline]
    pub fn from_byte(byte: u8) -> Result<Syndrome, ParseError> {
        let low = byte & 0x1f;
        let code = match byte >> 5 {
            0 => return Ok(Syndrome::Ack(Credits(low))),
            1 => {
                return RnrTimer::new(low).map(Syndrome::RnrNak).ok_or(ParseError::Syndrome(byte));
            }
            3 => low,
            _ => return Err(ParseError::Syndrome(byte)),
        };
        Ok(Syndrome::Nak(match code {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperation,
            4 => NakCode::InvalidRdRequest,
            0x1e => NakCode::DcProve,
            0x1f => NakCode::DcNoContext,
            _ => return Err(ParseError::Syndrome(byte)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_refused_or_returns() {
        let mut known = 0;
        for byte in 0..=255 {
            if let Ok(syndrome) = Syndrome::from_byte(byte) {
                assert_eq!(syndrome.to_byte(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 32 + 32 + 7);
    }
}
