//! Ends of RC QPs that have gone here, and of whose going their peers have not been heard to know.
//!
//! A peer that is not told keeps its end, and posts on it in vain. It may have been cut off for any time, asleep, or
//! said to be gone while it was not. So it is told again and again for a while, and at once whenever it is heard of; what
//! it was not told is kept until then:
//!
//! ```text
//!   end gone ──► due ──► asked ──answer──► forgotten
//!                 ▲        │ none
//!                 │        ├─ not yet [`TRIES`] times ──► due, [`REMIND_NS`] later
//!                 └─heard──┴─ so often ──► quiet
//! ```
//!
//! What is counted is questions, and not time: the clock of a host that was held jumps.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_control::{ControlAddr, Request};
use elver_verbs::{Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// A peer that does not answer when it is told of an end is told again after this long,
const REMIND_NS: u64 = 1_000_000_000;
/// and so often: for a minute and a half, if nobody is there.
const TRIES: u32 = 45;
/// Most ends that peers are told of: then the oldest of which nobody has heard for longest are given up.
const REMINDERS_MAX: usize = 4_096;

/// An end that has gone, and what its peer is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reminder {
    to: ControlAddr,
    request: Request,
    /// It is told so often yet if it is not heard.
    left: u32,
    due: Time,
}

impl Reminder {
    /// The node as it was when the RC QP was made.
    pub(super) fn to(&self) -> ControlAddr {
        self.to
    }

    pub(super) fn request(&self) -> Request {
        self.request
    }

    fn peer(&self) -> (Gid, u32) {
        (self.to.gid, self.to.qpn)
    }
}

/// All of them but those that peers have just been told.
#[derive(Debug, Default)]
pub(crate) struct Reminders {
    /// In the order in which they are due.
    due: VecDeque<Reminder>,
    /// Those that go when their peers are heard.
    quiet: VecDeque<Reminder>,
    /// How many are for each peer: most that are heard are to be told nothing.
    peers: HashMap<(Gid, u32), u32, FxBuildHasher>,
    given_up: u64,
}

impl Reminders {
    /// An end has gone, and its peer has not answered when it was told of it.
    pub(super) fn add(&mut self, to: ControlAddr, request: Request, now: Time) {
        self.unanswered(Reminder { to, request, left: TRIES, due: now }, now);
    }

    /// The peer has not answered.
    pub(super) fn unanswered(&mut self, reminder: Reminder, now: Time) {
        match reminder.left.checked_sub(1) {
            None => self.hold(reminder),
            Some(left) => {
                self.make_room_for(&reminder);
                let due = now.saturating_add_ns(REMIND_NS);
                self.due.push_back(Reminder { left, due, ..reminder });
            }
        }
    }

    /// The peer is not told: what is at its place now is another. It is in case it is heard of after all.
    pub(super) fn hold(&mut self, reminder: Reminder) {
        self.make_room_for(&reminder);
        self.quiet.push_back(reminder);
    }

    fn make_room_for(&mut self, reminder: &Reminder) {
        if self.len() >= REMINDERS_MAX
            && let Some(oldest) = self.quiet.pop_front().or_else(|| self.due.pop_front())
        {
            self.given_up += 1;
            self.taken(&oldest);
        }
        *self.peers.entry(reminder.peer()).or_default() += 1;
    }

    fn taken(&mut self, reminder: &Reminder) {
        if let Some(count) = self.peers.get_mut(&reminder.peer()) {
            count_off!(*count, 1);
            if *count == 0 {
                self.peers.remove(&reminder.peer());
            }
        }
    }

    /// A node is there, by its GID and its control QP: what it was to be told it is told at once, once more at least.
    pub(super) fn heard(&mut self, peer: (Gid, u32), now: Time) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        let is_its = |one: &Reminder| one.peer() == peer;
        let mut its = Vec::new();
        for list in [&mut self.due, &mut self.quiet] {
            list.retain(|one| {
                let keep = !is_its(one);
                if !keep {
                    its.push(Reminder { due: now, ..*one });
                }
                keep
            });
        }
        for one in its.into_iter().rev() {
            self.due.push_front(one);
        }
    }

    /// The next one that is due.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Reminder> {
        let reminder = self.due.pop_front_if(|one| one.due <= now)?;
        self.taken(&reminder);
        Some(reminder)
    }

    /// When the next one is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due.front().map(|one| one.due)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.due.len() + self.quiet.len()
    }

    /// How many were too many.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(7);

    fn addr(n: u8) -> ControlAddr {
        ControlAddr { gid: Gid([n; 16]), qpn: n.into(), qkey: 1 }
    }

    fn close(qpn: u32) -> Request {
        Request::RcClose { qpn, peer_qpn: 1 }
    }

    /// Tells all that is due until nothing is; to whom, and what.
    fn tell_all(reminders: &mut Reminders) -> Vec<(u8, Request)> {
        let mut told = Vec::new();
        while let Some(now) = reminders.poll_timeout() {
            while let Some(one) = reminders.next_due(now) {
                told.push((one.to().qpn as u8, one.request()));
                reminders.unanswered(one, now);
            }
        }
        told
    }

    #[test]
    fn a_peer_is_told_for_a_while_and_again_when_it_is_heard() {
        let mut reminders = Reminders::default();
        for n in 1..3 {
            reminders.add(addr(n), close(n.into()), NOW);
        }
        let times = |told: &[(u8, Request)], n| told.iter().filter(|(to, _)| *to == n).count();
        let told = tell_all(&mut reminders);
        assert_eq!([times(&told, 1), times(&told, 2)], [TRIES as usize; 2]);
        assert_eq!(reminders.len(), 2, "what nobody has heard is kept");
        reminders.heard((addr(2).gid, 9), NOW);
        assert_eq!(reminders.poll_timeout(), None, "another was heard");
        reminders.heard((addr(2).gid, 2), NOW);
        assert_eq!(reminders.poll_timeout(), Some(NOW));
        let told = tell_all(&mut reminders);
        assert_eq!([times(&told, 1), times(&told, 2)], [0, 1]);
    }

    #[test]
    fn who_is_heard_is_told_before_others_and_in_order() {
        let mut reminders = Reminders::default();
        for (n, qpn) in [(1, 10), (2, 20), (2, 21)] {
            reminders.add(addr(n), close(qpn), NOW);
        }
        reminders.heard((addr(2).gid, 2), NOW);
        let due = core::iter::from_fn(|| reminders.next_due(NOW)).map(|one| one.request());
        assert_eq!(due.collect::<Vec<_>>(), [close(20), close(21)]);
    }

    #[test]
    fn what_is_kept_has_a_bound_and_the_quiet_go_first() {
        let mut reminders = Reminders::default();
        reminders.add(addr(1), close(1), NOW);
        tell_all(&mut reminders);
        for n in 0..REMINDERS_MAX as u32 {
            reminders.add(addr(2), close(n), NOW);
        }
        assert_eq!((reminders.quiet.len(), reminders.due.len()), (0, REMINDERS_MAX));
        reminders.add(addr(2), close(0), NOW);
        assert_eq!((reminders.due.len(), reminders.given_up()), (REMINDERS_MAX, 2));
        assert_eq!(reminders.peers, HashMap::from_iter([((addr(2).gid, 2), REMINDERS_MAX as u32)]));
    }
}
