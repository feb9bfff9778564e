//! Memory that is there for as long as some session has it registered.

use std::sync::Arc;

use elver_soft::SoftMemory;

/// Memory that the node made for a process. Clones are of the same process's sessions.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) memory: Arc<SoftMemory>,
    /// Where the process has it mapped, so that no other memory of its has this address.
    pub(super) addr: u64,
}

impl Held {
    pub(super) fn new(memory: SoftMemory, addr: u64) -> Held {
        Held { memory: Arc::new(memory), addr }
    }

    /// Whether a page of it could not be had.
    pub(super) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// The memory, if no other session has it registered.
    pub(super) fn into_last(self) -> Option<SoftMemory> {
        Arc::into_inner(self.memory)
    }
}
