//! What a program has asked its epolls about connections of ours.

use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};

use elver_stream::Interest;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM, epoll_event};

use crate::conn::Conn;

const READS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const WRITES: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;

/// One epoll's.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    entries: Vec<Entry>,
    /// Where each descriptor's is.
    places: HashMap<RawFd, usize>,
    /// Who is told of first.
    first: usize,
    /// What has the kernel's epoll tell something once.
    pub(crate) stir: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) fd: RawFd,
    pub(crate) conn: u32,
    events: u32,
    data: u64,
    /// Whether it is told of (once, with EPOLLET, until the program has tried to read or to write).
    reads: bool,
    writes: bool,
}

impl Entry {
    pub(crate) fn new(fd: RawFd, conn: u32, event: &epoll_event) -> Entry {
        let (events, data) = (event.events, event.u64);
        Entry { fd, conn, events, data, reads: true, writes: true }
    }

    fn wants_to_read(&self) -> bool {
        self.reads && self.events & READS != 0
    }

    fn wants_to_write(&self) -> bool {
        self.writes && self.events & WRITES != 0
    }

    /// What a wait is for, if it is for anything.
    pub(crate) fn interest(&self) -> Option<Interest> {
        match (self.wants_to_read(), self.wants_to_write()) {
            (true, true) => Some(Interest::Both),
            (true, false) => Some(Interest::Readable),
            (false, true) => Some(Interest::Writable),
            (false, false) => None,
        }
    }

    /// What there is to tell of a connection, which counts as told.
    fn tell(&mut self, conn: &mut Conn) -> Option<epoll_event> {
        let (readable, writable) = conn.events(self.wants_to_read(), self.wants_to_write());
        if !readable && !writable {
            return None;
        }
        let told = if readable { READS } else { 0 } | if writable { WRITES } else { 0 };
        if self.events & EPOLLET as u32 != 0 {
            self.reads &= !readable;
            self.writes &= !writable;
        }
        if self.events & EPOLLONESHOT as u32 != 0 {
            (self.reads, self.writes) = (false, false);
        }
        Some(epoll_event { events: told & self.events, u64: self.data })
    }
}

impl Epoll {
    pub(crate) fn entry(&mut self, fd: RawFd) -> Option<&mut Entry> {
        self.entries.get_mut(*self.places.get(&fd)?)
    }

    /// Puts one in, instead of the descriptor's former one.
    pub(crate) fn put(&mut self, entry: Entry) {
        self.remove(entry.fd);
        self.places.insert(entry.fd, self.entries.len());
        self.entries.push(entry);
    }

    /// Whether there was one.
    pub(crate) fn remove(&mut self, fd: RawFd) -> bool {
        let Some(place) = self.places.remove(&fd) else { return false };
        self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.fd, place);
        }
        true
    }

    /// The program has tried to read, or to write: what it was told once it is told again.
    pub(crate) fn tried(&mut self, fd: RawFd, reads: bool) {
        // One that is told of once only is asked for anew.
        let entry = self.entry(fd).filter(|entry| entry.events & EPOLLONESHOT as u32 == 0);
        match entry {
            Some(entry) if reads => entry.reads = true,
            Some(entry) => entry.writes = true,
            None => {}
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Tells of as many as there is room for; how many.
    pub(crate) fn tell(
        &mut self,
        conns: &mut HashMap<u32, Conn>,
        events: &mut [epoll_event],
    ) -> usize {
        let (mut told, count) = (0, self.entries.len());
        let first = self.first;
        for at in (0..count).map(|at| (first + at) % count) {
            if told == events.len() {
                // The others are the first next time.
                self.first = at;
                break;
            }
            let entry = &mut self.entries[at];
            if let Some(conn) = conns.get_mut(&entry.conn).filter(|conn| conn.is_carried())
                && let Some(event) = entry.tell(conn)
            {
                events[told] = event;
                told += 1;
            }
        }
        told
    }
}
