//! Bytes that say where they belong, for memory that is read over the network.

/// Seed of the bytes that a target offers to be read.
pub const SEED: u64 = 1;

/// A byte that says where it belongs.
pub fn pattern(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(151)) as u8
}

/// The bytes from `at` on.
pub fn patterned(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| pattern(seed, at)).collect()
}
