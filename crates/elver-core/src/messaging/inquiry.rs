//! What becomes of a long message when its sender or its receiver fails, or one does not hear the
//! other.
//!
//! The bytes of a long message stand in its sender's memory, which is the user's again as soon as
//! its WR completes. So the WR completes when the receiver says that it has read the message (FIN)
//! or will not (NACK), and not before, whatever befalls the VQP:
//!
//! ```text
//!   sender                                        receiver
//!     not read for a while:  Query ───────────▶     held: it may wait for longer; being read: FIN follows
//!     its VQP has failed:    Revoke ──────────▶     held: it is dropped; being read: FIN follows
//!                                  ◀─────────── Unknown, if the receiver does not have it (any longer)
//!     answers Query or Revoke ◀─────────────── Ask  it has waited too long
//! ```
//!
//! A receiver begins no READ later than [`READ_NS`](crate::messaging::named::READ_NS) after the last time that
//! it can be sure to have had leave: the message, or a Query, arrived after the receiver had last taken all
//! that had arrived. So a sender whose peer does not answer a Revoke knows when no READ comes any longer, and
//! no READ finds a region that is gone, which would stop the shared lane that it is on. A receiver whose clock
//! stood still does not keep to that: for him the key of the message goes before its WR completes.

use elver_verbs::{Device, Time, VqpState, WcStatus};

use crate::ids::PeerId;
use crate::messaging::Messaging;
use crate::messaging::message::{Header, Kind};
use crate::messaging::notes::Note;
use crate::vqp::Vqp;
use crate::vqp::seq::SendSeq;
use crate::vqp::sq_entry::Bytes;
use crate::{ConnectError, Core, Event, VqpId};

impl<D: Device> Core<D> {
    // The sender's side.

    /// The receiver has read a message of a VQP's.
    pub(crate) fn message_read(&mut self, from: PeerId, header: &Header, now: Time) {
        let seq = SendSeq::of_cookie(header.cookie);
        let vqp = self.sender_named(from, header).filter(|vqp| vqp.awaits(seq));
        let Some(vqp) = vqp else { return };
        vqp.sq.entry_mut(seq).bytes = Bytes::Over;
        self.answered(VqpId(header.dst_vqp), now);
    }

    /// The receiver does not have a message of a VQP's: it was revoked, or is lost.
    pub(crate) fn not_known(&mut self, from: PeerId, header: &Header, now: Time) {
        let seq = SendSeq::of_cookie(header.cookie);
        let vqp = self.sender_named(from, header).filter(|vqp| vqp.awaits(seq));
        let Some(vqp) = vqp else { return };
        vqp.not_read(seq);
        let gid = self.peers.gid_of(from);
        self.fail_for(VqpId(header.dst_vqp), ConnectError::PeerGone { gid }, now);
    }

    /// A receiver asks whether it may read a message.
    pub(crate) fn asked(&mut self, from: PeerId, header: &Header) {
        let seq = SendSeq::of_cookie(header.cookie);
        let vqp = self.sender_named(from, header);
        let stands = vqp.is_some_and(|vqp| vqp.awaits(seq) && vqp.phase.is_connected());
        let note = Note {
            kind: if stands { Kind::Query } else { Kind::Revoke },
            dst_vqp: header.src_vqp,
            src_vqp: header.dst_vqp,
            ..Note::to_sender(Kind::Query, 0, header.cookie)
        };
        self.messaging.notes.tell(&mut self.stats, from, note);
    }

    /// A VQP's message is with the receiver no longer.
    fn answered(&mut self, id: VqpId, now: Time) {
        self.retire(id, now);
        if self.vqps.get(id).is_some_and(|vqp| vqp.phase.is_over()) {
            self.settle(id, now);
        }
    }

