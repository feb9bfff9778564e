//! The regions that a session has registered, as far as a WR's pieces are checked against them.

use elver_memory::SoftMemory;
use elver_verbs::{Memory, PostError, Sge};
use rustc_hash::FxHashMap;

/// Regions by their local keys.
#[derive(Debug)]
pub(crate) struct Regions {
    known: FxHashMap<u32, Region>,
    /// Their memory, where this process has it mapped.
    memory: FxHashMap<u32, Mapped>,
    /// The one that was used last; of no bytes at first.
    last: (u32, Region),
}

/// A region's memory.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) memory: SoftMemory,
    /// Other threads may read and write it meanwhile.
    pub(crate) shared: bool,
}

/// A region, as long as it is not deregistered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The node may write to it for WRs and receives of this session.
    pub(crate) writable: bool,
}

impl Regions {
    pub(crate) fn new() -> Regions {
        let last = (0, Region::default());
        Regions { known: FxHashMap::default(), memory: FxHashMap::default(), last }
    }

    pub(crate) fn add(&mut self, lkey: u32, region: Region, mapped: Mapped) {
        self.known.insert(lkey, region);
        self.memory.insert(lkey, mapped);
    }

    pub(crate) fn remove(&mut self, lkey: u32) {
        self.known.remove(&lkey);
        self.memory.remove(&lkey);
        if self.last.0 == lkey {
            self.last = (0, Region::default());
        }
    }

    /// Checks that a piece lies in its region, and may be written to if it is to be. One of no bytes
    /// touches nothing.
    #[inline]
    pub(crate) fn check(&mut self, sge: &Sge, writes: bool) -> Result<(), PostError> {
        let (lkey, region) = &self.last;
        if *lkey == sge.lkey && region.permits(sge, writes) {
            return Ok(());
        }
        self.check_other(sge, writes)
    }

    /// The memory that a piece lies in, and where it begins there.
    #[inline]
    pub(crate) fn memory(&self, sge: &Sge) -> Option<(&Mapped, u64)> {
        let mapped = self.memory.get(&sge.lkey)?;
        Some((mapped, sge.addr.wrapping_sub(mapped.memory.base_addr())))
    }

    #[inline(never)]
    fn check_other(&mut self, sge: &Sge, writes: bool) -> Result<(), PostError> {
        if sge.length == 0 {
            return Ok(());
        }
        match self.known.get(&sge.lkey) {
            Some(region) if region.permits(sge, writes) => {
                self.last = (sge.lkey, *region);
                Ok(())
            }
            _ => {
                let Sge { addr, length, lkey } = *sge;
                Err(PostError::LocalAccess { addr, length, lkey })
            }
        }
    }
}

impl Region {
    #[inline]
    fn permits(&self, sge: &Sge, writes: bool) -> bool {
        let offset = sge.addr.wrapping_sub(self.addr);
        offset <= self.len
            && u64::from(sge.length) <= self.len - offset
            && (self.writable || !writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_must_lie_in_its_region_and_be_writable_where_it_is_written() {
        let mut regions = Regions::new();
        let memory = Mapped { memory: SoftMemory::alloc(100).unwrap(), shared: false };
        regions.add(7, Region { addr: 1_000, len: 100, writable: false }, memory.clone());
        regions.add(9, Region { addr: u64::MAX - 99, len: 100, writable: true }, memory);
        let mut may =
            |addr, length, lkey, writes| regions.check(&Sge { addr, length, lkey }, writes).is_ok();
        assert!(may(1_000, 100, 7, false) && may(1_099, 1, 7, false) && may(1_100, 0, 7, false));
        assert!(!may(999, 1, 7, false) && !may(1_000, 101, 7, false) && !may(1_100, 1, 7, false));
        assert!(!may(1_000, 1, 7, true));
        assert!(may(u64::MAX - 99, 100, 9, true) && !may(0, 1, 9, true));
        assert!(!may(u64::MAX, 2, 9, true) && !may(1_000, 1, 8, false));
        // What has no bytes touches nothing, whatever it names.
        assert!(may(5, 0, 3, true) && may(5, 0, 0, true));
        regions.remove(9);
        assert!(regions.check(&Sge { addr: u64::MAX - 99, length: 1, lkey: 9 }, true).is_err());
        assert!(regions.check(&Sge { addr: 0, length: 1, lkey: 0 }, false).is_err());
    }
}
