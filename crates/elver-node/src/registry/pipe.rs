#![allow(clippy::disallowed_types, reason = "how long a farewell is waited for")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::time::Timespec;

use super::frame::{Frame, FrameError, Inbox};
use super::seal::Seals;

/// Bytes that are read at a turn, so that no connection keeps the others waiting.
const READ_BYTES: usize = 16 * 1024;

/// A TCP connection that carries frames and never blocks.
#[derive(Debug)]
pub(super) struct Pipe {
    stream: TcpStream,
    inbox: Inbox,
    outbox: Vec<u8>,
    outbox_bytes_max: usize,
    /// Once both ends have said their nonces, where there is a secret.
    seals: Option<Seals>,
}

/// Why a connection carries no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other end, or the network, ended it.
    Gone,
    /// It sent what is no frame.
    Nonsense(FrameError),
    /// It does not take what is sent.
    Overflow,
}

impl Pipe {
    /// Frames over a connection. At most so many bytes wait to be taken by the other end.
    pub(super) fn new(stream: TcpStream, outbox_bytes_max: usize) -> std::io::Result<Pipe> {
        stream.set_nonblocking(true)?;
        set_tcp_nodelay(&stream, true)?;
        let (inbox, outbox) = (Inbox::default(), Vec::new());
        Ok(Pipe { stream, inbox, outbox, outbox_bytes_max, seals: None })
    }

    /// Seals what is sent and checks what is received from now on.
    pub(super) fn seal(&mut self, seals: Seals) {
        self.seals = Some(seals);
    }

    /// Begins to connect, from an address of this host. [`Pipe::connected`] tells how it went, once
    /// the socket is writable.
    pub(super) fn connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        outbox_bytes_max: usize,
    ) -> std::io::Result<Pipe> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            bind(&socket, &SocketAddr::new(from, 0))?;
        }
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Pipe::new(TcpStream::from(socket), outbox_bytes_max)
    }

    /// How connecting went.
    pub(super) fn connected(&self) -> std::io::Result<()> {
        Ok(socket_error(&self.stream)??)
    }

    /// Reads what is there, up to a bound; then [`Pipe::next`] gives it.
    pub(super) fn receive(&mut self) -> Result<(), Ended> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(Ended::Gone),
            Ok(count) => {
                self.inbox.push(&bytes[..count]);
                Ok(())
            }
            Err(error) => would_block(error.kind()),
        }
    }

    /// Takes out a received frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Ended> {
        self.inbox.next(self.seals.as_mut()).map_err(Ended::Nonsense)
    }

    /// Puts a frame where [`Pipe::flush`] takes it.
    pub(super) fn send(&mut self, frame: &Frame) -> Result<(), Ended> {
        if self.outbox.len() >= self.outbox_bytes_max {
            return Err(Ended::Overflow);
        }
        frame.encode(&mut self.outbox, self.seals.as_mut());
        Ok(())
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Ended> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.outbox) {
            Ok(0) => Err(Ended::Gone),
            Ok(count) => {
                self.outbox.drain(..count);
                Ok(())
            }
            Err(error) => would_block(error.kind()),
        }
    }

    /// Ends the connection when the other end has read all that was sent, or at that time. If it was
    /// closed while something that was received is unread, the system would reset it, and the other
    /// end's system throw away what it has not read.
    pub(super) fn finish(mut self, until: Instant) {
        let mut bytes = [0; READ_BYTES];
        let mut open = self.stream.shutdown(Shutdown::Write).is_ok();
        while open {
            let wait = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(wait).unwrap_or_default();
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            open = poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
                && self.stream.read(&mut bytes).is_ok_and(|count| count > 0);
        }
    }

    /// Whether something waits for room in the socket.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Bytes that do.
    pub(super) fn outbox_bytes(&self) -> usize {
        self.outbox.len()
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn would_block(kind: ErrorKind) -> Result<(), Ended> {
    match kind {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(Ended::Gone),
    }
}
