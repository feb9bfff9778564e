//! What stands behind a descriptor, as the program makes, copies and closes it.

use std::os::fd::RawFd;

use libc::epoll_event;

use super::{CLOSED, NOWHERE, World};
use crate::conn::{Conn, Phase};
use crate::epolls::{Entry, Epoll};
use crate::fds;
use crate::log::Why;
use crate::tuple::{Side, Tuple};

impl World {
    /// The program has a new connection.
    pub(crate) fn add(&mut self, fd: RawFd, tuple: Tuple, side: Side) {
        let former = fds::conn(fd).and_then(|id| self.conns.get(&id));
        let is_sole = side == Side::Acceptor
            || former.map_or_else(|| fds::is_sole(fd), |former| former.fds.len() == 1);
        let watched = match side {
            Side::Connector => self.take_watched(fd),
            // What had its number before was another's, which was closed by a call that is not known.
            Side::Acceptor => Vec::new(),
        };
        self.close(fd);
        if !is_sole && tuple.is_of_one_host() {
            return self.counts.stayed(&tuple, side, Why::Shared, "");
        }
        if !tuple.is_of_one_host() {
            return self.counts.stayed(&tuple, side, Why::OtherHost, "");
        }
        self.leave_former(&tuple, side);
        self.last = free_after(self.last, |number| self.conns.contains_key(&number));
        if !fds::set_conn(fd, self.last) {
            return self.counts.stayed(&tuple, side, Why::Descriptor, "");
        }
        self.conns.insert(self.last, Conn::new(side, tuple, fd));
        for (epoll, entry) in watched {
            self.watch(epoll, entry.of(self.last));
        }
    }

    /// What epolls have been asked about a socket that was not connected yet, or to somewhere else: to them it stays one.
    fn take_watched(&mut self, fd: RawFd) -> Vec<(u32, Entry)> {
        let early = self.take_early(fd);
        let early = early.into_iter().map(|(epoll, event)| (epoll, Entry::new(fd, 0, &event)));
        let before = |(number, epoll): (&u32, &mut Epoll)| Some((*number, epoll.remove(fd)?));
        self.epolls.iter_mut().filter_map(before).chain(early).collect()
    }

    /// One that had the addresses of a new connection has ended, and must not have its name, nor be found by its peer.
    fn leave_former(&mut self, tuple: &Tuple, side: Side) {
        let is_former = |id: &&u32| {
            self.conns.get(id).is_some_and(|conn| conn.tuple == *tuple && conn.side == side)
        };
        if let Some(id) = self.undecided.iter().find(is_former).copied() {
            self.stay(id, Why::Ended, "");
        }
    }

    /// What epolls have been asked about a socket that was not connected yet.
    fn take_early(&mut self, fd: RawFd) -> Vec<(u32, epoll_event)> {
        if !fds::is_early(fd) {
            return Vec::new();
        }
        fds::clear(fd);
        let early = |(number, epoll): (&u32, &mut Epoll)| Some((*number, epoll.take_early(fd)?));
        self.epolls.iter_mut().filter_map(early).collect()
    }

    /// An epoll was asked about a socket that is not connected yet, which may be ours when it is.
    pub(crate) fn early(&mut self, epoll: RawFd, fd: RawFd, event: Option<epoll_event>) {
        let Some(number) = self.epoll(epoll) else { return };
        let epoll = self.epolls.entry(number).or_default();
        match event {
            Some(event) if fds::set_early(fd) => epoll.put_early(fd, event),
            _ => drop(epoll.take_early(fd)),
        }
    }

    /// The number of an epoll, which it gets if it has none; none if there is no room for its descriptor.
    pub(crate) fn epoll(&mut self, fd: RawFd) -> Option<u32> {
        if let Some(number) = fds::epoll(fd) {
            return Some(number);
        }
        self.close(fd);
        self.last_epoll = free_after(self.last_epoll, |number| self.epolls.contains_key(&number));
        if !fds::set_epoll(fd, self.last_epoll, false) {
            return None;
        }
        self.epolls.entry(self.last_epoll).or_default().fds.push(fd);
        Some(self.last_epoll)
    }

