//! Lets a stream wait, and takes its turn again.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use elver_verbs::{Cq, Memory, Mr, QpState, Time, VerbsError, Wc, WcOpcode, WcStatus};
use elver_wire::Headers;

use super::{Aside, ERRAND_BYTES_MAX, Errand, PARKED_MAX, Parked, Part, Ticket, Wanted};
use crate::control::in_range;
use crate::hw::Hw;
use crate::place::Refused;
use crate::qp::QueuePair;
use crate::responder::Responder;
use crate::{Rnic, RxMeta};

impl<M: Memory> Hw<M> {
    /// Lets a stream wait for what its turn could not copy.
    #[cold]
    pub(crate) fn put_aside(&mut self, qpn: u32, part: Part) -> Box<Aside> {
        self.counters.waits_for_memory += 1;
        let errands = &mut self.errands;
        errands.serial += 1;
        let serial = errands.serial;
        let (done, wanted) = self.regions.desk.take();
        if wanted.is_none() {
            bug!("who waits for memory waits for no errand");
        }
        let writes = wanted.as_ref().is_some_and(|wanted| wanted.writes);
        let mut payer = 0;
        if let Some(Wanted { memory, place, bytes, writes, room }) = wanted {
            payer = memory.payer();
            let ticket = Ticket { qpn, part, serial };
            let (offset, len) = (place.offset, bytes.len());
            self.regions.keys.count_errand(place.region, true);
            let _room = room.unwrap_or_else(|| self.regions.desk.ledger.insist(payer, len));
            let errand = Errand { memory, offset, bytes, writes, len, place, ticket, _room };
            errands.waiting.push_back(errand);
        }
        let lands = writes && matches!(part, Part::Responses(_));
        let (ready, parked, tag, original) = (false, VecDeque::new(), (0, 0), None);
        Box::new(Aside { serial, ready, writes, lands, done, parked, payer, tag, original })
    }

    /// Puts a packet aside until its stream goes on; one for which there is no room is lost, unless it
    /// is the one that waits: it could be executed in part.
    #[cold]
    pub(crate) fn park(
        &mut self,
        aside: &mut Aside,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        let (ledger, payer) = (&self.regions.desk.ledger, aside.payer);
        let bytes = size_of::<Parked>() + payload.len();
        let room = if aside.parked.is_empty() {
            Some(ledger.insist(payer, bytes))
        } else if aside.parked.len() < PARKED_MAX {
            ledger.ask(payer, bytes)
        } else {
            None
        };
        let Some(_room) = room else {
            self.counters.drop_waiting += 1;
            return;
        };
        let (meta, headers, payload) = (*meta, *headers, payload.to_vec());
        aside.parked.push_back(Parked { meta, headers, payload, _room });
    }
}

impl<M: Memory> Rnic<M> {
    /// Takes a copy that is to be made elsewhere, for [`Rnic::errand_done`]. Errands to the same
    /// memory must be done in this order.
    #[inline]
    pub fn poll_errand(&mut self) -> Option<Errand<M>> {
        self.hw.errands.pop()
    }

    /// Whether [`Rnic::poll_errand`] has one.
    #[inline]
    pub fn has_errands(&self) -> bool {
        self.hw.errands.any()
    }

    /// Bytes that wait for memory which is not at hand: those of errands and of packets.
    pub fn waiting_bytes(&self) -> u64 {
        self.hw.regions.desk.waiting_bytes()
    }

    /// Has bytes written to a region; see [`elver_verbs::Device::write_region`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more than 64 KiB; [`VerbsError::InvalidHandle`] if there is no such CQ;
    /// [`VerbsError::InvalidArgument`] if the region is gone, has no such bytes or does not take them, or too
    /// much waits for its owner already.
    pub fn write_region(
        &mut self,
        mr: Mr,
        offset: u64,
        bytes: &[u8],
        cq: Cq,
        wr_id: u64,
    ) -> Result<bool, VerbsError> {
        let hw = &mut self.hw;
        in_range("bytes", bytes.len() as u64, 0, u64::from(ERRAND_BYTES_MAX))?;
        hw.cqs.require(cq.0)?;
        let piece = hw.regions.keys.piece(mr, offset, bytes.len() as u64);
        match piece.and_then(|place| hw.regions.write(place, bytes)) {
            Ok(()) => Ok(true),
            Err(Refused::Later) if !hw.regions.desk.may_wait() => {
                hw.regions.desk.clear();
                hw.counters.drop_waiting += 1;
                let what = "too much waits for this memory's owner";
                Err(VerbsError::InvalidArgument { what })
            }
            Err(Refused::Later) => {
                hw.cqs.require_mut(cq.0)?.users += 1;
                // Nothing else waits with it.
                drop(hw.put_aside(0, Part::Region { cq: cq.0, wr_id }));
                Ok(false)
            }
            Err(_) => {
                let what = "the region is gone, has no such bytes, or does not take them";
                Err(VerbsError::InvalidArgument { what })
            }
        }
    }

