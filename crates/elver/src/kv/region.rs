use std::rc::Rc;

use elver_verbs::{Memory, MemoryError};

use crate::Mr;

/// A session's region as the memory of a [`super::Table`]; clones are the same region, which is deregistered with the
/// last of them.
#[derive(Clone, Debug)]
pub struct Region(Rc<Mr>);

impl Region {
    /// Of a region that peers may READ, if they are to look up in it.
    pub fn new(mr: Mr) -> Region {
        Region(Rc::new(mr))
    }

    /// The region.
    pub fn mr(&self) -> &Mr {
        &self.0
    }

    /// The region, if this was the last clone.
    pub fn into_mr(self) -> Option<Mr> {
        Rc::into_inner(self.0)
    }
}

impl Memory for Region {
    fn size(&self) -> u64 {
        self.0.len()
    }

    fn base_addr(&self) -> u64 {
        self.0.addr()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        self.0.load(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        self.0.store(offset, src)
    }

    fn copy_from(
        &self,
        offset: u64,
        src: &Self,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        self.0.memory().copy_from(offset, src.0.memory(), src_offset, len)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.0.memory().compare_swap(offset, compare, swap)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        self.0.memory().fetch_add(offset, add)
    }
}
