//! A TCP connection that may come to go by a stream.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Instant;

use elver_stream::{Connecting, Interest, Shutdown};
use rustix::net::{RecvFlags, SendFlags};

use crate::carried::{Carried, Done};
use crate::frame::{Frame, Nonce};
use crate::meeting::Meeting;
use crate::tcp;
use crate::tuple::{Side, Tuple};

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) side: Side,
    pub(crate) tuple: Tuple,
    /// All of this process's.
    pub(crate) fds: Vec<RawFd>,
    pub(crate) phase: Phase,
    tcp_sent: u64,
    tcp_read: u64,
    tcp_shut: bool,
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
}

impl Conn {
    pub(crate) fn new(side: Side, tuple: Tuple, fd: RawFd) -> Conn {
        let (fds, phase) = (vec![fd], Phase::Fresh);
        Conn { side, tuple, fds, phase, tcp_sent: 0, tcp_read: 0, tcp_shut: false }
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
        matches!(self.phase, Phase::Offered { .. } | Phase::Carried(_) | Phase::Parents)
    }

    /// Whether its readiness is not the kernel's to tell.
    pub(crate) fn is_carried(&self) -> bool {
        matches!(self.phase, Phase::Carried(_) | Phase::Parents)
    }

    pub(crate) fn carried(&self) -> Option<&Carried> {
        match &self.phase {
            Phase::Carried(carried) => Some(carried),
            _ => None,
        }
    }

    pub(crate) fn read(&mut self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Done {
        let fd = self.socket();
        match &mut self.phase {
            Phase::Parents => Done::Failed(libc::ENOTCONN),
            Phase::Carried(carried) => carried.read(fd, &mut self.tcp_read, bufs, flags),
            _ => {
                let read = tcp::receive(fd, bufs, u64::MAX, flags);
                if !flags.contains(RecvFlags::PEEK) {
                    self.tcp_read += *read.as_ref().unwrap_or(&0) as u64;
                }
                read.into()
            }
        }
    }

    pub(crate) fn write(&mut self, bufs: &[IoSlice<'_>], flags: SendFlags) -> Done {
        let fd = self.socket();
        match &mut self.phase {
            Phase::Parents => Done::Failed(libc::ENOTCONN),
            Phase::Carried(carried) => carried.write(fd, bufs, flags),
            _ => {
                let sent = tcp::send(fd, bufs, flags);
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
        match &mut self.phase {
            Phase::Parents => Err(libc::ENOTCONN),
            Phase::Carried(carried) => carried.shutdown(how).map(|()| false),
            _ => {
                self.tcp_shut |= how != Shutdown::Read;
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

    /// Which of these hold for one that is carried, as `poll` names them.
    pub(crate) fn events(&mut self, readable: bool, writable: bool) -> (bool, bool) {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        match &mut self.phase {
            Phase::Carried(carried) => {
                (readable && carried.is_readable(fd, tcp_read), writable && carried.is_writable())
            }
            // Reading and writing say why not.
            _ => (readable, writable),
        }
    }

    /// Asks for a waking; how long to sleep at most, none if there is something already.
    pub(crate) fn arm(&self, interest: Interest) -> Option<std::time::Duration> {
        self.carried().and_then(|carried| carried.arm(interest))
    }

    /// What of the kernel's may have news for one that is not wholly the kernel's.
    pub(crate) fn watches<'a>(&mut self) -> Option<BorrowedFd<'a>> {
        let (fd, tcp_read) = (self.socket(), self.tcp_read);
        match &mut self.phase {
            Phase::Carried(carried) => carried.reads_tcp(tcp_read).then_some(fd),
            _ => None,
        }
    }
}
