use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;

use crate::message::{MESSAGE_BYTES_MAX, Message, MessageError, WAKE_BYTES};
use crate::peer::{self, Peer};

/// Clients that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Bytes of messages that the other end of a node's socket may leave unread, as the system counts them: for some ten.
/// A file in one counts for the user who sent it, so that who takes none off its socket could keep a node from sending
/// any to others.
const UNREAD_BYTES: usize = 6 * 1024;

/// Where a node takes clients.
pub struct Listener {
    fd: OwnedFd,
}

/// One end of a session's socket. Nothing but [`Socket::wait`] and [`Socket::connect`] blocks.
pub struct Socket {
    fd: OwnedFd,
    /// The system lets nobody send it files.
    refuses_files: bool,
}

/// What a look at a socket finds.
#[derive(Debug)]
pub enum Received {
    /// Nothing so far.
    Nothing,
    /// The other end is gone.
    Closed,
    /// A message, and the file that came with it.
    Message(Message, Option<OwnedFd>),
    /// Something that is no message.
    Invalid(MessageError),
}

impl Listener {
    /// Listens at a path, at which nothing may be.
    ///
    /// # Errors
    ///
    /// What the system said: something is at the path ([`io::ErrorKind::AddrInUse`]), the path is too long, its
    /// directory is not there or takes no file of this user's.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let fd = socket()?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        peer::refuse_files(&fd);
        Ok(Listener { fd })
    }

    /// A listening socket that was made elsewhere, by systemd for one. It must be of the type
    /// `SOCK_SEQPACKET` (`ListenSequentialPacket=`).
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if it is no such socket; what the system said of what is no socket at
    /// all.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        let kind = rustix::net::sockopt::socket_type(&fd)?;
        let domain = rustix::net::sockopt::socket_domain(&fd)?;
        if kind != SocketType::SEQPACKET || domain != AddressFamily::UNIX {
            let what = "the inherited socket is no Unix socket of the type SOCK_SEQPACKET; \
                        a unit names it with ListenSequentialPacket=";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        peer::refuse_files(&fd);
        Ok(Listener { fd })
    }

    /// Takes a client, if one waits.
    ///
    /// # Errors
    ///
    /// What the system said: above all that the process has no descriptor left. Who has gone meanwhile is no
    /// error.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok(fd) => {
                let refuses_files = peer::refuse_files(&fd);
                Ok(Some(Socket { fd, refuses_files }))
            }
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The longest wait to be let in, whoever would wait longer.
const LONGEST_CONNECT: Duration = Duration::from_hours(24);

/// Connects to a stream socket at a path, as [`Socket::connect`].
///
/// # Errors
///
/// As [`Socket::connect`].
pub fn connect_stream(path: &Path, at_most: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::from(connected(SocketType::STREAM, path, at_most)?);
    stream.set_write_timeout(None)?;
    Ok(stream)
}

impl Socket {
    /// Connects to a node. Where as many wait to be let in as may, which is seen of one that stands still, it waits with
    /// them, at most so long.
    ///
    /// # Errors
    ///
    /// What the system said: nobody listens ([`io::ErrorKind::NotFound`],
    /// [`io::ErrorKind::ConnectionRefused`]), this user may not ([`io::ErrorKind::PermissionDenied`]), or too many wait
    /// ([`io::ErrorKind::TimedOut`]).
    pub fn connect(path: &Path, at_most: Duration) -> io::Result<Socket> {
        let fd = connected(SocketType::SEQPACKET, path, at_most)?;
        Ok(Socket { fd, refuses_files: false })
    }

