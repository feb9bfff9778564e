//! VQPs that messages made: whose messages each takes, and in which order they give way.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::VqpId;
use crate::ids::PeerId;

/// An accepted VQP by the VQP that is bound, the sender's node and the sender's VQP.
pub(crate) type AcceptKey = (VqpId, PeerId, u32);

/// What an accepted VQP has besides what all have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    /// What it is found by.
    pub(crate) key: AcceptKey,
    /// The message that made it was sent by another than its peer was known as: what that is now is looked
    /// up before it posts anything, and it has no lane until then.
    pub(crate) peer_unsure: bool,
}

/// What messages of one row have in common: the port, the sender's tag, node and VQP, and the secret of its connection.
/// One of another secret is heard, so that no farewell of the earlier connection is believed.
pub(crate) type Row = (u16, u16, PeerId, u32, u32);

/// Where the last message to a port went: its row; the VQP that is bound, and the one that is connected to
/// the sender. VQPs may have gone since.
#[derive(Clone, Copy, Debug)]
struct Last {
    key: Row,
    target: VqpId,
    source: VqpId,
}

/// All accepted VQPs of a node.
#[derive(Debug, Default)]
pub(crate) struct Accepts {
    /// Of those that take messages, with the secret of the sender's connection.
    by_sender: HashMap<AcceptKey, (VqpId, u32), FxBuildHasher>,
    all: Accepted,
    last: Option<Last>,
}

impl Accepts {
    /// How many there are.
    pub(crate) fn now(&self) -> u32 {
        self.all.now
    }

    /// The same, in order.
    pub(crate) fn in_order(&mut self) -> &mut Accepted {
        &mut self.all
    }

    /// Takes one in, that takes no messages yet. `is_there` tells which ids are not of the gone.
    pub(crate) fn push(&mut self, id: VqpId, is_there: impl Fn(VqpId) -> bool) {
        self.all.push(id, is_there);
    }

    /// One takes the messages of a sender from now on, whose connection has this secret.
    pub(crate) fn take_from(&mut self, key: AcceptKey, id: VqpId, nonce: u32) {
        self.by_sender.insert(key, (id, nonce));
    }

    /// One is none any longer.
    pub(crate) fn remove(&mut self, key: &AcceptKey, id: VqpId) {
        if self.get(key).is_some_and(|(accepted, _)| accepted == id) {
            self.by_sender.remove(key);
        }
        self.all.remove();
    }

    /// The one that takes a sender's messages, and the secret that these came with.
    pub(crate) fn get(&self, key: &AcceptKey) -> Option<(VqpId, u32)> {
        self.by_sender.get(key).copied()
    }

    /// The one that takes a sender's messages, if it does still; this one has come with a secret. `takes` is told whether
    /// that is the same as before.
    pub(crate) fn hear(
        &mut self,
        key: &AcceptKey,
        nonce: u32,
        takes: impl Fn(VqpId, bool) -> bool,
    ) -> Option<VqpId> {
        let taken = self.by_sender.get_mut(key);
        let (id, last) = taken.filter(|(id, last)| takes(*id, *last == nonce))?;
        *last = nonce;
        Some(*id)
    }

    /// Where the last message to a port went, if that was one of this sender's: to the VQP that is bound,
    /// and the accepted one.
    #[inline]
    pub(crate) fn last(&self, key: Row) -> Option<(VqpId, VqpId)> {
        let Last { key: last, target, source } = self.last?;
        (key == last).then_some((target, source))
    }

    /// A message to a port went there.
    pub(crate) fn set_last(&mut self, key: Row, target: VqpId, source: VqpId) {
        self.last = Some(Last { key, target, source });
    }

    /// Those that take messages, for [`crate::Core::audit`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&AcceptKey, VqpId)> {
        self.by_sender.iter().map(|(key, (id, _))| (key, *id))
    }
}

/// Accepted VQPs, in order.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// How many there are.
    now: u32,
    /// Which they are, those first that were made, or looked at, longest ago. Ids of the gone mean
    /// nothing.
    order: VecDeque<VqpId>,
}

/// Ids of the gone in an order of accepted VQPs, beyond as many as there are VQPs.
const GONE_MAX: usize = 64;

