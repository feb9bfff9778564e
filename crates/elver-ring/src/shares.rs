//! What a listener's peers have of it: of each node no more than its share, so that one leaves something to others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use elver::Gid;

/// What is taken, by the node that the other end is at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Rc<RefCell<HashMap<Gid, Taken>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    pairs: usize,
    bytes: u64,
}

/// A pair of rings that counts as its peer's, as long as this lives.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    gid: Gid,
    bytes: u64,
}

impl Shares {
    /// Counts a pair with so many bytes of slots, if its peer's node has less than `pairs_max` and stays within
    /// `bytes_max`.
    pub(crate) fn take(
        &self,
        gid: Gid,
        bytes: u64,
        (pairs_max, bytes_max): (usize, u64),
    ) -> Option<Share> {
        let mut shares = self.0.borrow_mut();
        let taken = shares.get(&gid).copied().unwrap_or_default();
        let all = taken.bytes.checked_add(bytes).filter(|all| *all <= bytes_max)?;
        if taken.pairs >= pairs_max {
            return None;
        }
        shares.insert(gid, Taken { pairs: taken.pairs + 1, bytes: all });
        Some(Share { shares: self.clone(), gid, bytes })
    }
}

impl Share {
    /// The node that it counts for.
    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.shares.0.borrow_mut();
        let Some(taken) = shares.get_mut(&self.gid) else { return };
        taken.pairs -= 1;
        taken.bytes -= self.bytes;
        if taken.pairs == 0 {
            shares.remove(&self.gid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_has_its_share_and_leaves_others_theirs() {
        let shares = Shares::default();
        let (one, other) = (Gid([1; 16]), Gid([2; 16]));
        let first = shares.take(one, 60, (2, 100)).unwrap();
        assert!(shares.take(one, 41, (2, 100)).is_none(), "bytes");
        let second = shares.take(one, 40, (2, 100)).unwrap();
        assert!(shares.take(one, 0, (2, 100)).is_none(), "pairs");
        let _others = shares.take(other, 100, (2, 100)).unwrap();
        drop(first);
        assert!(shares.take(one, u64::MAX, (2, u64::MAX)).is_none(), "more than there can be");
        let again = shares.take(one, 60, (2, 100)).unwrap();
        drop((second, again));
        assert_eq!(shares.0.borrow().len(), 1, "who has nothing takes no room");
    }
}
