//! Senders of whose messages one was refused. A short message has completed with success at its sender by
//! then: so nothing that stands behind it may be taken, or the receiver would have a stream with a hole, and
//! the sender must hear of it, however often what tells him is lost.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::due::DueQueue;
use crate::ids::PeerId;
use crate::messaging::message::Refusal;

/// Most senders of one peer that are remembered; then the one that was refused longest ago is forgotten.
const OF_PEER_MAX: usize = 256;
/// The same of all peers.
const REFUSED_MAX: usize = 1 << 16;
/// So often a sender is told again that does not hear it. Who still sends then is refused anew, and told.
const RETRIES_MAX: u8 = 20;

/// A sender's node and its VQP.
pub(crate) type Sender = (PeerId, u32);

/// What was refused of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    refusal: Refusal,
    /// Of the last message that was refused; its upper half is the connection's secret.
    cookie: u64,
    told: bool,
    retries: u8,
    /// It is told again later.
    listed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    of_senders: HashMap<Sender, Refused, FxBuildHasher>,
    /// Those of each peer, the one first that was refused longest ago.
    of_peers: HashMap<PeerId, VecDeque<u32>, FxBuildHasher>,
    /// All, in the same order. Those of the forgotten mean nothing.
    order: VecDeque<Sender>,
    /// Did not hear of it yet.
    untold: DueQueue<Sender>,
}

impl Refusals {
    /// Why nothing is taken that a sender sends on the connection of this message.
    #[inline]
    pub(crate) fn of(&self, sender: Sender, cookie: u64) -> Option<Refusal> {
        if self.of_senders.is_empty() {
            return None;
        }
        let refused = self.of_senders.get(&sender)?;
        is_same(refused.cookie, cookie).then_some(refused.refusal)
    }

    /// A sender's message is refused.
    pub(crate) fn refuse(&mut self, sender: Sender, refusal: Refusal, cookie: u64) {
        if let Some(refused) = self.of_senders.get_mut(&sender) {
            let listed = refused.listed;
            *refused = Refused { refusal, cookie, told: false, retries: 0, listed };
            return;
        }
        let of_peer = self.of_peers.get(&sender.0);
        if let Some(oldest) = of_peer.filter(|of| of.len() >= OF_PEER_MAX).and_then(|of| of.front())
        {
            self.forget((sender.0, *oldest));
        }
        while self.of_senders.len() >= REFUSED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(oldest);
        }
        let refused = Refused { refusal, cookie, told: false, retries: 0, listed: false };
        self.of_senders.insert(sender, refused);
        self.of_peers.entry(sender.0).or_default().push_back(sender.1);
        self.order.push_back(sender);
        if self.order.len() > 2 * REFUSED_MAX {
            let Refusals { order, of_senders, .. } = self;
            order.retain(|sender| of_senders.contains_key(sender));
        }
    }

    /// A sender has heard of it.
    pub(crate) fn told(&mut self, sender: Sender, cookie: u64) {
        if let Some(refused) = self.of_senders.get_mut(&sender)
            && is_same(refused.cookie, cookie)
        {
            refused.told = true;
        }
    }

    /// A sender has not heard of it: it is told again then.
    pub(crate) fn tell_again(&mut self, due: Time, sender: Sender, cookie: u64) {
        if let Some(refused) = self.of_senders.get_mut(&sender)
            && is_same(refused.cookie, cookie)
            && !refused.told
            && !refused.listed
            && refused.retries < RETRIES_MAX
        {
            refused.retries += 1;
            refused.listed = true;
            self.untold.push(due, sender);
        }
    }

    /// The next that is told again, and of what.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Sender, Option<(Refusal, u64)>)> {
        let sender = self.untold.pop_due(now)?;
        let Some(refused) = self.of_senders.get_mut(&sender) else { return Some((sender, None)) };
        refused.listed = false;
        Some((sender, (!refused.told).then_some((refused.refusal, refused.cookie))))
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.untold.next_due()
    }

    /// A sender is gone.
    pub(crate) fn forget(&mut self, sender: Sender) {
        let Some(refused) = self.of_senders.remove(&sender) else { return };
        if refused.listed {
            self.untold.retain(|other| *other != sender);
        }
        let Some(of_peer) = self.of_peers.get_mut(&sender.0) else {
            return bug!("a sender is of no peer");
        };
        of_peer.retain(|vqp| *vqp != sender.1);
        if of_peer.is_empty() {
            self.of_peers.remove(&sender.0);
        }
    }

    /// Checks what stands in one place against the others.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let of_peers: usize = self.of_peers.values().map(VecDeque::len).sum();
        let listed = self.of_senders.values().filter(|refused| refused.listed).count();
        let untold = self.untold.len();
        if of_peers != self.of_senders.len() || listed != untold {
            let count = self.of_senders.len();
            return Err(format!(
                "{count} refused senders, {of_peers} of peers; {listed}, {untold}"
            ));
        }
        Ok(())
    }
}

