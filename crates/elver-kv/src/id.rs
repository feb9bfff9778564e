use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// What tells a table from all others, those that lay in the same memory before it included.
///
/// Both numbers are the caller's to draw from a good random source when it creates the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId {
    /// Keys the hash, so that nobody who does not know it can aim many keys at one bucket.
    pub seed: u64,
    /// Stands in every cluster: a reader whose descriptor is of an older table learns so.
    pub incarnation: u32,
}

impl TableId {
    /// The bucket of a key, of `buckets`.
    #[inline]
    pub(crate) fn bucket(&self, key: &[u8], buckets: u32) -> u32 {
        // No cluster has this index, so that bucket hashes and checksums are of different keys.
        let hash = self.hash(u32::MAX, key);
        ((u128::from(hash) * u128::from(buckets)) >> 64) as u32
    }

    /// The checksum of the cluster at `index`, whose bytes behind the checksum are `body`.
    #[inline]
    pub(crate) fn checksum(&self, index: u32, body: &[u8]) -> u64 {
        self.hash(index, body)
    }

    #[inline]
    fn hash(&self, index: u32, bytes: &[u8]) -> u64 {
        let place = u64::from(self.incarnation) << 32 | u64::from(index);
        let secrets = RapidSecrets::seed_cpp(self.seed ^ place);
        // The form for some hundred bytes, with the final mixing, and protected: no word hides others.
        rapidhash_v3_micro_inline::<true, true>(bytes, &secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_matters() {
        let id = TableId { seed: 1, incarnation: 2 };
        let sum = id.checksum(3, b"body");
        assert_eq!(sum, id.checksum(3, b"body"));
        assert_ne!(sum, id.checksum(4, b"body"));
        assert_ne!(sum, id.checksum(3, b"bodz"));
        assert_ne!(sum, TableId { seed: 9, ..id }.checksum(3, b"body"));
        assert_ne!(sum, TableId { incarnation: 9, ..id }.checksum(3, b"body"));
    }

    #[test]
    fn buckets_are_in_range_and_all_are_used() {
        let id = TableId { seed: 7, incarnation: 7 };
        let mut used = [0u32; 7];
        for key in 0u32..700 {
            used[id.bucket(&key.to_le_bytes(), 7) as usize] += 1;
        }
        assert!(used.iter().all(|n| (60..140).contains(n)), "{used:?}");
    }

    #[test]
    fn the_hash_is_part_of_the_format() {
        let id = TableId { seed: 0x0706_0504_0302_0100, incarnation: 0x0f0e_0d0c };
        let body: [u8; 248] = core::array::from_fn(|at| at as u8);
        assert_eq!(id.checksum(0x0b0a_0908, &body), 12_724_002_820_876_257_789);
        assert_eq!(id.bucket(&body[..16], u32::MAX), 1_138_853_614);
    }
}
