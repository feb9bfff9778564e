//! Messages whose receives are not at hand (section 4.4): the device writes them in its own time.
//!
//! ```text
//!   a message comes, its receive's memory answers Later ──▶ it is copied aside, its regions are in use
//!   each piece in turn: Device::write_region ──▶ a completion, however long that takes
//!   the last piece ──▶ the receive has ended; it is told when those before it were
//! ```

mod write;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{Memory, Mr, WcStatus};

use crate::ClientId;
use crate::VqpId;
use crate::memory::mr::{LocalHit, LocalMrs};
use crate::messaging::incoming::Incoming;
use crate::vqp::seq::RecvSeq;

/// Messages that are written to receives at once, at most: each may have a completion at the device,
/// which bounds each payer's share of them sooner. Beyond it a receive that is not at hand fails.
pub const LANDINGS_MAX: u32 = 1 << 15;
/// Bytes that are written at once, at most.
const PIECE_BYTES: u64 = 32 << 10;

/// A message that is being written to a receive.
#[derive(Debug)]
pub(crate) struct Landing {
    /// The VQP, and the receive.
    vqp: VqpId,
    seq: RecvSeq,
    incoming: Incoming,
    bytes: Vec<u8>,
    /// What is still to be written, the current piece first.
    pieces: VecDeque<Piece>,
    /// Regions of the receive's pieces, which it uses.
    slots: Vec<u32>,
}

/// Bytes of the message that go to one place.
#[derive(Clone, Copy, Debug)]
struct Piece {
    mr: Mr,
    offset: u64,
    from: usize,
    len: usize,
}

impl Landing {
    /// Whether it goes to a receive of this VQP.
    pub(crate) fn is_of(&self, vqp: VqpId) -> bool {
        self.vqp == vqp
    }

    /// How often it counts among the users of a region.
    pub(crate) fn uses(&self, slot: u32) -> u32 {
        self.slots.iter().filter(|used| **used == slot).count() as u32
    }
}

/// The places of a receive that so many bytes go to, and their regions.
fn plan<M: Memory>(
    mrs: &LocalMrs<M>,
    client: ClientId,
    sges: &[elver_verbs::Sge],
    mut left: usize,
) -> Result<(VecDeque<Piece>, Vec<u32>), WcStatus> {
    let (mut pieces, mut slots, mut hit) = (VecDeque::new(), Vec::new(), LocalHit::NONE);
    let mut from = 0;
    for sge in sges {
        let part = left.min(sge.length as usize);
        if part == 0 {
            continue;
        }
        let slot = mrs.check(client, &mut hit, sge, true).map_err(|_| WcStatus::LocProtErr)?;
        let Some((slot, mr)) = slot.get().and_then(|slot| Some((slot, mrs.get(slot)?))) else {
            bug!("a region that was checked is gone");
            return Err(WcStatus::LocProtErr);
        };
        slots.push(slot);
        let start = sge.addr - mr.info.addr;
        for at in (0..part as u64).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(part as u64 - at) as usize;
            let (mr, from) = (mr.info.mr, from + at as usize);
            pieces.push_back(Piece { mr, offset: start + at, from, len });
        }
        (from, left) = (from + part, left - part);
    }
    Ok((pieces, slots))
}