    /// Two ends without a path: for a node and a client in one process. The first is the node's, which takes no files.
    ///
    /// # Errors
    ///
    /// What the system said: the process has no descriptor left.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let refuses_files = peer::refuse_files(&one);
        Ok((Socket { fd: one, refuses_files }, Socket { fd: other, refuses_files: false }))
    }

    /// Who connected (`SO_PEERCRED`).
    ///
    /// # Errors
    ///
    /// What the system said of what is no connected Unix socket.
    pub fn peer(&self) -> io::Result<Peer> {
        peer::of(&self.fd)
    }

    /// A handle of the process that connected, which its number cannot replace.
    ///
    /// # Errors
    ///
    /// What the system said: that one has ended and was waited for, or this system has no such handles.
    pub fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        peer::pidfd_of(&self.fd)
    }

    /// One that is connected to nobody, for [`Socket::leave`].
    ///
    /// # Errors
    ///
    /// What the system said: the process has no descriptor left.
    pub fn unconnected() -> io::Result<Socket> {
        Ok(Socket { fd: socket()?, refuses_files: false })
    }

    /// Leaves the connection to the process that this one is a child of, which has it too: here the descriptor is
    /// connected to whom another one is, to nobody.
    ///
    /// # Errors
    ///
    /// What the system said.
    pub fn leave(&self, to: &Socket) -> io::Result<()> {
        peer::replace(&self.fd, &to.fd)
    }

    /// Sends a message, and a file with it. Fails at once with [`io::ErrorKind::WouldBlock`] if
    /// the other end has too many unread.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`]; [`io::ErrorKind::BrokenPipe`] or [`io::ErrorKind::ConnectionReset`] if
    /// the other end has closed.
    pub fn send(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_bytes(&message.encode(), file)
    }

    fn send_bytes(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Bounds what the other end may leave unread: what is beyond is not sent ([`io::ErrorKind::WouldBlock`]).
    ///
    /// # Errors
    ///
    /// What the system said of what is no socket.
    pub fn bound_unread(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, UNREAD_BYTES)?)
    }

    /// Whether the other end has left something unread, though it may have been closed: files in it are this
    /// process's until then.
    pub fn is_unread(&self) -> bool {
        peer::untaken(&self.fd).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether closing it may take as long as the other end likes: files that it sent are closed with it, of which
    /// this may be the last handle, for one of a socket that lingers.
    pub fn may_hold_files(&self) -> bool {
        !self.refuses_files
    }

    /// Ends the conversation: the other end hears so, and can send no more.
    pub fn shut(&self) {
        // Whose other end is gone has ended.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Wakes the other end. That it has too many unread is no failure: it will wake for those.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::BrokenPipe`] or [`io::ErrorKind::ConnectionReset`] if the other end has closed.
    pub fn wake(&self) -> io::Result<()> {
        match self.send_bytes(WAKE_BYTES, None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Takes a message, if one is there. A file that comes with it is taken if `files`; a node
    /// takes none, and leaves a message that has one unread ([`MessageError::File`]).
    ///
    /// # Errors
    ///
    /// What the system said, where it is neither that nothing is there nor that the other end has closed: these
    /// are [`Received`]'s.
    pub fn receive(&self, files: bool) -> io::Result<Received> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = if files {
            RecvAncillaryBuffer::new(&mut space)
        } else {
            RecvAncillaryBuffer::default()
        };
        if !files && self.may_hold_files() && self.has_files() {
            return Ok(Received::Invalid(MessageError::File));
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let mut taken = rustix::net::recvmsg(&self.fd, slices, &mut control, flags);
        if let Err(Errno::CONNRESET) = taken {
            // The other end closed with messages unread: told once, and ahead of what it said last.
            taken = rustix::net::recvmsg(&self.fd, slices, &mut control, flags);
        }
        let received = match taken {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        };
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        let mut file = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                file = fds.next();
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Received::Invalid(MessageError::Unknown { len: received.bytes }));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Ok(Received::Invalid(MessageError::File));
        }
        Ok(match Message::decode(&bytes[..received.bytes]) {
            Ok(message) => Received::Message(message, file),
            Err(error) => Received::Invalid(error),
        })
    }

    /// Whether the message that is next comes with files. They are not closed: to take it would be to close them here,
    /// and the last close of a file may take as long as its owner likes.
    fn has_files(&self) -> bool {
        let mut bytes = [0; 1];
        let mut control = RecvAncillaryBuffer::default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        // What is wrong otherwise is told when it is taken.
        rustix::net::recvmsg(&self.fd, slices, &mut control, flags)
            .is_ok_and(|seen| seen.flags.contains(ReturnFlags::CTRUNC))
    }

    /// Sleeps until there is something to receive or the time has passed; without one, for as long
    /// as it takes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] for a time that the system cannot express; what it said otherwise. A
    /// signal ends the wait, and is no error.
    pub fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most
            .map(Timespec::try_from)
            .transpose()
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let fd = PollFd::new(&self.fd, PollFlags::IN);
        match poll(&mut [fd], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn socket() -> io::Result<OwnedFd> {
    socket_of(SocketType::SEQPACKET)
}

fn socket_of(kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects; sends wait as long from then on, where they wait.
fn connected(kind: SocketType, path: &Path, at_most: Duration) -> io::Result<OwnedFd> {
    let (fd, address) = (socket_of(kind)?, SocketAddrUnix::new(path)?);
    let until = Instant::now() + at_most.min(LONGEST_CONNECT);
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        // A Unix socket's connect waits as long as it may send.
        rustix::net::sockopt::set_socket_timeout(&fd, Timeout::Send, Some(left))?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => break,
            // A signal that ends no wait of a session's ends none here.
            Err(Errno::INTR) if Instant::now() < until => {}
            Err(Errno::INTR | Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(fd)
}
