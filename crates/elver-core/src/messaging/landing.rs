//! Messages whose receives are not at hand (section 4.4): the device writes them in its own time.
//!
//! ```text
//!   a message comes, its receive's memory answers Later ──▶ it is copied aside, its regions are in use
//!   each piece in turn: Device::write_region ──▶ a completion, however long that takes
//!   the last piece ──▶ the receive has ended; it is told when those before it were
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{Device, Memory, Mr, Time, WcOpcode, WcStatus};

use crate::datapath::wr_id::WrId;
use crate::memory::mr::{LocalHit, LocalMrs, Users};
use crate::messaging::inbox::{Body, Incoming};
use crate::messaging::message::Refusal;
use crate::vqp::send_ring::NONE;
use crate::{ClientId, Core};

/// Messages that are written to receives at once, at most: each may have a completion at the device,
/// which bounds each payer's share of them sooner. Beyond it a receive that is not at hand fails.
pub const LANDINGS_MAX: u32 = 1 << 15;
/// Bytes that are written at once, at most.
const PIECE_BYTES: u64 = 32 << 10;

/// A message that is being written to a receive.
#[derive(Debug)]
pub(crate) struct Landing {
    /// The VQP, and the receive.
    vqp: u32,
    seq: u32,
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
    pub(crate) fn is_of(&self, vqp: u32) -> bool {
        self.vqp == vqp
    }

    /// How often it counts among the users of a region.
    pub(crate) fn uses(&self, slot: u32) -> u32 {
        self.slots.iter().filter(|used| **used == slot).count() as u32
    }
}

impl<D: Device> Core<D> {
    /// Begins to write a message to a receive that is not at hand.
    #[cold]
    pub(crate) fn begin_landing(
        &mut self,
        vqp: u32,
        seq: u32,
        incoming: &Incoming,
        body: &Body<'_>,
        now: Time,
    ) {
        match self.prepare_landing(vqp, seq, incoming, body) {
            Ok(landing) => {
                if let Some(ok) = self.write_on(landing) {
                    self.end_landing(landing, ok, now);
                }
            }
            Err(status) => self.fail_receive(vqp, seq, incoming, status, now),
        }
    }

    fn prepare_landing(
        &mut self,
        vqp: u32,
        seq: u32,
        incoming: &Incoming,
        body: &Body<'_>,
    ) -> Result<u32, WcStatus> {
        let mut bytes = alloc::vec![0; incoming.length as usize];
        match *body {
            Body::Buffer(start, _) => {
                self.pool.memory.read(start, &mut bytes).map_err(|_| WcStatus::LocProtErr)?;
            }
            Body::Held(held) => {
                let held = held.get(..bytes.len()).ok_or(WcStatus::LocProtErr)?;
                bytes.copy_from_slice(held);
            }
        }
        let Core { vqps, mrs, landings, .. } = self;
        let entry = vqps.get_mut(vqp).ok_or(WcStatus::WrFlushErr)?;
        let (pieces, slots) = plan(mrs, ClientId(entry.client), entry.rq.sges(seq), bytes.len())?;
        let incoming = *incoming;
        let landing = Landing { vqp, seq, incoming, bytes, pieces, slots: slots.clone() };
        let id = landings.insert_in_turn(landing).ok_or(WcStatus::LocProtErr)?;
        for slot in slots {
            mrs.add_users(Users::one(slot));
        }
        entry.reads += 1;
        self.stats.messages_landed_late += 1;
        Ok(id)
    }

    /// Writes pieces until the device must wait for one; whether all went well, if none is left.
    fn write_on(&mut self, id: u32) -> Option<bool> {
        let Core { landings, device, pool, .. } = self;
        let Landing { bytes, pieces, .. } = landings.get_mut(id)?;
        while let Some(Piece { mr, offset, from, len }) = pieces.front().copied() {
            let piece = &bytes[from..from + len];
            match device.write_region(mr, offset, piece, pool.cq, WrId::Landing(id).encode()) {
                Ok(true) => drop(pieces.pop_front()),
                Ok(false) => return None,
                Err(_) => return Some(false),
            }
        }
        Some(true)
    }

    /// A piece was written, or could not be.
    #[cold]
    pub(crate) fn piece_landed(&mut self, id: u32, status: WcStatus, now: Time) {
        let Some(landing) = self.landings.get_mut(id) else {
            self.stats.completions_unknown += 1;
            return;
        };
        landing.pieces.pop_front();
        let ended = match status {
            WcStatus::Success => self.write_on(id),
            _ => Some(false),
        };
        if let Some(ok) = ended {
            self.end_landing(id, ok, now);
        }
    }

    fn end_landing(&mut self, id: u32, ok: bool, now: Time) {
        let Some(Landing { vqp, seq, incoming, slots, .. }) = self.landings.remove(id) else {
            return bug!("a message that was written is gone");
        };
        if ok {
            self.end_receive(vqp, seq, &incoming, WcStatus::Success, WcOpcode::Recv);
        } else {
            self.refuse(incoming.from, Refusal::Unfit, incoming.cookie, now);
            self.end_receive(vqp, seq, &incoming, WcStatus::LocProtErr, WcOpcode::Recv);
        }
        let mut freed = false;
        for slot in slots {
            freed |= self.mrs.remove_users(Users::one(slot));
        }
        if let Some(entry) = self.vqps.get_mut(vqp) {
            count_off!(entry.reads, 1);
        }
        if freed {
            self.release_mrs(now);
        }
        self.drained(vqp, now);
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
        let Some(mr) = mrs.get(slot).filter(|_| slot != NONE) else {
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
