//! All that this library knows, behind one lock ([`crate::lock`]). What waits does so without it ([`crate::wait`]).

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::epoll_event;

use crate::brief::Brief;
use crate::carried::Carried;
use crate::conn::{Conn, Phase};
use crate::ending::Ending;
use crate::epolls::{Entry, Epoll};
use crate::fds;
use crate::link::Link;
use crate::log::{Counts, Why};
use crate::meeting::Meeting;
use crate::own::Own;
use crate::sleeper::Sleeper;
use crate::turn::Turn;

/// Where the numbers of closed copies begin.
const NOWHERE: RawFd = -2;
/// A number that no descriptor has: beyond what a process may have.
const CLOSED: RawFd = RawFd::MAX;
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
    brief: Brief,
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

    /// One that is no longer the kernel's alone; none of the others.
    pub(crate) fn conn(&mut self, id: u32) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref().filter(|link| !link.is_orphan())
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

    /// Something has changed that no stream tells.
    pub(crate) fn wake_all(&self) {
        self.sleepers.iter().for_each(|sleeper| sleeper.wake());
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

mod agree;
mod descriptors;
mod orphan;
#[cfg(test)]
mod tests;
mod wake;
