//! Notes that wait before they can go: what one core tells another of messages.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::Stats;
use crate::due::DueQueue;
use crate::ids::PeerId;
use crate::messaging::message::Kind;

/// Most notes that wait for a send slot, or for a look-up, of all peers.
const PENDING_MAX: usize = 1 << 16;
/// The same of one peer. Those that are final may be twice as many.
const PENDING_OF_PEER_MAX: u32 = 1 << 12;
/// So many of a peer wait, whatever waits for others.
const PENDING_OF_PEER_LEAST: u32 = 64;
/// Most notes of one peer that have send slots: one that answers none takes no more.
const SENT_OF_PEER_MAX: u32 = 64;
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

    /// The message of a peer's that it answers, if it does.
    fn answers(&self, peer: PeerId) -> Option<Message> {
        let answers = matches!(self.kind, Kind::Fin | Kind::Nack | Kind::Unknown);
        answers.then_some((peer, self.dst_vqp, self.cookie))
    }
}

/// Notes that wait, each with the peer that it is for:
///
/// ```text
///                    parked
///   so many have send  │ ▲   one of these has ended
///          slots now   │ │
///                      ▼ │
///   tell ──▶ pending ── pop_pending ──▶ sent ── nothing is known of the peer ──▶ unaddressed
///              ▲                                                                    │ looked up
///              ├──────────────────────────── found ─────────────────────────────────┤
///              └──── later, as if new ◀── unasked ◀── nobody to ask, and it is final ┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Wait for send slots.
    pending: VecDeque<(PeerId, Note)>,
    /// Wait until fewer of their peers have send slots.
    parked: BTreeMap<PeerId, VecDeque<Note>>,
    /// Wait for look-ups of whom they are for.
    unaddressed: VecDeque<(PeerId, Note)>,
    /// Wait until a meta server can be asked.
    unasked: DueQueue<(PeerId, Note)>,
    /// Messages whose senders hear what became of them: how many answers wait or are under way.
    answers: HashMap<Message, u32, FxBuildHasher>,
    /// Of each peer that has any.
    of_peers: HashMap<PeerId, OfPeer, FxBuildHasher>,
    /// All that wait.
    waiting: usize,
    /// All that have send slots.
    sent: u32,
}

/// A message as a note names it: its sender's node and VQP, and the cookie.
type Message = (PeerId, u32, u64);

/// How many notes are for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfPeer {
    waiting: u32,
    /// They have send slots.
    sent: u32,
}

impl Notes {
    /// Whether one more may wait.
    fn admits(&self, peer: PeerId, note: &Note) -> bool {
        let waiting = self.of(peer).waiting;
        let most = PENDING_OF_PEER_MAX << u32::from(note.is_final());
        waiting < most && (waiting < PENDING_OF_PEER_LEAST || self.waiting < PENDING_MAX)
    }

    /// Has a message of the core's own sent to a VQP of a peer's, behind those that wait. Whether there was
    /// room.
    pub(crate) fn tell(&mut self, stats: &mut Stats, peer: PeerId, note: Note) -> bool {
        if !self.admits(peer, &note) {
            // That says nothing of the peer. Who probes, asks or takes back does so again, and who does
            // not hear of his message asks after it.
            stats.messages_lost += 1;
            return false;
        }
        self.wait(peer);
        if let Some(message) = note.answers(peer) {
            *self.answers.entry(message).or_default() += 1;
        }
        match self.parked.get_mut(&peer) {
            Some(parked) => parked.push_back(note),
            None => self.pending.push_back((peer, note)),
        }
        true
    }

    /// A note has arrived, or its peer will not be told it.
    pub(crate) fn ended(&mut self, peer: PeerId, note: &Note) {
        let Some(message) = note.answers(peer) else { return };
        let Some(count) = self.answers.get_mut(&message) else {
            return bug!("an answer ends that nobody waited for");
        };
        count_off!(*count, 1);
        if *count == 0 {
            self.answers.remove(&message);
        }
    }

    /// Whether a message's sender hears what became of it.
    pub(crate) fn answer(&self, (peer, vqp): (PeerId, u32), cookie: u64) -> bool {
        self.answers.contains_key(&(peer, vqp, cookie))
    }

    /// Whether none waits for a send slot, but for those whose peers have enough.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many have send slots.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// The next that a send slot is for.
    pub(crate) fn pop_pending(&mut self) -> Option<(PeerId, Note)> {
        while let Some((peer, note)) = self.pending.pop_front() {
            if self.of(peer).sent >= SENT_OF_PEER_MAX {
                self.parked.entry(peer).or_default().push_back(note);
                continue;
            }
            self.wait_no_longer(peer);
            return Some((peer, note));
        }
        None
    }

