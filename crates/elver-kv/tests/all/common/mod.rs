//! Memory that remembers what it held after each of its writer's stores.

use std::cell::RefCell;
use std::rc::Rc;

use elver_kv::{Layout, Table, TableId};
use elver_verbs::{Memory, MemoryError};

pub const ID: TableId = TableId { seed: 0x5eed, incarnation: 0x1ca };

/// Key `n` of a table with keys of 4 bytes.
pub fn key(n: u32) -> [u8; 4] {
    n.to_le_bytes()
}

/// Memory in a vector; clones share it.
#[derive(Clone, Debug)]
pub struct TestMemory(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    /// Each store: where, and what it wrote. Kept from [`TestMemory::record`] on.
    stores: Option<Vec<(usize, Vec<u8>)>>,
    before: Vec<u8>,
}

impl TestMemory {
    pub fn new(len: u64) -> TestMemory {
        TestMemory::filled(len, 0xa5)
    }

    fn filled(len: u64, byte: u8) -> TestMemory {
        let bytes = vec![byte; len as usize];
        TestMemory(Rc::new(RefCell::new(State { bytes, stores: None, before: Vec::new() })))
    }

    /// An empty table of this layout, and its memory.
    pub fn table(layout: Layout) -> (Table<TestMemory>, TestMemory) {
        let memory = TestMemory::new(layout.table_bytes());
        (Table::create(memory.clone(), layout, ID).unwrap(), memory)
    }

    /// The same in memory that was never written.
    pub fn table_in_zeros(layout: Layout) -> (Table<TestMemory>, TestMemory) {
        let memory = TestMemory::filled(layout.table_bytes(), 0);
        (Table::create_in_zeros(memory.clone(), layout, ID).unwrap(), memory)
    }

    /// Forgets the stores so far and remembers those that follow.
    pub fn record(&self) {
        let mut state = self.0.borrow_mut();
        state.before = state.bytes.clone();
        state.stores = Some(Vec::new());
    }

    /// How many stores there were since.
    pub fn stores(&self) -> usize {
        self.0.borrow().stores.as_ref().map_or(0, Vec::len)
    }

    /// The memory before the first recorded store, after the first, and so on.
    pub fn moments(&self) -> Vec<Vec<u8>> {
        let state = self.0.borrow();
        let mut moments = vec![state.before.clone()];
        for (at, bytes) in state.stores.iter().flatten() {
            let mut next = moments[moments.len() - 1].clone();
            next[*at..*at + bytes.len()].copy_from_slice(bytes);
            moments.push(next);
        }
        moments
    }

    /// A copy of a range.
    pub fn range(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.read(offset, &mut bytes).unwrap();
        bytes
    }
}

impl Memory for TestMemory {
    fn size(&self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    fn base_addr(&self) -> u64 {
        0
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, dst.len() as u64, self.size())?;
        dst.copy_from_slice(&self.0.borrow().bytes[offset as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, src.len() as u64, self.size())?;
        let mut state = self.0.borrow_mut();
        state.bytes[offset as usize..][..src.len()].copy_from_slice(src);
        if let Some(stores) = &mut state.stores {
            stores.push((offset as usize, src.to_vec()));
        }
        Ok(())
    }

    fn copy_from(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), MemoryError> {
        unimplemented!("a table never copies")
    }

    fn compare_swap(&self, _: u64, _: u64, _: u64) -> Result<u64, MemoryError> {
        unimplemented!("a table has no atomics")
    }

    fn fetch_add(&self, _: u64, _: u64) -> Result<u64, MemoryError> {
        unimplemented!("a table has no atomics")
    }
}
