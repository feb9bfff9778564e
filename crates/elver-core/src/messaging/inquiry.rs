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
//! A receiver begins no READ later than [`READ_NS`] after the last time that it can be sure to have
//! had leave: the message, or a Query, arrived after the receiver had last emptied its completion
//! queue. So a sender whose peer does not answer a Revoke knows when no READ comes any longer, and
//! no READ finds a region that is gone, which would stop the shared lane that it is on.

use elver_verbs::{Device, Gid, Time, WcStatus};

use crate::datapath::ops::OpKind;
use crate::messaging::message::{Header, Kind};
use crate::messaging::notes::Note;
use crate::vqp::Vqp;
use crate::vqp::send_ring::NONE;
use crate::{ClientId, ConnectError, Core, Event, VqpId, VqpState};

/// After so long a message that was not read is asked after again, in nanoseconds: its receiver may
/// take its time, but it must be there.
const QUERY_NS: u64 = 250_000_000;
/// How long leave to read a message lasts, in nanoseconds: far above the time between two queries.
const READ_NS: u64 = 1_000_000_000;

impl<D: Device> Core<D> {
    /// When a message that is posted now is asked after.
    pub(crate) fn query_at(now: Time) -> Time {
        now.saturating_add_ns(QUERY_NS)
    }

    /// Until when a message that arrives now, or that its sender vouches for now, may be read.
    pub(crate) fn may_read_until(&self) -> Time {
        self.heard.saturating_add_ns(READ_NS)
    }

    /// From when on nobody reads a message that nobody vouches for after `now`: it may have got its
    /// last leave as late as this, and a READ may have begun at the end of that.
    fn unread_from(&self, now: Time) -> Time {
        let flight = self.config.flight_ns();
        now.saturating_add_ns(READ_NS.saturating_add(flight).saturating_add(flight))
    }

    // The sender's side.

    /// The VQP that has sent the message which a peer names. Only the node that the VQP is connected
    /// to knows the cookie.
    pub(crate) fn sender_named(&mut self, from: u32, header: &Header) -> Option<&mut Vqp> {
        let Core { vqps, stats, .. } = self;
        let known = |vqp: &Vqp| vqp.peer == from && vqp.nonce == (header.cookie >> 32) as u32;
        match vqps.get_mut(header.dst_vqp) {
            Some(vqp) if known(vqp) => Some(vqp),
            _ => {
                stats.notes_strayed += 1;
                None
            }
        }
    }

    /// The receiver has read a message of a VQP's.
    pub(crate) fn message_read(&mut self, from: u32, header: &Header, now: Time) {
        let seq = header.cookie as u32;
        let vqp = self.sender_named(from, header).filter(|vqp| vqp.awaits(seq));
        let Some(vqp) = vqp else { return };
        vqp.sq.entry_mut(seq).await_fin = false;
        self.answered(header.dst_vqp, now);
    }

    /// The receiver does not have a message of a VQP's: it was revoked, or is lost.
    pub(crate) fn not_known(&mut self, from: u32, header: &Header, now: Time) {
        let seq = header.cookie as u32;
        let vqp = self.sender_named(from, header).filter(|vqp| vqp.awaits(seq));
        let Some(vqp) = vqp else { return };
        vqp.not_read(seq);
        let gid = self.gid_of(from);
        self.fail_for(header.dst_vqp, ConnectError::PeerGone { gid }, now);
    }

    /// A receiver asks whether it may read a message.
    pub(crate) fn asked(&mut self, from: u32, header: &Header, now: Time) {
        let seq = header.cookie as u32;
        let vqp = self.sender_named(from, header);
        let stands = vqp.is_some_and(|vqp| vqp.awaits(seq) && vqp.state == VqpState::Connected);
        let note = Note {
            kind: if stands { Kind::Query } else { Kind::Revoke },
            dst_vqp: header.src_vqp,
            src_vqp: header.dst_vqp,
            ..Note::to_sender(Kind::Query, 0, header.cookie)
        };
        self.tell(from, note, now);
    }

    /// A VQP's message is with the receiver no longer.
    fn answered(&mut self, id: u32, now: Time) {
        self.retire(id, now);
        if self.vqps.get(id).is_some_and(|vqp| vqp.state == VqpState::Error) {
            self.settle(id, now);
        }
    }

