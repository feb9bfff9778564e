//! `poll`, as the other calls that wait see it as well: descriptors of the kernel's and of ours, each with what is asked.

use std::os::fd::RawFd;

use libc::{pollfd, timespec};

use crate::conn::READS;
use crate::sleeper::Watched;
use crate::wait::{Wanted, asked};
use crate::world::World;
use crate::{fds, real};

/// What a program polls.
pub(crate) struct Polled<'a> {
    pub(crate) all: &'a mut [pollfd],
    /// What is told of an entry that asks for these events: `poll` tells ends unasked, and `select` has sets.
    pub(crate) means: fn(i16) -> i16,
    /// Of the kernel's, those that have an end of which nothing is told: it stays, and would end each sleep.
    ended: Vec<RawFd>,
}

impl<'a> Polled<'a> {
    pub(crate) fn new(all: &'a mut [pollfd], means: fn(i16) -> i16) -> Polled<'a> {
        Polled { all, means, ended: Vec::new() }
    }
}

impl Polled<'_> {
    /// The entries of carried connections.
    fn carried<'a>(&'a self, world: &mut World) -> Vec<(&'a pollfd, u32)> {
        let carried = |entry: &'a pollfd| {
            let id = fds::conn(entry.fd)?;
            world.conn(id).filter(|conn| conn.is_carried()).map(|_| (entry, id))
        };
        self.all.iter().filter_map(carried).collect()
    }

    /// How many have something to tell.
    pub(crate) fn told(&self) -> usize {
        self.all.iter().filter(|entry| entry.revents != 0).count()
    }
}

impl Wanted for Polled<'_> {
    fn look(&mut self, world: &mut World, kernel: bool) -> bool {
        let mut any = false;
        let mut kernels = false;
        for entry in self.all.iter_mut() {
            entry.revents = 0;
            let conn = fds::conn(entry.fd).and_then(|id| world.conn(id));
            let Some(conn) = conn.filter(|conn| conn.is_carried()) else {
                kernels |= entry.fd >= 0;
                continue;
            };
            entry.revents = conn.events(entry.events) & (self.means)(entry.events);
            any |= entry.revents != 0;
        }
        if kernels && (kernel || any) {
            any |= self.look_at_kernel(world);
        }
        any
    }

    fn watched(&self, world: &mut World) -> Vec<Watched> {
        let carried: Vec<_> =
            self.carried(world).into_iter().map(|(entry, id)| (id, entry.events)).collect();
        let interest = |(id, events)| Some(Watched::new(id, world.conn(id)?.interest(events)?));
        carried.into_iter().filter_map(interest).collect()
    }

    fn kernels(&self, world: &mut World, all: &mut Vec<pollfd>) {
        for entry in self.all.iter().filter(|it| it.fd >= 0 && !self.ended.contains(&it.fd)) {
            match fds::conn(entry.fd).and_then(|id| world.conn(id)) {
                Some(conn) if conn.is_carried() => {
                    all.extend(conn.watch(entry.events & READS != 0));
                }
                _ => all.push(asked(entry.fd, entry.events)),
            }
        }
    }
}

impl Polled<'_> {
    /// Asks the kernel about its own, without waiting.
    fn look_at_kernel(&mut self, world: &mut World) -> bool {
        let mut is_kernel_s = |fd: RawFd| {
            !fds::conn(fd).and_then(|id| world.conn(id)).is_some_and(|conn| conn.is_carried())
        };
        let place = |entry: &pollfd| if is_kernel_s(entry.fd) { entry.fd } else { -1 };
        let places: Vec<RawFd> = self.all.iter().map(place).collect();
        let entry = |(fd, entry): (&RawFd, &pollfd)| asked(*fd, entry.events);
        let mut kernels: Vec<pollfd> = places.iter().zip(&*self.all).map(entry).collect();
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let (entries, count) = (kernels.as_mut_ptr(), kernels.len() as u64);
        // SAFETY: the entries and the time stand in this function.
        let told = unsafe { real::ppoll(entries, count, &now, std::ptr::null()) };
        self.ended.clear();
        if told <= 0 {
            return false;
        }
        let mut any = false;
        for (entry, told) in self.all.iter_mut().zip(kernels).filter(|(_, told)| told.fd >= 0) {
            entry.revents = told.revents & (self.means)(entry.events);
            any |= entry.revents != 0;
            if told.revents != 0 && entry.revents == 0 {
                self.ended.push(entry.fd);
            }
        }
        any
    }
}
