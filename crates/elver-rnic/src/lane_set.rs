use alloc::boxed::Box;

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// A set of a QP's lanes: a DCI has up to thousands, of which few hold WRs at a time.
#[derive(Debug)]
pub(crate) struct LaneSet(Box<[u64]>);

impl LaneSet {
    /// An empty set of lanes below `lanes`.
    pub(crate) fn new(lanes: usize) -> LaneSet {
        LaneSet((0..lanes.div_ceil(WORD)).map(|_| 0).collect())
    }

    #[inline]
    pub(crate) fn insert(&mut self, lane: usize) {
        self.0[lane / WORD] |= 1 << (lane % WORD);
    }

    #[inline]
    pub(crate) fn remove(&mut self, lane: usize) {
        self.0[lane / WORD] &= !(1 << (lane % WORD));
    }

    /// The lowest lane in the set that is not below `from`.
    #[inline]
    pub(crate) fn next_from(&self, from: usize) -> Option<usize> {
        let word = from / WORD;
        let rest = self.0.get(word)? >> (from % WORD);
        if rest != 0 {
            return Some(from + rest.trailing_zeros() as usize);
        }
        let later = self.0.iter().enumerate().skip(word + 1).find(|(_, bits)| **bits != 0);
        later.map(|(word, bits)| word * WORD + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn all(set: &LaneSet) -> Vec<usize> {
        let mut found = Vec::new();
        while let Some(lane) = set.next_from(found.last().map_or(0, |last| last + 1)) {
            found.push(lane);
        }
        found
    }

    #[test]
    fn finds_what_was_put_in_across_words() {
        let mut set = LaneSet::new(200);
        assert_eq!(set.next_from(0), None);
        for lane in [0, 63, 64, 127, 130, 199] {
            set.insert(lane);
        }
        assert_eq!(all(&set), [0, 63, 64, 127, 130, 199]);
        set.remove(63);
        set.remove(64);
        assert_eq!(set.next_from(1), Some(127));
        assert_eq!(
            (set.next_from(199), set.next_from(200), set.next_from(256)),
            (Some(199), None, None)
        );
    }

    #[test]
    fn has_no_lane_where_a_qp_has_none() {
        assert_eq!(LaneSet::new(0).next_from(0), None);
    }
}
