//! Copies for memory that threads of one process use at the same time: by whole aligned words, each of them read and
//! written at once, so that two such copies never race. What a longer copy meets is a mixture of old and new words.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::MemoryError;

use crate::SoftMemory;

const WORD: u64 = 8;

impl SoftMemory {
    /// As [`elver_verbs::Memory::read`], by words. Not of another process's memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] if the words that hold the range do not lie in the memory, and
    /// [`MemoryError::Misaligned`] if that does not begin at one.
    pub fn read_words(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        let (words, skip) = self.words(offset, dst.len() as u64)?;
        let (mut words, mut rest) = (words.iter(), dst);
        let mut at = skip;
        while let (false, Some(word)) = (rest.is_empty(), words.next()) {
            let bytes = word.load(Ordering::Acquire).to_ne_bytes();
            let some = rest.len().min(bytes.len() - at);
            let (now, later) = rest.split_at_mut(some);
            now.copy_from_slice(&bytes[at..at + some]);
            (rest, at) = (later, 0);
        }
        Ok(())
    }

    /// As [`elver_verbs::Memory::write`], by words: what else stands in the first and the last one stays, whoever
    /// writes it meanwhile. Not to another process's memory.
    ///
    /// # Errors
    /// As [`SoftMemory::read_words`].
    pub fn write_words(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        let (words, skip) = self.words(offset, src.len() as u64)?;
        let (mut words, mut rest) = (words.iter(), src);
        let mut at = skip;
        while let (false, Some(word)) = (rest.is_empty(), words.next()) {
            let (now, later) = rest.split_at(rest.len().min(WORD as usize - at));
            match now.try_into() {
                Ok(bytes) => word.store(u64::from_ne_bytes(bytes), Ordering::Release),
                Err(_) => replace(word, at, now),
            }
            (rest, at) = (later, 0);
        }
        Ok(())
    }

    /// The words that hold a range, and how many bytes of the first one stand before it.
    fn words(&self, offset: u64, len: u64) -> Result<(&[AtomicU64], usize), MemoryError> {
        self.at(offset, len)?;
        let skip = offset % WORD;
        let (first, count) = (offset - skip, (skip + len).div_ceil(WORD));
        let start = self.at(first, count * WORD)?;
        if !(start as usize).is_multiple_of(WORD as usize) {
            return Err(MemoryError::Misaligned { offset: first });
        }
        // SAFETY: `start` is valid for `count` words while `self` lives, and aligned; the memory is used by atomic words,
        // or by copies of a device's whose mixture the registrant accepts.
        let words = unsafe { slice::from_raw_parts(start.cast(), count as usize) };
        Ok((words, skip as usize))
    }
}

/// Replaces some bytes of a word.
fn replace(word: &AtomicU64, at: usize, by: &[u8]) {
    let replaced = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[at..at + by.len()].copy_from_slice(by);
        Some(u64::from_ne_bytes(bytes))
    };
    // It always gives a word.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, replaced);
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_verbs::Memory;

    #[test]
    fn every_range_is_copied_and_nothing_beside_it() {
        let memory = SoftMemory::alloc(64).unwrap();
        for offset in 0..=64_u64 {
            for len in 0..=64 - offset {
                memory.write(0, &[0xee; 64]).unwrap();
                let bytes: Vec<u8> = (1..=len as u8).collect();
                memory.write_words(offset, &bytes).unwrap();
                let mut expected = [0xee; 64];
                expected[offset as usize..][..len as usize].copy_from_slice(&bytes);
                let mut all = [0; 64];
                memory.read(0, &mut all).unwrap();
                assert_eq!(all, expected, "{len} bytes at {offset}");
                let mut read = vec![0; len as usize];
                memory.read_words(offset, &mut read).unwrap();
                assert_eq!(read, bytes);
            }
        }
    }

    #[test]
    fn what_does_not_lie_in_it_is_refused() {
        let memory = SoftMemory::alloc(4_096).unwrap().part(0, 60).unwrap();
        assert!(memory.read_words(48, &mut [0; 8]).is_ok());
        // The last word is a part of one.
        for (offset, len) in [(56, 2), (60, 1), (61, 0), (u64::MAX, 1), (0, 61)] {
            assert!(memory.write_words(offset, &vec![1; len]).is_err(), "{len} at {offset}");
        }
        let odd = SoftMemory::alloc(64).unwrap().part(4, 32).unwrap();
        assert_eq!(odd.read_words(9, &mut [0; 4]), Err(MemoryError::Misaligned { offset: 8 }));
    }

    #[test]
    fn neighbours_in_a_word_do_not_lose_each_other_s_bytes() {
        let memory = SoftMemory::alloc(64).unwrap();
        std::thread::scope(|scope| {
            for lane in 0..4_u64 {
                let memory = memory.clone();
                scope.spawn(move || {
                    let (offset, mut seen) = (3 * lane, [0; 3]);
                    for round in 0..20_000_u32 {
                        let bytes = [round as u8, (round >> 8) as u8, lane as u8];
                        memory.write_words(offset, &bytes).unwrap();
                        memory.read_words(offset, &mut seen).unwrap();
                        assert_eq!(seen, bytes);
                    }
                });
            }
        });
    }
}
