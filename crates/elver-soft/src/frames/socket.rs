//! Sockets and tap devices that carry one Ethernet frame a message.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::SoftError;
use crate::frames::adopt::adopt;

/// What carries the frames of a link. Clones share it.
#[derive(Clone, Debug)]
pub struct FrameSocket {
    fd: Arc<OwnedFd>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Datagrams,
    /// Datagrams of a connection: an empty one says that the other end is gone.
    Connection,
    /// A tap device.
    Character,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    Sent,
    /// There is no room: try it again.
    Full,
    /// The other end, or the kernel, does not take it.
    Refused,
}

/// What a look for a frame found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedFrame {
    /// A frame of so many bytes, which may be more than there was room for.
    Frame(usize),
    Nothing,
    /// It is not known whether there is one.
    Unknown,
    /// The other end closed the link: nothing will come any more.
    Closed,
}

impl FrameSocket {
    /// A datagram or sequenced-packet socket, whose peer sends and takes bare Ethernet frames; or a
    /// tap device that was opened with `IFF_TAP | IFF_NO_PI`. A tap device is made non-blocking.
    ///
    /// # Errors
    /// [`SoftError::FrameSocket`] if it is neither.
    pub fn from_fd(fd: impl Into<OwnedFd>) -> Result<FrameSocket, SoftError> {
        let fd = fd.into();
        let refuse = |what| Err(SoftError::FrameSocket { what });
        let kind = match sockopt::socket_type(&fd) {
            Ok(SocketType::DGRAM) => Kind::Datagrams,
            Ok(SocketType::SEQPACKET) => Kind::Connection,
            Ok(_) => return refuse("it is a stream, which keeps no frames apart".to_string()),
            Err(Errno::NOTSOCK) => {
                let character = fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
                if character != Ok(FileType::CharacterDevice) {
                    return refuse("it is neither a socket nor a tap device".to_string());
                }
                let flags = fcntl_getfl(&fd).map_err(failed("fcntl"))?;
                fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(failed("fcntl"))?;
                Kind::Character
            }
            Err(error) => return refuse(format!("getsockopt: {error}")),
        };
        Ok(FrameSocket { fd: Arc::new(fd), kind })
    }

    /// The descriptor of a number that this process was started with, as [`FrameSocket::from_fd`]
    /// has it. Programs that are started later do not get it.
    ///
    /// # Safety
    /// Nothing else in this process owns or closes the descriptor.
    ///
    /// # Errors
    /// [`SoftError::FrameSocket`] if it is not open, or not of that kind.
    pub unsafe fn inherited(number: RawFd) -> Result<FrameSocket, SoftError> {
        // SAFETY: the caller's contract is the same.
        let adopted = unsafe { adopt(number) };
        let fd = adopted.map_err(|error| SoftError::FrameSocket {
            what: format!("descriptor {number}: {error}; was it handed to this process?"),
        })?;
        FrameSocket::from_fd(fd)
    }

    /// A UDP socket on `local` that exchanges frames with `remote` alone, one in each datagram:
    /// qemu's `-netdev dgram` and `-netdev socket,udp=`.
    ///
    /// # Errors
    /// [`SoftError::Bind`] if the address is not to be had.
    pub fn udp(local: SocketAddr, remote: SocketAddr) -> Result<FrameSocket, SoftError> {
        let refused = |reason| SoftError::Bind { address: local, reason };
        let socket = UdpSocket::bind(local).map_err(refused)?;
        socket.connect(remote).map_err(refused)?;
        FrameSocket::from_fd(socket)
    }

