//! Notes that wait before they can go: what one core tells another of messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::Time;

use crate::Stats;
use crate::due::DueQueue;
use crate::ids::PeerId;
use crate::messaging::message::Kind;

/// Most notes that wait for a send slot, or for a look-up.
const PENDING_MAX: usize = 1 << 16;
/// Most notes that wait until there is a meta server to ask.
const UNASKED_MAX: usize = 1 << 12;

/// What one core tells another of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) kind: Kind,
    /// Cause of a NACK, or messages of a grant.
    pub(crate) detail: u16,
    pub(crate) dst_port: u16,
    pub(crate) dst_vqp: u32,
    pub(crate) src_vqp: u32,
    pub(crate) cookie: u64,
}

impl Note {
    /// To a VQP, of a message that it has sent.
    pub(crate) fn to_sender(kind: Kind, vqp: u32, cookie: u64) -> Note {
        Note { kind, detail: 0, dst_port: 0, dst_vqp: vqp, src_vqp: 0, cookie }
    }

    /// Whether it says what became of a message that its receiver has done with: nothing else would
    /// tell the sender.
    fn is_final(&self) -> bool {
        matches!(self.kind, Kind::Fin | Kind::Nack)
    }
}

/// Notes that wait, each with the peer that it is for:
///
/// ```text
///   tell ──▶ pending ── pop_pending ──▶ sent ── nothing is known of the peer ──▶ unaddressed
///              ▲                                                                    │ looked up
///              ├──────────────────────────── found ─────────────────────────────────┤
///              └──── later, as if new ◀── unasked ◀── nobody to ask, and it is final ┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Wait for send slots.
    pending: VecDeque<(PeerId, Note)>,
    /// Wait for look-ups of whom they are for.
    unaddressed: VecDeque<(PeerId, Note)>,
    /// Wait until a meta server can be asked.
    unasked: DueQueue<(PeerId, Note)>,
}

impl Notes {
    /// Whether no more may wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.pending.len() + self.unaddressed.len() >= PENDING_MAX
    }

    /// Has a message of the core's own sent to a VQP of a peer's, behind those that wait.
    pub(crate) fn tell(&mut self, stats: &mut Stats, peer: PeerId, note: Note) {
        if self.is_crowded() {
            // That says nothing of the peer. Who probes, asks or takes back does so again, and who does
            // not hear of his message asks after it.
            stats.messages_lost += 1;
            return;
        }
        self.pending.push_back((peer, note));
    }

    /// Whether none waits for a send slot.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next that a send slot is for.
    pub(crate) fn pop_pending(&mut self) -> Option<(PeerId, Note)> {
        self.pending.pop_front()
    }

    /// One waits until its peer is looked up.
    pub(crate) fn await_address(&mut self, peer: PeerId, note: Note) {
        self.unaddressed.push_back((peer, note));
    }

    /// A peer was looked up: what waited for that is sent if it was found. If nobody was there to ask,
    /// what is final is kept until `again`. Returns those that cannot be told, in order.
    pub(crate) fn looked_up(
        &mut self,
        peer: PeerId,
        found: bool,
        asked: bool,
        again: Time,
    ) -> Vec<Note> {
        let mut lost = Vec::new();
        for (to, note) in core::mem::take(&mut self.unaddressed) {
            if to != peer {
                self.unaddressed.push_back((to, note));
            } else if found {
                self.pending.push_back((to, note));
            } else if !asked && note.is_final() && self.unasked.len() < UNASKED_MAX {
                self.unasked.push(again, (to, note));
            } else {
                lost.push(note);
            }
        }
        lost
    }

    /// The next that is to be tried again.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(PeerId, Note)> {
        self.unasked.pop_due(now)
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.unasked.next_due()
    }

    /// All that wait, and the peers that they are for.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Note)> {
        let pending = self.pending.iter().chain(&self.unaddressed);
        pending.chain(self.unasked.iter()).map(|(peer, note)| (*peer, note))
    }

    /// Peers that must be being looked up.
    pub(crate) fn unaddressed(&self) -> impl Iterator<Item = PeerId> {
        self.unaddressed.iter().map(|(peer, _)| *peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: Kind, cookie: u64) -> Note {
        Note::to_sender(kind, 7, cookie)
    }

    fn peer(n: u32) -> PeerId {
        PeerId::numbered(n)
    }

    fn cookies(notes: &[Note]) -> Vec<u64> {
        notes.iter().map(|note| note.cookie).collect()
    }

    #[test]
    fn a_look_up_moves_the_notes_of_its_peer_alone_and_in_order() {
        let mut notes = Notes::default();
        for (to, cookie) in [(1, 10), (2, 20), (1, 11)] {
            notes.await_address(peer(to), note(Kind::Fin, cookie));
        }
        assert!(notes.looked_up(peer(1), true, true, Time(5)).is_empty());
        let sent: Vec<u64> =
            core::iter::from_fn(|| notes.pop_pending()).map(|(_, note)| note.cookie).collect();
        assert_eq!(sent, [10, 11]);
        assert!(notes.unaddressed().eq([peer(2)]));
        assert_eq!(cookies(&notes.looked_up(peer(2), false, true, Time(5))), [20], "it is gone");
    }

    #[test]
    fn what_is_final_is_kept_while_nobody_can_be_asked() {
        let mut notes = Notes::default();
        let kinds = [Kind::Fin, Kind::Grant, Kind::Nack, Kind::Query];
        for (kind, cookie) in kinds.into_iter().zip(0..) {
            notes.await_address(peer(1), note(kind, cookie));
        }
        assert_eq!(cookies(&notes.looked_up(peer(1), false, false, Time(5))), [1, 3]);
        assert_eq!((notes.pop_due(Time(4)), notes.next_due()), (None, Some(Time(5))));
        assert_eq!(notes.iter().count(), 2);
        assert_eq!(notes.pop_due(Time(5)).map(|(_, note)| note.cookie), Some(0));
        assert_eq!(notes.pop_due(Time(5)).map(|(_, note)| note.cookie), Some(2));
    }

    #[test]
    fn all_queues_are_bounded() {
        let mut notes = Notes::default();
        let mut lost = 0;
        while !notes.is_crowded() {
            notes.await_address(peer(1), note(Kind::Fin, 0));
        }
        lost += notes.looked_up(peer(1), false, false, Time(5)).len();
        assert_eq!((notes.iter().count(), lost), (UNASKED_MAX, PENDING_MAX - UNASKED_MAX));
        assert!(!notes.is_crowded());
    }
}
