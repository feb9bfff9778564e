/// The transport of an opcode: its upper 3 bits (IBTA 9.2.1, table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// Extended Reliable Connection (IBTA annex A14).
    Xrc,
    /// Congestion notification (IBTA annex A17.9.3).
    Cnp,
    /// Dynamically Connected: ours, in the range 110 that the table leaves to manufacturers.
    Dc,
}

/// The operation of an opcode: its lower 5 bits.
#[allow(missing_docs, reason = "the names are the specification's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Operation {
    SendFirst = 0,
    SendMiddle = 1,
    SendLast = 2,
    SendLastImm = 3,
    SendOnly = 4,
    SendOnlyImm = 5,
    WriteFirst = 6,
    WriteMiddle = 7,
    WriteLast = 8,
    WriteLastImm = 9,
    WriteOnly = 10,
    WriteOnlyImm = 11,
    ReadRequest = 12,
    ReadResponseFirst = 13,
    ReadResponseMiddle = 14,
    ReadResponseLast = 15,
    ReadResponseOnly = 16,
    Ack = 17,
    AtomicAck = 18,
    CmpSwp = 19,
    FetchAdd = 20,
    SendLastInv = 22,
    SendOnlyInv = 23,
}

/// An opcode that we know (IBTA 9.2.1, table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode {
    transport: Transport,
    /// None for congestion notification alone.
    operation: Option<Operation>,
}

/// The byte of a congestion notification packet.
const CNP: u8 = 0x81;

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 23] = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::SendLastImm,
        Operation::SendOnly,
        Operation::SendOnlyImm,
        Operation::WriteFirst,
        Operation::WriteMiddle,
        Operation::WriteLast,
        Operation::WriteLastImm,
        Operation::WriteOnly,
        Operation::WriteOnlyImm,
        Operation::ReadRequest,
        Operation::ReadResponseFirst,
        Operation::ReadResponseMiddle,
        Operation::ReadResponseLast,
        Operation::ReadResponseOnly,
        Operation::Ack,
        Operation::AtomicAck,
        Operation::CmpSwp,
        Operation::FetchAdd,
        Operation::SendLastInv,
        Operation::SendOnlyInv,
    ];

    #[inline]
    const fn from_bits(bits: u8) -> Option<Operation> {
        match bits {
            0..=20 => Some(Operation::ALL[bits as usize]),
            22 => Some(Operation::SendLastInv),
            23 => Some(Operation::SendOnlyInv),
            _ => None,
        }
    }

    /// Whether the packet carries a RETH.
    #[inline]
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Operation::WriteFirst
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
                | Operation::ReadRequest
        )
    }

    /// Whether the packet carries an AETH.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Operation::ReadResponseFirst
                | Operation::ReadResponseLast
                | Operation::ReadResponseOnly
                | Operation::Ack
                | Operation::AtomicAck
        )
    }

    /// Whether the packet carries 4 bytes of immediate data or an rkey to invalidate.
    #[inline]
    pub const fn has_tail(self) -> bool {
        matches!(
            self,
            Operation::SendLastImm
                | Operation::SendOnlyImm
                | Operation::WriteLastImm
                | Operation::WriteOnlyImm
                | Operation::SendLastInv
                | Operation::SendOnlyInv
        )
    }

    /// Whether the packet may carry a payload.
    #[inline]
    pub const fn has_payload(self) -> bool {
        !matches!(
            self,
            Operation::ReadRequest
                | Operation::Ack
                | Operation::AtomicAck
                | Operation::CmpSwp
                | Operation::FetchAdd
        )
    }

    /// Whether a responder sends it.
    #[inline]
    pub const fn is_response(self) -> bool {
        let operation = self as u8;
        Operation::ReadResponseFirst as u8 <= operation && operation <= Operation::AtomicAck as u8
    }

    /// Length in bytes of the headers between the transport's own and the payload.
    #[inline]
    pub const fn extended_len(self) -> usize {
        match self {
            Operation::CmpSwp | Operation::FetchAdd => 28,
            Operation::AtomicAck => 12,
            _ => {
                let reth = if self.has_reth() { 16 } else { 0 };
                let aeth = if self.has_aeth() { 4 } else { 0 };
                let tail = if self.has_tail() { 4 } else { 0 };
                reth + aeth + tail
            }
        }
    }
}

impl Opcode {
    /// Congestion notification.
    pub const CNP: Opcode = Opcode { transport: Transport::Cnp, operation: None };

    /// The opcode of an operation on a transport, if the transport has it. Congestion notification
    /// is [`Opcode::CNP`].
    #[inline]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Opcode> {
        let known = match transport {
            Transport::Rc | Transport::Xrc | Transport::Dc => true,
            Transport::Uc => (operation as u8) <= Operation::WriteOnlyImm as u8,
            Transport::Ud => matches!(operation, Operation::SendOnly | Operation::SendOnlyImm),
            Transport::Cnp => false,
        };
        if known { Some(Opcode { transport, operation: Some(operation) }) } else { None }
    }

    /// The transport.
    #[inline]
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// The operation; none for congestion notification.
    #[inline]
    pub const fn operation(self) -> Option<Operation> {
        self.operation
    }

    /// The opcode of a byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        let transport = match byte >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            5 => Transport::Xrc,
            6 => Transport::Dc,
            _ if byte == CNP => return Some(Opcode::CNP),
            _ => return None,
        };
        match Operation::from_bits(byte & 0x1f) {
            Some(operation) => Opcode::new(transport, operation),
            None => None,
        }
    }

    /// Its byte.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        let Some(operation) = self.operation else { return CNP };
        let transport = match self.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Ud => 3,
            Transport::Xrc => 5,
            Transport::Cnp => CNP >> 5,
            Transport::Dc => 6,
        };
        transport << 5 | operation as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_return_and_the_rest_is_unknown() {
        let mut known = 0;
        for byte in 0..=255 {
            if let Some(opcode) = Opcode::from_byte(byte) {
                assert_eq!(opcode.to_byte(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 23 + 12 + 2 + 23 + 23 + 1);
    }

    /// A few of table 38, as written there.
    #[test]
    fn matches_the_table() {
        let byte = |transport, operation| Opcode::new(transport, operation).unwrap().to_byte();
        assert_eq!(byte(Transport::Rc, Operation::ReadRequest), 0x0c);
        assert_eq!(byte(Transport::Rc, Operation::FetchAdd), 0x14);
        assert_eq!(byte(Transport::Rc, Operation::SendOnlyInv), 0x17);
        assert_eq!(byte(Transport::Uc, Operation::WriteOnlyImm), 0x2b);
        assert_eq!(byte(Transport::Ud, Operation::SendOnly), 0x64);
        // Of annex A14.
        assert_eq!(byte(Transport::Xrc, Operation::SendFirst), 0xa0);
        assert_eq!(byte(Transport::Xrc, Operation::SendOnlyInv), 0xb7);
        assert_eq!(Opcode::CNP.to_byte(), 0x81);
    }
}
