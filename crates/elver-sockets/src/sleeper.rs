//! Threads that sleep, as others see them.

use elver_stream::Interest;

use crate::own::Own;

/// A thread that sleeps.
pub(crate) struct Sleeper {
    pub(crate) bell: Own,
    /// What it sleeps for.
    pub(crate) watched: Vec<(u32, Interest)>,
}

impl Sleeper {
    pub(crate) fn wake(&self) {
        // It can only be full, which is as good.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
