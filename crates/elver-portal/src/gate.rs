//! The gate between a process and memory of others that it reaches itself.
//!
//! Who has a region's key may be handed the region's file, and then reads and writes it without the node (the direct
//! way). What the node keeps is the word of when that must end. It makes a page for each such session, of which
//! every word has one writer:
//!
//! ```text
//!   epoch     odd while the process is inside of an access     client
//!   counts    what it has read and written so                  client
//!   doors     a generation each while the region is open       node
//! ```
//!
//! Before an access the client makes its epoch odd and then looks at the region's door; the node shuts the door and
//! then looks at the epoch. A fence on both sides orders each one's store before its load, so that either the client
//! finds the door shut, or the node finds it inside and waits until the epoch has moved, or its process is no more. Nothing is
//! locked, and a process that ends at any instruction leaves nothing that others would wait for.
//!
//! A process that lies here reaches no more than what it was handed, and keeps others waiting as long as the node's
//! patience.

#[cfg(not(loom))]
use std::{io, os::fd::AsFd};

use crate::memory::Words;
use crate::sync::{Ordering, fence};

/// Bytes of a gate's file.
pub const GATE_BYTES: u64 = 4_096;
/// Regions that a session reaches itself at once.
pub const DOORS_MAX: u32 = (GATE_BYTES / 8) as u32 - FIRST_DOOR as u32;

const EPOCH: usize = 0;
const READS: usize = 1;
const WRITES: usize = 2;
const BYTES: usize = 3;
/// The doors begin at a cache line of their own, past the one that is fetched with the epoch's.
const FIRST_DOOR: usize = 16;

/// What no open door has for a generation.
const SHUT: u64 = 0;

/// The node's end of a gate.
pub struct NodeGate {
    words: Words,
}

/// The client's end of a gate.
pub struct ClientGate {
    words: Words,
    epoch: u64,
    counts: GateCounts,
}

/// What a session has done itself, as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// An access that is under way; it ends when this is dropped.
pub struct Inside<'a>(&'a mut ClientGate);

impl NodeGate {
    /// The node's end over a fresh file of [`GATE_BYTES`], which it made with [`crate::memfd::create`].
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the file is shorter or may become so; what the system said if it
    /// cannot be mapped.
    #[cfg(not(loom))]
    pub fn map(file: impl AsFd) -> io::Result<NodeGate> {
        Ok(NodeGate::over(Words::map(file, GATE_BYTES as usize, true)?))
    }

    pub(crate) fn over(words: Words) -> NodeGate {
        NodeGate { words }
    }

    /// Opens a door, of [`DOORS_MAX`]. A generation is no other door's before or after, and not 0.
    pub fn open(&self, door: u32, generation: u64) {
        if let Some(word) = self.words.get(FIRST_DOOR + door as usize) {
            word.store(generation, Ordering::Release);
        }
    }

