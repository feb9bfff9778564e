//! What comes from a peer.

use super::super::fault::Fault;
use super::super::frame::{Header, Offer};
use super::super::kind::Kind;
use super::super::matching::What;
use super::super::memory::{Held, Lent, Memory};
use super::super::request_id::RequestId;
use super::super::requests::{Failure, Phase, Status};
use super::super::tags;
use super::Engine;

impl<M: Memory> Engine<M> {
    /// Takes a frame in that a rank has sent.
    ///
    /// # Errors
    /// What cannot be: then the rank is lost ([`Engine::lose`]), by the caller.
    pub fn handle(&mut self, from: u32, frame: &[u8], lent: &mut Lent<'_>) -> Result<(), Fault> {
        let handled = self.take_in(from, frame, lent);
        self.counters.faults += u64::from(handled.is_err());
        handled
    }

    fn take_in(&mut self, from: u32, frame: &[u8], lent: &mut Lent<'_>) -> Result<(), Fault> {
        let (header, body) = Header::decode(frame)?;
        let peer = &mut self.peers[from as usize];
        if peer.has_finished {
            return Err(Fault::Unexpected { kind: header.kind });
        }
        peer.credited(&header)?;
        let tag = header.word;
        let is_tag = match header.kind {
            Kind::Eager | Kind::Offer => tags::is_known(tag),
            Kind::GaveUp => tags::is_known(tag) && tags::operation(tag).is_some(),
            _ => true,
        };
        if !is_tag {
            return Err(Fault::Tag { tag });
        }
        match header.kind {
            Kind::Eager => self.whole(from, header.word, body, lent),
            Kind::Offer => self.offered(from, header, Offer::decode(body)?),
            Kind::Clear => self.cleared(from, header.word),
            Kind::Piece => self.piece(from, header.word, body, lent),
            Kind::Done => self.done(from, header.word),
            Kind::Credit => Ok(()),
            Kind::GaveUp => {
                self.agreement.given_up(from, tag);
                Ok(())
            }
            Kind::Bye => {
                peer.has_finished = true;
                Ok(())
            }
            kind @ (Kind::Hello | Kind::Refused) => Err(Fault::Unexpected { kind }),
        }
    }

    fn whole(
        &mut self,
        from: u32,
        tag: u32,
        bytes: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<(), Fault> {
        let (len, max) = (bytes.len() as u64, self.limits.eager_bytes.into());
        if len > max {
            return Err(Fault::TooLong { len, max });
        }
        self.peers[from as usize].came(tag, len)?;
        let status = Status { source: from, tag, len };
        self.agreement.came(status);
        match self.first_with_room(status) {
            Some(request) => self.deliver(request, status, bytes, lent),
            None if self.agreement.is_left_over(tag) => self.pass(status, What::Whole(Vec::new())),
            None => self.matching.keep(from, tag, What::Whole(bytes.to_vec())),
        }
        Ok(())
    }

    fn offered(&mut self, from: u32, header: Header, offer: Offer) -> Result<(), Fault> {
        let (id, len, max) = (header.more, offer.len, self.limits.message_bytes);
        if len > max {
            return Err(Fault::TooLong { len, max });
        }
        let peer = &mut self.peers[from as usize];
        let is_open = peer.arriving.contains_key(&id) || peer.reading.contains(&id);
        if is_open || self.matching.has_offer(from, id) {
            return Err(Fault::Twice { id });
        }
        peer.came(header.word, 0)?;
        let status = Status { source: from, tag: header.word, len };
        self.agreement.came(status);
        match self.first_with_room(status) {
            Some(request) => self.accept(request, status, id, offer),
            None if self.agreement.is_left_over(status.tag) => {
                self.pass(status, What::Offered(id, offer));
            }
            None => self.matching.keep(from, header.word, What::Offered(id, offer)),
        }
        Ok(())
    }

    /// The first posted receive that takes a message; those before it that have too little room are told.
    fn first_with_room(&mut self, status: Status) -> Option<RequestId> {
        loop {
            let request = self.matching.take_posted(status.source, status.tag)?;
            let room = self.requests.get(request).map_or(0, |request| request.room);
            if status.len <= room {
                return Some(request);
            }
            self.counters.truncated += 1;
            self.requests.end(request, Err(Failure::Truncated { status, room }));
        }
    }

    fn cleared(&mut self, from: u32, id: u32) -> Result<(), Fault> {
        let peer = &mut self.peers[from as usize];
        let no_offer = Fault::NoOffer { kind: Kind::Clear, id };
        let request = peer.offers.remove(&id).ok_or(no_offer)?;
        peer.sending.push_back(request);
        if let Some(send) = self.requests.get_mut(request) {
            send.phase = Phase::Sending(id, 0);
        }
        Ok(())
    }

    fn done(&mut self, from: u32, id: u32) -> Result<(), Fault> {
        let peer = &mut self.peers[from as usize];
        let no_offer = Fault::NoOffer { kind: Kind::Done, id };
        let request = *peer.offers.get(&id).ok_or(no_offer)?;
        let memory = self.requests.get(request).map(|send| &send.memory);
        let is_registered = match memory {
            Some(Held::Own(memory)) => from != self.rank && memory.remote().is_some(),
            _ => false,
        };
        if !is_registered {
            return Err(no_offer);
        }
        peer.offers.remove(&id);
        self.requests.end(request, Ok(()));
        Ok(())
    }

    fn piece(
        &mut self,
        from: u32,
        id: u32,
        bytes: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<(), Fault> {
        let peer = &mut self.peers[from as usize];
        let no_offer = Fault::NoOffer { kind: Kind::Piece, id };
        let request = *peer.arriving.get(&id).ok_or(no_offer)?;
        let receive = self.requests.get_mut(request).ok_or(no_offer)?;
        let Phase::Arriving(_, before) = receive.phase else { return Err(no_offer) };
        let (len, came) = (receive.status.len, before + bytes.len() as u64);
        if came > len {
            return Err(Fault::TooMuch { len, bytes: came });
        }
        match &mut receive.memory {
            // Nobody wants the bytes of one that was abandoned; they may be many.
            Held::Own(_) if receive.abandoned => {}
            Held::Own(memory) => memory.write(before, bytes),
            Held::Lent => lent.write(request, before, bytes),
        }
        receive.phase = Phase::Arriving(id, came);
        if came == len {
            peer.arriving.remove(&id);
            self.counters.received += 1;
            self.requests.end(request, Ok(()));
        }
        Ok(())
    }
}
