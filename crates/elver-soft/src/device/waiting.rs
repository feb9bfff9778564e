//! Sleeping until there is something to do.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use elver_rnic::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::SoftDevice;
use crate::SoftError;
use crate::clock::now;

impl SoftDevice {
    /// When a timer is due, for who sleeps on [`SoftDevice::as_fd`] himself; none if none
    /// runs.
    pub fn due(&self) -> Option<Time> {
        let due = [self.rnic.poll_timeout(), self.port.poll_timeout(), self.late_due()];
        due.into_iter().flatten().min()
    }

    /// Sleeps until a packet arrives, a timer is due or `at_most` has passed.
    ///
    /// # Errors
    ///
    /// [`SoftError::System`] if the system does not wait so long, or at all. A signal ends the wait, and is no
    /// error.
    pub fn wait(&mut self, at_most: Duration) -> Result<(), SoftError> {
        self.wait_beside(at_most, None)
    }

    /// As [`SoftDevice::wait`], and until `wake` is readable.
    ///
    /// # Errors
    ///
    /// As [`SoftDevice::wait`].
    pub fn wait_beside(
        &mut self,
        at_most: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), SoftError> {
        let mut wait = at_most;
        if let Some(due) = self.due() {
            wait = wait.min(Duration::from_nanos(due.ns_since(now())));
        }
        if self.rnic.has_errands() {
            return Ok(());
        }
        if let Some((_, look)) = self.errands.bell() {
            wait = wait.min(look);
        }
        let timeout = Timespec::try_from(wait).map_err(|_| SoftError::System {
            call: "ppoll",
            reason: std::io::ErrorKind::InvalidInput.into(),
        })?;
        let bell = self.errands.bell();
        let link = self.port.poll_fd().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        let others = [wake, bell.map(|(fd, _)| fd), self.groups_fd()]
            .map(|fd| fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let mut all: Vec<PollFd<'_>> = [link].into_iter().chain(others).flatten().collect();
        let polled = poll(&mut all, Some(&timeout));
        if bell.is_some() {
            self.errands.hush();
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(SoftError::System { call: "ppoll", reason: error.into() }),
        }
    }
}
