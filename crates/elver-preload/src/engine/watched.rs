//! The descriptors that end the thread's sleep.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use elver_soft::SoftDevice;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

pub(super) struct Watched {
    wake: OwnedFd,
    socket: OwnedFd,
    /// What becomes readable when multicast came, once a QP is in a group.
    groups: OnceLock<OwnedFd>,
    /// What becomes readable when a process has ended that this one is connected to, once rdma_cm is open.
    ends: OnceLock<OwnedFd>,
}

impl Watched {
    pub(super) fn new(wake: OwnedFd, socket: OwnedFd) -> Watched {
        Watched { wake, socket, groups: OnceLock::new(), ends: OnceLock::new() }
    }

    /// Ends its sleep.
    pub(super) fn ring(&self) {
        // It can only fail when it was rung often enough already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Has the thread watch for multicast as well.
    pub(super) fn watch_groups(&self, device: &SoftDevice) -> Result<(), c_int> {
        if self.groups.get().is_none()
            && let Some(groups) = device.groups_fd()
        {
            let held = groups.try_clone_to_owned().map_err(|_| libc::EMFILE)?;
            self.groups.get_or_init(|| held);
            self.ring();
        }
        Ok(())
    }

    /// Has the thread watch for the ends of processes as well.
    pub(super) fn watch_ends(&self, ends: BorrowedFd<'_>) -> Result<(), c_int> {
        if self.ends.get().is_none() {
            let held = ends.try_clone_to_owned().map_err(|_| libc::EMFILE)?;
            self.ends.get_or_init(|| held);
            self.ring();
        }
        Ok(())
    }

    /// Whether a process has ended that this one is connected to.
    pub(super) fn has_ends(&self) -> bool {
        self.ends.get().is_some_and(|ends| {
            let mut ready = [PollFd::new(ends, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
        })
    }

    /// Sleeps, or only looks; says whether nothing ended it: a call, a process's end, or packets where those do.
    pub(super) fn sleep(&self, at_most: Duration, packets: bool) -> bool {
        // What is not there, or not looked at, is looked at with the first.
        let all = [
            Some(&self.wake),
            self.ends.get(),
            Some(&self.socket).filter(|_| packets),
            self.groups.get().filter(|_| packets),
        ];
        let mut all = all.map(|fd| PollFd::new(fd.unwrap_or(&self.wake), PollFlags::IN));
        let timeout = Timespec::try_from(at_most).ok();
        let _ = poll(&mut all, timeout.as_ref());
        if !all[0].revents().is_empty() {
            // Nobody else takes what was rung.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        all.iter().all(|fd| fd.revents().is_empty())
    }
}
