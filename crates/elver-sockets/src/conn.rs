//! A TCP connection that may come to go by a stream.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use elver_stream::{Connecting, Interest, Shutdown};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};
use rustix::net::{RecvFlags, SendFlags};

use crate::carried::{Carried, Done};
use crate::frame::{Frame, Nonce};
use crate::meeting::Meeting;
use crate::sleeper::Watched;
use crate::tcp::{self, Failure};
use crate::tuple::{Side, Tuple};

/// Events that say that a read, or a write, would not wait; and of which `poll` tells unasked. An epoll has the same.
pub(crate) const READS: i16 = POLLIN | POLLRDNORM;
pub(crate) const WRITES: i16 = POLLOUT | POLLWRNORM;
pub(crate) const ALWAYS: i16 = POLLHUP | POLLERR;

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) side: Side,
    pub(crate) tuple: Tuple,
    /// All of this process's.
    pub(crate) fds: Vec<RawFd>,
    /// Numbers, of no descriptors, under which epolls have it of which the copy was closed that they were asked about.
    pub(crate) nowhere: Vec<RawFd>,
    pub(crate) phase: Phase,
    /// How often the program has tried to read or to write.
    pub(crate) calls: u32,
    tcp_sent: u64,
    tcp_read: u64,
    tcp_shut: bool,
    tcp_shut_read: bool,
    /// TCP has ended, and who read was told to wait.
    pub(crate) keeps_end: bool,
}

/// How far the two ends have agreed. Until they have, all goes by TCP, and nobody waits for it.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nothing was read or written.
    Fresh,
    /// This end can be found, until then.
    Meeting(Meeting, Instant),
    /// The accepting end has offered to take a stream, and keeps to it.
    Offered { meeting: Meeting, nonce: Nonce, until_ns: u64 },
    /// The connecting end connects it.
    Connecting { connecting: Box<Connecting>, nonce: Nonce, until_ns: u64 },
    /// By a stream.
    Carried(Box<Carried>),
    /// By a stream of the process that this one was forked from.
    Parents,
    /// By a stream, which has ended with the process, of which something still runs.
    Over,
}

impl Conn {
    pub(crate) fn new(side: Side, tuple: Tuple, fd: RawFd) -> Conn {
        Conn {
            side,
            tuple,
            fds: vec![fd],
            nowhere: Vec::new(),
            phase: Phase::Fresh,
            calls: 0,
            tcp_sent: 0,
            tcp_read: 0,
            tcp_shut: false,
            tcp_shut_read: false,
            keeps_end: false,
        }
    }

    /// Its socket. It has one as long as it is known.
    pub(crate) fn socket<'a>(&self) -> BorrowedFd<'a> {
        tcp::fd(self.fds[0])
    }

    /// From which byte on this end writes to a stream that is there now.
    pub(crate) fn by_tcp(&self) -> u64 {
        if self.tcp_shut { Frame::STAYS } else { self.tcp_sent }
    }

