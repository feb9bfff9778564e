//! Threads that sleep, as others see them.

use std::os::fd::OwnedFd;

use elver_stream::Interest;

/// A thread that sleeps.
pub(crate) struct Sleeper {
    pub(crate) bell: OwnedFd,
    /// What it sleeps for.
    pub(crate) watched: Vec<(u32, Interest)>,
}

impl Sleeper {
    pub(crate) fn wake(&self) {
        // It can only be full, which is as good.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
