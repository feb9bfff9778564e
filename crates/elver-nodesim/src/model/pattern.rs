//! Contents that tell by whom they were written: any 8 bytes of a WR's payload are its own.

use elver_sim::Rng;

/// The bytes of a payload. A message of 8 bytes and more begins with its id.
pub(crate) fn bytes(id: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len).div_ceil(8))
        .flat_map(|index| word(id, index).to_le_bytes())
        .take(len as usize)
        .collect()
}

/// One byte of a payload.
pub(crate) fn byte(id: u64, at: u64) -> u8 {
    word(id, at / 8).to_le_bytes()[(at % 8) as usize]
}

fn word(id: u64, index: u64) -> u64 {
    if index == 0 { id } else { Rng::new(id.rotate_left(24) ^ index).next_u64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_cut_anywhere_and_name_their_writer() {
        let whole = bytes(77, 100);
        assert_eq!(whole[..8], 77_u64.to_le_bytes());
        assert_eq!(bytes(77, 13), whole[..13]);
        assert!((0..100).all(|at| byte(77, at) == whole[at as usize]));
        assert_ne!(bytes(78, 100)[8..], whole[8..]);
    }
}
