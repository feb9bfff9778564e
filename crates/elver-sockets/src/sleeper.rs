//! Threads that sleep, as others see them.

use elver_stream::Interest;

use crate::own::Own;

/// A thread that sleeps.
pub(crate) struct Sleeper {
    pub(crate) bell: Own,
    /// What it sleeps for.
    pub(crate) watched: Vec<Watched>,
}

/// A connection that a stream carries, as who waits for something of it sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) id: u32,
    pub(crate) interest: Interest,
    /// What had arrived when it was told of last, if only what comes behind that is news.
    pub(crate) seen: Option<u64>,
}

impl Watched {
    pub(crate) fn new(id: u32, interest: Interest) -> Watched {
        Watched { id, interest, seen: None }
    }
}

impl Sleeper {
    pub(crate) fn wake(&self) {
        // It can only be full, which is as good.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
