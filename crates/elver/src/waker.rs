//! Ending a wait from elsewhere.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// Ends the wait that a thread is in on a session, or the next one if it is in none: that fails with
/// [`Error::Woken`]. Any thread may have it, and a signal's handler may call [`Waker::wake`]. From
/// [`crate::Session::waker`].
///
/// Its descriptor is readable from a `wake` on until a wait was ended by it: for those who wait by epoll
/// and have it in the same set.
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<Bell>);

pub(crate) struct Bell {
    rung: AtomicBool,
    fd: OwnedFd,
}

impl Waker {
    /// Ends a wait. Allocates nothing and takes no lock.
    pub fn wake(&self) {
        self.0.rung.store(true, Ordering::Release);
        // It can only be full, which is as good.
        let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

impl Bell {
    pub(crate) fn new() -> Result<Bell, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::System { call: "eventfd", reason: error.into() })?;
        Ok(Bell { rung: AtomicBool::new(false), fd })
    }

    /// Whether somebody has rung since this was asked last.
    pub(crate) fn take(&self) -> bool {
        // Looked at before it is written: it is looked at often.
        let rung = self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire);
        if rung {
            self.still();
        }
        rung
    }

    /// Takes what made the descriptor readable. Who rings does so after its flag, so that this may come
    /// first: the descriptor then ends one sleep for nothing.
    pub(crate) fn still(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
