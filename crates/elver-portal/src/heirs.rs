//! The memory of sessions that are made ahead, for the children of a process: one file, which the
//! parent maps once, so that a fork copies one mapping however many sessions there are.
//!
//! ```text
//!   for each session, from a page on:
//!     a page with its record    written by the node, read by the parent and its children
//!     the rings and the arena of a session, as `Layout` has them
//! ```

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use elver_verbs::Via;

use crate::ends::{ClientEnd, NodeEnd};
use crate::layout::Layout;
use crate::memory::Words;

const PAGE: usize = 4096;
const RECORD_WORDS: usize = PAGE / 8;
/// Words of a record before those of its VQPs.
const HEAD_WORDS: usize = 8;
const STATE: usize = 0;
const KEYS: usize = 1;
const TIMES: usize = 2;

/// Most VQPs of a session that is made ahead.
pub const VQPS_PER_HEIR_MAX: u32 = 256;

const FREE: u64 = 1;
const TAKEN: u64 = 2;
/// What stands for a VQP that could not be connected.
const UNCONNECTED: u64 = u8::MAX as u64;

/// Where everything stands in the file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeirsLayout {
    /// How many sessions.
    pub heirs: u32,
}

/// How a session of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is being made, for the first time or anew after a child has ended.
    Making,
    /// A child may take it.
    Free,
    /// A process has it.
    Taken {
        /// Its number.
        pid: i32,
    },
}

impl HeirsLayout {
    /// The rings of each. Smaller than those of a session that is opened: a child's first look at a
    /// page costs it half a microsecond.
    pub const RINGS: Layout =
        Layout { command_slots: 64, receive_slots: 64, completion_slots: 128 };

    /// Bytes of the file.
    pub fn bytes(self) -> u64 {
        u64::from(self.heirs) * Self::stride() as u64
    }

    /// Where a session's part begins, in bytes.
    pub fn at(self, heir: u32) -> u64 {
        u64::from(heir) * Self::stride() as u64
    }

    /// Where a session's arena begins, in bytes.
    pub fn arena_at(self, heir: u32) -> u64 {
        self.at(heir) + (PAGE + Self::RINGS.arena_at()) as u64
    }

    fn stride() -> usize {
        PAGE + Self::RINGS.bytes().next_multiple_of(PAGE)
    }
}

/// A set as the parent and its children map it.
pub struct Heirs {
    words: Words,
    layout: HeirsLayout,
}

impl Heirs {
    /// Maps the file that came with the node's answer.
    ///
    /// # Errors
    /// It is shorter than the set, or may become so, or cannot be mapped.
    pub fn map(file: impl AsFd, layout: HeirsLayout) -> io::Result<Heirs> {
        let bytes = usize::try_from(layout.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Heirs { words: Words::map(file, bytes, false)?, layout })
    }

    /// Address of the first byte: the same in every child.
    pub fn addr(&self) -> u64 {
        self.words.start().as_ptr() as u64
    }

    /// Maps the pages of a session that its owner needs first, its record, its rings and the first of its arena, all at
    /// once: each costs a page fault else.
    pub fn touch(&self, heir: u32) {
        let words = RECORD_WORDS + HeirsLayout::RINGS.arena_at() / 8 + PAGE / 8;
        self.words.part(self.at(heir), words).touch();
    }

    /// How many sessions.
    pub fn len(&self) -> u32 {
        self.layout.heirs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layout.heirs == 0
    }

    /// How a session is.
    ///
    /// # Panics
    /// If there is none of this number, as the others.
    #[inline]
    pub fn record(&self, heir: u32) -> Record {
        let state = self.word(heir, STATE).load(Ordering::Acquire);
        match state & 0xff {
            FREE => Record::Free,
            TAKEN => Record::Taken { pid: (state >> 32) as i32 },
            _ => Record::Making,
        }
    }

    /// Times that it came back from a child.
    pub fn times(&self, heir: u32) -> u64 {
        self.word(heir, TIMES).load(Ordering::Relaxed)
    }

    /// Local and remote key of its memory region. To be read when it is taken.
    pub fn keys(&self, heir: u32) -> (u32, u32) {
        let keys = self.word(heir, KEYS).load(Ordering::Relaxed);
        (keys as u32, (keys >> 32) as u32)
    }

    /// One of its VQPs, and what backs it; nothing if it could not be connected.
    pub fn vqp(&self, heir: u32, at: u32) -> (u32, Option<Via>) {
        let word = self.word(heir, HEAD_WORDS + at as usize).load(Ordering::Relaxed);
        let via = u8::try_from(word >> 32).ok().and_then(Via::from_code);
        (word as u32, via)
    }

