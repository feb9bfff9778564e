//! Where every key, QPN, PSN, rkey, nonce and id of the house comes from.
//!
//! Peers see some of these numbers, and must not learn others from them: not the next one, and not
//! those that other peers were given. So there are two sources:
//!
//! - [`Rng`], ChaCha20 as a generator: who has all its outputs but one cannot compute that one.
//!   What belongs to one object is drawn from it.
//! - [`KeyedHash`], SipHash-2-4 under a key of the generator's: what must be the same whenever the
//!   same peer is met, and tell nothing about any other peer's.
//!
//! Neither asks the operating system: in real time the [`Seed`] is 32 bytes of its generator's; a
//! simulation or a test gives a number, and replays.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::hash::Hasher;
use core::net::IpAddr;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng as _, SeedableRng};
use siphasher::sip::SipHasher24;

/// What a generator starts from.
#[derive(Clone)]
pub struct Seed([u8; 32]);

impl From<[u8; 32]> for Seed {
    fn from(bytes: [u8; 32]) -> Seed {
        Seed(bytes)
    }
}

/// For runs that replay. Such a seed has 64 bits at most, and is not for keys that anyone attacks.
impl From<u64> for Seed {
    fn from(number: u64) -> Seed {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Seed(bytes)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A generator of numbers that cannot be foreseen (ChaCha20, RFC 8439, by 64-bit block counter).
pub struct Rng(ChaCha20Rng);

impl Rng {
    /// A generator that gives the same for the same seed.
    pub fn new(seed: impl Into<Seed>) -> Rng {
        Rng(ChaCha20Rng::from_seed(seed.into().0))
    }

    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Another generator, of which this one's outputs tell nothing, nor the other way round.
    pub fn fork(&mut self) -> Rng {
        let mut seed = [0; 32];
        self.0.fill_bytes(&mut seed);
        Rng::new(seed)
    }

    /// A keyed hash with a key of its own.
    pub fn keyed_hash(&mut self) -> KeyedHash {
        KeyedHash([self.next_u64(), self.next_u64()])
    }
}

/// Not one word of its state is shown.
impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng(..)")
    }
}

/// A pseudo-random function of an address and some words (SipHash-2-4): who knows its values for
/// some cannot tell those for others.
pub struct KeyedHash([u64; 2]);

impl KeyedHash {
    /// The value for an address and words that go with it.
    pub fn of<const N: usize>(&self, address: IpAddr, words: [u64; N]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        let bytes = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        hasher.write(&bytes);
        for word in words {
            hasher.write(&word.to_le_bytes());
        }
        hasher.finish()
    }
}

/// Its key is not shown.
impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHash(..)")
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::format;

    use super::*;

    /// The key stream of RFC 8439, A.1, test vectors 1 and 2: key and nonce 0, blocks 0 and 1. A
    /// generator whose next number follows from those before would not give these.
    #[test]
    fn it_is_chacha20() {
        let mut rng = Rng::new([0; 32]);
        let first = [0xade0_b876, 0x903d_f1a0, 0xe56a_5d40, 0x28bd_8653];
        assert_eq!(first, [(); 4].map(|()| rng.next_u32()));
        for _ in 4..16 {
            rng.next_u32();
        }
        assert_eq!(rng.next_u32(), 0xbee7_079f);
    }

    #[test]
    fn a_seed_replays_and_another_differs() {
        let draw = |seed: u64| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.fork().next_u64(), u64::from(rng.next_u32())]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(draw(7)[0], draw(7)[1]);
    }

    /// The reference's value for key 00..0f and input 00..0f (SipHash-2-4, appendix A of the paper
    /// has the first 15 bytes; its `vectors.h` this one).
    #[test]
    fn the_hash_is_siphash_and_keeps_peers_apart() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let bytes: [u8; 16] = core::array::from_fn(|at| at as u8);
        assert_eq!(KeyedHash(key).of(IpAddr::from(bytes), []), 0x3f2a_cc7f_57c2_9bdb);
        let hash = Rng::new(1).keyed_hash();
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        assert_ne!(hash.of(a, [1]), hash.of(b, [1]));
        assert_ne!(hash.of(a, [1]), hash.of(a, [2]));
        assert_ne!(hash.of(a, [1]), Rng::new(2).keyed_hash().of(a, [1]));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let shown = format!("{:?} {:?} {:?}", Seed::from(5), Rng::new(5), Rng::new(5).keyed_hash());
        assert_eq!(shown, "Seed(..) Rng(..) KeyedHash(..)");
    }
}