    /// Takes an errand back: its bytes were read or written, or else, if not `done`, the memory
    /// does not take or give them; then the bytes do not matter. Whoever waited for it goes on; if
    /// nobody does any more, nothing happens.
    pub fn errand_done(&mut self, now: Time, errand: Errand<M>, done: bool) {
        let Ticket { qpn, part, .. } = errand.ticket;
        self.hw.regions.keys.count_errand(errand.place.region, false);
        if let Part::Region { cq, wr_id } = part {
            let status = if done { WcStatus::Success } else { WcStatus::LocProtErr };
            let wc = Wc { wr_id, status, opcode: WcOpcode::RdmaWrite, ..Wc::default() };
            self.hw.complete(cq, wc, false);
            if let Some(queue) = self.hw.cqs.get_mut(cq) {
                queue.users -= 1;
            }
            return self.stop_cut_off(now);
        }
        let qpn = self.named(qpn);
        let Some(queue_pair) = self.qps.get_mut(qpn) else { return };
        let Some(held) = queue_pair.aside(part) else { return };
        let Some(aside) = held.as_mut().filter(|aside| aside.waits_for(errand.ticket)) else {
            return;
        };
        let lands = aside.lands;
        aside.fulfil(errand, done);
        match part {
            Part::Answers(context) => {
                if let Some(dct) = &mut queue_pair.dct {
                    dct.go_on(context);
                }
            }
            Part::Sends(lane) if lands && queue_pair.lanes[lane as usize].flushing => {
                self.end_local(now, qpn, lane as usize);
                self.stop_cut_off(now);
            }
            Part::Responses(lane) if queue_pair.is_ending(lane) => {
                queue_pair.land(&mut self.hw, now, lane as usize);
                self.stop_cut_off(now);
            }
            Part::Sends(lane) => {
                queue_pair.with_lane(lane as usize, &mut self.hw, now, |lane, env| {
                    lane.has_memory(env);
                });
                if lands {
                    // At once: it has begun, and a QP that fails flushes what waits for its turn.
                    self.run_local(now, qpn, lane as usize);
                    self.stop_cut_off(now);
                }
            }
            Part::Requests(context) if queue_pair.core.state == QpState::Err => {
                if let Some(responder) = queue_pair.responder_of(context) {
                    responder.settle(done);
                }
            }
            Part::Requests(_) | Part::Responses(_) => self.replay(now, qpn, part),
            Part::Region { .. } => {}
        }
        self.schedule(qpn);
    }

    /// Takes the packets of a stream that waited: the first with what was done for it.
    fn replay(&mut self, now: Time, qpn: u32, part: Part) {
        let Some(mut aside) = self.qps.get_mut(qpn).and_then(|qp| qp.resume(part)) else {
            return bug!("nothing waited for what an errand brought");
        };
        let answered_at = match part {
            Part::Responses(lane) => {
                let lanes = self.qps.get_mut(qpn).map(|qp| &mut qp.lanes);
                lanes.and_then(|lanes| lanes.get_mut(lane as usize)?.answered_at.take())
            }
            _ => None,
        };
        // They came before they waited.
        let dated = self.hw.dated;
        self.hw.dated = answered_at.into_iter().chain(dated).min();
        self.hw.regions.desk.lay_out(aside.take_done());
        while let Some(packet) = aside.parked.pop_front() {
            self.dispatch(now, &packet.meta, &packet.headers, &packet.payload);
            self.hw.regions.desk.clear();
            let again = self.qps.get_mut(qpn).and_then(|qp| qp.aside(part));
            if let Some(again) = again.and_then(Option::as_mut) {
                again.parked.append(&mut aside.parked);
            }
        }
        self.hw.regions.desk.clear();
        self.hw.dated = dated;
        self.stop_cut_off(now);
    }
}

impl QueuePair {
    /// The responder of a DCT's context, or the only one.
    fn responder_of(&mut self, context: u32) -> Option<&mut Responder> {
        match &mut self.dct {
            Some(dct) => dct.responder(context),
            None => Some(&mut self.responder),
        }
    }

    /// Where a part of it waits.
    fn aside(&mut self, part: Part) -> Option<&mut Option<Box<Aside>>> {
        match part {
            Part::Requests(context) | Part::Answers(context) => {
                let [requests, answers] = self.responder_of(context)?.asides();
                Some(if matches!(part, Part::Requests(_)) { requests } else { answers })
            }
            Part::Sends(lane) => Some(&mut self.lanes.get_mut(lane as usize)?.sending),
            Part::Responses(lane) => Some(&mut self.lanes.get_mut(lane as usize)?.taking),
            Part::Region { .. } => None,
        }
    }

    /// Whether a lane's WRs are over but for memory of theirs that is being written.
    fn is_ending(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|lane| lane.flushing || lane.fault)
    }

    /// A response that was being written when a lane's WRs ended was written; now they may be told.
    /// One of which that was all that was missing has succeeded.
    fn land<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time, index: usize) {
        let Some((lane, mut env)) = self.split(index, hw, now) else {
            return bug!("what was written landed on a lane that a QP does not have");
        };
        if !lane.fault
            && let Some(mut aside) = lane.taking.take()
            && let Some(packet) = aside.parked.pop_front()
        {
            env.hw.regions.desk.lay_out(aside.take_done());
            lane.response(&mut env, &packet.meta, &packet.headers, &packet.payload);
            env.hw.regions.desk.clear();
        }
        if lane.is_landing() {
            return;
        }
        if lane.fault {
            self.lane_failed(index, hw, now);
        }
        if self.lanes[index].flushing {
            self.flush_lane(index, hw, now);
        }
    }

    /// Lanes with WRs whose memory is being written.
    pub(crate) fn landing(&self) -> u32 {
        self.lanes.iter().filter(|lane| lane.is_landing()).count() as u32
    }

    /// Ends the wait of packets that came.
    fn resume(&mut self, part: Part) -> Option<Box<Aside>> {
        match part {
            Part::Requests(context) => self.responder_of(context)?.resume(),
            _ => self.aside(part)?.take(),
        }
    }
}
