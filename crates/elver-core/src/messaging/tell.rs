//! Telling peers of messages: notes go as messages of the core's own, as soon as there is a send slot
//! and the peer is known.

use elver_verbs::{Class, Device, Time};

use crate::Core;
use crate::datapath::ops::{OpKind, Work};
use crate::discovery::peer::{Peer, Waiter};
use crate::ids::PeerId;
use crate::messaging::message::{HEADER_BYTES, Header, Kind};
use crate::messaging::notes::Note;

impl<D: Device> Core<D> {
    /// Sends what waits for send slots.
    #[inline]
    pub(crate) fn tell_waiting(&mut self, now: Time) {
        while self.may_tell()
            && let Some((peer, note)) = self.messaging.notes.pop_pending()
        {
            let Some(slot) = self.pool.sends.take() else {
                return bug!("send slots that are free are none");
            };
            if !self.send_note(peer, note, slot, now) {
                self.messaging.notes.was_not_sent(peer);
            }
        }
    }

    /// Whether something waits that a send slot may be taken for. Half of them are left to VQPs, whatever
    /// peers make this node tell them.
    #[inline]
    pub(crate) fn may_tell(&self) -> bool {
        let sends = &self.pool.sends;
        !self.messaging.notes.is_idle()
            && sends.available() > 0
            && self.messaging.notes.sent() < sends.count / 2
    }

    /// The peer that something is to be told to has sent a message, but nothing is known of it.
    fn look_up_for_note(&mut self, peer: PeerId, note: Note, now: Time) {
        self.messaging.notes.await_address(peer, note);
        let waits = |peer: &Peer| peer.waiting.contains(&Waiter::Notes);
        if !self.peers.get(peer).is_some_and(waits) {
            self.want_node(peer, Waiter::Notes, now);
        }
    }

    /// A peer was looked up, to be told something. If nobody was there to ask, what became of its
    /// messages is kept for it, for nobody else would tell it.
    pub(crate) fn address_found(&mut self, peer: PeerId, found: bool, asked: bool, now: Time) {
        for note in self.messaging.notes.looked_up(peer, found, asked, Self::query_at(now)) {
            self.note_ended(peer, note, false, now);
        }
    }

    /// Tells what waited until there may be somebody to ask. Whether there was anything.
    pub(crate) fn attend_notes(&mut self, now: Time) -> bool {
        let mut busy = false;
        while self.messaging.notes.retry_due(now) {
            busy = true;
        }
        busy
    }

    /// Whether it goes.
    fn send_note(&mut self, peer: PeerId, note: Note, slot: u32, now: Time) -> bool {
        let unknown = self.peers.get(peer).is_some_and(|peer| peer.record.is_none());
        if unknown && self.op_lane(peer, Class::Low).is_none() {
            self.pool.sends.give(slot);
            self.look_up_for_note(peer, note, now);
            return false;
        }
        let Note { kind, detail, dst_port, dst_vqp, src_vqp, cookie } = note;
        let header =
            Header { kind, detail, dst_port, dst_vqp, src_vqp, cookie, ..self.messaging.blank };
        let written = self.pool.write_header(slot, &header);
        if written.is_err() {
            bug!("a slot has no room for a header");
        }
        let work = Work::Send { slot, length: HEADER_BYTES as u32 };
        match self.start_op(peer, Class::Low, OpKind::Message(note), work) {
            Ok(op) => {
                self.messaging.notes.was_sent(peer);
                self.post_op(op, now);
                true
            }
            Err(_) => {
                self.pool.sends.give(slot);
                self.note_dropped(peer, note, now);
                false
            }
        }
    }

    /// A note could not be sent.
    fn note_dropped(&mut self, peer: PeerId, note: Note, now: Time) {
        if self.datapath.ops.is_full() {
            // As where it is told.
            self.messaging.notes.ended(peer, &note);
            self.stats.messages_lost += 1;
            if note.kind == Kind::Nack {
                self.refusal_told((peer, note.dst_vqp), note.cookie, false, now);
            }
        } else {
            self.note_ended(peer, note, false, now);
        }
    }
}
