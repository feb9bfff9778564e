//! What a program has asked its epolls about connections of ours.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use elver_stream::Interest;
use libc::{
    EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM, epoll_event,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::conn::Conn;
use crate::real;

/// What the kernel tells once of an epoll that has its first connection of ours: a thread that waits in it already
/// would hear nothing of what is told here.
const STIRRED: u64 = u64::from_le_bytes(*b"elverEP\x01");

const READS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const WRITES: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;

/// One epoll's.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    /// Its descriptors: copies are the same epoll.
    pub(crate) fds: Vec<RawFd>,
    /// What it has been asked about sockets that are not connected yet.
    early: HashMap<RawFd, epoll_event>,
    entries: Vec<Entry>,
    /// Where each descriptor's is.
    places: HashMap<RawFd, usize>,
    /// Who is told of first.
    first: usize,
    /// What has the kernel's epoll tell something once.
    stir: Option<OwnedFd>,
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

/// How many of the kernel's events are the program's; they stand first.
pub(crate) fn kept(events: &mut [epoll_event]) -> usize {
    let told = events.len();
    let Some(at) = events.iter().position(|event| event.u64 == STIRRED) else { return told };
    events[at..].rotate_left(1);
    told - 1
}

impl Epoll {
    /// Has the kernel's epoll tell something once. Where no descriptor is left for that, who waits there already hears
    /// of the first connection when it waits anew.
    pub(crate) fn stir(&mut self) {
        let Some(epoll) = self.fds.first() else { return };
        let Ok(stir) = eventfd(1, EventfdFlags::CLOEXEC) else { return };
        let mut event = epoll_event { events: (EPOLLIN | EPOLLONESHOT) as u32, u64: STIRRED };
        // SAFETY: the event stands here.
        let told = unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_ADD, stir.as_raw_fd(), &mut event) };
        self.stir = (told == 0).then_some(stir);
    }

    /// Whether it was stirred.
    pub(crate) fn is_stirred(&self) -> bool {
        self.stir.is_some()
    }

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

    /// The program has tried to read, or to write: what it was told once it is told again. Whether that is news
    /// to who waits here.
    pub(crate) fn tried(&mut self, fd: RawFd, reads: bool) -> bool {
        // One that is told of once only is asked for anew.
        let entry = self.entry(fd).filter(|entry| entry.events & EPOLLONESHOT as u32 == 0);
        let Some(entry) = entry else { return false };
        let told = if reads { &mut entry.reads } else { &mut entry.writes };
        !std::mem::replace(told, true)
    }

    /// The program asks about a socket that is not connected yet.
    pub(crate) fn put_early(&mut self, fd: RawFd, event: epoll_event) {
        self.early.insert(fd, event);
    }

    /// What it asked about a socket before that was connected; it is forgotten.
    pub(crate) fn take_early(&mut self, fd: RawFd) -> Option<epoll_event> {
        self.early.remove(&fd)
    }

    /// The kernel has told of something: what it tells of once only is told of here no more either, also when a stream has
    /// taken the connection over. Of several by one name it is not known which it was.
    pub(crate) fn told_by_kernel(&mut self, events: &[epoll_event]) {
        for event in events {
            let is_named = |entry: &&mut Entry| entry.data == event.u64;
            let mut named = self.entries.iter_mut().filter(is_named);
            if let (Some(entry), None) = (named.next(), named.next())
                && entry.events & EPOLLONESHOT as u32 != 0
            {
                (entry.reads, entry.writes) = (false, false);
            }
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
