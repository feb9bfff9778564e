//! The one place where a ring's slots are touched, and the only `unsafe` of the crate.
//!
//! A peer may write a receiver's slots at any time, whatever the protocol says, so that no reference to
//! their bytes is made: they are read as atomics, relaxed, in words of 8 bytes where they are aligned. What
//! was read then stays what it was. The pointer that was read before, with acquire, orders them behind the
//! WRITEs that it tells of. A sender's slots are written by the sender alone; the node only reads them.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::protocol::Span;

/// Memory of a ring's slots, at this end.
pub struct Slots {
    start: NonNull<u8>,
    len: u64,
    /// Keeps it mapped.
    _owner: Box<dyn Any>,
}

impl Slots {
    /// Memory of `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes stay mapped while `owner` lives, `start` is aligned to 8 bytes, and nothing in this
    /// process holds a reference to them. Of a sender's slots, nobody but the value that is made here
    /// writes them while it lives.
    pub unsafe fn new(start: NonNull<u8>, len: u64, owner: Box<dyn Any>) -> Slots {
        assert!(start.cast::<u64>().is_aligned());
        Slots { start, len, _owner: owner }
    }

    /// Address of the first byte.
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The first byte of a span that lies inside.
    #[inline]
    fn at(&self, span: Span) -> *mut u8 {
        let end = span.offset.checked_add(span.len);
        assert!(end.is_some_and(|end| end <= self.len), "the span lies in the slots");
        // SAFETY: the span was just checked to lie inside the memory.
        unsafe { self.start.as_ptr().add(span.offset as usize) }
    }

    /// The bytes of a sender's slots, to be filled.
    ///
    /// # Safety
    /// The slots are a sender's, and no other reference to these bytes is there.
    #[inline]
    #[allow(clippy::mut_from_ref)] // What is promised is that there is one reference.
    pub(crate) unsafe fn fill(&self, span: Span) -> &mut [u8] {
        // SAFETY: the span lies inside (`at`); nobody else writes it (`new`), and the caller promises
        // that this is the only reference. The node reads it as registered memory is read, by copies
        // for which any bytes will do.
        unsafe { std::slice::from_raw_parts_mut(self.at(span), span.len as usize) }
    }

    /// Sets 8 aligned bytes.
    #[inline]
    pub(crate) fn set_word(&self, offset: u64, word: u64) {
        self.word_at(offset).store(word.to_le(), Ordering::Relaxed);
    }

    /// 8 aligned bytes, as they are now.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> u64 {
        u64::from_le(self.word_at(offset).load(Ordering::Relaxed))
    }

    #[inline]
    fn word_at(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(Span { offset, len: 8 });
        assert!(offset.is_multiple_of(8), "a word is aligned");
        // SAFETY: 8 bytes that lie inside, aligned as `start` is, and which nothing in this process
        // accesses but through this module.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Whole words that a peer may change at any time.
    #[inline]
    fn words(&self, span: Span) -> &[AtomicU64] {
        if span.len < 8 {
            return &[];
        }
        assert!(span.offset.is_multiple_of(8), "words are aligned");
        // SAFETY: the span lies inside (`at`), its words are aligned as `start` is, any bytes are a valid
        // `AtomicU64`, and no reference of another kind is made to a receiver's slots.
        unsafe { std::slice::from_raw_parts(self.at(span).cast(), span.len as usize / 8) }
    }

    /// Bytes that a peer may change at any time.
    #[inline]
    pub(crate) fn bytes(&self, span: Span) -> &[AtomicU8] {
        // SAFETY: the span lies inside (`at`), any byte is a valid `AtomicU8`, and no reference of
        // another kind is made to a receiver's slots.
        unsafe { std::slice::from_raw_parts(self.at(span).cast(), span.len as usize) }
    }

    /// The bytes of a receiver's slots as they are, without a copy.
    ///
    /// # Safety
    /// The peer does not write them while the slice is there.
    #[inline]
    pub(crate) unsafe fn trusted(&self, span: Span) -> &[u8] {
        // SAFETY: the span lies inside (`at`); the caller promises that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.at(span), span.len as usize) }
    }

    /// Copies bytes out that a peer may change at any time.
    ///
    /// # Panics
    /// If `dst` is not as long as the span.
    #[inline]
    pub(crate) fn copy_out(&self, span: Span, dst: &mut [u8]) {
        assert_eq!(span.len, dst.len() as u64);
        let (mut offset, mut rest) = (span.offset, dst);
        // Messages begin at a word; a part of one may not.
        while !offset.is_multiple_of(8) && !rest.is_empty() {
            let (byte, more) = rest.split_at_mut(1);
            byte[0] = self.byte(offset);
            (offset, rest) = (offset + 1, more);
        }
        let (words, last) = rest.as_chunks_mut::<8>();
        let len = 8 * words.len() as u64;
        let from = self.words(Span { offset, len });
        // A cache line at a time, for which the compiler has wider instructions.
        let (lines, more) = words.as_chunks_mut::<8>();
        let (from_lines, from_more) = from.as_chunks::<8>();
        for (line, from) in lines.iter_mut().zip(from_lines) {
            *line = std::array::from_fn(|at| from[at].load(Ordering::Relaxed).to_ne_bytes());
        }
        for (word, from) in more.iter_mut().zip(from_more) {
            *word = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        offset += len;
        for byte in last {
            *byte = self.byte(offset);
            offset += 1;
        }
    }

    #[inline]
    fn byte(&self, offset: u64) -> u8 {
        self.bytes(Span { offset, len: 1 })[0].load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        let memory: &'static mut [u64] = Box::leak(vec![0; 16].into_boxed_slice());
        let start = NonNull::from(memory).cast();
        // SAFETY: the memory is never given back, aligned, and nobody else has it.
        unsafe { Slots::new(start, 128, Box::new(())) }
    }

    #[test]
    fn any_part_is_copied_out() {
        let slots = slots();
        // SAFETY: the only reference, which ends here.
        let all = unsafe { slots.fill(Span { offset: 0, len: 128 }) };
        (0..128).for_each(|at| all[at] = at as u8);
        for offset in 0..40 {
            for len in 0..40 {
                let mut copied = vec![0; len];
                slots.copy_out(Span { offset: offset as u64, len: len as u64 }, &mut copied);
                let expected: Vec<u8> = (offset as u8..(offset + len) as u8).collect();
                assert_eq!(copied, expected);
            }
        }
    }

    #[test]
    #[should_panic(expected = "lies in the slots")]
    fn nothing_outside_is_touched() {
        slots().word(128);
    }
}
