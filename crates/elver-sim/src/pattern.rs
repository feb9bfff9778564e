//! Bytes that are a function of whom they belong to, so that any byte of a run's memory tells
//! whether it is right without a second copy of the memory.

use crate::rng::mix;

/// A stream of bytes without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// What memory holds before anything is written to it.
    Fill(u64),
    /// The message of a WR. Its first 8 bytes are the number itself, little-endian, so that a
    /// receiver can tell whose it is.
    Payload(u64),
}

const WORD: u64 = 8;

impl Stream {
    #[inline]
    fn word(self, index: u64) -> u64 {
        match self {
            Stream::Payload(id) if index == 0 => id,
            Stream::Payload(id) => {
                mix(id.rotate_left(32) ^ index.wrapping_mul(0x2545_f491_4f6c_dd1d))
            }
            Stream::Fill(id) => {
                mix(!id.rotate_left(32) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            }
        }
    }

    /// Calls `piece` with each run of at most 8 bytes from `offset` on that lies in one word.
    #[inline]
    fn pieces(self, offset: u64, len: usize, mut piece: impl FnMut(usize, &[u8]) -> bool) -> bool {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let word = self.word(at / WORD).to_le_bytes();
            let skip = (at % WORD) as usize;
            let count = (WORD as usize - skip).min(len - done);
            if !piece(done, &word[skip..skip + count]) {
                return false;
            }
            done += count;
        }
        true
    }

    /// Writes the stream's bytes from `offset` on.
    pub(crate) fn write(self, offset: u64, dst: &mut [u8]) {
        let len = dst.len();
        self.pieces(offset, len, |at, bytes| {
            dst[at..at + bytes.len()].copy_from_slice(bytes);
            true
        });
    }

    /// Whether `bytes` are the stream's from `offset` on.
    pub(crate) fn matches(self, offset: u64, bytes: &[u8]) -> bool {
        self.pieces(offset, bytes.len(), |at, expected| bytes[at..at + expected.len()] == *expected)
    }

    /// How many of `bytes`, from the first on, are the stream's from `offset` on.
    pub(crate) fn common(self, offset: u64, bytes: &[u8]) -> usize {
        let mut common = 0;
        self.pieces(offset, bytes.len(), |at, expected| {
            let found = &bytes[at..at + expected.len()];
            common = at + found.iter().zip(expected).take_while(|(a, b)| a == b).count();
            found == expected
        });
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_matches_the_whole() {
        for stream in [Stream::Fill(3), Stream::Payload(3)] {
            let mut whole = [0; 100];
            stream.write(0, &mut whole);
            for start in 0..20 {
                assert!(stream.matches(start, &whole[start as usize..]));
                assert_eq!(stream.common(start, &whole[start as usize..]), 100 - start as usize);
            }
            whole[50] ^= 1;
            assert!(!stream.matches(0, &whole));
            assert_eq!(stream.common(3, &whole[3..]), 47);
        }
    }

    #[test]
    fn a_payload_begins_with_its_number() {
        let mut head = [0; 8];
        Stream::Payload(0x1234).write(0, &mut head);
        assert_eq!(u64::from_le_bytes(head), 0x1234);
    }
}
