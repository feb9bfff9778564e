//! All that this library knows, behind one lock ([`crate::lock`]). What waits does so without it ([`crate::wait`]).

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::epoll_event;
use rustix::net::RecvFlags;

use crate::carried::{Carried, Done};
use crate::conn::{Conn, Phase};
use crate::ending::Ending;
use crate::epolls::{Entry, Epoll};
use crate::fds;
use crate::link::Link;
use crate::log::{Counts, Why};
use crate::meeting::Meeting;
use crate::own::Own;
use crate::sleeper::Sleeper;
use crate::tcp::Failure;
use crate::tuple::{Side, Tuple};
use crate::turn::Turn;

/// Where the numbers of closed copies begin.
const NOWHERE: RawFd = -2;
/// How long a call waits for what was written before the end of a stream to be on its way.
const CLOSING: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct World {
    link: Option<Link>,
    failed: Option<(Instant, String)>,
    conns: HashMap<u32, Conn>,
    last: u32,
    last_epoll: u32,
    /// Numbers of closed copies that epolls have, below all of descriptors.
    last_nowhere: RawFd,
    /// Those whose ends have not agreed.
    undecided: Vec<u32>,
    turn: Turn,
    /// By the numbers that their descriptors have.
    pub(crate) epolls: HashMap<u32, Epoll>,
    pub(crate) sleepers: Vec<Arc<Sleeper>>,
    /// What sleepers had to be woken by.
    pub(crate) bells: Vec<Own>,
    /// The session was disarmed while others sleep.
    pub(crate) unarmed: bool,
    pub(crate) counts: Counts,
    closing: Vec<Ending>,
    process: u32,
    /// Its number, which a child is known by that shares this memory.
    pid: u32,
}

impl World {
    pub(crate) fn new(process: u32) -> World {
        World { process, pid: std::process::id(), last_nowhere: NOWHERE, ..World::default() }
    }

    /// How many times the process that it is of is a child.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Whether a child calls that shares this memory until it runs another program (`vfork`).
    pub(crate) fn is_borrowed(&self) -> bool {
        self.pid != std::process::id()
    }

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

    /// One that is no longer the kernel's alone; none of the others.
    pub(crate) fn conn(&mut self, id: u32) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    pub(crate) fn has_undecided(&self) -> bool {
        !self.undecided.is_empty()
    }

