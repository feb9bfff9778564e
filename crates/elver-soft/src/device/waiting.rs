//! Sleeping until there is something to do.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use elver_rnic::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::SoftDevice;
use super::driving::LOOKS_AT_CLOCK;
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
        // Of eight sleeps in a row none would count as time in which initiators could be heard.
        self.empty = LOOKS_AT_CLOCK;
        if bell.is_some() {
            self.errands.hush();
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(SoftError::System { call: "ppoll", reason: error.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::SoftConfig;

    /// Who only sleeps and looks once between two sleeps has looked for what initiators send, all the time: each sleep counts by
    /// itself, and none is longer than what counts.
    #[test]
    fn the_first_look_behind_a_sleep_is_one_at_the_clock() {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 26, 1));
        let mut device = SoftDevice::open(SoftConfig::for_address(address)).unwrap();
        for _ in 0..20 {
            let before = device.looked_at;
            device.wait(Duration::from_millis(1)).unwrap();
            device.drive();
            assert!(device.looked_at > before, "the clock was not looked at");
        }
    }
}