    /// A descriptor is a copy of another.
    pub(crate) fn copied(&mut self, from: RawFd, to: RawFd) {
        self.close(to);
        if let Some(number) = fds::epoll(from) {
            // One that is beyond all that are known is told nothing of streams.
            if fds::set_epoll(to, number, fds::watching(from).is_some()) {
                self.epolls.entry(number).or_default().fds.push(to);
            }
            return;
        }
        let Some(id) = fds::conn(from) else { return fds::share(from) };
        if fds::set_conn(to, id) {
            self.conns.entry(id).and_modify(|conn| conn.fds.push(to));
        } else {
            self.stay(id, Why::Descriptor, "");
        }
    }

    /// A descriptor is closed, or about to be.
    pub(crate) fn close(&mut self, fd: RawFd) {
        if let Some(number) = fds::epoll(fd) {
            fds::clear(fd);
            let Some(epoll) = self.epolls.get_mut(&number) else { return };
            epoll.fds.retain(|other| *other != fd);
            if epoll.fds.is_empty() {
                self.epolls.remove(&number);
            }
            return;
        }
        self.take_early(fd);
        let id = fds::conn(fd);
        fds::clear(fd);
        let Some(id) = id else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.fds.len() == 1 {
            return self.end(id);
        }
        conn.fds.retain(|other| *other != fd);
        self.keep_watched(id, fd);
    }

    /// A copy of a connection is closed, which epolls may have: they have the connection until its last copy is closed.
    fn keep_watched(&mut self, id: u32, closed: RawFd) {
        let is_of_it = |entry: &Entry| entry.fd == closed || entry.conn == id && entry.is_nowhere();
        if !self.epolls.values().any(|epoll| epoll.entries().iter().any(is_of_it)) {
            return;
        }
        // The kernel's epolls could not be told later to leave it to a stream.
        let is_carried = self.conns.get(&id).is_some_and(Conn::is_carried);
        if !is_carried && self.may_stay(id, Why::Watched, "") {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for epoll in self.epolls.values_mut() {
            if let Some(entry) = epoll.remove(closed) {
                self.last_nowhere = self.last_nowhere.checked_sub(1).unwrap_or(NOWHERE);
                conn.nowhere.push(self.last_nowhere);
                epoll.put(entry.at(self.last_nowhere));
            }
            if !is_carried {
                // The kernel's tells of it until a stream does, or for good if none comes.
                epoll.watch_by(id, conn.fds[0], closed);
            }
        }
    }

    /// What was closed in the middle of a call is closed here.
    pub(crate) fn let_go_of_lost(&mut self) {
        if !fds::has_lost() || self.is_borrowed() {
            return;
        }
        fds::tell_lost();
        self.epolls.retain(|number, epoll| epoll.has_kept(*number));
        let is_lost = |(id, conn): (&u32, &Conn)| {
            conn.fds.iter().any(|fd| fds::conn(*fd) != Some(*id)).then_some(*id)
        };
        let lost: Vec<u32> = self.conns.iter().filter_map(is_lost).collect();
        for id in lost {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (kept, closed) = std::mem::take(&mut conn.fds)
                .into_iter()
                .partition(|fd| fds::conn(*fd) == Some(id));
            conn.fds = kept;
            if conn.fds.is_empty() {
                // What has its number may be another's.
                conn.fds.push(CLOSED);
                self.end(id);
            } else {
                let closed: Vec<RawFd> = closed;
                closed.into_iter().for_each(|fd| self.keep_watched(id, fd));
            }
        }
    }

    /// A connection's last descriptor is about to be closed.
    fn end(&mut self, id: u32) {
        if self.conns.get(&id).is_some_and(Conn::is_offered) {
            // Its peer may use the stream by now, and would wait for what it says.
            self.accept();
        }
        if let Some(conn) = self.conns.get(&id) {
            self.brief.ended(conn.tuple.server, conn.calls);
        }
        let resets = self.conns.get_mut(&id).is_some_and(Conn::ends_in_reset);
        let Some(Conn { phase: Phase::Carried(carried), .. }) = self.remove(id) else { return };
        self.close_stream(*carried, resets);
    }
}

/// The number that is next to one, and none's.
fn free_after(last: u32, is_taken: impl Fn(u32) -> bool) -> u32 {
    let mut next = last % fds::NUMBER_MAX + 1;
    while is_taken(next) {
        next = next % fds::NUMBER_MAX + 1;
    }
    next
}
