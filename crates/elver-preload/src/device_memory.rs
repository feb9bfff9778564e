//! The device memory of a process: a child of `fork` has what its parent had, and may have more, before it
//! has a device of its own.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use elver_soft::SoftMemory;

use crate::layout::Context;
use crate::told::Told;

/// A device memory.
pub(crate) struct DeviceMemory {
    pub(crate) memory: SoftMemory,
    /// In bytes.
    pub(crate) length: usize,
    /// The context that it was made of.
    pub(crate) of: Told,
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
    /// Keeps a memory of a context; returns its number.
    pub(crate) fn keep(&mut self, memory: SoftMemory, length: usize, of: Told) -> u32 {
        self.last += 1;
        self.dms.insert(self.last, DeviceMemory { memory, length, of, users: 0 });
        self.last
    }

    /// A context is closed; says whether it had any. What regions of others are of, these keep.
    pub(crate) fn end(&mut self, context: *mut Context) -> bool {
        let before = self.dms.len();
        self.dms.retain(|_, dm| dm.of.context != context);
        self.dms.len() < before
    }
}
