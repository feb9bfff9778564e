//! What goes to a peer.

use super::super::frame::{Header, Offer};
use super::super::kind::Kind;
use super::super::memory::{Held, Lent, Memory, Outlet};
use super::super::request_id::RequestId;
use super::super::requests::{Phase, Request};
use super::super::tags;
use super::Engine;
use super::peer::Peer;

/// First frames of messages between two pieces of others.
const FIRSTS_AT_ONCE: u32 = 32;

impl<M: Memory> Engine<M> {
    /// Sends a rank what there is for it, as far as there is room; whether anything went. Answers go first, then
    /// messages in their order, and pieces in turn with them.
    ///
    /// # Errors
    /// The outlet's: the peer is gone.
    #[inline]
    pub fn transmit<O: Outlet>(
        &mut self,
        to: u32,
        out: &mut O,
        lent: &Lent<'_>,
    ) -> Result<bool, O::Error> {
        let mut went = false;
        while !self.peers[to as usize].is_gone
            && (self.answer(to, out)?
                | self.begin_messages(to, out, lent)?
                | self.send_piece(to, out, lent)?)
        {
            went = true;
        }
        Ok(went | self.send_credit(to, out)?)
    }

    /// Sends what answers offers; whether all of it went, and there was some.
    #[inline]
    fn answer<O: Outlet>(&mut self, to: u32, out: &mut O) -> Result<bool, O::Error> {
        let peer = &mut self.peers[to as usize];
        let mut went = false;
        while let Some((kind, id)) = peer.answers.front() {
            if !put(peer, Header::new(*kind, *id), 0, out, |_| {})? {
                return Ok(false);
            }
            peer.answers.pop_front();
            went = true;
        }
        Ok(went)
    }

    /// Sends first frames of messages, in order, while there is credit; whether any went.
    #[inline]
    fn begin_messages<O: Outlet>(
        &mut self,
        to: u32,
        out: &mut O,
        lent: &Lent<'_>,
    ) -> Result<bool, O::Error> {
        let mut went = false;
        for _ in 0..FIRSTS_AT_ONCE {
            // A collective operation waits for nothing of the users'.
            if !(self.begin_first(to, true, out, lent)?
                || self.begin_first(to, false, out, lent)?)
            {
                break;
            }
            went = true;
        }
        Ok(went)
    }

    /// Sends the first frame of the message whose turn it is; whether it went.
    #[inline]
    fn begin_first<O: Outlet>(
        &mut self,
        to: u32,
        is_operations: bool,
        out: &mut O,
        lent: &Lent<'_>,
    ) -> Result<bool, O::Error> {
        let first = self.peers[to as usize].queue_of(is_operations).front().copied();
        let Some(id) = first else { return Ok(false) };
        let went = self.begin_message(to, id, out, lent)?;
        if went {
            self.peers[to as usize].queue_of(is_operations).pop_front();
        }
        Ok(went)
    }

    #[inline]
    fn begin_message<O: Outlet>(
        &mut self,
        to: u32,
        id: RequestId,
        out: &mut O,
        lent: &Lent<'_>,
    ) -> Result<bool, O::Error> {
        let peer = &mut self.peers[to as usize];
        let Some(send) = self.requests.get_mut(id) else { return Ok(true) };
        let (tag, len) = (send.status.tag, send.status.len);
        if !peer.has_credit(tags::operation(tag).is_some()) {
            return Ok(false);
        }
        // One for which there is no room is offered, which takes none.
        if len <= peer.eager_bytes && peer.has_room(len) {
            if !has_bytes(send, id, lent) {
                return Ok(false);
            }
            let header = Header::new(Kind::Eager, tag);
            let fill = |body: &mut [u8]| copy(send, id, 0, body, lent);
            if !put(peer, header, len as usize, out, fill)? {
                return Ok(false);
            }
            peer.spend(tag, len);
            self.counters.eager += 1;
            self.requests.end(id, Ok(()));
            return Ok(true);
        }
        let remote = match &send.memory {
            // No QP leads to oneself.
            Held::Own(memory) if to != self.rank => memory.remote(),
            _ => None,
        };
        let body = Offer { len, remote }.encode();
        let number = peer.offer(id);
        let header = Header { more: number, ..Header::new(Kind::Offer, tag) };
        if !put(peer, header, body.len(), out, |into| into.copy_from_slice(&body))? {
            peer.offers.remove(&number);
            return Ok(false);
        }
        peer.spend(tag, 0);
        send.phase = Phase::Offered(number);
        self.counters.offered += 1;
        Ok(true)
    }

    /// Sends a piece of the message whose turn it is; whether one went.
    #[inline]
    fn send_piece<O: Outlet>(
        &mut self,
        to: u32,
        out: &mut O,
        lent: &Lent<'_>,
    ) -> Result<bool, O::Error> {
        let peer = &mut self.peers[to as usize];
        let Some(id) = peer.sending.pop_front() else { return Ok(false) };
        let Some(send) = self.requests.get_mut(id) else { return Ok(true) };
        let Phase::Sending(number, sent) = send.phase else { return Ok(true) };
        let body = (send.status.len - sent).min(peer.piece_bytes as u64);
        let header = Header::new(Kind::Piece, number);
        let fill = |body: &mut [u8]| copy(send, id, sent, body, lent);
        let went = has_bytes(send, id, lent) && put(peer, header, body as usize, out, fill)?;
        if went && sent + body == send.status.len {
            self.requests.end(id, Ok(()));
            return Ok(true);
        }
        if went {
            send.phase = Phase::Sending(number, sent + body);
        }
        peer.sending.push_back(id);
        Ok(went)
    }

    #[inline]
    fn send_credit<O: Outlet>(&mut self, to: u32, out: &mut O) -> Result<bool, O::Error> {
        let peer = &mut self.peers[to as usize];
        if peer.is_gone || peer.was_told_bye || !peer.credit_is_due() {
            return Ok(false);
        }
        put(peer, Header::new(Kind::Credit, 0), 0, out, |_| {})
    }
}

/// Puts a frame in, with what credit there is; whether there was room.
#[inline]
fn put<O: Outlet>(
    peer: &mut Peer,
    header: Header,
    body: usize,
    out: &mut O,
    fill: impl FnMut(&mut [u8]),
) -> Result<bool, O::Error> {
    let header = peer.with_credit(header);
    let went = out.put(&header, body, fill)?;
    if went {
        peer.told(&header);
    }
    Ok(went)
}

/// Whether a message's bytes are at hand: those that somebody lends are while he does.
#[inline]
fn has_bytes<M>(send: &Request<M>, id: RequestId, lent: &Lent<'_>) -> bool {
    match send.memory {
        Held::Own(_) => true,
        Held::Lent => lent.send.is_some_and(|(lent, _)| lent == id),
    }
}

#[inline]
fn copy<M: Memory>(send: &Request<M>, id: RequestId, from: u64, into: &mut [u8], lent: &Lent<'_>) {
    match &send.memory {
        Held::Own(memory) => memory.read(from, into),
        Held::Lent => {
            let was_lent = lent.read(id, from, into);
            debug_assert!(was_lent, "`has_bytes` was asked before");
        }
    }
}