    /// Whether the peer was told to write to a stream, or may have been.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_offered() || self.is_carried()
    }

    /// Whether its peer may take a stream into use of which nothing has been heard yet.
    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.phase, Phase::Offered { .. })
    }

    /// Whether the program has shut it for reading before a stream carried it.
    pub(crate) fn reads_no_more(&self) -> bool {
        self.tcp_shut_read
    }

    /// Whether its readiness is not the kernel's to tell.
    pub(crate) fn is_carried(&self) -> bool {
        matches!(self.phase, Phase::Carried(_) | Phase::Parents | Phase::Over)
    }

    pub(crate) fn carried(&self) -> Option<&Carried> {
        match &self.phase {
            Phase::Carried(carried) => Some(carried),
            _ => None,
        }
    }

    pub(crate) fn read(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        failure: Failure,
    ) -> Done {
        let fd = self.socket();
        match &mut self.phase {
            Phase::Parents => Done::Failed(libc::ENOTCONN),
            Phase::Over => Done::Bytes(0),
            Phase::Carried(carried) => carried.read(fd, &mut self.tcp_read, bufs, flags, failure),
            _ => {
                let read = tcp::receive(fd, bufs, u64::MAX, flags, failure);
                if !flags.contains(RecvFlags::PEEK) {
                    self.tcp_read += *read.as_ref().unwrap_or(&0) as u64;
                }
                read.into()
            }
        }
    }

    pub(crate) fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
        failure: Failure,
    ) -> Done {
        let fd = self.socket();
        match &mut self.phase {
            Phase::Parents => Done::Failed(libc::ENOTCONN),
            Phase::Over => Done::Failed(libc::EPIPE),
            Phase::Carried(carried) => carried.write(fd, bufs, flags, failure),
            _ => {
                let sent = tcp::send(fd, bufs, flags, failure);
                self.tcp_sent += *sent.as_ref().unwrap_or(&0) as u64;
                sent.into()
            }
        }
    }

    /// Ends directions; whether that is the kernel's to do.
    ///
    /// # Errors
    /// As errno.
    pub(crate) fn shutdown(&mut self, how: Shutdown) -> Result<bool, c_int> {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        match &mut self.phase {
            Phase::Parents | Phase::Over => Err(libc::ENOTCONN),
            Phase::Carried(carried) => match carried.is_over(fd, tcp_read) {
                true => Err(libc::ENOTCONN),
                false => carried.shutdown(how).map(|()| false),
            },
            _ => {
                self.tcp_shut |= how != Shutdown::Read;
                self.tcp_shut_read |= how != Shutdown::Write;
                Ok(true)
            }
        }
    }

    /// Bytes that a read would give; none if the kernel knows.
    pub(crate) fn ready_bytes(&mut self) -> Option<usize> {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        match &mut self.phase {
            Phase::Carried(carried) => Some(carried.ready_bytes(fd, tcp_read)),
            _ => None,
        }
    }

    /// Which of these events hold for one that is carried, and which ends that `poll` tells of unasked.
    pub(crate) fn events(&mut self, asked: i16) -> i16 {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        let Phase::Carried(carried) = &mut self.phase else {
            // Reading and writing say why not.
            return asked & (READS | WRITES);
        };
        let readable = asked & READS != 0 && carried.is_readable(fd, tcp_read);
        let writable = asked & WRITES != 0 && carried.is_writable();
        let told = if readable { READS } else { 0 } | if writable { WRITES } else { 0 };
        // One that has ended is readable.
        let may_have_ended = readable || asked & READS == 0;
        let ends = if may_have_ended { carried.look_for_ends(fd, tcp_read) } else { 0 };
        told & asked | ends & (asked | ALWAYS)
    }

    /// What failed, if the program has not heard of it, and none if the kernel knows.
    pub(crate) fn take_failure(&mut self) -> Option<c_int> {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        match &mut self.phase {
            Phase::Carried(carried) => carried.take_failure(fd, tcp_read),
            _ => None,
        }
    }

    /// The last descriptor is about to be closed: whether the peer hears a reset, as TCP's does of bytes that nobody has
    /// read, and where the program wants it (`SO_LINGER` of no time).
    pub(crate) fn ends_in_reset(&mut self) -> bool {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        let Phase::Carried(carried) = &mut self.phase else { return false };
        let lingers = rustix::net::sockopt::socket_linger(fd);
        lingers == Ok(Some(std::time::Duration::ZERO)) || carried.has_unread(fd, tcp_read)
    }

    /// What a wait is for that found none of these events; whoever asks for no bytes and no room hears of the end alone,
    /// once.
    pub(crate) fn interest(&self, events: i16) -> Option<Interest> {
        let has_ended = self.carried().is_none_or(Carried::has_shown_end);
        match (events & READS != 0, events & WRITES != 0) {
            (true, true) => Some(Interest::Both),
            (true, false) => Some(Interest::Readable),
            (false, true) if events & POLLRDHUP != 0 && !has_ended => Some(Interest::WritableOrEnd),
            (false, true) => Some(Interest::Writable),
            (false, false) => (!has_ended).then_some(Interest::End),
        }
    }

    /// Asks for a waking; how long to sleep at most, none if there is something already.
    pub(crate) fn arm(&self, watched: &Watched) -> Option<std::time::Duration> {
        let carried = self.carried()?;
        let at_most = carried.arm(watched.interest)?;
        // Behind it: what comes from here on wakes.
        watched.seen.is_none_or(|seen| carried.arrived() == seen).then_some(at_most)
    }

    /// A number that grows when bytes come by a stream.
    pub(crate) fn arrived(&self) -> u64 {
        self.carried().map_or(0, Carried::arrived)
    }

    /// What of the kernel's may have news for one that is not wholly the kernel's: for who reads, or for who wants
    /// to hear of the end alone.
    pub(crate) fn watch(&mut self, reads: bool) -> Option<pollfd> {
        let (fd, tcp_read) = (self.socket().as_raw_fd(), self.tcp_read);
        let Phase::Carried(carried) = &mut self.phase else { return None };
        let events = match reads {
            true if carried.reads_tcp(tcp_read) => POLLIN,
            false if !carried.has_shown_end() && carried.ends_by_tcp(tcp_read) => POLLRDHUP,
            _ => return None,
        };
        Some(pollfd { fd, events, revents: 0 })
    }
}
