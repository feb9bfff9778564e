use core::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Numbers that nobody who sees some of them can continue: SipHash-1-3 of a counter under a key
/// that the seed gives. Access keys and ids are drawn from it, and peers see these.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    seed: u64,
    counter: u64,
}

/// Second half of the key; the first is the seed.
const KEY: u64 = 0x656c_7665_722d_636f;

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng { seed, counter: 0 }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.counter += 1;
        let mut hasher = SipHasher13::new_with_keys(self.seed, KEY);
        hasher.write_u64(self.counter);
        hasher.finish()
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_another_differs() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), u64::from(rng.next_u32())]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(draw(7)[0], draw(7)[1]);
    }
}
