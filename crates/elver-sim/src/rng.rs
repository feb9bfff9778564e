/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
///
/// Every concern of a run draws from a generator of its own, split off by name: a fault more does
/// not shift what the workload does.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// One in a million, as rates of faults are given.
pub(crate) const PPM: u32 = 1_000_000;

impl Rng {
    /// A generator that gives the same for the same seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A generator for one concern.
    pub fn split(&self, concern: &str) -> Rng {
        let name =
            concern.bytes().fold(self.0, |hash, byte| mix(hash.wrapping_add(u64::from(byte))));
        Rng(mix(name))
    }

    /// The next number, of all 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index into `len` things.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// One of some things, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.index(things.len())]
    }

    /// True so many times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.below(u64::from(PPM)) < u64::from(ppm)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.chance(percent * (PPM / 100))
    }
}

/// The finaliser of SplitMix64: a bijection whose output bits all depend on all input bits.
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concerns_do_not_disturb_each_other() {
        let root = Rng::new(7);
        let mut faults = root.split("faults");
        let first = root.split("workload").next_u64();
        faults.next_u64();
        assert_eq!(root.split("workload").next_u64(), first);
        assert_ne!(root.split("faults").next_u64(), first);
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(1);
        for _ in 0..1_000 {
            assert!((3..=5).contains(&rng.between(3, 5)));
        }
        assert!(!rng.chance(0));
        assert!(rng.chance(PPM));
    }
}
