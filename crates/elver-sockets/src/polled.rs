//! `poll`, as the other calls that wait see it as well: descriptors of the kernel's and of ours, each with what is asked.

use std::os::fd::{AsRawFd, RawFd};

use elver_stream::Interest;
use libc::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, pollfd, timespec};

use crate::wait::{Wanted, asked};
use crate::world::World;
use crate::{fds, real};

const READS: i16 = POLLIN | POLLRDNORM;
const WRITES: i16 = POLLOUT | POLLWRNORM;

/// What a program polls.
pub(crate) struct Polled<'a>(pub(crate) &'a mut [pollfd]);

impl Polled<'_> {
    /// The entries of carried connections.
    fn carried<'a>(&'a self, world: &mut World) -> Vec<(&'a pollfd, u32)> {
        let carried = |entry: &'a pollfd| {
            let id = fds::conn(entry.fd)?;
            world.conn(id).filter(|conn| conn.is_carried()).map(|_| (entry, id))
        };
        self.0.iter().filter_map(carried).collect()
    }

    /// How many have something to tell.
    pub(crate) fn told(&self) -> usize {
        self.0.iter().filter(|entry| entry.revents != 0).count()
    }
}

impl Wanted for Polled<'_> {
    fn look(&mut self, world: &mut World, kernel: bool) -> bool {
        let mut any = false;
        let mut kernels = false;
        for entry in self.0.iter_mut() {
            entry.revents = 0;
            let conn = fds::conn(entry.fd).and_then(|id| world.conn(id));
            let Some(conn) = conn.filter(|conn| conn.is_carried()) else {
                kernels |= entry.fd >= 0;
                continue;
            };
            let (readable, writable) =
                conn.events(entry.events & READS != 0, entry.events & WRITES != 0);
            let told = if readable { READS } else { 0 } | if writable { WRITES } else { 0 };
            entry.revents = told & entry.events;
            any |= entry.revents != 0;
        }
        if kernels && (kernel || any) {
            any |= look_at_kernel(self.0, world);
        }
        any
    }

    fn watched(&self, world: &mut World) -> Vec<(u32, Interest)> {
        let interest = |(entry, id): (&pollfd, u32)| {
            let interest = match (entry.events & READS != 0, entry.events & WRITES != 0) {
                (true, true) => Interest::Both,
                (true, false) => Interest::Readable,
                (false, true) => Interest::Writable,
                (false, false) => return None,
            };
            Some((id, interest))
        };
        self.carried(world).into_iter().filter_map(interest).collect()
    }

    fn kernels(&self, world: &mut World, all: &mut Vec<pollfd>) {
        for entry in self.0.iter().filter(|entry| entry.fd >= 0) {
            match fds::conn(entry.fd).and_then(|id| world.conn(id)) {
                Some(conn) if conn.is_carried() => {
                    let watched = conn.watches().filter(|_| entry.events & READS != 0);
                    all.extend(watched.map(|fd| asked(fd.as_raw_fd(), POLLIN)));
                }
                _ => all.push(asked(entry.fd, entry.events)),
            }
        }
    }
}

/// Asks the kernel about its own, without waiting.
fn look_at_kernel(all: &mut [pollfd], world: &mut World) -> bool {
    let mut is_kernel_s = |fd: RawFd| {
        !fds::conn(fd).and_then(|id| world.conn(id)).is_some_and(|conn| conn.is_carried())
    };
    let mut kernels: Vec<pollfd> = all
        .iter()
        .map(|entry| asked(if is_kernel_s(entry.fd) { entry.fd } else { -1 }, entry.events))
        .collect();
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the entries and the time stand in this function.
    let told =
        unsafe { real::ppoll(kernels.as_mut_ptr(), kernels.len() as u64, &now, std::ptr::null()) };
    if told <= 0 {
        return false;
    }
    for (entry, told) in all.iter_mut().zip(kernels).filter(|(_, told)| told.fd >= 0) {
        entry.revents = told.revents;
    }
    true
}
