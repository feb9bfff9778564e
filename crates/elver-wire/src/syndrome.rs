use crate::{ParseError, RnrTimer, Transport};

/// What an AETH says (IBTA 9.7.5.2, table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledged. The credits are a code of 5 bits; 0x1f counts none.
    Ack {
        /// The code, 0 to 31.
        credits: u8,
    },
    /// The receiver was not ready: wait, then send again.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
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
}

impl Syndrome {
    /// Whether a transport has it: [`NakCode::DcNoContext`] is of DC alone, the rest of any.
    #[inline]
    pub const fn exists_on(self, transport: Transport) -> bool {
        matches!(transport, Transport::Dc) || !matches!(self, Syndrome::Nak(NakCode::DcNoContext))
    }

    /// The byte on the wire; only the low 5 bits of `credits` count.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer.code(),
            Syndrome::Nak(code) => {
                0x60 | match code {
                    NakCode::PsnSequence => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperation => 3,
                    NakCode::InvalidRdRequest => 4,
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
            0 => return Ok(Syndrome::Ack { credits: low }),
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
        assert_eq!(known, 32 + 32 + 6);
    }
}
