//! The header of messages between nodes, which precedes the user's bytes.
//!
//! ```text
//!   0   "ELVM"                                            4
//!   4   version (3)                                       1
//!   5   kind                                              1
//!   6   flags: 1 with immediate data                      2
//!   8   port that it goes to, 0 if it goes to a VQP       2
//!   10  pieces of a message to be read, cause of a        2
//!       refusal, or messages that are granted
//!   12  VQP that it goes to, 0 if it goes to a port       4
//!   16  VQP that it comes from                            4
//!   20  immediate data                                    4
//!   24  bytes of the user's message                       4
//!   28  0                                                 4
//!   32  cookie: names a message, to those two that know   8
//!       it: its sequence number, a secret of the
//!       connection's
//!   40  GID of the sender's node                         16
//!   56  record of the sender's node                      22
//!   78  0                                                 2
//! ```
//!
//! Integers are little-endian. The record lets the receiver reach the sender without asking anybody
//! (section 4.1, `qpop_msgs`).

use core::ops::Range;

use elver_verbs::Gid;

use crate::{NODE_RECORD_BYTES, NodeRecord};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 80;
/// Words of 8 bytes before what is the same in all headers of a node.
const FRONT_WORDS: usize = 5;

const MAGIC: [u8; 4] = *b"ELVM";
const VERSION: u8 = 3;
const RECORD: Range<usize> = 56..56 + NODE_RECORD_BYTES;
const WITH_IMM: u16 = 1;

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
    Knock = 12,
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
    /// The receive is shorter than the message, or its memory is gone.
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
    pub(crate) dst_port: u16,
    /// Pieces of a rendezvous, the cause of a NACK, or the messages of a grant.
    pub(crate) detail: u16,
    pub(crate) dst_vqp: u32,
    pub(crate) src_vqp: u32,
    pub(crate) length: u32,
    pub(crate) cookie: u64,
    pub(crate) src_gid: Gid,
    /// The sender's record, as it encodes it: few receivers look at it.
    pub(crate) record: [u8; NODE_RECORD_BYTES],
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
    pub(crate) fn blank(src_gid: Gid, record: [u8; NODE_RECORD_BYTES]) -> Header {
        Header {
            kind: Kind::Eager,
            imm: None,
            dst_port: 0,
            detail: 0,
            dst_vqp: 0,
            src_vqp: 0,
            length: 0,
            cookie: 0,
            src_gid,
            record,
        }
    }

    /// The DC key of the sender's node, which is another each time that it starts.
    pub(crate) fn dc_key(&self) -> u64 {
        NodeRecord::decode(&self.record).map_or(0, |record| record.dc_key)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (word, into) in self.front().iter().zip(bytes.chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes[8 * FRONT_WORDS..56].copy_from_slice(&self.src_gid.0);
        bytes[RECORD].copy_from_slice(&self.record);
        bytes
    }

    /// The words in which the headers of a node differ. They are put together in registers: bytes
    /// that were just written one by one are slow to read as wider ones.
    #[inline(always)]
    pub(crate) fn front(&self) -> [u64; FRONT_WORDS] {
        let flags = if self.imm.is_some() { WITH_IMM } else { 0 };
        let magic = u64::from(u32::from_le_bytes(MAGIC)) | u64::from(VERSION) << 32;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            magic | (self.kind as u64) << 40 | u64::from(flags) << 48,
            pair(u32::from(self.dst_port) | u32::from(self.detail) << 16, self.dst_vqp),
            pair(self.src_vqp, self.imm.unwrap_or(0)),
            u64::from(self.length),
            self.cookie,
        ]
    }

    /// The header that a message begins with.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, NoHeader> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let kind = match bytes[5] {
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
            12 => Kind::Knock,
            _ => return Err(NoHeader),
        };
        let flags = half(6);
        let with_imm = flags & WITH_IMM != 0;
        let known = flags & !WITH_IMM == 0 && word(28) == 0 && half(RECORD.end) == 0;
        if bytes[..4] != MAGIC || bytes[4] != VERSION || !known || (!with_imm && word(20) != 0) {
            return Err(NoHeader);
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[40..56]);
        let mut record = [0; NODE_RECORD_BYTES];
        record.copy_from_slice(&bytes[RECORD]);
        Ok(Header {
            kind,
            imm: with_imm.then(|| word(20)),
            dst_port: half(8),
            detail: half(10),
            dst_vqp: word(12),
            src_vqp: word(16),
            length: word(24),
            cookie: u64::from(word(32)) | u64::from(word(36)) << 32,
            src_gid: Gid(gid),
            record,
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
            (kind, flags, imm) in (0..15u8, 0..5u16, any::<u32>()),
        ) {
            let mut bytes = [0; HEADER_BYTES];
            bytes.copy_from_slice(&noise);
            prop_assert_eq!(Header::decode(&bytes), Err(NoHeader));
            bytes[..4].copy_from_slice(&MAGIC);
            (bytes[4], bytes[5]) = (VERSION, kind);
            bytes[6..8].copy_from_slice(&flags.to_le_bytes());
            bytes[20..24].copy_from_slice(&(u32::from(flags & 1) * imm).to_le_bytes());
            bytes[28..32].fill(0);
            bytes[RECORD.end..].fill(0);
            match Header::decode(&bytes) {
                Ok(header) => prop_assert_eq!(header.encode(), bytes),
                Err(NoHeader) => prop_assert!(!(1..=12).contains(&kind) || flags > 1),
            }
        }
    }
}
