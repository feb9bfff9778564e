//! Requests of other cores: each is done once, and answered again where it comes again.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use elver_verbs::{Gid, Time};

use super::address::ControlAddr;
use super::peer::PATIENCE_NS;
use crate::message::Answer;

/// An answer is kept for this long at least: by then its request comes no more.
pub(super) const REPLY_NS: u64 = 2 * PATIENCE_NS;

/// The sender's GID and QPN, and the request's id: what no two requests share.
type RequestKey = (Gid, u32, u64);

#[derive(Debug, Default)]
pub(super) struct Serving {
    /// Requests that are worked on.
    pub(super) working: BTreeSet<RequestKey>,
    /// Of these, connects.
    pub(super) connects: usize,
    pub(super) replies: BTreeMap<RequestKey, Answer>,
    /// The keys of `replies`, oldest first.
    pub(super) reply_order: VecDeque<(Time, RequestKey)>,
}

/// What a request is to those that came before.
pub(super) enum Taken {
    New,
    /// It was answered.
    Again(Answer),
    /// It is worked on.
    Working,
    /// As many are worked on as may be.
    Busy,
}

impl Serving {
    /// Takes a request with an effect.
    pub(super) fn take(&mut self, ticket: &Ticket, connects_max: usize) -> Taken {
        let key = ticket.key();
        if let Some(&answer) = self.replies.get(&key) {
            return Taken::Again(answer);
        }
        if self.working.contains(&key) {
            return Taken::Working;
        }
        // There is at most one close for each RC QP, and it makes room.
        if ticket.connect && self.connects >= connects_max {
            return Taken::Busy;
        }
        self.connects += usize::from(ticket.connect);
        self.working.insert(key);
        Taken::New
    }

    /// An answer to a request with an effect: it is kept.
    pub(super) fn answered(
        &mut self,
        ticket: &Ticket,
        answer: Answer,
        replies_max: usize,
        now: Time,
    ) {
        let key = ticket.key();
        if self.working.remove(&key) {
            self.connects -= usize::from(ticket.connect);
            self.forget_replies(replies_max, now);
            self.replies.insert(key, answer);
            self.reply_order.push_back((now, key));
        }
    }

    /// Drops answers whose requests can come no more, and makes room for one.
    fn forget_replies(&mut self, replies_max: usize, now: Time) {
        while let Some(&(time, key)) = self.reply_order.front() {
            let full = self.reply_order.len() >= replies_max;
            if !full && now.ns_since(time) < REPLY_NS {
                break;
            }
            self.reply_order.pop_front();
            self.replies.remove(&key);
        }
    }
}

/// Whom an answer goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The core that asked.
    pub from: ControlAddr,
    pub(super) id: u64,
    /// It counts among the connects that are worked on.
    pub(super) connect: bool,
}

impl Ticket {
    pub(super) fn key(&self) -> RequestKey {
        (self.from.gid, self.from.qpn, self.id)
    }
}