    /// A VQP fails for what its peer says, if it has not failed before.
    pub(crate) fn fail_for(&mut self, id: VqpId, cause: ConnectError, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return bug!("a VQP that is gone fails") };
        if !vqp.phase.is_connected() {
            return self.answered(id, now);
        }
        let client = vqp.client;
        self.events.push_back(Event::Failed { client, vqp: id, cause });
        self.fail(id, now);
    }

    /// A VQP fails if its peer is another now than it was connected to.
    pub(crate) fn fail_past(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get(id).filter(|vqp| self.peers.is_to_past(vqp)) else { return };
        let gid = vqp.peer.map(|peer| self.peers.gid_of(peer)).unwrap_or_default();
        self.stats.vqps_forsaken += 1;
        self.fail_for(id, ConnectError::PeerGone { gid }, now);
    }

    /// Asks after the messages that were not read for long, and ends what is due of them. Whether there was
    /// any.
    pub(crate) fn attend_unread(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((id, seq)) = self.next_unread(now) {
            if self.vqps.get(id).is_some_and(|vqp| vqp.awaits(seq)) {
                busy = true;
                self.look_after(id, seq, now);
            }
        }
        busy
    }

    /// The next message that is to be looked after, or that was read.
    fn next_unread(&mut self, now: Time) -> Option<(VqpId, SendSeq)> {
        let Core { vqps, messaging: Messaging { unread, .. }, .. } = self;
        let awaits = |id: VqpId, seq: SendSeq| vqps.get(id).is_some_and(|vqp| vqp.awaits(seq));
        unread.pop(now, awaits)
    }

    /// A message was not read for long.
    fn look_after(&mut self, id: VqpId, seq: SendSeq, now: Time) {
        let Some(vqp) = self.vqps.get(id) else {
            return bug!("a VQP whose message is on its way is gone");
        };
        let delivered = seq.since(vqp.sq.head) < vqp.sq.done.since(vqp.sq.head);
        let until = vqp.read_until;
        let note = match vqp.phase.state() {
            VqpState::Error if until.is_some_and(|until| until <= now) && !self.vouches(id) => {
                // Its receiver may have stood still, and not know how long.
                if self.regions.local.close(id, seq, &mut self.device) {
                    if let Some(vqp) = self.vqps.get_mut(id) {
                        vqp.not_read(seq);
                    }
                    return self.answered(id, now);
                }
                None
            }
            VqpState::Error if until.is_some() => vqp.note(Kind::Revoke, seq),
            // A query must not come before the message.
            VqpState::Connected if delivered => vqp.note(Kind::Query, seq),
            _ => None,
        };
        if let Some((peer, note)) = note {
            self.messaging.notes.tell(&mut self.stats, peer, note);
        }
        self.messaging.unread.look_after(Self::query_at(now), id, seq);
    }

    // The receiver's side.

    pub(crate) fn deny(&mut self, peer: PeerId, header: &Header) {
        self.messaging.notes.tell(
            &mut self.stats,
            peer,
            Note::to_sender(Kind::Unknown, header.src_vqp, header.cookie),
        );
    }

    /// Asks whether the first message that waits at a VQP may still be read.
    pub(crate) fn ask_leave(&mut self, id: VqpId, now: Time) {
        let backlog = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
        let Some((incoming, _)) = backlog.and_then(|held| held.messages.front_mut()) else {
            return bug!("a message that waits is gone");
        };
        if incoming.ask_at > now {
            return;
        }
        incoming.ask_at = Self::query_at(now);
        let (peer, vqp) = incoming.from;
        self.messaging.held.ask_later(incoming.ask_at, id);
        let note = Note { src_vqp: id.0, ..Note::to_sender(Kind::Ask, vqp, incoming.cookie) };
        self.messaging.notes.tell(&mut self.stats, peer, note);
    }

    // Both sides.

    /// A peer's VQP that sent messages to a port is gone, or the one that a VQP sends messages to: what is
    /// connected to it fails, also if it only waits for a message.
    pub(crate) fn parted(&mut self, from: PeerId, header: &Header, now: Time) {
        let id = if header.dst_vqp == 0 {
            // Of an earlier connection of a VQP with the same number, it means nothing to this one.
            let nonce = (header.cookie >> 32) as u32;
            let accepted = |bound| self.clients.accepts.get(&(bound, from, header.src_vqp));
            let accepted = self.clients.target_of(header).and_then(accepted);
            accepted.filter(|(_, heard)| *heard == nonce).map(|(accepted, _)| accepted)
        } else {
            self.sender_named(from, header).map(|vqp| vqp.id)
        };
        let Some(id) = id else { return };
        let gid = self.peers.gid_of(from);
        self.fail_for(id, ConnectError::PeerGone { gid }, now);
    }

    /// A note has arrived, or the peer could not be told.
    pub(crate) fn note_ended(&mut self, peer: PeerId, note: Note, ok: bool, now: Time) {
        self.messaging.notes.ended(peer, &note);
        if !ok {
            self.stats.messages_lost += 1;
        }
        // Whose it is here, if it is a VQP's.
        let own = VqpId(note.src_vqp);
        match note.kind {
            Kind::Query => {
                let until = self.unread_from(now);
                let Some(vqp) = self.vqps.get_mut(own) else { return };
                if let Some(last) = &mut vqp.read_until {
                    *last = until.max(*last);
                } else if !ok
                    && vqp.peer == Some(peer)
                    && vqp.awaits(SendSeq::of_cookie(note.cookie))
                {
                    self.unreachable(own, now);
                }
            }
            Kind::CreditProbe if !ok => {
                let vqp = self.vqps.get(own);
                if vqp.is_some_and(|vqp| vqp.asks_for_credit() && vqp.peer == Some(peer)) {
                    self.unreachable(own, now);
                }
            }
            // There is nobody to read it from.
            Kind::Ask if !ok => {
                let from = (peer, note.dst_vqp);
                if let Some(at) = self.place_of(own, from, note.cookie) {
                    self.take_held(own, at);
                    // The next one gets its turn, not on top of this one's stack.
                    self.messaging.held.ask_now(now, own);
                }
            }
            Kind::Nack => self.refusal_told((peer, note.dst_vqp), note.cookie, ok, now),
            // A revoke is repeated, and who does not get another answer asks again.
            _ => {}
        }
    }

    /// The peer of a VQP does not hear what it must be told.
    fn unreachable(&mut self, id: VqpId, now: Time) {
        let peer = self.vqps.get(id).and_then(|vqp| vqp.peer);
        let gid = peer.map(|peer| self.peers.gid_of(peer)).unwrap_or_default();
        self.fail_for(id, ConnectError::Unreachable { gid }, now);
    }
}

impl Vqp {
    /// Whether a message of its may be read by its receiver.
    pub(crate) fn awaits(&self, seq: SendSeq) -> bool {
        self.sq.holds(seq) && self.sq.entry(seq).bytes == Bytes::Shared
    }

    /// A message will not be read.
    pub(crate) fn not_read(&mut self, seq: SendSeq) {
        if self.awaits(seq) {
            let entry = self.sq.entry_mut(seq);
            entry.bytes = Bytes::Over;
            if entry.status == WcStatus::Success {
                entry.status = WcStatus::WrFlushErr;
            }
        }
    }

    /// What is to be told of a message to where it was sent; nothing before it is connected.
    pub(crate) fn note(&self, kind: Kind, seq: SendSeq) -> Option<(PeerId, Note)> {
        let (dst_port, dst_vqp) = self.destination();
        let (src_vqp, cookie) = (self.id.0, self.cookie(seq));
        Some((self.peer?, Note { kind, detail: 0, dst_port, dst_vqp, src_vqp, cookie }))
    }
}
