//! Writes landings, a piece at a time.

use elver_verbs::{Device, Memory, Time, WcOpcode, WcStatus};

use super::{Landing, Piece, plan};
use crate::Core;
use crate::VqpId;
use crate::datapath::wr_id::WrId;
use crate::ids::LandingId;
use crate::memory::Regions;
use crate::memory::mr::Users;
use crate::messaging::Messaging;
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::Refusal;
use crate::vqp::seq::RecvSeq;

impl<D: Device> Core<D> {
    /// Begins to write a message to a receive that is not at hand.
    #[cold]
    pub(crate) fn begin_landing(
        &mut self,
        vqp: VqpId,
        seq: RecvSeq,
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
            Err(status) => self.fail_receive(vqp, seq, incoming, status),
        }
    }

    fn prepare_landing(
        &mut self,
        vqp: VqpId,
        seq: RecvSeq,
        incoming: &Incoming,
        body: &Body<'_>,
    ) -> Result<LandingId, WcStatus> {
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
        let Core {
            vqps,
            regions: Regions { local: mrs, .. },
            messaging: Messaging { landings, .. },
            ..
        } = self;
        let entry = vqps.get_mut(vqp).ok_or(WcStatus::WrFlushErr)?;
        let (pieces, slots) = plan(mrs, entry.client, entry.rq.sges(seq), bytes.len())?;
        let incoming = *incoming;
        let landing = Landing { vqp, seq, incoming, bytes, pieces, slots: slots.clone() };
        let id = landings.insert_in_turn(landing).ok_or(WcStatus::LocProtErr)?;
        for slot in slots {
            mrs.add_users(Users::one(slot.into()));
        }
        entry.reads += 1;
        self.stats.messages_landed_late += 1;
        Ok(id)
    }

    /// Writes pieces until the device must wait for one; whether all went well, if none is left.
    fn write_on(&mut self, id: LandingId) -> Option<bool> {
        let Core { device, pool, messaging: Messaging { landings, .. }, .. } = self;
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
    pub(crate) fn piece_landed(&mut self, id: LandingId, status: WcStatus, now: Time) {
        let Some(landing) = self.messaging.landings.get_mut(id) else {
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

    fn end_landing(&mut self, id: LandingId, ok: bool, now: Time) {
        let Some(Landing { vqp, seq, incoming, slots, .. }) = self.messaging.landings.remove(id)
        else {
            return bug!("a message that was written is gone");
        };
        if ok {
            self.end_receive(vqp, seq, &incoming, WcStatus::Success, WcOpcode::Recv);
        } else {
            self.refuse(incoming.from, Refusal::Unfit, incoming.cookie);
            self.end_receive(vqp, seq, &incoming, WcStatus::LocProtErr, WcOpcode::Recv);
        }
        let mut freed = false;
        for slot in slots {
            freed |= self.regions.local.remove_users(Users::one(slot.into()));
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
