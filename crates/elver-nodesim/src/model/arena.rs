use std::cell::Cell;
use std::collections::BTreeMap;

use elver_sim::{Rng, SimMemory};
use elver_verbs::Memory;

use crate::model::ClientIx;

/// How memory stands with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Registered.
    Open,
    /// The client wants it back.
    Dropping,
    /// It is the client's alone again.
    Back,
}

/// What a client overwrites memory with that it has got back.
pub(crate) const POISON: u8 = 0xdb;

/// Local memory of a client, registered for its own WRs alone. It keeps a second copy, with what
/// must stand there.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) client: ClientIx,
    pub(crate) memory: SimMemory,
    pub(crate) addr: u64,
    pub(crate) lkey: u32,
    pub(crate) hold: Hold,
    shadow: Vec<u8>,
    /// Pieces that WRs use: length, and whether the device may write there.
    used: BTreeMap<u64, (u64, bool)>,
    /// The changes that the memory had when all was as it must be.
    checked: Cell<Option<u64>>,
}

impl Arena {
    pub(crate) fn new(client: ClientIx, memory: SimMemory, addr: u64, lkey: u32) -> Arena {
        let shadow = memory.view().clone();
        let (hold, used, checked) = (Hold::Open, BTreeMap::new(), Cell::new(None));
        Arena { client, memory, addr, lkey, hold, shadow, used, checked }
    }

    pub(crate) fn size(&self) -> u64 {
        self.shadow.len() as u64
    }

    /// A free piece; `writable` by the device if it is to be filled. None if there is no room.
    pub(crate) fn take(&mut self, len: u32, writable: bool, rng: &mut Rng) -> Option<u64> {
        let len = u64::from(len);
        let mut gaps = Vec::new();
        let mut free = 0;
        for (&offset, &(taken, _)) in &self.used {
            if offset - free >= len {
                gaps.push((free, offset - free));
            }
            free = offset + taken;
        }
        if self.size() - free >= len {
            gaps.push((free, self.size() - free));
        }
        // Pieces of no bytes are told apart by where they stand.
        gaps.retain(|(start, _)| !self.used.contains_key(start));
        if gaps.is_empty() {
            return None;
        }
        let (start, room) = rng.pick(&gaps);
        let offset = start + rng.below((room - len).min(64) + 1);
        self.used.insert(offset, (len, writable));
        Some(offset)
    }

    /// The client writes.
    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        self.memory.write_waiting(offset, bytes).expect("a piece lies inside its memory");
    }

    /// A piece is the client's again. What stands there now has been looked at.
    pub(crate) fn release(&mut self, offset: u64) {
        if let Some((len, true)) = self.used.remove(&offset) {
            let range = offset as usize..(offset + len) as usize;
            self.shadow[range.clone()].copy_from_slice(&self.memory.view()[range]);
        }
    }

    /// The first byte of a piece, behind its first `skip`, that is not as the client left it.
    pub(crate) fn changed(&self, offset: u64, len: u32, skip: u64) -> Option<u64> {
        let bytes = self.memory.view();
        let differs = |at: &u64| {
            let at = (offset + at) as usize;
            bytes[at] != self.shadow[at]
        };
        (skip..len.into()).find(differs)
    }

    /// Changes a byte behind the client's back.
    pub(crate) fn spoil(&self, at: u64) {
        let changed = self.memory.view()[at as usize] ^ 1;
        self.memory.write_waiting(at, &[changed]).expect("a piece lies inside its memory");
    }

    pub(crate) fn drop_asked(&mut self) {
        if self.hold == Hold::Open {
            self.hold = Hold::Dropping;
        }
    }

    /// The memory is the client's alone again: it overwrites it, and nobody else may.
    pub(crate) fn watch(&mut self) {
        self.hold = Hold::Back;
        self.used.clear();
        let poison = vec![POISON; self.shadow.len()];
        self.fill(0, &poison);
    }

    /// Compares what must not have changed.
    pub(crate) fn check(&self) -> Result<(), String> {
        let changes = Some(self.memory.changes());
        if self.checked.get() == changes {
            return Ok(());
        }
        let bytes = self.memory.view();
        let mut from = 0;
        let open = self.used.iter().filter(|(_, (_, writable))| *writable);
        let ends = open.map(|(offset, (len, _))| (*offset as usize, (offset + len) as usize));
        for (start, end) in ends.chain([(bytes.len(), bytes.len())]) {
            if start > from && bytes[from..start] != self.shadow[from..start] {
                let differs = |at: &usize| bytes[*at] != self.shadow[*at];
                let at = (from..start).find(differs).unwrap_or(from);
                return Err(format!(
                    "byte {at} holds {:#04x} in place of {:#04x}, which nobody might change ({:?})",
                    bytes[at], self.shadow[at], self.hold
                ));
            }
            from = from.max(end);
        }
        self.checked.set(changes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_write_is_seen_and_an_expected_one_is_not() {
        let memory = SimMemory::new(vec![0; 1_000], 0);
        let mut arena = Arena::new(0, memory.clone(), 0, 1);
        let mut rng = Rng::new(1);
        let filled = arena.take(100, true, &mut rng).unwrap();
        let sent = arena.take(100, false, &mut rng).unwrap();
        memory.write(filled, &[1; 100]).unwrap();
        assert_eq!(arena.check(), Ok(()));
        memory.write(sent + 99, &[1]).unwrap();
        assert!(arena.check().is_err());
        memory.write(sent + 99, &[0]).unwrap();
        arena.release(filled);
        assert_eq!(arena.check(), Ok(()));
        memory.write(filled, &[2]).unwrap();
        assert!(arena.check().is_err());
    }

    #[test]
    fn pieces_do_not_overlap() {
        let mut arena = Arena::new(0, SimMemory::new(vec![0; 500], 0), 0, 1);
        let mut rng = Rng::new(2);
        let mut taken = vec![0_u8; 500];
        while let Some(offset) = arena.take(30, true, &mut rng) {
            taken[offset as usize..offset as usize + 30].iter_mut().for_each(|byte| *byte += 1);
        }
        assert!(taken.iter().all(|count| *count <= 1));
        assert!(taken.iter().filter(|count| **count == 1).count() > 150);
    }
}