    /// Shuts a door: no access begins by it any more. Returns the epoch of one that may be under way, to be waited for
    /// ([`NodeGate::is_past`]).
    pub fn shut(&self, door: u32) -> Option<u64> {
        if let Some(word) = self.words.get(FIRST_DOOR + door as usize) {
            word.store(SHUT, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let epoch = self.words[EPOCH].load(Ordering::Acquire);
        (epoch % 2 == 1).then_some(epoch)
    }

    /// Whether an access has ended that was under way.
    pub fn is_past(&self, epoch: u64) -> bool {
        self.words[EPOCH].load(Ordering::Acquire) != epoch
    }

    /// What the process says that it has done.
    pub fn counts(&self) -> GateCounts {
        let count = |word: usize| self.words[word].load(Ordering::Relaxed);
        GateCounts { reads: count(READS), writes: count(WRITES), bytes: count(BYTES) }
    }
}

impl ClientGate {
    /// The client's end over the file that the node sent.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the file is shorter or may become so; what the system said if it
    /// cannot be mapped.
    #[cfg(not(loom))]
    pub fn map(file: impl AsFd) -> io::Result<ClientGate> {
        Ok(ClientGate::over(Words::map(file, GATE_BYTES as usize, true)?))
    }

    pub(crate) fn over(words: Words) -> ClientGate {
        ClientGate { words, epoch: 0, counts: GateCounts::default() }
    }

    /// Goes in by a door, if it is open in this generation: until what this returns is dropped the node lets nobody
    /// believe that the region is touched no more.
    #[inline]
    pub fn enter(&mut self, door: u32, generation: u64) -> Option<Inside<'_>> {
        self.turn();
        let inside = Inside(self);
        let door = inside.0.words.get(FIRST_DOOR + door as usize)?;
        let is_open = door.load(Ordering::Acquire) == generation && generation != SHUT;
        is_open.then_some(inside)
    }

    /// The next epoch. Going in, the fence keeps the look at the door behind it. Going out, it keeps what this process
    /// reads next behind what it has written: who writes a word and then looks whether its reader sleeps finds it
    /// asleep, or is found.
    #[inline]
    fn turn(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.words[EPOCH].store(self.epoch, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Inside<'_> {
    /// Counts a READ of so many bytes.
    #[inline]
    pub fn has_read(&mut self, bytes: u64) {
        let ClientGate { words, counts, .. } = &mut *self.0;
        counts.reads += 1;
        counts.bytes += bytes;
        words[READS].store(counts.reads, Ordering::Relaxed);
        words[BYTES].store(counts.bytes, Ordering::Relaxed);
    }

    /// Counts a WRITE of so many bytes.
    #[inline]
    pub fn has_written(&mut self, bytes: u64) {
        let ClientGate { words, counts, .. } = &mut *self.0;
        counts.writes += 1;
        counts.bytes += bytes;
        words[WRITES].store(counts.writes, Ordering::Relaxed);
        words[BYTES].store(counts.bytes, Ordering::Relaxed);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.turn();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memfd::{self, Pages};

    fn gate() -> (NodeGate, ClientGate) {
        let file = memfd::create("test", GATE_BYTES, Pages::Small).unwrap();
        (NodeGate::map(&file).unwrap(), ClientGate::map(&file).unwrap())
    }

    #[test]
    fn a_door_is_open_in_its_generation_alone() {
        let (node, mut client) = gate();
        assert!(client.enter(3, 7).is_none(), "nobody has opened it");
        node.open(3, 7);
        assert!(client.enter(3, 7).is_some());
        assert!(client.enter(3, 6).is_none() && client.enter(2, 7).is_none());
        assert_eq!(node.shut(3), None);
        assert!(client.enter(3, 7).is_none());
        node.open(3, 8);
        assert!(client.enter(3, 7).is_none(), "of a region that had its place before");
        assert!(client.enter(3, 8).is_some());
    }

    #[test]
    fn who_is_inside_is_waited_for() {
        let (node, mut client) = gate();
        node.open(0, 1);
        let mut inside = client.enter(0, 1).unwrap();
        let epoch = node.shut(0).unwrap();
        assert!(!node.is_past(epoch));
        inside.has_written(40);
        drop(inside);
        assert!(node.is_past(epoch) && client.enter(0, 1).is_none());
        let counts = GateCounts { reads: 0, writes: 1, bytes: 40 };
        assert_eq!((node.counts(), node.shut(0)), (counts, None));
    }

    #[test]
    fn there_are_so_many_doors_and_no_others() {
        let (node, mut client) = gate();
        node.open(DOORS_MAX - 1, 5);
        node.open(DOORS_MAX, 5);
        assert!(client.enter(DOORS_MAX - 1, 5).is_some());
        for door in [DOORS_MAX, u32::MAX] {
            assert!(client.enter(door, 5).is_none());
        }
        assert!(client.enter(0, SHUT).is_none(), "what is shut is no generation");
        assert_eq!(node.shut(u32::MAX), None);
    }
}
