//! The descriptor of a long message, and the READs that fetch what it names (section 4.5).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{Memory, RemoteAddr, Sge, Time, WcStatus};

use crate::ClientId;
use crate::VqpId;
use crate::ids::PeerId;
use crate::memory::mr::{LocalHit, LocalMrs};
use crate::messaging::incoming::Incoming;
use crate::vqp::seq::RecvSeq;

/// Bytes of a piece in a descriptor: address, rkey, length.
pub(crate) const PIECE_BYTES: usize = 16;

/// A message that is being read.
#[derive(Debug)]
pub(crate) struct Gather {
    /// The VQP, and the receive.
    pub(super) vqp: VqpId,
    pub(super) seq: RecvSeq,
    pub(super) incoming: Incoming,
    /// Regions of the receive's pieces, which it uses.
    pub(super) slots: Vec<u32>,
    /// READs that are still to be done, the current one first.
    pub(super) reads: VecDeque<(RemoteAddr, Vec<Sge>)>,
}

impl Gather {
    /// Whether its sender may have taken the message back.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.incoming.is_late(now)
    }

    /// Whether it reads into a receive of this VQP.
    pub(crate) fn is_of(&self, vqp: VqpId) -> bool {
        self.vqp == vqp
    }

    /// How often it counts among the users of a region.
    pub(crate) fn uses(&self, slot: u32) -> u32 {
        self.slots.iter().filter(|used| **used == slot).count() as u32
    }

    /// Whether it reads this message.
    pub(crate) fn reads(&self, from: (PeerId, u32), cookie: u64) -> bool {
        self.incoming.from == from && self.incoming.cookie == cookie
    }

    /// The READ to do now.
    pub(crate) fn read(&self) -> (RemoteAddr, &[Sge]) {
        match self.reads.front() {
            Some((remote, sges)) => (*remote, sges),
            None => (RemoteAddr { addr: 0, rkey: 0 }, &[]),
        }
    }
}

/// READs that fetch the pieces of a message into the pieces of a receive, and the regions of these.
pub(super) type Plan = (Vec<u32>, VecDeque<(RemoteAddr, Vec<Sge>)>);

/// How the pieces that a descriptor names get into a receive.
pub(super) fn plan<M: Memory>(
    mrs: &LocalMrs<M>,
    client: ClientId,
    sges: &[Sge],
    pieces: &[u8],
    length: u32,
) -> Result<Plan, WcStatus> {
    let (pieces, rest) = pieces.as_chunks::<PIECE_BYTES>();
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece_of(piece).1)).sum();
    if !rest.is_empty() || sum != u64::from(length) {
        return Err(WcStatus::BadRespErr);
    }
    let (mut slots, mut hit) = (Vec::new(), LocalHit::NONE);
    for sge in sges {
        let slot = mrs.check(client, &mut hit, sge, true).map_err(|_| WcStatus::LocProtErr)?;
        slots.extend(slot.get());
    }
    let mut room = sges.iter().filter(|sge| sge.length > 0).copied();
    let mut current = room.next();
    let mut reads = VecDeque::new();
    for (remote, mut left) in pieces.iter().map(piece_of).filter(|(_, len)| *len > 0) {
        let mut local = Vec::new();
        while left > 0 {
            let Some(sge) = &mut current else {
                bug!("a receive that was long enough is not");
                return Err(WcStatus::LocLenErr);
            };
            let part = left.min(sge.length);
            local.push(Sge { length: part, ..*sge });
            (sge.addr, sge.length, left) =
                (sge.addr + u64::from(part), sge.length - part, left - part);
            if sge.length == 0 {
                current = room.next();
            }
        }
        reads.push_back((remote, local));
    }
    Ok((slots, reads))
}

/// A piece of a descriptor.
pub(crate) fn encode_piece(remote: RemoteAddr, length: u32) -> [u8; PIECE_BYTES] {
    let mut bytes = [0; PIECE_BYTES];
    bytes[..8].copy_from_slice(&remote.addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&remote.rkey.to_le_bytes());
    bytes[12..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn piece_of(bytes: &[u8; PIECE_BYTES]) -> (RemoteAddr, u32) {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let addr = u64::from(word(0)) | u64::from(word(4)) << 32;
    (RemoteAddr { addr, rkey: word(8) }, word(12))
}