impl Accepted {
    /// Takes one in. `is_there` tells which ids are not of the gone.
    fn push(&mut self, id: VqpId, is_there: impl Fn(VqpId) -> bool) {
        self.now += 1;
        self.order.push_back(id);
        if self.order.len() > 2 * self.now as usize + GONE_MAX {
            self.order.retain(|id| is_there(*id));
        }
    }

    /// One has gone; its id is left where it stands.
    fn remove(&mut self) {
        count_off!(self.now, 1);
    }

    /// As many as can be looked at for one to give way, the gone included.
    pub(crate) fn listed(&self) -> usize {
        self.order.len()
    }

    /// The next that may give way.
    pub(crate) fn pop(&mut self) -> Option<VqpId> {
        self.order.pop_front()
    }

    /// It does not: it is looked at again after all others.
    pub(crate) fn put_back(&mut self, id: VqpId) {
        self.order.push_back(id);
    }
}

/// Accepted VQPs of a client.
#[derive(Debug, Default)]
pub(crate) struct AcceptedOf {
    all: Accepted,
    /// The same, by the peer that the messages came from.
    by_peer: HashMap<PeerId, Accepted, FxBuildHasher>,
}

impl AcceptedOf {
    /// How many there are.
    pub(crate) fn now(&self) -> u32 {
        self.all.now
    }

    /// How many of a peer.
    pub(crate) fn of(&self, peer: PeerId) -> u32 {
        self.by_peer.get(&peer).map_or(0, |of_peer| of_peer.now)
    }

    /// Those of a peer, or all, in order.
    pub(crate) fn in_order(&mut self, peer: Option<PeerId>) -> Option<&mut Accepted> {
        match peer {
            Some(peer) => self.by_peer.get_mut(&peer),
            None => Some(&mut self.all),
        }
    }

    /// A message of a peer's made a VQP. `is_there` tells which of them still are.
    pub(crate) fn push(&mut self, id: VqpId, peer: PeerId, is_there: impl Fn(VqpId) -> bool) {
        self.all.push(id, &is_there);
        self.by_peer.entry(peer).or_default().push(id, is_there);
    }

    /// A VQP that a message of a peer's made is none any longer.
    pub(crate) fn remove(&mut self, peer: PeerId) {
        self.all.remove();
        let Some(of_peer) = self.by_peer.get_mut(&peer) else {
            return bug!("a VQP that was accepted is of no peer");
        };
        of_peer.remove();
        if of_peer.now == 0 {
            self.by_peer.remove(&peer);
        }
    }

    /// How many there are of each peer.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (PeerId, u32)> {
        self.by_peer.iter().map(|(peer, of_peer)| (*peer, of_peer.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gone_do_not_pile_up() {
        let mut accepted = AcceptedOf::default();
        for id in 1..10_000 {
            accepted.push(VqpId(id), PeerId::numbered(id % 3 + 1), |other| other.0 + 2 > id);
            assert!(accepted.now() <= 2);
            let orders = [Some(1), Some(2), Some(3), None].map(|peer| {
                accepted.in_order(peer.map(PeerId::numbered)).map_or(0, |order| order.listed())
            });
            assert!(orders.iter().all(|len| *len <= GONE_MAX + 4), "{orders:?}");
            if id > 1 {
                accepted.remove(PeerId::numbered((id - 1) % 3 + 1));
            }
        }
        assert_eq!((accepted.now(), accepted.peers().count()), (1, 1));
    }

    #[test]
    fn a_sender_has_the_vqp_that_takes_its_messages_now() {
        let mut accepts = Accepts::default();
        let key = (VqpId(1), PeerId::numbered(2), 3);
        for id in [VqpId(7), VqpId(8)] {
            accepts.push(id, |_| true);
            accepts.take_from(key, id, 9);
        }
        assert_eq!(accepts.hear(&key, 10, |id, same| id == VqpId(8) && !same), Some(VqpId(8)));
        assert_eq!(accepts.hear(&key, 10, |_, same| !same), None);
        assert_eq!(accepts.hear(&key, 11, |_, _| false), None);
        assert_eq!(accepts.get(&key), Some((VqpId(8), 10)));
        // The one before it went later.
        accepts.remove(&key, VqpId(7));
        assert_eq!((accepts.get(&key), accepts.now()), (Some((VqpId(8), 10)), 1));
        accepts.remove(&key, VqpId(8));
        assert_eq!((accepts.get(&key), accepts.now()), (None, 0));
    }
}
