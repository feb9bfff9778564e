//! Collective operations, as far as they differ from other messages.

use super::super::agreement::Discord;
use super::super::kind::Kind;
use super::super::matching::{Unexpected, What};
use super::super::memory::{Held, Memory};
use super::super::requests::{Phase, Request, Status};
use super::super::tags;
use super::Engine;

impl<M: Memory> Engine<M> {
    /// A collective operation begins, whose messages have this tag. Those of earlier ones that nobody has received by now
    /// are of ranks that did not agree, and go.
    pub fn begin_operation(&mut self, tag: u32) {
        let mut differs = None;
        for rank in 0..self.peers.len() as u32 {
            if !self.peers[rank as usize].holds_operations() {
                continue;
            }
            while let Some(message) = self.matching.take_if(rank, |old| tags::is_late(old, tag)) {
                self.pass_over(rank, message);
            }
            let is_other = |other| tags::is_other(other, tag);
            differs = differs.or_else(|| self.matching.find_if(rank, is_other));
        }
        self.agreement.begin(tag, differs);
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
        let status = Status { source, tag: message.tag, len: message.what.len() };
        match message.what {
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
