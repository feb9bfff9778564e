//! The header of messages between nodes, which precedes the user's bytes.
//!
//! ```text
//!   0   "EM"                                              2
//!   2   version (4)                                       1
//!   3   kind; the top bit: with immediate data            1
//!   4   pieces of a message to be read, cause of a        2
//!       refusal, or messages that are granted
//!   6   tag of the sender's record                        2
//!   8   VQP that it goes to, or, with the top bit of      4
//!       the version, the port
//!   12  VQP that it comes from                            4
//!   16  immediate data                                    4
//!   20  bytes of the user's message                       4
//!   24  cookie: names a message, to those two that know   8
//!       it: its sequence number, a secret of the
//!       connection's
//! ```
//!
//! Integers are little-endian. Who sent a message the device tells, not the message. The tag is a
//! hint alone: a receiver that knows the sender by another record has it looked up.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;
/// The same in words.
const WORDS: usize = HEADER_BYTES / 8;

const MAGIC: u16 = u16::from_le_bytes(*b"EM");
const VERSION: u8 = 4;
/// In the byte of the version.
const TO_PORT: u8 = 0x80;
/// In the byte of the kind.
const WITH_IMM: u8 = 0x80;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The user's bytes follow.
    Eager = 1,
    /// Where the user's bytes may be read follows.
    Rendezvous = 2,
    /// A WRITE with immediate data has been executed before it.
    WriteImm = 3,
    /// The message that the cookie names was read.
    Fin = 4,
    /// The message that the cookie names was refused.
    Nack = 5,
    /// The message that the cookie names may be read: what became of it?
    Query = 6,
    /// The message that the cookie names may not be read any longer, unless that has begun.
    Revoke = 7,
    /// The receiver does not have the message that the cookie names.
    Unknown = 8,
    /// May the message that the cookie names still be read?
    Ask = 9,
    /// The receiver holds much: no messages for now.
    Halt = 10,
    /// The receiver wants so many messages.
    Grant = 11,
    /// How many messages does the receiver want?
    CreditProbe = 12,
    /// To a port: the VQP that sent messages there is gone. To a VQP: where it sends messages is gone.
    Gone = 13,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Refusal {
    /// Nobody is bound to the port.
    Port = 1,
    /// The VQP is gone.
    Gone = 2,
    /// The receiver holds as many messages as it may.
    Overrun = 3,
    /// The receive is shorter than the message, or its memory is gone, or the message was not read in time.
    Unfit = 4,
    /// There is no VQP for the sender: the receiver holds as many for senders, or as many for those
    /// of one node, as it may.
    Crowded = 5,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) imm: Option<u32>,
    /// Pieces of a rendezvous, the cause of a NACK, or the messages of a grant.
    pub(crate) detail: u16,
    /// Of the sender's record: see [`crate::NodeRecord::tag`].
    pub(crate) tag: u16,
    /// 0 if it goes to a VQP.
    pub(crate) dst_port: u16,
    /// 0 if it goes to a port.
    pub(crate) dst_vqp: u32,
    pub(crate) src_vqp: u32,
    pub(crate) length: u32,
    pub(crate) cookie: u64,
}

/// Bytes that are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoHeader;

impl Refusal {
    pub(crate) fn from_code(code: u16) -> Option<Refusal> {
        [Refusal::Port, Refusal::Gone, Refusal::Overrun, Refusal::Unfit, Refusal::Crowded]
            .into_iter()
            .find(|refusal| *refusal as u16 == code)
    }
}

impl Header {
    /// What all headers of a node have in common.
    pub(crate) fn blank(tag: u16) -> Header {
        Header {
            kind: Kind::Eager,
            imm: None,
            detail: 0,
            tag,
            dst_port: 0,
            dst_vqp: 0,
            src_vqp: 0,
            length: 0,
            cookie: 0,
        }
    }

    /// The header as bytes. They are put together in registers: bytes that were just written one by
    /// one are slow to read as wider ones.
    #[inline(always)]
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let port = u8::from(self.dst_vqp == 0) * TO_PORT;
        let with_imm = u8::from(self.imm.is_some()) * WITH_IMM;
        let kind = self.kind as u8 | with_imm;
        let first = u64::from(MAGIC)
            | u64::from(VERSION | port) << 16
            | u64::from(kind) << 24
            | u64::from(self.detail) << 32
            | u64::from(self.tag) << 48;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let to = self.dst_vqp | u32::from(self.dst_port);
        let words: [u64; WORDS] =
            [first, pair(to, self.src_vqp), pair(self.imm.unwrap_or(0), self.length), self.cookie];
        let mut bytes = [0; HEADER_BYTES];
        for (word, into) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header that a message begins with.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, NoHeader> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let kind = match bytes[3] & !WITH_IMM {
            1 => Kind::Eager,
            2 => Kind::Rendezvous,
            3 => Kind::WriteImm,
            4 => Kind::Fin,
            5 => Kind::Nack,
            6 => Kind::Query,
            7 => Kind::Revoke,
            8 => Kind::Unknown,
            9 => Kind::Ask,
            10 => Kind::Halt,
            11 => Kind::Grant,
            12 => Kind::CreditProbe,
            13 => Kind::Gone,
            _ => return Err(NoHeader),
        };
        let with_imm = bytes[3] & WITH_IMM != 0;
        let to_port = bytes[2] & TO_PORT != 0;
        let to = word(8);
        let fits = if to_port { to <= u32::from(u16::MAX) } else { to != 0 };
        let known = half(0) == MAGIC && bytes[2] & !TO_PORT == VERSION;
        if !known || !fits || (!with_imm && word(16) != 0) {
            return Err(NoHeader);
        }
        Ok(Header {
            kind,
            imm: with_imm.then(|| word(16)),
            detail: half(4),
            tag: half(6),
            dst_port: if to_port { to as u16 } else { 0 },
            dst_vqp: if to_port { 0 } else { to },
            src_vqp: word(12),
            length: word(20),
            cookie: u64::from(word(24)) | u64::from(word(28)) << 32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same(
            noise in proptest::collection::vec(any::<u8>(), HEADER_BYTES),
            (kind, with_imm, imm) in (0..15u8, any::<bool>(), any::<u32>()),
            (port, to) in (any::<bool>(), prop_oneof![0..0x1_0001u32, any::<u32>()]),
        ) {
            let mut bytes = [0; HEADER_BYTES];
            bytes.copy_from_slice(&noise);
            prop_assert_eq!(Header::decode(&bytes), Err(NoHeader));
            bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[2] = VERSION | u8::from(port) << 7;
            bytes[3] = kind | u8::from(with_imm) << 7;
            bytes[8..12].copy_from_slice(&to.to_le_bytes());
            bytes[16..20].copy_from_slice(&(u32::from(with_imm) * imm).to_le_bytes());
            match Header::decode(&bytes) {
                Ok(header) => prop_assert_eq!(header.encode(), bytes),
                Err(NoHeader) => {
                    let fits = if port { to < 0x1_0000 } else { to > 0 };
                    prop_assert!(!(1..=13).contains(&kind) || !fits);
                }
            }
        }
    }
}
