use alloc::collections::VecDeque;

use crate::ids::PeerId;

use elver_control::MR_VALUE_BYTES;
use elver_verbs::{AccessFlags, RemoteAddr, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Regions of peers that were found in their ValidMR tables (section 4.2), each for a lease.
#[derive(Debug)]
pub(crate) struct MrStore {
    regions: HashMap<(PeerId, u32), RemoteMr, FxBuildHasher>,
    /// Keys in the order in which they were learned. Leases are each peer's own, so that one may end ahead of some before it:
    /// it is not found any longer, and goes when these do.
    order: VecDeque<((PeerId, u32), Time)>,
    limit: usize,
}

/// A peer's region as its ValidMR table told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteMr {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    /// It counts as checked until then.
    pub(crate) until: Time,
}

impl RemoteMr {
    /// The value that ValidMR keeps under the region's rkey.
    pub(crate) fn encode(addr: u64, length: u64, access: AccessFlags) -> [u8; MR_VALUE_BYTES] {
        let mut value = [0; MR_VALUE_BYTES];
        value[..8].copy_from_slice(&addr.to_le_bytes());
        value[8..16].copy_from_slice(&length.to_le_bytes());
        value[16..].copy_from_slice(&access.bits().to_le_bytes());
        value
    }

    /// The region that a value tells, if it is one.
    pub(crate) fn decode(value: &[u8], until: Time) -> Option<RemoteMr> {
        let value: &[u8; MR_VALUE_BYTES] = value.try_into().ok()?;
        let (addr, rest) = value.split_first_chunk()?;
        let (length, access) = rest.split_first_chunk()?;
        let (addr, length) = (u64::from_le_bytes(*addr), u64::from_le_bytes(*length));
        addr.checked_add(length)?;
        let access = AccessFlags::from_bits(u32::from_le_bytes(access.try_into().ok()?))?;
        Some(RemoteMr { addr, length, access, until })
    }

    /// Whether an access of `length` bytes lies in the region and is permitted.
    #[inline]
    pub(crate) fn permits(&self, at: &RemoteAddr, length: u32, needs: AccessFlags) -> bool {
        self.holds(at.addr, length) && self.access.contains(needs)
    }

    /// Whether so many bytes from an address on lie in the region.
    #[inline]
    pub(crate) fn holds(&self, addr: u64, length: u32) -> bool {
        let offset = addr.wrapping_sub(self.addr);
        addr >= self.addr && offset <= self.length && self.length - offset >= u64::from(length)
    }
}

impl MrStore {
    pub(crate) fn new(limit: u32) -> MrStore {
        let limit = limit.max(1) as usize;
        MrStore { regions: HashMap::default(), order: VecDeque::new(), limit }
    }

    /// The region of a peer's under `rkey`, if its lease runs.
    pub(crate) fn get(&self, peer: PeerId, rkey: u32, now: Time) -> Option<RemoteMr> {
        self.regions.get(&(peer, rkey)).filter(|mr| now < mr.until).copied()
    }

    /// Remembers a region. Those that were learned first give way.
    pub(crate) fn put(&mut self, peer: PeerId, rkey: u32, mr: RemoteMr) {
        let key = (peer, rkey);
        self.regions.insert(key, mr);
        self.order.push_back((key, mr.until));
        while self.regions.len() > self.limit || self.order.len() > 2 * self.limit {
            self.drop_oldest();
        }
    }

    /// Forgets what has run out (KRCORE flushes MRStore).
    #[inline]
    pub(crate) fn flush(&mut self, now: Time) {
        while self.order.front().is_some_and(|(_, until)| *until <= now) {
            self.drop_oldest();
        }
    }

    /// Forgets a region: the peer denied it.
    pub(crate) fn forget(&mut self, peer: PeerId, rkey: u32) {
        self.regions.remove(&(peer, rkey));
    }

    /// Forgets all regions of a peer.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.regions.retain(|(of, _), _| *of != peer);
    }

    pub(crate) fn bytes(&self) -> u64 {
        let region = size_of::<((PeerId, u32), RemoteMr)>() + 1;
        let order = size_of::<((PeerId, u32), Time)>();
        (self.regions.capacity() * region + self.order.capacity() * order) as u64
    }

    fn drop_oldest(&mut self) {
        if let Some((key, until)) = self.order.pop_front()
            && self.regions.get(&key).is_some_and(|mr| mr.until == until)
        {
            self.regions.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PEER: PeerId = PeerId::numbered(1);
    const READ: AccessFlags = AccessFlags::REMOTE_READ;

    fn region(until: u64) -> RemoteMr {
        RemoteMr { addr: 100, length: 50, access: READ, until: Time(until) }
    }

    #[test]
    fn a_lease_ends() {
        let mut store = MrStore::new(4);
        store.put(PEER, 2, region(10));
        assert_eq!(store.get(PEER, 2, Time(9)), Some(region(10)));
        assert_eq!(
            (store.get(PEER, 2, Time(10)), store.get(PeerId::numbered(2), 2, Time(0))),
            (None, None)
        );
        store.put(PEER, 2, region(20));
        store.flush(Time(15));
        assert_eq!(store.get(PEER, 2, Time(15)), Some(region(20)));
        store.flush(Time(20));
        assert_eq!((store.regions.len(), store.order.len()), (0, 0));
    }

    #[test]
    fn it_is_bounded() {
        let mut store = MrStore::new(4);
        for n in 0..100 {
            store.put(PEER, n % 7, region(u64::from(n)));
            assert!(store.regions.len() <= 4 && store.order.len() <= 8);
        }
        assert!(store.get(PEER, 99 % 7, Time(0)).is_some());
    }

    proptest! {
        #[test]
        fn what_is_permitted_lies_inside(
            addr in prop_oneof![0..300u64, any::<u64>()], length in prop_oneof![0..80u32, any::<u32>()],
        ) {
            let at = RemoteAddr { addr, rkey: 1 };
            let inside = u128::from(addr) >= 100 && u128::from(addr) + u128::from(length) <= 150;
            prop_assert_eq!(region(1).permits(&at, length, READ), inside);
            prop_assert!(!region(1).permits(&at, length, AccessFlags::REMOTE_WRITE));
        }

        #[test]
        fn values_survive(bytes in any::<[u8; MR_VALUE_BYTES]>()) {
            if let Some(mr) = RemoteMr::decode(&bytes, Time(0)) {
                prop_assert_eq!(RemoteMr::encode(mr.addr, mr.length, mr.access), bytes);
            }
        }
    }
}
