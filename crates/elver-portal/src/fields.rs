//! Reading an entry's words back, with checks.

use elver_verbs::Gid;

use crate::ring::{Violation, Writer};

/// The words of an entry that was copied out of shared memory.
pub(crate) struct Reader<'a> {
    words: &'a [u64],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(words: &'a [u64]) -> Reader<'a> {
        Reader { words }
    }

    /// The next word.
    #[inline]
    pub(crate) fn word(&mut self) -> Result<u64, Violation> {
        let (first, rest) = self.words.split_first().ok_or(Violation::Field { field: "length" })?;
        self.words = rest;
        Ok(*first)
    }

    pub(crate) fn gid(&mut self) -> Result<Gid, Violation> {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&self.word()?.to_le_bytes());
        gid[8..].copy_from_slice(&self.word()?.to_le_bytes());
        Ok(Gid(gid))
    }

    /// `len` bytes, in place of what `into` holds.
    pub(crate) fn bytes(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Violation> {
        let words = len.div_ceil(8);
        if words > self.words.len() {
            return Err(Violation::Field { field: "length" });
        }
        let (bytes, rest) = self.words.split_at(words);
        self.words = rest;
        into.clear();
        into.extend(bytes.iter().flat_map(|word| word.to_le_bytes()));
        into.truncate(len);
        Ok(())
    }
}

/// The low and the high half of a word.
#[inline]
pub(crate) fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A word of two halves.
#[inline]
pub(crate) fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// A byte of a word.
#[inline]
pub(crate) fn byte(word: u64, at: u32) -> u8 {
    (word >> (8 * at)) as u8
}

/// What a code stands for, if it stands for anything.
pub(crate) fn known<T>(word: Option<T>, field: &'static str) -> Result<T, Violation> {
    word.ok_or(Violation::Field { field })
}

/// A word that is 0 or 1.
pub(crate) fn flag(value: u8, field: &'static str) -> Result<bool, Violation> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation::Field { field }),
    }
}

/// The half of a word that a port takes.
pub(crate) fn port(value: u32, field: &'static str) -> Result<u16, Violation> {
    u16::try_from(value).map_err(|_| Violation::Field { field })
}

pub(crate) fn put_gid(writer: &mut Writer<'_>, gid: &Gid) {
    let (low, high) = gid.0.split_at(8);
    put_bytes(writer, low);
    put_bytes(writer, high);
}

/// Bytes, the last word of them filled up with zeros.
#[inline]
pub(crate) fn put_bytes(writer: &mut Writer<'_>, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        writer.put(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        writer.put(u64::from_le_bytes(word));
    }
}