    /// A VQP fails for what its peer says, if it has not failed before.
    pub(crate) fn fail_for(&mut self, id: u32, cause: ConnectError, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return bug!("a VQP that is gone fails") };
        if vqp.state != VqpState::Connected {
            return self.answered(id, now);
        }
        let client = ClientId(vqp.client);
        self.events.push_back(Event::Failed { client, vqp: VqpId(id), cause });
        self.fail(id, now);
    }

    /// Takes back the messages of a VQP in its error state, of which nothing is on a lane.
    pub(crate) fn revoke(&mut self, id: u32, now: Time) {
        let until = self.unread_from(now);
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone takes messages back");
        };
        if vqp.read_until.is_some() {
            return;
        }
        vqp.read_until = Some(until);
        let (first, count) = (vqp.sq.head, vqp.sq.len());
        for seq in (0..count).map(|n| first.wrapping_add(n)) {
            // To tell of one may have ended another's wait, and with the last it goes.
            let Some(vqp) = self.vqps.get(id) else { return };
            if vqp.awaits(seq) {
                let (peer, note) = (vqp.peer, vqp.note(Kind::Revoke, seq));
                self.tell(peer, note, now);
            }
        }
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

    /// Looks at messages again that wait for receives, or to be read. Whether there were any.
    pub(crate) fn attend_held(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(id) = self.held.pop_due(now) {
            self.serve_backlog(id, now);
            busy = true;
        }
        busy
    }

    /// The next message that is to be looked after, or that was read.
    fn next_unread(&mut self, now: Time) -> Option<(u32, u32)> {
        let Core { unread, vqps, .. } = self;
        let awaits = |id: u32, seq: u32| vqps.get(id).is_some_and(|vqp| vqp.awaits(seq));
        unread.pop(now, awaits)
    }

    /// A message was not read for long.
    fn look_after(&mut self, id: u32, seq: u32, now: Time) {
        let Some(vqp) = self.vqps.get(id) else {
            return bug!("a VQP whose message is on its way is gone");
        };
        let delivered = seq.wrapping_sub(vqp.sq.head) < vqp.sq.done.wrapping_sub(vqp.sq.head);
        let (peer, until) = (vqp.peer, vqp.read_until);
        match vqp.state {
            VqpState::Error if until.is_some_and(|until| until <= now) && !self.vouches(id) => {
                if let Some(vqp) = self.vqps.get_mut(id) {
                    vqp.not_read(seq);
                }
                return self.answered(id, now);
            }
            VqpState::Error if until.is_some() => {
                let note = vqp.note(Kind::Revoke, seq);
                self.tell(peer, note, now);
            }
            // A query must not come before the message.
            VqpState::Connected if delivered => {
                let note = vqp.note(Kind::Query, seq);
                self.tell(peer, note, now);
            }
            _ => {}
        }
        self.unread.look_after(Self::query_at(now), id, seq);
    }

    /// Whether a query of a VQP's is on its way.
    fn vouches(&self, id: u32) -> bool {
        let query = |note: &Note| note.kind == Kind::Query && note.src_vqp == id;
        self.notes.iter().any(|(_, note)| query(note))
            || self
                .ops
                .iter()
                .any(|(_, op)| matches!(&op.kind, OpKind::Message(note) if query(note)))
    }

    // The receiver's side.

    /// A sender asks after a message, and vouches for it.
    pub(crate) fn queried(&mut self, from: u32, header: &Header, now: Time) {
        let until = self.may_read_until();
        let Some(held) = self.whereabouts(from, header) else { return };
        match held {
            Some((id, at)) => {
                let backlog = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
                if let Some((incoming, _)) = backlog.and_then(|held| held.messages.get_mut(at)) {
                    incoming.until = incoming.until.max(until);
                }
                self.serve_backlog(id, now);
            }
            None => self.deny(from, header, now),
        }
    }

    /// A sender takes a message back.
    pub(crate) fn revoked(&mut self, from: u32, header: &Header, now: Time) {
        let Some(held) = self.whereabouts(from, header) else { return };
        self.deny(from, header, now);
        if let Some((id, at)) = held {
            self.take_held(id, at, now);
            self.serve_backlog(id, now);
        }
    }

    fn deny(&mut self, peer: u32, header: &Header, now: Time) {
        self.tell(peer, Note::to_sender(Kind::Unknown, header.src_vqp, header.cookie), now);
    }

    /// Where a message waits: at a VQP, at a place in its backlog. None if its sender hears of it
    /// anyway: it is being read, or an answer is under way.
    fn whereabouts(&self, peer: u32, header: &Header) -> Option<Option<(u32, usize)>> {
        let (from, cookie) = ((peer, header.src_vqp), header.cookie);
        let answers = |to: u32, note: &Note| {
            let answer = matches!(note.kind, Kind::Fin | Kind::Nack | Kind::Unknown);
            answer && (to, note.dst_vqp) == from && note.cookie == cookie
        };
        let busy = self.notes.iter().any(|(to, note)| answers(to, note))
            || self.ops.iter().any(|(_, op)| match &op.kind {
                OpKind::Gather(gather) => gather.reads(from, cookie),
                OpKind::Message(note) => answers(op.peer, note),
                _ => false,
            });
        if busy {
            return None;
        }
        let target = self.target_of(header);
        Some(self.place_of(target, from, cookie).map(|at| (target, at)))
    }

    /// The VQP that a message goes to; [`NONE`] if there is none.
    pub(crate) fn target_of(&self, header: &Header) -> u32 {
        match header.dst_vqp {
            0 => self.ports.bound_to(header.dst_port).unwrap_or(NONE),
            vqp => vqp,
        }
    }

    fn place_of(&self, id: u32, from: (u32, u32), cookie: u64) -> Option<usize> {
        let backlog = self.vqps.get(id)?.backlog.as_ref()?;
        backlog.messages.iter().position(|(held, _)| {
            held.kind == Kind::Rendezvous && held.from == from && held.cookie == cookie
        })
    }

    /// Asks whether the first message that waits at a VQP may still be read.
    pub(crate) fn ask_leave(&mut self, id: u32, now: Time) {
        let backlog = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
        let Some((incoming, _)) = backlog.and_then(|held| held.messages.front_mut()) else {
            return bug!("a message that waits is gone");
        };
        if incoming.ask_at > now {
            return;
        }
        incoming.ask_at = Self::query_at(now);
        let (peer, vqp) = incoming.from;
        self.held.ask_later(incoming.ask_at, id);
        let note = Note { src_vqp: id, ..Note::to_sender(Kind::Ask, vqp, incoming.cookie) };
        self.tell(peer, note, now);
    }

    // Both sides.

    /// A peer's VQP that sent messages to a port is gone, or the one that a VQP sends messages to: what is
    /// connected to it fails, also if it only waits for a message.
    pub(crate) fn parted(&mut self, from: u32, header: &Header, now: Time) {
        let id = if header.dst_vqp == 0 {
            let key = (self.target_of(header), from, header.src_vqp);
            self.accepts.get(&key).map(|(accepted, _)| accepted)
        } else {
            self.sender_named(from, header).map(|vqp| vqp.id)
        };
        let Some(id) = id else { return };
        let gid = self.gid_of(from);
        self.fail_for(id, ConnectError::PeerGone { gid }, now);
    }

    /// A note has arrived, or the peer could not be told.
    pub(crate) fn note_ended(&mut self, peer: u32, note: Note, ok: bool, now: Time) {
        if !ok {
            self.stats.messages_lost += 1;
        }
        match note.kind {
            Kind::Query => {
                let until = self.unread_from(now);
                let Some(vqp) = self.vqps.get_mut(note.src_vqp) else { return };
                if let Some(last) = &mut vqp.read_until {
                    *last = until.max(*last);
                } else if !ok && vqp.peer == peer && vqp.awaits(note.cookie as u32) {
                    self.unreachable(note.src_vqp, now);
                }
            }
            Kind::CreditProbe if !ok => {
                let vqp = self.vqps.get(note.src_vqp);
                if vqp.is_some_and(|vqp| vqp.asks_for_credit() && vqp.peer == peer) {
                    self.unreachable(note.src_vqp, now);
                }
            }
            // There is nobody to read it from.
            Kind::Ask if !ok => {
                let from = (peer, note.dst_vqp);
                if let Some(at) = self.place_of(note.src_vqp, from, note.cookie) {
                    self.take_held(note.src_vqp, at, now);
                    // The next one gets its turn, not on top of this one's stack.
                    self.held.ask_now(now, note.src_vqp);
                }
            }
            // A revoke is repeated, and who does not get another answer asks again.
            _ => {}
        }
    }

    /// The peer of a VQP does not hear what it must be told.
    fn unreachable(&mut self, id: u32, now: Time) {
        let peer = self.vqps.get(id).map_or(NONE, |vqp| vqp.peer);
        let gid = self.gid_of(peer);
        self.fail_for(id, ConnectError::Unreachable { gid }, now);
    }

    pub(crate) fn gid_of(&self, peer: u32) -> Gid {
        self.peers.get(peer).map(|peer| peer.gid).unwrap_or_default()
    }
}

impl Vqp {
    /// Whether a message of its may be read by its receiver.
    pub(crate) fn awaits(&self, seq: u32) -> bool {
        self.sq.holds(seq) && self.sq.entry(seq).await_fin
    }

    /// A message will not be read.
    pub(crate) fn not_read(&mut self, seq: u32) {
        if self.awaits(seq) {
            let entry = self.sq.entry_mut(seq);
            entry.await_fin = false;
            if entry.status == WcStatus::Success {
                entry.status = WcStatus::WrFlushErr;
            }
        }
    }

    /// What is to be told of a message to where it was sent.
    pub(crate) fn note(&self, kind: Kind, seq: u32) -> Note {
        let dst_port = if self.peer_vqp == 0 { self.peer_port } else { 0 };
        let (dst_vqp, src_vqp) = (self.peer_vqp, self.id);
        Note { kind, detail: 0, dst_port, dst_vqp, src_vqp, cookie: self.cookie(seq) }
    }
}
