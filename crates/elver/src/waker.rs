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
    /// That there may be something in the descriptor, so that it costs no call to see that there is
    /// nothing.
    rung: AtomicBool,
    fd: OwnedFd,
}

impl Waker {
    /// Ends a wait. Allocates nothing and takes no lock.
    pub fn wake(&self) {
        self.0.ring();
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

    /// The descriptor first: whoever takes the flag back before this has set it finds what was written,
    /// and whoever reads before it was written leaves a flag that is set after that.
    fn ring(&self) {
        // It can only be full, which is as good.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        self.rung.store(true, Ordering::Release);
    }

    /// Whether somebody has rung since this was asked last; the descriptor is readable no more.
    pub(crate) fn take(&self) -> bool {
        // Looked at before it is written: it is looked at often.
        self.rung.load(Ordering::Relaxed)
            && self.rung.swap(false, Ordering::AcqRel)
            && rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Rings while it is taken what was rung before, at every distance. The flag and the descriptor once
    /// disagreed then: a ring was taken from the descriptor alone, so that who slept on that slept on, or
    /// from the flag alone, so that it woke him for ever.
    #[test]
    fn what_is_rung_meanwhile_is_in_flag_and_descriptor_or_in_neither() {
        const ROUNDS: u32 = 50_000;
        let bell = Arc::new(Bell::new().unwrap());
        let round = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let ringer = {
            let (bell, round) = (bell.clone(), round.clone());
            std::thread::spawn(move || {
                for number in (1..2 * ROUNDS).step_by(2) {
                    while round.load(Ordering::Acquire) != number {
                        std::thread::yield_now();
                    }
                    bell.ring();
                    round.store(number + 1, Ordering::Release);
                }
            })
        };
        for number in (1..2 * ROUNDS).step_by(2) {
            bell.ring();
            round.store(number, Ordering::Release);
            (0..number % 512).for_each(|_| std::hint::spin_loop());
            let mut taken = bell.take();
            while round.load(Ordering::Acquire) != number + 1 {
                std::thread::yield_now();
            }
            let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
            let readable = poll(&mut fds, Some(&Timespec::default())).unwrap() == 1;
            let rung = bell.take();
            assert_eq!(readable, rung, "round {number}");
            taken |= rung;
            assert!(taken, "round {number}");
        }
        ringer.join().unwrap();
    }
}
