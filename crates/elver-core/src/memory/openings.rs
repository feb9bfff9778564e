//! Keys under which receivers READ long messages (section 4.5).
//!
//! A region need not be open to peers, and what a peer may read of it is one message's bytes, while that
//! message is on its way, whatever the peer believes: it may have gone bad, or its host may have been held in
//! the middle of a READ and go on when the message was given up long ago. So each piece of a message has a
//! key of its own, which goes when the message has ended, and before that is told where nobody answered.

use alloc::vec::Vec;

use elver_verbs::{Mr, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::VqpId;
use crate::due::DueQueue;
use crate::vqp::seq::SendSeq;

/// A piece of a message, open to its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    /// The region that it lies in.
    pub(crate) slot: u32,
    pub(crate) mr: Mr,
    /// Who answers for the message's sender ([`crate::ClientLimits::account`]).
    pub(crate) account: u64,
}

/// All that are open.
#[derive(Debug)]
pub(crate) struct Openings {
    limit: u32,
    count: u32,
    of_accounts: HashMap<u64, u32, FxBuildHasher>,
    /// By VQP, and number of the WR there.
    messages: HashMap<(VqpId, SendSeq), Vec<Opening>, FxBuildHasher>,
    /// Those of messages that have ended, while a copy of theirs has not.
    lingering: DueQueue<Opening>,
}

impl Openings {
    pub(crate) fn new(limit: u32) -> Openings {
        Openings {
            limit,
            count: 0,
            of_accounts: HashMap::default(),
            messages: HashMap::default(),
            lingering: DueQueue::default(),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// How many there may be.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether an account may have so many more: none gets more than what it leaves to others.
    pub(crate) fn has_room(&self, account: u64, more: u32) -> bool {
        let own = self.of_accounts.get(&account).copied().unwrap_or(0);
        own.saturating_add(more) <= self.limit - self.count
    }

    /// A message is open.
    pub(crate) fn add(&mut self, vqp: VqpId, seq: SendSeq, pieces: Vec<Opening>) {
        for piece in &pieces {
            self.count += 1;
            *self.of_accounts.entry(piece.account).or_default() += 1;
        }
        self.messages.insert((vqp, seq), pieces);
    }

    /// What is open of a message.
    pub(crate) fn take(&mut self, vqp: VqpId, seq: SendSeq) -> Vec<Opening> {
        self.messages.remove(&(vqp, seq)).unwrap_or_default()
    }

    /// What is still open of a message.
    pub(crate) fn put_back(&mut self, vqp: VqpId, seq: SendSeq, pieces: Vec<Opening>) {
        self.messages.insert((vqp, seq), pieces);
    }

    /// One is closed.
    pub(crate) fn closed(&mut self, account: u64) {
        count_off!(self.count, 1);
        let Some(own) = self.of_accounts.get_mut(&account) else {
            return bug!("an account has nothing open that could be closed");
        };
        count_off!(*own, 1);
        if *own == 0 {
            self.of_accounts.remove(&account);
        }
    }

    /// One is to be closed then.
    pub(crate) fn linger(&mut self, then: Time, opening: Opening) {
        self.lingering.push(then, opening);
    }

    /// The next that is to be closed now.
    pub(crate) fn pop_lingering(&mut self, now: Time) -> Option<Opening> {
        self.lingering.pop_due(now)
    }

    /// When [`Openings::pop_lingering`] gives one.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.lingering.next_due()
    }

    /// Whether something of a message is open.
    pub(crate) fn has(&self, vqp: VqpId, seq: SendSeq) -> bool {
        self.messages.contains_key(&(vqp, seq))
    }

    /// All, each with its message, unless that has ended.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<(VqpId, SendSeq)>, &Opening)> {
        let open = self
            .messages
            .iter()
            .flat_map(|(message, pieces)| pieces.iter().map(move |piece| (Some(*message), piece)));
        open.chain(self.lingering.iter().map(|piece| (None, piece)))
    }
}