    /// The client's end of its rings. For who has taken it: two that write to one ring break it.
    pub fn end(&self, heir: u32) -> ClientEnd {
        let at = self.at(heir) + RECORD_WORDS;
        ClientEnd::over(&self.words.part(at, HeirsLayout::RINGS.bytes() / 8), HeirsLayout::RINGS)
    }

    fn at(&self, heir: u32) -> usize {
        assert!(heir < self.layout.heirs, "session {heir} of {}", self.layout.heirs);
        heir as usize * HeirsLayout::stride() / 8
    }

    fn word(&self, heir: u32, word: usize) -> &std::sync::atomic::AtomicU64 {
        &self.words[self.at(heir) + word]
    }
}

/// A session of a set as the node maps it.
pub struct NodeHeir {
    words: Words,
}

impl NodeHeir {
    /// Maps the record and the rings of a session. The arena is no part of it.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub fn map(file: impl AsFd, layout: HeirsLayout, heir: u32) -> io::Result<NodeHeir> {
        let bytes = PAGE + HeirsLayout::RINGS.ring_bytes();
        Ok(NodeHeir { words: Words::map_from(file, layout.at(heir), bytes, true)? })
    }

    /// Makes rings and record empty, whoever has them mapped, and gives the node's end of them.
    pub fn anew(&self) -> NodeEnd {
        self.words.discard();
        let rings = HeirsLayout::RINGS.ring_bytes() / 8;
        NodeEnd::over(&self.words.part(RECORD_WORDS, rings), HeirsLayout::RINGS)
    }

    /// Names its VQPs and keys, and lets a child take it.
    ///
    /// # Panics
    /// If there are more VQPs than [`VQPS_PER_HEIR_MAX`].
    pub fn free(&self, keys: (u32, u32), vqps: &[(u32, Option<Via>)], times: u64) {
        assert!(vqps.len() <= VQPS_PER_HEIR_MAX as usize, "{} VQPs", vqps.len());
        let keys = u64::from(keys.0) | u64::from(keys.1) << 32;
        self.words[KEYS].store(keys, Ordering::Relaxed);
        self.words[TIMES].store(times, Ordering::Relaxed);
        for (at, (vqp, via)) in vqps.iter().enumerate() {
            let via = via.map_or(UNCONNECTED, |via| u64::from(via.code()));
            let word = u64::from(*vqp) | via << 32;
            self.words[HEAD_WORDS + at].store(word, Ordering::Relaxed);
        }
        self.words[STATE].store(FREE, Ordering::Release);
    }

    /// Says who has it.
    pub fn taken(&self, pid: i32) {
        let state = TAKEN | u64::from(pid as u32) << 32;
        self.words[STATE].store(state, Ordering::Release);
    }

    /// Says that nobody can take it any more.
    pub fn gone(&self) {
        self.words[STATE].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Request, Scratch, memfd};

    #[test]
    fn what_a_child_left_is_gone_when_its_session_is_made_anew() {
        let layout = HeirsLayout { heirs: 3 };
        let file = memfd::create("test", layout.bytes(), memfd::Pages::Small).unwrap();
        let heirs = Heirs::map(&file, layout).unwrap();
        let node = NodeHeir::map(&file, layout, 1).unwrap();
        for times in 0..3 {
            let mut end = node.anew();
            assert_eq!(heirs.record(1), Record::Making);
            node.free((7, 9), &[(5, Some(Via::Rc)), (6, None)], times);
            assert_eq!((heirs.record(1), heirs.times(1)), (Record::Free, times));
            assert_eq!((heirs.record(0), heirs.record(2)), (Record::Making, Record::Making));
            assert_eq!(heirs.keys(1), (7, 9));
            assert_eq!([0, 1].map(|at| heirs.vqp(1, at)), [(5, Some(Via::Rc)), (6, None)]);
            node.taken(44);
            assert_eq!(heirs.record(1), Record::Taken { pid: 44 });
            // It asks as many times as the ring does not divide, and leaves some unread.
            let (mut client, mut scratch) = (heirs.end(1), Scratch::default());
            for request in 0..70 {
                assert!(client.command(request, &Command::Goodbye).unwrap());
                if request < 65 {
                    let next = end.next_request(&mut scratch).unwrap().unwrap();
                    assert!(matches!(next, Request::Command { request: of, .. } if of == request));
                }
            }
        }
    }

    #[test]
    fn sessions_lie_apart() {
        let layout = HeirsLayout { heirs: 4 };
        for heir in 0..4 {
            assert_eq!(layout.at(heir) % PAGE as u64, 0);
            assert!(layout.arena_at(heir) + crate::ARENA_BYTES <= layout.at(heir + 1));
        }
        assert_eq!(layout.bytes(), layout.at(4));
    }
}
