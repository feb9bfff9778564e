//! Collective operations, as far as they differ from other messages.

use super::super::agreement::Discord;
use super::super::kind::Kind;
use super::super::matching::{Unexpected, What};
use super::super::memory::{Held, Memory};
use super::super::requests::{Phase, Request, Status};
use super::super::tags;
use super::Engine;

impl<M: Memory> Engine<M> {
    /// A collective operation begins, whose messages have this tag.
    pub fn begin_operation(&mut self, tag: u32) {
        let is_other = |other| tags::is_other(other, tag);
        let mut holders = (0..)
            .zip(&self.peers)
            .filter(|(_, peer)| peer.holds_operations())
            .map(|(rank, _)| rank);
        let differs = holders.find_map(|rank| self.matching.find_if(rank, is_other));
        self.agreement.begin(tag, differs);
    }

    /// It is over here, however it ended. What has come for it, and comes from now on, is of ranks that did not agree, and
    /// is passed over: it would take the credit of what comes next, and its senders would wait.
    pub fn end_operation(&mut self) {
        self.agreement.end();
        for rank in 0..self.peers.len() as u32 {
            if !self.peers[rank as usize].holds_operations() {
                continue;
            }
            loop {
                let is_left = |tag| self.agreement.is_left_over(tag);
                let Some(message) = self.matching.take_if(rank, is_left) else { break };
                self.pass_over(rank, message);
            }
        }
    }

    /// Why the operation that goes on has no end, if that is known.
    #[inline]
    pub fn discord(&self) -> Option<Discord> {
        self.agreement.discord()
    }

    /// Tells all others that this rank does nothing more for the operation of this tag.
    pub fn give_up(&mut self, tag: u32) {
        for (rank, peer) in (0..).zip(&mut self.peers) {
            if rank != self.rank && !peer.is_gone && !peer.was_told_bye {
                peer.answers.push_back((Kind::GaveUp, tag));
            }
        }
    }

    /// Takes a message that nobody will receive. One that was offered comes, so that its sender is done with it.
    fn pass_over(&mut self, source: u32, message: Unexpected) {
        let Unexpected { tag, what, .. } = message;
        self.pass(Status { source, tag, len: what.len() }, what);
    }

    /// The same of one that has just come.
    pub(super) fn pass(&mut self, status: Status, what: What) {
        let source = status.source;
        match what {
            What::Whole(_) => self.peers[source as usize].matched(status.tag, status.len),
            What::Offered(id, offer) => {
                let request = self.requests.add(Request {
                    phase: Phase::Posted,
                    memory: Held::Lent,
                    status,
                    to: self.rank,
                    room: status.len,
                    abandoned: true,
                });
                self.accept(request, status, id, offer);
            }
        }
    }
}