/// Whether two messages of a sender are of one connection.
fn is_same(cookie: u64, other: u64) -> bool {
    cookie >> 32 == other >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 7 << 32;

    fn peer(n: u32) -> PeerId {
        PeerId::numbered(n)
    }

    #[test]
    fn a_refusal_holds_for_its_connection_alone() {
        let mut refusals = Refusals::default();
        let sender = (peer(1), 5);
        refusals.refuse(sender, Refusal::Overrun, COOKIE + 3);
        assert_eq!(refusals.of(sender, COOKIE + 4), Some(Refusal::Overrun));
        assert_eq!(refusals.of((peer(1), 6), COOKIE + 4), None);
        assert_eq!(refusals.of((peer(2), 5), COOKIE + 4), None);
        assert_eq!(refusals.of(sender, COOKIE << 1), None, "it has connected anew");
        refusals.refuse(sender, Refusal::Port, COOKIE << 1);
        assert_eq!(refusals.of(sender, COOKIE << 1), Some(Refusal::Port));
        refusals.audit().unwrap();
    }

    #[test]
    fn who_has_not_heard_is_told_again_until_he_has_and_so_often_at_most() {
        let mut refusals = Refusals::default();
        let sender = (peer(1), 5);
        refusals.refuse(sender, Refusal::Overrun, COOKIE);
        for n in 0..u64::from(RETRIES_MAX) {
            refusals.tell_again(Time(n + 1), sender, COOKIE);
            refusals.tell_again(Time(n + 1), sender, COOKIE);
            assert_eq!(refusals.pop_due(Time(n)), None);
            let again = Some((sender, Some((Refusal::Overrun, COOKIE))));
            assert_eq!((refusals.pop_due(Time(n + 1)), refusals.next_due()), (again, None));
            refusals.audit().unwrap();
        }
        refusals.tell_again(Time(100), sender, COOKIE);
        assert_eq!(refusals.next_due(), None);
        // Another message is refused: it begins anew.
        refusals.refuse(sender, Refusal::Overrun, COOKIE + 1);
        refusals.tell_again(Time(100), sender, COOKIE + 1);
        refusals.told(sender, COOKIE << 1);
        assert_eq!(refusals.next_due(), Some(Time(100)), "that was of another connection");
        refusals.told(sender, COOKIE);
        assert_eq!(refusals.pop_due(Time(100)), Some((sender, None)));
        assert!(refusals.of(sender, COOKIE + 9).is_some(), "what is on its way is refused still");
    }

    #[test]
    fn so_many_are_remembered_of_a_peer_and_in_all() {
        let mut refusals = Refusals::default();
        for vqp in 0..=OF_PEER_MAX as u32 {
            refusals.refuse((peer(1), vqp), Refusal::Port, COOKIE);
            refusals.tell_again(Time(1), (peer(1), vqp), COOKIE);
        }
        assert_eq!(refusals.of((peer(1), 0), COOKIE), None, "its oldest gave way");
        assert_eq!(refusals.of_senders.len(), OF_PEER_MAX);
        for n in 0..3 * REFUSED_MAX as u32 {
            refusals.refuse((peer(2 + n / 200), n), Refusal::Port, COOKIE);
        }
        assert_eq!(refusals.of_senders.len(), REFUSED_MAX);
        assert!(refusals.order.len() <= 2 * REFUSED_MAX && refusals.untold.len() == 0);
        refusals.audit().unwrap();
    }
}
