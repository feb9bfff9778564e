//! Look-ups of regions at their owners: who waits for each, and which have their turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::VqpId;
use crate::ids::PeerId;

/// A region: its owner and its rkey.
pub(crate) type Region = (PeerId, u32);

/// Look-ups of regions.
#[derive(Debug, Default)]
pub(crate) struct MrLookups {
    under_way: HashMap<Region, MrLookup, FxBuildHasher>,
    /// Of these, the ones that wait for a buffer.
    queue: VecDeque<Region>,
}

/// The look-up of a region.
#[derive(Debug)]
pub(crate) struct MrLookup {
    /// For whom it is.
    pub(crate) account: u64,
    /// The region was there when it was looked up last, so that this is no guess.
    was_there: bool,
    /// The VQPs that wait.
    pub(crate) waiting: Vec<VqpId>,
}

impl MrLookups {
    /// A VQP waits for a region, which is being looked up. False if it is not.
    pub(crate) fn join(&mut self, region: Region, vqp: VqpId) -> bool {
        let found = self.under_way.get_mut(&region);
        found.map(|mr| mr.waiting.push(vqp)).is_some()
    }

    /// A region is to be looked up for a VQP of the account.
    pub(crate) fn begin(&mut self, region: Region, account: u64, was_there: bool, vqp: VqpId) {
        let mr = MrLookup { account, was_there, waiting: alloc::vec![vqp] };
        self.under_way.insert(region, mr);
        self.enqueue(region);
    }

    /// The look-up of a region waits for its turn.
    pub(crate) fn enqueue(&mut self, region: Region) {
        self.queue.push_back(region);
    }

    /// The region whose turn is next, and whose guess it may be.
    pub(crate) fn next(&self) -> Option<(Region, Option<u64>)> {
        let region = *self.queue.front()?;
        let guess = self.under_way.get(&region).filter(|mr| !mr.was_there);
        Some((region, guess.map(|mr| mr.account)))
    }

    /// It had its turn.
    pub(crate) fn pass(&mut self) {
        self.queue.pop_front();
    }

    /// The look-up of a region has ended.
    pub(crate) fn end(&mut self, region: Region) -> Option<MrLookup> {
        self.under_way.remove(&region)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether one of a peer's regions brings a VQP back.
    pub(crate) fn awaits(&self, peer: PeerId, vqp: VqpId) -> bool {
        self.under_way.iter().any(|((at, _), mr)| *at == peer && mr.waiting.contains(&vqp))
    }

    pub(crate) fn bytes(&self) -> usize {
        let entries = self.under_way.capacity() * (size_of::<(Region, MrLookup)>() + 1);
        entries + self.queue.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_one_region_waits_together_and_only_the_first_may_have_guessed() {
        let region = (PeerId::numbered(1), 7);
        let mut mrs = MrLookups::default();
        assert!(!mrs.join(region, VqpId(1)));
        mrs.begin(region, 5, false, VqpId(1));
        assert!(mrs.join(region, VqpId(2)));
        assert_eq!(mrs.next(), Some((region, Some(5))));
        mrs.pass();
        assert_eq!((mrs.next(), mrs.len()), (None, 1));
        assert!(mrs.awaits(region.0, VqpId(2)) && !mrs.awaits(PeerId::numbered(2), VqpId(2)));
        let ended = mrs.end(region).unwrap();
        assert_eq!((ended.account, ended.waiting), (5, alloc::vec![VqpId(1), VqpId(2)]));
        mrs.begin(region, 5, true, VqpId(3));
        assert_eq!(mrs.next(), Some((region, None)), "it was there before");
    }
}
