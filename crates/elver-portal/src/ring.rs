//! Rings with one producer and one consumer, in memory that the other end may write at will.
//!
//! The consumer knows an entry by the tag in its slots, the number of the lap, and looks at no index
//! of the producer's: a message moves one cache line from core to core, not two. The consumer's
//! head goes back in a line of its own, at which the producer looks only when the ring seems full.

use thiserror::Error;

use crate::layout::{ENTRY_SLOTS_MAX, ENTRY_WORDS_MAX, PAYLOAD_WORDS, SLOT_WORDS};
use crate::memory::Words;
use crate::sync::{AtomicU64, Ordering};

/// What the other end must never do; it ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Violation {
    /// The consumer's head lies where it never was.
    #[error("the head of a ring lies outside of what was produced")]
    Head,
    /// An entry that claims to have no slots, or too many.
    #[error("an entry of {slots} slots")]
    Slots {
        /// How many it claims.
        slots: u8,
    },
    /// An entry whose later slots were not written.
    #[error("an entry that was not written whole")]
    Torn,
    /// An entry of a kind that there is none of in this ring.
    #[error("an entry of the unknown kind {kind}")]
    Kind {
        /// The kind as given.
        kind: u8,
    },
    /// An entry whose fields make no sense.
    #[error("an entry with an invalid {field}")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
}

impl Violation {
    /// A name for counters.
    pub fn name(&self) -> &'static str {
        match self {
            Violation::Head => "head",
            Violation::Slots { .. } => "slots",
            Violation::Torn => "torn",
            Violation::Kind { .. } => "kind",
            Violation::Field { .. } => "field",
        }
    }
}

/// An entry that was copied out of a ring.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is.
    pub kind: u8,
    /// Whom it concerns: a VQP, or a request.
    pub id: u32,
    words: [u64; ENTRY_WORDS_MAX],
    len: usize,
}

impl Default for Entry {
    fn default() -> Entry {
        Entry { kind: 0, id: 0, words: [0; ENTRY_WORDS_MAX], len: 0 }
    }
}

impl Entry {
    /// What it carries: whole slots.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }
}

/// The writing end of a ring.
pub struct Producer {
    slots: Slots,
    head: Words,
    /// Slots written since the beginning.
    tail: u64,
    /// The consumer's head as last seen.
    head_seen: u64,
}

/// The reading end of a ring.
pub struct Consumer {
    slots: Slots,
    head: Words,
    /// Slots read since the beginning.
    at: u64,
}

/// Takes the words of an entry, in order.
pub struct Writer<'a> {
    slots: &'a Slots,
    index: u64,
    word: usize,
}

struct Slots {
    words: Words,
    log: u32,
}

impl Producer {
    /// An end of a fresh ring: `slots` holds a power of two of slots, `head` one word.
    pub fn new(slots: Words, head: Words) -> Producer {
        Producer { slots: Slots::new(slots), head, tail: 0, head_seen: 0 }
    }

    /// Writes an entry of `words` words, which `fill` gives. False if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    ///
    /// # Panics
    /// If the entry is longer than any may be.
    #[inline]
    pub fn push(
        &mut self,
        kind: u8,
        id: u32,
        words: usize,
        fill: impl FnOnce(&mut Writer<'_>),
    ) -> Result<bool, Violation> {
        let slots = words.div_ceil(PAYLOAD_WORDS).max(1);
        assert!(slots <= ENTRY_SLOTS_MAX, "an entry of {words} words");
        if !self.has_room(slots as u64)? {
            return Ok(false);
        }
        let mut writer = Writer { slots: &self.slots, index: self.tail, word: 1 };
        fill(&mut writer);
        for slot in 1..slots as u64 {
            let index = self.tail + slot;
            let tag = u64::from(self.slots.tag(index));
            self.slots.slot(index)[0].store(tag, Ordering::Relaxed);
        }
        let tag = u64::from(self.slots.tag(self.tail));
        let header = tag | u64::from(kind) << 16 | (slots as u64) << 24 | u64::from(id) << 32;
        self.slots.slot(self.tail)[0].store(header, Ordering::Release);
        self.tail += slots as u64;
        Ok(true)
    }

    /// Slots that are free, as the consumer last told.
    ///
    /// # Errors
    ///
    /// As [`Producer::push`].
    pub fn room(&mut self) -> Result<u32, Violation> {
        self.refresh()?;
        Ok((self.slots.count() - (self.tail - self.head_seen)) as u32)
    }

    #[inline]
    fn has_room(&mut self, slots: u64) -> Result<bool, Violation> {
        if self.tail - self.head_seen + slots <= self.slots.count() {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.tail - self.head_seen + slots <= self.slots.count())
    }

    #[cold]
    fn refresh(&mut self) -> Result<(), Violation> {
        let head = self.head[0].load(Ordering::Acquire);
        if head < self.head_seen || head > self.tail {
            return Err(Violation::Head);
        }
        self.head_seen = head;
        Ok(())
    }
}

impl Consumer {
    /// An end of a fresh ring, as [`Producer::new`].
    pub fn new(slots: Words, head: Words) -> Consumer {
        Consumer { slots: Slots::new(slots), head, at: 0 }
    }

