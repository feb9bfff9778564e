//! What a program has asked its epolls about connections of ours.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLRDHUP,
    POLLERR, epoll_event,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::conn::{ALWAYS, Conn, READS, WRITES};
use crate::own::Own;
use crate::{fds, real};

/// What the kernel tells of an epoll that has its first connection of ours, until no thread waits in it that would hear
/// nothing of what is told here.
const STIRRED: u64 = u64::from_le_bytes(*b"elverEP\x01");
/// How long at most: a thread that has not come back by then has left by another way.
const STIRS: Duration = Duration::from_secs(1);

/// Of so many times that streams have something for an epoll, the kernel is asked first once.
const TURNS_PER_KERNEL: u32 = 8;

/// Ends, of which an epoll tells.
const ENDS: i16 = EPOLLRDHUP as i16 | ALWAYS;

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
    /// Times that streams had something since the kernel was asked first.
    turns: u32,
    is_stirred: bool,
    /// What has the kernel's epoll tell something, and since when.
    stir: Option<(Own, Instant)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) fd: RawFd,
    pub(crate) conn: u32,
    events: u32,
    data: u64,
    /// Whether it is told of (once, with EPOLLET, until the program has tried to read or to write, or more has come).
    reads: bool,
    writes: bool,
    /// What had arrived when it was told of, with EPOLLET.
    seen: u64,
    /// Ends that it was told of, with EPOLLET.
    ends_told: i16,
    /// It was told of, with EPOLLONESHOT.
    is_off: bool,
}

impl Entry {
    pub(crate) fn new(fd: RawFd, conn: u32, event: &epoll_event) -> Entry {
        let (events, data) = (event.events, event.u64);
        let (reads, writes, seen, ends_told, is_off) = (true, true, 0, 0, false);
        Entry { fd, conn, events, data, reads, writes, seen, ends_told, is_off }
    }

    /// The same by another number.
    pub(crate) fn at(self, fd: RawFd) -> Entry {
        Entry { fd, ..self }
    }

    /// The same of another connection, of which nothing was told yet. What is told once only stays told.
    pub(crate) fn of(self, conn: u32) -> Entry {
        Entry { conn, reads: true, writes: true, ends_told: 0, ..self }
    }

    /// Whether the copy is gone by which it was asked for.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.fd < 0
    }

    fn is(&self, flag: i32) -> bool {
        self.events & flag as u32 != 0
    }

    /// What is to be told, as `poll` asks for it.
    fn asked(&self) -> i16 {
        let reads = if self.reads { READS } else { 0 };
        let writes = if self.writes { WRITES } else { 0 };
        self.events as i16 & (reads | writes | ENDS) & !self.ends_told
    }

    /// What had arrived when it was told of, if it is told of more alone.
    pub(crate) fn seen(&self) -> Option<u64> {
        (self.events as i16 & READS != 0 && !self.reads).then_some(self.seen)
    }

    /// The same, if a wait is for anything of it.
    pub(crate) fn wanted(&self) -> Option<i16> {
        (!self.is_off).then(|| self.asked())
    }

    /// What there is to tell of a connection, which counts as told.
    fn tell(&mut self, conn: &mut Conn) -> Option<epoll_event> {
        if self.is_off {
            return None;
        }
        let seen = self.is(EPOLLET).then(|| conn.arrived());
        self.reads |= seen.is_some_and(|seen| seen != self.seen);
        let told = conn.events(self.asked());
        if told & !self.ends_told == 0 {
            return None;
        }
        if let Some(seen) = seen {
            self.seen = seen;
            self.reads &= told & READS == 0;
            self.writes &= told & WRITES == 0;
            self.ends_told |= told & ENDS;
        }
        self.is_off = self.is(EPOLLONESHOT);
        // Ends stay, but for what failed, which is told once.
        let before = self.ends_told & !POLLERR;
        Some(epoll_event { events: (told | before) as u32, u64: self.data })
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
    /// Has the kernel's epoll tell something to all who wait there. Where no descriptor is left for that, who waits there
    /// already hears of the first connection when it waits anew.
    pub(crate) fn stir(&mut self) {
        let Some(epoll) = self.fds.first() else { return };
        let Ok(stir) = eventfd(1, EventfdFlags::CLOEXEC).map(Own::new) else { return };
        let mut event = epoll_event { events: EPOLLIN as u32, u64: STIRRED };
        // SAFETY: the event stands here.
        let told =
            unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_ADD, stir.as_fd().as_raw_fd(), &mut event) };
        self.is_stirred = told == 0;
        self.stir = self.is_stirred.then(|| (stir, Instant::now()));
    }

    /// Whether it was stirred.
    pub(crate) fn is_stirred(&self) -> bool {
        self.is_stirred
    }

    /// Ends that when nobody waits there any more who does not know.
    pub(crate) fn calm(&mut self) {
        let waits = fds::is_anybody_inside(&self.fds);
        let Some((stir, _)) = self.stir.take_if(|(_, since)| !waits || since.elapsed() > STIRS)
        else {
            return;
        };
        if let Some(epoll) = self.fds.first() {
            let none = std::ptr::null_mut();
            // SAFETY: a deletion needs no event.
            unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_DEL, stir.as_fd().as_raw_fd(), none) };
        }
    }

    /// Has the kernel tell once more of a connection that is its alone, to who waits for edges; by this copy for those
    /// that are gone.
    pub(crate) fn tell_again(&self, conn: u32, copy: RawFd) {
        let by_edges = |entry: &&Entry| entry.conn == conn && entry.is(EPOLLET);
        for entry in self.entries.iter().filter(by_edges) {
            let mut event = epoll_event { events: entry.events, u64: entry.data };
            let Some(epoll) = self.fds.first() else { return };
            let fd = if entry.is_nowhere() { copy } else { entry.fd };
            // SAFETY: the event stands here. One that the program has closed is in no epoll.
            unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_MOD, fd, &mut event) };
        }
    }

    /// Has the kernel watch a connection by this copy for those that are gone, the last of which is about to be closed.
    pub(crate) fn watch_by(&self, conn: u32, copy: RawFd, closed: RawFd) {
        let Some(epoll) = self.fds.first() else { return };
        // SAFETY: a deletion needs no event.
        unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_DEL, closed, std::ptr::null_mut()) };
        // What is told of once may have been.
        let goes_on = |it: &&Entry| it.conn == conn && it.is_nowhere() && !it.is_off;
        for entry in self.entries.iter().filter(goes_on) {
            let mut event = epoll_event { events: entry.events, u64: entry.data };
            // SAFETY: the event stands here. One by this copy stays.
            unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_ADD, copy, &mut event) };
        }
    }

    /// Forgets descriptors that were closed; whether one is left.
    pub(crate) fn has_kept(&mut self, number: u32) -> bool {
        self.fds.retain(|fd| fds::epoll(*fd) == Some(number));
        self.early.retain(|fd, _| fds::is_early(*fd));
        !self.fds.is_empty()
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

    /// Takes one out, if there is one.
    pub(crate) fn remove(&mut self, fd: RawFd) -> Option<Entry> {
        let place = self.places.remove(&fd)?;
        let entry = self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.fd, place);
        }
        Some(entry)
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
                entry.is_off = true;
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
        self.turns += u32::from(told > 0);
        told
    }

    /// Whether it is time to ask the kernel first, whatever streams have; then it was.
    pub(crate) fn is_kernel_s_turn(&mut self) -> bool {
        let is_due = self.turns + 1 >= TURNS_PER_KERNEL;
        if is_due {
            self.turns = 0;
        }
        is_due
    }
}
