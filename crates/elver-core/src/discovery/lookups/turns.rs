//! Whose look-up of a region is next: accounts take turns, and the peers of each. No peer has more than its share
//! under way, so that one that answers nothing leaves buffers to others, and no account more than half of what
//! others leave.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::ids::PeerId;

/// A region: its owner and its rkey.
pub(crate) type Region = (PeerId, u32);

/// One peer has this part of all that may be under way.
const PEER_PART: u32 = 4;

/// Look-ups that wait for their turn, and how many are under way.
#[derive(Debug)]
pub(crate) struct Turns {
    accounts: HashMap<u64, OfAccount, FxBuildHasher>,
    /// Accounts that have any that wait, the next one first.
    ring: VecDeque<u64>,
    /// Under way, of each peer that has any.
    of_peers: HashMap<PeerId, u32, FxBuildHasher>,
    under_way: u32,
    /// So many may be.
    limit: u32,
}

/// Those of an account.
#[derive(Debug, Default)]
struct OfAccount {
    queues: HashMap<PeerId, VecDeque<u32>, FxBuildHasher>,
    /// The peers of these, the next one first.
    ring: VecDeque<PeerId>,
    under_way: u32,
}

impl Turns {
    pub(crate) fn new(limit: u32) -> Turns {
        let (accounts, of_peers) = (HashMap::default(), HashMap::default());
        Turns { accounts, ring: VecDeque::new(), of_peers, under_way: 0, limit }
    }

    /// A look-up waits for its turn, behind those of its account at its peer.
    pub(crate) fn push(&mut self, account: u64, (peer, rkey): Region) {
        let of_account = self.accounts.entry(account).or_default();
        if of_account.ring.is_empty() {
            self.ring.push_back(account);
        }
        let queue = of_account.queues.entry(peer).or_default();
        if queue.is_empty() {
            of_account.ring.push_back(peer);
        }
        queue.push_back(rkey);
    }

    /// The next one, and whose turn that is; none if none has room.
    pub(crate) fn next(&mut self) -> Option<(u64, Region)> {
        for _ in 0..self.ring.len() {
            let account = self.ring.pop_front()?;
            let region = self.next_of(account);
            if self.accounts.get(&account).is_some_and(|of_account| !of_account.ring.is_empty()) {
                self.ring.push_back(account);
            }
            self.drop_idle(account);
            if let Some(region) = region {
                return Some((account, region));
            }
        }
        None
    }

    fn next_of(&mut self, account: u64) -> Option<Region> {
        let of_account = self.accounts.get_mut(&account)?;
        let left = self.limit.saturating_sub(self.under_way - of_account.under_way);
        let is_first = of_account.under_way == 0 && left > 0;
        if of_account.under_way + 1 > left / 2 && !is_first {
            return None;
        }
        for _ in 0..of_account.ring.len() {
            let peer = of_account.ring.pop_front()?;
            let of_peer = self.of_peers.get(&peer).copied().unwrap_or(0);
            if of_peer >= (self.limit / PEER_PART).max(1) {
                of_account.ring.push_back(peer);
                continue;
            }
            let queue = of_account.queues.get_mut(&peer)?;
            let rkey = queue.pop_front()?;
            if queue.is_empty() {
                of_account.queues.remove(&peer);
            } else {
                of_account.ring.push_back(peer);
            }
            return Some((peer, rkey));
        }
        None
    }

    /// One that had its turn is under way.
    pub(crate) fn began(&mut self, account: u64, peer: PeerId) {
        self.under_way += 1;
        self.accounts.entry(account).or_default().under_way += 1;
        *self.of_peers.entry(peer).or_default() += 1;
    }

    /// It is no longer.
    pub(crate) fn ended(&mut self, account: u64, peer: PeerId) {
        count_off!(self.under_way, 1);
        match self.accounts.get_mut(&account) {
            Some(of_account) => count_off!(of_account.under_way, 1),
            None => bug!("a look-up that ends is of no account"),
        }
        self.drop_idle(account);
        let Some(of_peer) = self.of_peers.get_mut(&peer) else {
            return bug!("a look-up that ends is at no peer");
        };
        count_off!(*of_peer, 1);
        if *of_peer == 0 {
            self.of_peers.remove(&peer);
        }
    }

