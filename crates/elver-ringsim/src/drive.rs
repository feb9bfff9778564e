//! What an end does: it sends, looks at what its peer wrote, reads, and has the WRITEs done that its halves
//! ask for.

use elver_ring::protocol::{Refused, Transmission};
use elver_sim::Fault;

use crate::canary::Canary;
use crate::end::{Held, Posted, Write};
use crate::model::{Violation, broken};
use crate::world::{EndIx, World, peer_of};

/// Most bytes of most messages.
const SHORT: u64 = 150;

impl World {
    /// Sends up to so many messages, as long as there is room.
    pub(crate) fn send(&mut self, end: EndIx, messages: u64) -> Result<(), Violation> {
        for _ in 0..messages {
            let max = u64::from(self.ends[end].sender.shape().message_bytes_max());
            let len = match self.acting.below(8) {
                0 => max,
                1 | 2 => self.acting.below(max + 1),
                _ => self.acting.below(max.min(SHORT) + 1),
            };
            let now_ns = self.time_of(end).0;
            let here = &mut self.ends[end];
            let frame = match here.sender.reserve(len as usize) {
                Ok(frame) => frame,
                Err(Refused::Full | Refused::Ended | Refused::Deaf) => break,
                Err(refused) => broken!("end {end} cannot send: {refused}"),
            };
            let bytes = self.ways[end].next(end as u64, len as u32);
            here.fill(&frame, &bytes);
            here.sender.commit(&frame, now_ns);
            self.ways[end].sends(len as u32, here.slot_bytes);
        }
        self.drive(end)
    }

    /// Looks at what the peer wrote and at the clock, reads, and does what is due.
    pub(crate) fn look(&mut self, end: EndIx) -> Result<(), Violation> {
        if !self.may_act(end) {
            return Ok(());
        }
        let now_ns = self.time_of(end).0;
        let here = &mut self.ends[end];
        here.sender.handle_time(now_ns);
        if let Err(fault) = here.sender.head_is(here.head_word()) {
            broken!("end {end} takes its receiver for a liar: {fault}");
        }
        let mut tail = here.tail_word();
        if tail >> 63 == 0 && self.planter.strikes(Canary::TailBelievedEarly) {
            tail = self.ways[peer_of(end)].slots;
        }
        if let Err(fault) = self.ends[end].receiver.tail_is(tail) {
            broken!("end {end} takes its sender for a liar: {fault}");
        }
        while self.leave(end)? && self.take(end)? {}
        self.drive(end)
    }

    /// Begins to read the next message; whether it is read at once.
    fn take(&mut self, end: EndIx) -> Result<bool, Violation> {
        let here = &mut self.ends[end];
        let Some(offset) = here.receiver.next_offset() else { return Ok(false) };
        let frame = match here.receiver.frame(here.incoming_word(offset)) {
            Ok(frame) => frame,
            Err(fault) => broken!("end {end} takes its sender for a liar: {fault}"),
        };
        if self.planter.strikes(Canary::MessageLost) {
            here.receiver.release(&frame);
            return Ok(true);
        }
        let reading = self.ways[peer_of(end)].reads()?;
        reading.check(peer_of(end) as u64, &frame, &here.incoming)?;
        let freed = self.planter.strikes(Canary::FreedBeforeRead);
        if freed {
            here.receiver.release(&frame);
        }
        here.reading = Some(Held { reading, frame, freed });
        let holds = freed || !self.healed && self.looking.percent(self.plan.hold_percent);
        Ok(!holds)
    }

    /// Has read a message, which has not changed meanwhile; whether none is being read now.
    fn leave(&mut self, end: EndIx) -> Result<bool, Violation> {
        let here = &mut self.ends[end];
        let Some(Held { reading, frame, freed }) = here.reading else { return Ok(true) };
        reading.check(peer_of(end) as u64, &frame, &here.incoming)?;
        if !self.healed && self.looking.percent(self.plan.hold_percent / 2) {
            return Ok(false);
        }
        here.reading = None;
        if self.planter.strikes(Canary::ReadTwice) {
            self.ways[peer_of(end)].reads()?.check(peer_of(end) as u64, &frame, &here.incoming)?;
        }
        if !freed {
            here.receiver.release(&frame);
        }
        Ok(true)
    }

    /// Has done what both halves ask for, as long as there is room.
    pub(crate) fn drive(&mut self, end: EndIx) -> Result<(), Violation> {
        while let Some(transmission) = self.ends[end].sender.due() {
            let writes = self.writes(end, &transmission);
            if !self.post(end, &writes)? {
                return Ok(());
            }
            self.ends[end].sender.posted(&transmission);
        }
        while let Some(word) = self.ends[end].receiver.due() {
            if !self.post(end, &[Write::Head(word)])? {
                return Ok(());
            }
            self.ends[end].receiver.posted(word);
        }
        Ok(())
    }

    /// The WRITEs of a transmission.
    fn writes(&mut self, end: EndIx, transmission: &Transmission) -> Vec<Write> {
        let slots = transmission.slots.into_iter().filter(|span| span.len > 0);
        let mut writes: Vec<Write> = slots.map(Write::Slots).collect();
        let Some(word) = transmission.tail else { return writes };
        if !writes.is_empty() && self.planter.strikes(Canary::SlotsLeftOut) {
            writes.clear();
        }
        if !writes.is_empty() && self.planter.strikes(Canary::TailFirst) {
            writes.insert(0, Write::Tail(word));
            return writes;
        }
        let before = self.ends[end].last_tail.filter(|before| *before != word);
        writes.push(Write::Tail(word));
        if let Some(before) = before
            && self.planter.strikes(Canary::TailRepeated)
        {
            writes.push(Write::OldTail(before));
        }
        writes
    }

    fn post(&mut self, end: EndIx, writes: &[Write]) -> Result<bool, Violation> {
        let (peer, now) = (self.ends[peer_of(end)].place(), self.time_of(end));
        if !self.may_act(end) {
            return Ok(false);
        }
        let here = &mut self.ends[end];
        let Some(at) = self.cluster.core(here.node) else { return Ok(false) };
        let before = here.posted();
        let mut posted = here.post(at, peer, writes, now)?;
        if posted == Posted::All && self.planter.strikes(Canary::RoomForgotten) {
            posted = Posted::Overflow;
        }
        // Who has posted nothing has called for nothing.
        if here.posted() > before {
            self.cluster.called(here.node);
        }
        match posted {
            Posted::All => Ok(true),
            Posted::Later => Ok(false),
            Posted::Overflow => {
                self.befell(Fault::CqOverflow, format_args!("end {end}"));
                if !self.has_no_room(self.ends[end].node) {
                    broken!("end {end} has no room for completions, and its node has left few");
                }
                self.over(end, "its completions have no room".into())?;
                Ok(false)
            }
        }
    }

    /// Asks whether the peer is there, if that was not asked for long.
    pub(crate) fn probe(&mut self, end: EndIx) -> Result<(), Violation> {
        if self.ends[end].is_silent(self.time_of(end)) {
            self.post(end, &[Write::Probe])?;
        }
        Ok(())
    }
}
