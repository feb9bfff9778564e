//! The device memory of a process: a child of `fork` has what its parent had, and may have more, before it
//! has a device of its own.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use elver_soft::SoftMemory;

/// A device memory.
pub(crate) struct DeviceMemory {
    pub(crate) memory: SoftMemory,
    /// In bytes.
    pub(crate) length: usize,
    /// Regions of it.
    pub(crate) users: u32,
}

/// All of it, by number.
#[derive(Default)]
pub(crate) struct All {
    pub(crate) dms: HashMap<u32, DeviceMemory>,
    last: u32,
}

static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

/// Whoever has the engine's lock as well takes it first.
pub(crate) fn all() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl All {
    /// Keeps a memory; returns its number.
    pub(crate) fn keep(&mut self, memory: SoftMemory, length: usize) -> u32 {
        self.last += 1;
        self.dms.insert(self.last, DeviceMemory { memory, length, users: 0 });
        self.last
    }
}
