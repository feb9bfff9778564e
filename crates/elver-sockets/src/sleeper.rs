//! Threads that sleep, as others see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elver_stream::Interest;

use crate::own::Own;

/// A thread that sleeps.
pub(crate) struct Sleeper {
    pub(crate) bell: Arc<Own>,
    /// What it sleeps for.
    pub(crate) watched: Vec<Watched>,
    /// It is woken by what the node tells, for all that sleep.
    pub(crate) keeps_watch: bool,
    /// Its bell was rung, or will be at once: it comes, however late it is let run.
    is_rung: AtomicBool,
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
    pub(crate) fn new(bell: Arc<Own>, watched: Vec<Watched>, keeps_watch: bool) -> Sleeper {
        Sleeper { bell, watched, keeps_watch, is_rung: AtomicBool::new(false) }
    }

    /// Has it woken, if nobody has by now: by its bell, which is to be rung.
    #[must_use]
    pub(crate) fn wake(&self) -> Option<Arc<Own>> {
        let was_rung = self.is_rung.swap(true, Ordering::Relaxed);
        (!was_rung).then(|| self.bell.clone())
    }

    /// Whether it was woken by another thread.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Relaxed)
    }
}

/// Bells that are rung when this is dropped: behind the lock, which those who are woken take first. One may be another
/// sleeper's by then, who is woken for nothing, and lies down again.
#[derive(Default)]
pub(crate) struct Ringing(pub(crate) Vec<Arc<Own>>);

impl Drop for Ringing {
    fn drop(&mut self) {
        for bell in &self.0 {
            // It can only be full, which is as good.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}