    /// Whether nothing is there to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let header = self.slots.slot(self.at)[0].load(Ordering::Acquire);
        header as u16 != self.slots.tag(self.at)
    }

    /// Copies the next entry out, if there is one.
    ///
    /// # Errors
    ///
    /// [`Violation::Slots`] for an entry of no slots or too many, [`Violation::Torn`] for one that was not
    /// written whole: the session is to end.
    #[inline]
    pub fn pop(&mut self, into: &mut Entry) -> Result<bool, Violation> {
        self.pop_if(into, |_, _| true)
    }

    /// As [`Consumer::pop`], if the entry's kind and id are wanted.
    ///
    /// # Errors
    ///
    /// As [`Consumer::pop`].
    #[inline]
    pub fn pop_if(
        &mut self,
        into: &mut Entry,
        wanted: impl FnOnce(u8, u32) -> bool,
    ) -> Result<bool, Violation> {
        let slot = self.slots.slot(self.at);
        // Looked at once: what is decided and what is taken cannot differ.
        let header = slot[0].load(Ordering::Acquire);
        let (kind, slots, id) = ((header >> 16) as u8, (header >> 24) as u8, (header >> 32) as u32);
        if header as u16 != self.slots.tag(self.at) || !wanted(kind, id) {
            return Ok(false);
        }
        let count = usize::from(slots);
        if count == 0 || count > ENTRY_SLOTS_MAX {
            return Err(Violation::Slots { slots });
        }
        copy(slot, &mut into.words[..PAYLOAD_WORDS]);
        for number in 1..count {
            let index = self.at + number as u64;
            let slot = self.slots.slot(index);
            if slot[0].load(Ordering::Relaxed) as u16 != self.slots.tag(index) {
                return Err(Violation::Torn);
            }
            copy(slot, &mut into.words[number * PAYLOAD_WORDS..(number + 1) * PAYLOAD_WORDS]);
        }
        (into.kind, into.id, into.len) = (kind, id, count * PAYLOAD_WORDS);
        self.at += count as u64;
        self.head[0].store(self.at, Ordering::Release);
        Ok(true)
    }
}

#[inline]
fn copy(slot: &[AtomicU64], into: &mut [u64]) {
    for (to, from) in into.iter_mut().zip(&slot[1..]) {
        *to = from.load(Ordering::Relaxed);
    }
}

impl Writer<'_> {
    /// Gives the next word.
    #[inline]
    pub fn put(&mut self, value: u64) {
        self.slots.slot(self.index)[self.word].store(value, Ordering::Relaxed);
        self.word += 1;
        if self.word == SLOT_WORDS {
            (self.index, self.word) = (self.index + 1, 1);
        }
    }
}

impl Slots {
    fn new(words: Words) -> Slots {
        let count = words.len() / SLOT_WORDS;
        assert!(count.is_power_of_two(), "a ring of {count} slots");
        Slots { words, log: count.trailing_zeros() }
    }

    #[inline]
    fn count(&self) -> u64 {
        1 << self.log
    }

    #[inline]
    fn slot(&self, index: u64) -> &[AtomicU64] {
        let at = (index & (self.count() - 1)) as usize * SLOT_WORDS;
        &self.words[at..at + SLOT_WORDS]
    }

    /// What slots written in the lap of `index` are marked with. Memory starts zeroed, so that the
    /// first lap is 1; a slot still holds the tag of the lap before, which is another number also
    /// where numbers begin again.
    #[inline]
    fn tag(&self, index: u64) -> u16 {
        ((index >> self.log) as u16).wrapping_add(1)
    }
}
