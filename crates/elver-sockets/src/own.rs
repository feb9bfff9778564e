//! Descriptors of this library's own, among those of a program that may close or replace all that it has not opened.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, getrlimit};

use crate::{fds, real};

/// Where they stand at most, and how many there is room for below the system's limit: above what programs open, and not so
/// high that the kernel's table of a program's descriptors becomes large.
const PLACE_MAX: u64 = 4_096;
const ROOM: u64 = 512;

/// A descriptor that the program cannot close.
#[derive(Debug)]
pub(crate) struct Own(ManuallyDrop<OwnedFd>);

/// How many descriptors this process may have.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

impl Own {
    /// Puts one out of the way of the program's, where there is room.
    pub(crate) fn new(fd: OwnedFd) -> Own {
        let place = limit().min(PLACE_MAX).saturating_sub(ROOM) as RawFd;
        let fd = match rustix::io::fcntl_dupfd_cloexec(&fd, place) {
            Ok(copy) => {
                fds::lose_former(fd.as_raw_fd());
                // SAFETY: it is this one's. Dropped, it would be closed by this library's own function.
                unsafe { real::close(fd.into_raw_fd()) };
                copy
            }
            Err(_) => fd,
        };
        fds::set_own(fd.as_raw_fd(), true);
        Own(ManuallyDrop::new(fd))
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let fd = self.0.as_raw_fd();
        fds::set_own(fd, false);
        // SAFETY: it is this one's, which is not used again.
        unsafe { real::close(fd) };
    }
}