    /// Drops those that nobody waits for any longer.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(Region) -> bool) {
        for of_account in self.accounts.values_mut() {
            for (peer, queue) in &mut of_account.queues {
                queue.retain(|rkey| is_wanted((*peer, *rkey)));
            }
            of_account.queues.retain(|_, queue| !queue.is_empty());
            let queues = &of_account.queues;
            of_account.ring.retain(|peer| queues.contains_key(peer));
        }
        self.accounts.retain(|_, of| of.under_way > 0 || !of.ring.is_empty());
        let accounts = &self.accounts;
        self.ring.retain(|account| accounts.get(account).is_some_and(|of| !of.ring.is_empty()));
    }

    /// Whether any of a peer's is under way.
    pub(crate) fn has_any(&self, peer: PeerId) -> bool {
        self.of_peers.contains_key(&peer)
    }

    /// How many are under way, and of a peer.
    pub(crate) fn counts(&self) -> (u32, impl Iterator<Item = (PeerId, u32)>) {
        (self.under_way, self.of_peers.iter().map(|(peer, count)| (*peer, *count)))
    }

    /// Whether one waits for its turn.
    pub(crate) fn waits(&self, (peer, rkey): Region) -> bool {
        let mut queues = self.accounts.values().filter_map(|of| of.queues.get(&peer));
        queues.any(|queue| queue.contains(&rkey))
    }

    fn drop_idle(&mut self, account: u64) {
        if self.accounts.get(&account).is_some_and(|of| of.under_way == 0 && of.ring.is_empty()) {
            self.accounts.remove(&account);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn peer(n: u32) -> PeerId {
        PeerId::numbered(n)
    }

    /// Begins all that may be; which.
    fn begin(turns: &mut Turns) -> Vec<(u64, Region)> {
        let mut begun = Vec::new();
        while let Some((account, region)) = turns.next() {
            turns.began(account, region.0);
            begun.push((account, region));
        }
        begun
    }

    #[test]
    fn a_peer_has_its_share_and_an_account_half_of_what_others_leave() {
        let mut turns = Turns::new(96);
        for rkey in 0..200 {
            turns.push(1, (peer(1), rkey));
        }
        let begun = begin(&mut turns);
        assert!(begun.iter().map(|(_, region)| *region).eq((0..24).map(|rkey| (peer(1), rkey))));
        // Of another peer's it has as many, and then no more.
        for rkey in 0..400 {
            turns.push(1, (peer(2 + rkey % 4), rkey));
        }
        assert_eq!(begin(&mut turns).len(), 48 - 24);
        for (account, least) in [(2, 24), (3, 12), (4, 6)] {
            turns.push(account, (peer(1), 0));
            for rkey in 0..100 {
                turns.push(account, (peer(10 + account as u32), rkey));
            }
            assert_eq!(begin(&mut turns).len(), least, "of account {account}");
        }
        assert_eq!(turns.counts().0, 90);
        turns.ended(1, peer(1));
        assert_eq!(turns.next(), None, "they have what they may");
        turns.push(5, (peer(1), 7));
        assert_eq!(turns.next(), Some((5, (peer(1), 7))));
    }

    #[test]
    fn accounts_take_turns_and_so_do_the_peers_of_each() {
        let mut turns = Turns::new(96);
        for rkey in 0..4 {
            turns.push(1, (peer(1), rkey));
        }
        turns.push(1, (peer(2), 9));
        turns.push(2, (peer(1), 7));
        let order: Vec<(u64, u32)> = begin(&mut turns).iter().map(|(of, at)| (*of, at.1)).collect();
        assert_eq!(order, [(1, 0), (2, 7), (1, 9), (1, 1), (1, 2), (1, 3)]);
        for (account, at) in [(1, 1), (2, 1), (1, 2), (1, 1), (1, 1), (1, 1)] {
            turns.ended(account, peer(at));
        }
        assert!(turns.accounts.is_empty() && turns.of_peers.is_empty() && turns.ring.is_empty());
    }

    #[test]
    fn what_nobody_wants_goes() {
        let mut turns = Turns::new(8);
        for rkey in 0..10 {
            turns.push(u64::from(rkey % 2), (peer(1 + rkey % 3), rkey));
        }
        turns.retain(|(_, rkey)| rkey == 4);
        assert!(turns.waits((peer(2), 4)) && !turns.waits((peer(3), 2)));
        assert_eq!(begin(&mut turns), [(0, (peer(2), 4))]);
        turns.ended(0, peer(2));
        assert!(turns.accounts.is_empty() && turns.ring.is_empty());
    }
}
