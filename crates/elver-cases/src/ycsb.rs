//! YCSB's workload C: READs alone, of keys by Zipf's law (Cooper and others, SoCC 2010, section 4.1).

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use rand_distr::{Distribution, Zipf};

use crate::store::{Key, key};

/// YCSB's constant of the law.
const SKEW: f64 = 0.99;

/// Keys without end, the same for the same seed. Those that are asked for most are scattered over the records
/// (YCSB's "scrambled" form).
///
/// # Panics
/// Without records.
pub fn keys(records: u32, seed: u64) -> impl Iterator<Item = Key> {
    let law = Zipf::new(f64::from(records), SKEW).expect("there are records");
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let rank = law.sample(&mut random) as u64;
        let scattered = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        key((scattered % u64::from(records)) as u32)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn some_are_asked_for_far_more_than_others() {
        let mut asked = HashMap::new();
        for key in keys(1_000, 3).take(100_000) {
            *asked.entry(key).or_insert(0_u32) += 1;
        }
        let mut most: Vec<_> = asked.values().copied().collect();
        most.sort_unstable();
        // The first rank has 1/7.7 of a thousand records' READs.
        let share = f64::from(*most.last().unwrap()) / 100_000.0;
        assert!((0.11..0.16).contains(&share), "{share}");
        let known: Vec<_> = (0..1_000).map(key).collect();
        assert!(asked.keys().all(|key| known.contains(key)));
    }
}