    /// The two ends of a link within this process, or for a child that inherits one of them.
    ///
    /// # Errors
    /// [`SoftError::System`] if there are too many descriptors.
    pub fn pair() -> Result<(FrameSocket, FrameSocket), SoftError> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (a, b) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(failed("socketpair"))?;
        Ok((FrameSocket::from_fd(a)?, FrameSocket::from_fd(b)?))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks for room for so many bytes, as far as the system allows it.
    pub(crate) fn make_room(&self, rcvbuf: usize, sndbuf: usize) -> Result<(), SoftError> {
        if self.kind == Kind::Character {
            return Ok(());
        }
        let fd = self.as_fd();
        if sockopt::set_socket_recv_buffer_size_force(fd, rcvbuf).is_err() {
            sockopt::set_socket_recv_buffer_size(fd, rcvbuf).map_err(failed("SO_RCVBUF"))?;
        }
        if sockopt::set_socket_send_buffer_size_force(fd, sndbuf).is_err() {
            sockopt::set_socket_send_buffer_size(fd, sndbuf).map_err(failed("SO_SNDBUF"))?;
        }
        Ok(())
    }

    /// Sends one frame, without waiting.
    #[inline]
    pub(crate) fn send(&self, frame: &[u8]) -> SentFrame {
        let sent = match self.kind {
            Kind::Character => rustix::io::write(&self.fd, frame),
            _ => rustix::net::send(&self.fd, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
        match sent {
            Ok(_) => SentFrame::Sent,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => SentFrame::Full,
            Err(_) => SentFrame::Refused,
        }
    }

    /// Receives one frame, without waiting.
    #[inline]
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> ReceivedFrame {
        let received = match self.kind {
            Kind::Character => rustix::io::read(&self.fd, buffer),
            _ => rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
                .map(|(_, len)| len),
        };
        match received {
            Ok(0) if self.kind != Kind::Datagrams => ReceivedFrame::Closed,
            Ok(len) => ReceivedFrame::Frame(len),
            Err(Errno::CONNRESET | Errno::NOTCONN) if self.kind == Kind::Connection => {
                ReceivedFrame::Closed
            }
            // The tap device was deleted.
            Err(Errno::BADFD | Errno::IO | Errno::NODEV) if self.kind == Kind::Character => {
                ReceivedFrame::Closed
            }
            Err(Errno::AGAIN) => ReceivedFrame::Nothing,
            // Others tell of an earlier send, or of a peer that is not there yet.
            Err(_) => ReceivedFrame::Unknown,
        }
    }
}

fn failed(call: &'static str) -> impl Fn(Errno) -> SoftError {
    move |error| SoftError::System { call, reason: io::Error::from(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_stay_apart_and_the_end_is_noticed() {
        let (a, b) = FrameSocket::pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(b.receive(&mut buffer), ReceivedFrame::Nothing);
        assert_eq!(a.send(&[1; 5]), SentFrame::Sent);
        assert_eq!(a.send(&[2; 20]), SentFrame::Sent);
        assert_eq!(b.receive(&mut buffer), ReceivedFrame::Frame(5));
        assert_eq!(b.receive(&mut buffer), ReceivedFrame::Frame(20), "its whole length is told");
        drop(a);
        assert_eq!(b.receive(&mut buffer), ReceivedFrame::Closed);
        assert_eq!(b.send(&[1; 5]), SentFrame::Refused);
    }

    #[test]
    fn a_full_socket_says_so() {
        let (a, _b) = FrameSocket::pair().unwrap();
        a.make_room(0, 0).unwrap();
        let results = (0..1000).map(|_| a.send(&[0; 1000]));
        assert!(results.into_iter().any(|result| result == SentFrame::Full));
    }

    #[test]
    fn what_keeps_no_frames_apart_is_refused() {
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = FrameSocket::from_fd(stream).unwrap_err();
        assert!(error.to_string().contains("stream"), "{error}");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let error = FrameSocket::from_fd(file).unwrap_err();
        assert!(error.to_string().contains("tap"), "{error}");
    }

    #[test]
    fn a_number_that_is_not_open_is_refused() {
        for number in [-1, 1_000_000] {
            // SAFETY: no descriptor has such a number.
            let error = unsafe { FrameSocket::inherited(number) }.unwrap_err();
            assert!(error.to_string().contains(&number.to_string()), "{error}");
        }
    }
}
