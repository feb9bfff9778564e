//! Which nodes are being looked up, whose turn is next, and when a server has taken too long.

use alloc::collections::VecDeque;

use elver_verbs::Time;

use crate::ids::PeerId;

/// Look-ups of nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeLookups {
    /// Peers whose look-up waits for its turn.
    queue: VecDeque<PeerId>,
    /// Look-ups that run.
    running: u32,
    /// When each of these is given up, in order; entries of look-ups that ended mean nothing.
    deadlines: VecDeque<(Time, PeerId)>,
}

impl NodeLookups {
    /// A peer's look-up waits for its turn.
    pub(crate) fn enqueue(&mut self, peer: PeerId) {
        self.queue.push_back(peer);
    }

    /// The peer whose turn is next, if no more than so many run.
    pub(crate) fn next(&self, max: u32) -> Option<PeerId> {
        self.queue.front().copied().filter(|_| self.running < max)
    }

    /// The next one needs no server.
    pub(crate) fn pass(&mut self) {
        self.queue.pop_front();
    }

    /// The next one runs.
    pub(crate) fn start(&mut self) {
        self.queue.pop_front();
        self.running += 1;
    }

    /// One that ran has ended.
    pub(crate) fn end(&mut self) {
        count_off!(self.running, 1);
    }

    /// One that ran has to wait again, before all others.
    pub(crate) fn put_back(&mut self, peer: PeerId) {
        self.end();
        self.queue.push_front(peer);
    }

    /// One that runs is given up then. No later one is given up earlier.
    pub(crate) fn expect_by(&mut self, deadline: Time, peer: PeerId) {
        self.deadlines.push_back((deadline, peer));
    }

    /// The next one that is to be given up by now, and when it was to be. `deadline_of` tells when that of a peer is,
    /// if it runs.
    pub(crate) fn next_late(
        &mut self,
        now: Time,
        deadline_of: impl Fn(PeerId) -> Option<Time>,
    ) -> Option<(Time, PeerId)> {
        while let Some(&(due, peer)) = self.deadlines.front() {
            let counts = deadline_of(peer) == Some(due);
            if counts && due > now {
                return None;
            }
            self.deadlines.pop_front();
            if counts {
                return Some((due, peer));
            }
        }
        None
    }

    /// When the first of them may be given up.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.front().map(|(due, _)| *due)
    }

    /// How many run, and how many wait.
    pub(crate) fn counts(&self) -> (u32, usize) {
        (self.running, self.queue.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.queue.capacity() * 4 + self.deadlines.capacity() * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: [PeerId; 3] = [PeerId::numbered(1), PeerId::numbered(2), PeerId::numbered(3)];

    #[test]
    fn so_many_run_at_once_and_who_is_put_back_is_next() {
        let mut nodes = NodeLookups::default();
        for peer in PEERS {
            nodes.enqueue(peer);
        }
        assert_eq!(nodes.next(1), Some(PEERS[0]));
        nodes.start();
        assert_eq!((nodes.next(1), nodes.next(2), nodes.counts()), (None, Some(PEERS[1]), (1, 2)));
        nodes.put_back(PEERS[0]);
        assert_eq!((nodes.next(1), nodes.counts()), (Some(PEERS[0]), (0, 3)));
        nodes.pass();
        nodes.start();
        nodes.end();
        assert_eq!((nodes.next(1), nodes.counts()), (Some(PEERS[2]), (0, 1)));
    }

    #[test]
    fn who_has_ended_or_was_asked_anew_is_not_late() {
        let mut nodes = NodeLookups::default();
        for (due, peer) in (10..).zip(PEERS) {
            nodes.expect_by(Time(due), peer);
        }
        nodes.expect_by(Time(20), PEERS[1]);
        let deadline_of = |peer| match peer {
            peer if peer == PEERS[0] => None,
            peer if peer == PEERS[1] => Some(Time(20)),
            _ => Some(Time(12)),
        };
        assert_eq!(nodes.next_late(Time(11), deadline_of), None);
        assert_eq!(nodes.next_deadline(), Some(Time(12)));
        assert_eq!(nodes.next_late(Time(19), deadline_of), Some((Time(12), PEERS[2])));
        assert_eq!(nodes.next_late(Time(19), deadline_of), None);
        assert_eq!(nodes.next_late(Time(20), deadline_of), Some((Time(20), PEERS[1])));
        assert_eq!((nodes.next_late(Time(99), deadline_of), nodes.next_deadline()), (None, None));
    }
}
