//! Which VQPs and messages a note is about, and until when a message may be read.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::VqpId;
use crate::client::all::Clients;
use crate::core::arrivals::Arrivals;
use crate::datapath::ops::{Op, OpKind};
use crate::ids::PeerId;
use crate::messaging::message::{Header, Kind};
use crate::messaging::notes::Note;
use crate::vqp::Vqp;

/// After so long a message that was not read is asked after again, in nanoseconds: its receiver may
/// take its time, but it must be there.
const QUERY_NS: u64 = 250_000_000;
/// How long leave to read a message lasts, in nanoseconds: far above the time between two queries.
pub(crate) const READ_NS: u64 = 1_000_000_000;

impl Arrivals {
    /// Until when a message that arrives now, or that its sender vouches for now, may be read.
    pub(crate) fn may_read_until(&self) -> Time {
        self.heard.until().saturating_add_ns(READ_NS)
    }
}

impl Clients {
    /// The VQP that a message goes to, if there is one.
    pub(crate) fn target_of(&self, header: &Header) -> Option<VqpId> {
        match header.dst_vqp {
            0 => self.ports.bound_to(header.dst_port),
            vqp => Some(VqpId(vqp)),
        }
    }
}

impl<D: Device> Core<D> {
    /// When a message that is posted now is asked after.
    pub(crate) fn query_at(now: Time) -> Time {
        now.saturating_add_ns(QUERY_NS)
    }

    /// From when on nobody reads a message that nobody vouches for after `now`: it may have got its
    /// last leave as late as this, and a READ may have begun at the end of that.
    pub(crate) fn unread_from(&self, now: Time) -> Time {
        let flight = self.config.flight_ns();
        now.saturating_add_ns(READ_NS.saturating_add(flight).saturating_add(flight))
    }

    /// The VQP that has sent the message which a peer names. Only the node that the VQP is connected
    /// to knows the cookie.
    pub(crate) fn sender_named(&mut self, from: PeerId, header: &Header) -> Option<&mut Vqp> {
        let Core { vqps, stats, .. } = self;
        let known = |vqp: &Vqp| vqp.peer == Some(from) && vqp.nonce == (header.cookie >> 32) as u32;
        match vqps.get_mut(VqpId(header.dst_vqp)) {
            Some(vqp) if known(vqp) => Some(vqp),
            _ => {
                stats.notes_strayed += 1;
                None
            }
        }
    }

    /// Whether a query of a VQP's is on its way.
    pub(crate) fn vouches(&self, id: VqpId) -> bool {
        let query = |note: &Note| note.kind == Kind::Query && note.src_vqp == id.0;
        self.messaging.notes.iter().any(|(_, note)| query(note))
            || self
                .datapath
                .ops
                .iter()
                .any(|(_, op)| matches!(&op.kind, OpKind::Message(note) if query(note)))
    }

    /// Where a message waits: at a VQP, at a place in its backlog. None if its sender hears of it
    /// anyway: it is being read, or an answer is under way.
    pub(crate) fn whereabouts(
        &self,
        peer: PeerId,
        header: &Header,
    ) -> Option<Option<(VqpId, usize)>> {
        let (from, cookie) = ((peer, header.src_vqp), header.cookie);
        let reads = |op: &Op| match &op.kind {
            OpKind::Gather(gather) => gather.reads(from, cookie),
            _ => false,
        };
        // Anybody asks, as often as he likes: only where something of his is being read is it looked for.
        let is_read = self.peers.get(peer).is_some_and(|entry| entry.reads > 0);
        if self.messaging.notes.answer(from, cookie)
            || (is_read && self.datapath.ops.iter().any(|(_, op)| reads(op)))
        {
            return None;
        }
        let place = |target| Some((target, self.place_of(target, from, cookie)?));
        Some(self.clients.target_of(header).and_then(place))
    }

    pub(crate) fn place_of(&self, id: VqpId, from: (PeerId, u32), cookie: u64) -> Option<usize> {
        let backlog = self.vqps.get(id)?.backlog.as_ref()?;
        backlog.messages.iter().position(|(held, _)| {
            held.kind == Kind::Rendezvous && held.from == from && held.cookie == cookie
        })
    }
}