    /// One was popped and has its send slot now.
    pub(crate) fn was_sent(&mut self, peer: PeerId) {
        self.of_peers.entry(peer).or_default().sent += 1;
        self.sent += 1;
    }

    /// One that had a send slot has none any longer.
    pub(crate) fn sent_ended(&mut self, peer: PeerId) {
        count_off!(self.sent, 1);
        self.change(peer, |of_peer| count_off!(of_peer.sent, 1));
        self.unpark(peer);
    }

    /// One was popped and has no send slot.
    pub(crate) fn was_not_sent(&mut self, peer: PeerId) {
        self.unpark(peer);
    }

    /// One waits until its peer is looked up.
    pub(crate) fn await_address(&mut self, peer: PeerId, note: Note) {
        self.wait(peer);
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
                self.wait_no_longer(to);
                lost.push(note);
            }
        }
        lost
    }

    /// Has one go that is to be tried again. Whether there was one.
    pub(crate) fn retry_due(&mut self, now: Time) -> bool {
        let due = self.unasked.pop_due(now);
        self.pending.extend(due);
        due.is_some()
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.unasked.next_due()
    }

    /// All that wait, and the peers that they are for.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Note)> {
        let parked =
            self.parked.iter().flat_map(|(peer, notes)| notes.iter().map(|note| (*peer, note)));
        let pending = self.pending.iter().chain(&self.unaddressed);
        pending.chain(self.unasked.iter()).map(|(peer, note)| (*peer, note)).chain(parked)
    }

    /// Peers that must be being looked up.
    pub(crate) fn unaddressed(&self) -> impl Iterator<Item = PeerId> {
        self.unaddressed.iter().map(|(peer, _)| *peer)
    }

    /// Checks what is counted against what waits and `sent`, those that have send slots.
    pub(crate) fn audit<'a>(
        &'a self,
        sent: impl Iterator<Item = (PeerId, &'a Note)>,
    ) -> Result<(), String> {
        let mut of_peers = HashMap::<PeerId, OfPeer, FxBuildHasher>::default();
        let mut answers = HashMap::<Message, u32, FxBuildHasher>::default();
        for (peer, note) in self.iter() {
            of_peers.entry(peer).or_default().waiting += 1;
            note.answers(peer).into_iter().for_each(|of| *answers.entry(of).or_default() += 1);
        }
        for (peer, note) in sent {
            of_peers.entry(peer).or_default().sent += 1;
            note.answers(peer).into_iter().for_each(|of| *answers.entry(of).or_default() += 1);
        }
        if answers != self.answers {
            return Err(format!("answers: {answers:?}, counted as {:?}", self.answers));
        }
        let sums = |found: &HashMap<PeerId, OfPeer, FxBuildHasher>| {
            found.values().fold((0, 0), |(waiting, sent), of_peer| {
                (waiting + of_peer.waiting as usize, sent + of_peer.sent)
            })
        };
        if of_peers != self.of_peers || sums(&of_peers) != (self.waiting, self.sent) {
            return Err(format!("notes of peers: {of_peers:?}, counted as {:?}", self.of_peers));
        }
        if let Some((peer, of_peer)) = of_peers.iter().find(|(_, of)| of.sent > SENT_OF_PEER_MAX) {
            return Err(format!("{} notes of {peer:#x} have send slots", of_peer.sent));
        }
        let waits_for = |peer: &PeerId| {
            self.of(*peer).sent > 0 || self.pending.iter().any(|(other, _)| other == peer)
        };
        match self.parked.keys().find(|peer| !waits_for(peer)) {
            Some(peer) => Err(format!("notes of {peer:#x} wait for nothing")),
            None => Ok(()),
        }
    }

    fn of(&self, peer: PeerId) -> OfPeer {
        self.of_peers.get(&peer).copied().unwrap_or_default()
    }

    fn wait(&mut self, peer: PeerId) {
        self.of_peers.entry(peer).or_default().waiting += 1;
        self.waiting += 1;
    }

    fn wait_no_longer(&mut self, peer: PeerId) {
        count_off!(self.waiting, 1);
        self.change(peer, |of_peer| count_off!(of_peer.waiting, 1));
    }

    fn change(&mut self, peer: PeerId, change: impl FnOnce(&mut OfPeer)) {
        let Some(of_peer) = self.of_peers.get_mut(&peer) else {
            return bug!("a note is of no peer");
        };
        change(of_peer);
        if *of_peer == OfPeer::default() {
            self.of_peers.remove(&peer);
        }
    }

    /// The next one that is parked gets its turn: one for each that was popped.
    fn unpark(&mut self, peer: PeerId) {
        let Some(parked) = self.parked.get_mut(&peer) else { return };
        let next = parked.pop_front();
        if parked.is_empty() {
            self.parked.remove(&peer);
        }
        self.pending.extend(next.map(|note| (peer, note)));
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
        assert_eq!((notes.retry_due(Time(4)), notes.next_due()), (false, Some(Time(5))));
        assert_eq!(notes.iter().count(), 2);
        assert!(notes.retry_due(Time(5)) && notes.retry_due(Time(5)) && !notes.retry_due(Time(5)));
        let again: Vec<u64> =
            core::iter::from_fn(|| notes.pop_pending()).map(|(_, note)| note.cookie).collect();
        assert_eq!(again, [0, 2]);
        notes.audit([].into_iter()).unwrap();
    }

    /// The notes of one that takes none crowded out those of all others.
    #[test]
    fn all_queues_are_bounded_and_each_peer_has_its_share() {
        let (mut notes, mut stats) = (Notes::default(), Stats::default());
        for _ in 0..3 * PENDING_OF_PEER_MAX {
            notes.tell(&mut stats, peer(1), note(Kind::Query, 0));
        }
        assert_eq!(notes.iter().count(), PENDING_OF_PEER_MAX as usize);
        for _ in 0..2 * PENDING_OF_PEER_MAX {
            notes.tell(&mut stats, peer(1), note(Kind::Fin, 0));
        }
        assert_eq!(
            notes.iter().count(),
            2 * PENDING_OF_PEER_MAX as usize,
            "there is room for these"
        );
        for to in 2..2 + PENDING_MAX as u32 / PENDING_OF_PEER_MAX {
            for _ in 0..PENDING_OF_PEER_MAX {
                notes.tell(&mut stats, peer(to), note(Kind::Nack, 0));
            }
        }
        let honest = peer(1_000);
        for cookie in 0..2 * u64::from(PENDING_OF_PEER_LEAST) {
            notes.tell(&mut stats, honest, note(Kind::Fin, cookie));
        }
        let others = notes.iter().filter(|(to, _)| *to == honest).count();
        assert_eq!(others, PENDING_OF_PEER_LEAST as usize, "however many wait for others");
        assert!(notes.iter().count() <= PENDING_MAX + 3 * PENDING_OF_PEER_LEAST as usize);
        let mut popped = 0;
        while let Some((to, note)) = notes.pop_pending() {
            notes.ended(to, &note);
            popped += 1;
        }
        assert!(popped > PENDING_MAX && notes.iter().count() == 0);
        notes.audit([].into_iter()).unwrap();
        for _ in 0..UNASKED_MAX + 5 {
            notes.await_address(peer(1), note(Kind::Fin, 0));
        }
        assert_eq!(notes.looked_up(peer(1), false, false, Time(5)).len(), 5);
        assert_eq!(notes.iter().count(), UNASKED_MAX);
    }

    #[test]
    fn so_many_notes_of_a_peer_have_send_slots_and_the_others_follow_in_order() {
        let (mut notes, mut stats) = (Notes::default(), Stats::default());
        let count = 3 * u64::from(SENT_OF_PEER_MAX);
        for cookie in 0..count {
            notes.tell(&mut stats, peer(1), note(Kind::Fin, cookie));
        }
        notes.tell(&mut stats, peer(2), note(Kind::Fin, count));
        let (mut told, mut under_way) = (Vec::new(), VecDeque::new());
        while notes.iter().count() + under_way.len() > 0 {
            while let Some((to, note)) = notes.pop_pending() {
                told.push(note.cookie);
                // Some find no way.
                assert!(notes.answer((to, note.dst_vqp), note.cookie));
                if note.cookie % 5 == 0 {
                    notes.was_not_sent(to);
                    notes.ended(to, &note);
                    assert!(!notes.answer((to, note.dst_vqp), note.cookie));
                } else {
                    notes.was_sent(to);
                    under_way.push_back((to, note));
                }
                notes.audit(under_way.iter().map(|(to, note)| (*to, note))).unwrap();
            }
            assert!(told.contains(&count), "the other peer waits for none of these");
            if let Some((to, note)) = under_way.pop_front() {
                notes.sent_ended(to);
                notes.ended(to, &note);
            }
        }
        told.retain(|cookie| *cookie < count);
        assert!(told.iter().copied().eq(0..count), "{told:?}");
        notes.audit([].into_iter()).unwrap();
    }
}