    /// What sleeps watch beside what they are for.
    pub(crate) fn meetings(&self) -> impl Iterator<Item = &Meeting> {
        self.undecided.iter().filter_map(|id| match &self.conns.get(id)?.phase {
            Phase::Meeting(meeting, _) | Phase::Offered { meeting, .. } => Some(meeting),
            _ => None,
        })
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

    /// A connection's last descriptor is about to be closed.
    fn end(&mut self, id: u32) {
        if self.conns.get(&id).is_some_and(Conn::is_offered) {
            // Its peer may use the stream by now, and would wait for what it says.
            self.accept();
        }
        let resets = self.conns.get_mut(&id).is_some_and(Conn::ends_in_reset);
        let Some(Conn { phase: Phase::Carried(carried), .. }) = self.remove(id) else { return };
        self.close_stream(*carried, resets);
    }

    fn close_stream(&mut self, carried: Carried, resets: bool) {
        let (mut ending, since) = (Ending::new(carried.close(resets)), Instant::now());
        // A peer that lets nothing through keeps nobody for longer.
        while !ending.is_over() {
            if since.elapsed() > CLOSING {
                self.closing.push(ending);
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Lets go of streams that have ended, when all is on its way, or when that takes too long.
    fn let_go(&mut self) {
        self.closing.retain_mut(|ending| !ending.is_over());
    }

    fn remove(&mut self, id: u32) -> Option<Conn> {
        self.undecided.retain(|other| *other != id);
        let conn = self.conns.remove(&id)?;
        if let Some(carried) = conn.carried() {
            let (read, written) = carried.bytes();
            self.counts.ended(&conn.tuple, read, written);
        }
        conn.fds.iter().for_each(|fd| fds::clear(*fd));
        for epoll in self.epolls.values_mut() {
            for fd in conn.fds.iter().chain(&conn.nowhere) {
                epoll.remove(*fd);
            }
        }
        Some(conn)
    }

    /// A connection is the kernel's alone from here on, if it may still be; whether it is.
    #[must_use]
    pub(crate) fn may_stay(&mut self, id: u32, why: Why, text: &str) -> bool {
        match self.conns.get(&id) {
            Some(conn) if conn.is_bound() => false,
            Some(conn) => {
                self.counts.stayed(&conn.tuple, conn.side, why, text);
                if conn.keeps_end {
                    self.epolls.values().for_each(|epoll| epoll.tell_again(id, conn.fds[0]));
                }
                let fds = self.remove(id).map_or(Vec::new(), |conn| conn.fds);
                // Who waits for it goes on with the kernel.
                fds.into_iter().for_each(|fd| fds::set_stayed(fd, id));
                self.wake_all();
                true
            }
            None => true,
        }
    }

    /// As [`World::may_stay`], of one that may, or that nobody asks for.
    pub(crate) fn stay(&mut self, id: u32, why: Why, text: &str) {
        let _ = self.may_stay(id, why, text);
    }

    /// Reads; none if it is the kernel's alone. TCP's end is none as long as more may come by a stream: whoever has
    /// connected one was answered by this process, and says next which connection it is of.
    pub(crate) fn read(
        &mut self,
        id: u32,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        failure: Failure,
    ) -> Option<Done> {
        let done = self.conns.get_mut(&id)?.read(bufs, flags, failure);
        let is_end = matches!(done, Done::Bytes(0)) && bufs.iter().any(|buf| !buf.is_empty());
        let Phase::Offered { until_ns, .. } = self.conns.get(&id)?.phase else { return Some(done) };
        if !is_end {
            return Some(done);
        }
        self.accept();
        let conn = self.conns.get_mut(&id)?;
        if conn.is_carried() {
            return Some(conn.read(bufs, flags, failure));
        }
        conn.keeps_end = self.link.as_ref().is_some_and(|link| link.may_have(until_ns));
        Some(if conn.keeps_end { Done::Wait } else { done })
    }

    /// The program has tried to read, or to write.
    pub(crate) fn tried(&mut self, id: u32, reads: bool) {
        let Some(conn) = self.conns.get(&id) else { return };
        let mut news = false;
        for epoll in self.epolls.values_mut() {
            for fd in conn.fds.iter().chain(&conn.nowhere) {
                news |= epoll.tried(*fd, reads);
            }
        }
        // Whoever sleeps in one has not been armed for what it was told of already.
        if news {
            self.wake_all();
        }
    }

    /// Puts a connection into an epoll, or changes it there. Whoever waits in it by now comes back, and then waits here.
    pub(crate) fn watch(&mut self, number: u32, entry: Entry) {
        let epoll = self.epolls.entry(number).or_default();
        epoll.put(entry);
        if !epoll.is_stirred() {
            for fd in &epoll.fds {
                fds::set_epoll(*fd, number, true);
            }
            epoll.stir();
        }
        self.wake_all();
    }

    /// What an epoll has to tell of carried connections.
    pub(crate) fn tell_epoll(&mut self, epoll: u32, events: &mut [epoll_event]) -> usize {
        let World { epolls, conns, .. } = self;
        epolls.get_mut(&epoll).map_or(0, |epoll| epoll.tell(conns, events))
    }

    /// The process forks: what its ends have not agreed stays with TCP, at both copies.
    pub(crate) fn leave_unbound_to_tcp(&mut self) {
        let unbound = |(id, conn): (&u32, &Conn)| (!conn.is_bound()).then_some(*id);
        let unbound: Vec<u32> = self.conns.iter().filter_map(unbound).collect();
        for id in unbound {
            self.stay(id, Why::Forked, "");
        }
    }

    /// This process is a child of the one that the world was of.
    pub(crate) fn become_child(&mut self, process: u32) {
        self.leave_unbound_to_tcp();
        for conn in self.conns.values_mut() {
            conn.phase = Phase::Parents;
        }
        let World { conns, epolls, last, last_epoll, last_nowhere, .. } = std::mem::take(self);
        *self = World { conns, epolls, last, last_epoll, last_nowhere, ..World::new(process) };
    }

    /// Ends all streams as if their sockets were closed. Who goes on with one of these, beside the end of the process, must
    /// not reach the kernel's socket, on which the peer expects nothing.
    pub(crate) fn finish(&mut self) {
        let ids: Vec<u32> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.carried().is_some()) else {
                continue;
            };
            let resets = conn.ends_in_reset();
            if let Phase::Carried(carried) = std::mem::replace(&mut conn.phase, Phase::Over) {
                let (read, written) = carried.bytes();
                self.counts.ended(&conn.tuple, read, written);
                self.close_stream(*carried, resets);
            }
        }
        while !self.closing.is_empty() {
            self.let_go();
            std::thread::yield_now();
        }
        std::mem::take(&mut self.counts).tell();
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

mod agree;
#[cfg(test)]
mod tests;
mod wake;
