//! A message has met its receive.

use super::super::frame::Offer;
use super::super::matching::What;
use super::super::memory::{Held, Lent, Memory};
use super::super::request_id::RequestId;
use super::super::requests::{Phase, Status};
use super::{Engine, ReadOrder};

impl<M: Memory> Engine<M> {
    /// One that was kept.
    pub(super) fn deliver_kept(
        &mut self,
        request: RequestId,
        status: Status,
        what: What,
        lent: &mut Lent<'_>,
    ) {
        self.counters.unexpected += 1;
        match what {
            What::Whole(bytes) => self.deliver(request, status, &bytes, lent),
            What::Offered(id, offer) => self.accept(request, status, id, offer),
        }
    }

    /// One that is all here.
    pub(super) fn deliver(
        &mut self,
        request: RequestId,
        status: Status,
        bytes: &[u8],
        lent: &mut Lent<'_>,
    ) {
        self.peers[status.source as usize].matched(status.tag, status.len);
        self.counters.received += 1;
        let Some(receive) = self.requests.get_mut(request) else { return };
        receive.status = status;
        match &mut receive.memory {
            Held::Own(memory) => memory.write(0, bytes),
            Held::Lent => lent.write(request, 0, bytes),
        }
        self.requests.end(request, Ok(()));
    }

    /// One that was offered: it is READ, if both ends have registered memory, or asked for in pieces.
    pub(super) fn accept(&mut self, request: RequestId, status: Status, id: u32, offer: Offer) {
        let peer = &mut self.peers[status.source as usize];
        peer.matched(status.tag, 0);
        let Some(receive) = self.requests.get_mut(request) else { return };
        receive.status = status;
        let is_registered = match &receive.memory {
            Held::Own(memory) => memory.remote().is_some(),
            Held::Lent => false,
        };
        match offer.remote.filter(|_| is_registered) {
            Some(remote) => {
                receive.phase = Phase::Reading(id);
                peer.reading.insert(id);
                let (peer, len) = (status.source, offer.len);
                self.reads.push_back(ReadOrder { request, peer, remote, len });
            }
            None => {
                receive.phase = Phase::Arriving(id, 0);
                peer.asks_for_pieces(id, request);
            }
        }
    }
}
