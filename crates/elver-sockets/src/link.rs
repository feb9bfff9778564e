//! This process's way to its node: a session, and where it takes streams.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::task::Waker;
use std::time::{Duration, Instant};

use elver::{Gid, Session};
use elver_stream::{Connecting, Interest, Listener, ListenerOptions, Options, Stream};

use crate::carried::refuse;
use crate::fds;
use crate::frame::{FRAME_BYTES, Frame};
use crate::meeting::{Offer, for_a_stream};

/// Streams that have not said which connection they are of. Beyond it nobody is answered, and stays with TCP.
const PENDING_MAX: usize = 1_024;
/// Bytes of each of a stream's buffers.
const BUFFER_BYTES: u32 = 256 << 10;
/// What both directions take with what stands beside their bytes: a stranger may ask for no more.
const ROOM: u64 = 4 * BUFFER_BYTES as u64;

pub(crate) struct Link {
    session: Session,
    listener: Listener,
    pending: Vec<Pending>,
    /// Its node has gone, and tells nothing more.
    is_orphan: bool,
}

/// A stream that was accepted.
struct Pending {
    stream: Stream,
    head: [u8; FRAME_BYTES],
    len: usize,
    since: Instant,
    /// By the host's monotonic clock, in nanoseconds: before its other end was told, which may take it into use at once.
    since_ns: u64,
}

impl Link {
    /// Opens it.
    ///
    /// # Errors
    /// What the node, or the lack of one, says.
    pub(crate) fn open() -> Result<Link, String> {
        let session = Session::connect_default().map_err(|error| error.to_string())?;
        let options =
            ListenerOptions { nodelay: true, buffer_bytes_max: ROOM, ..ListenerOptions::default() };
        let listener = Listener::bind(&session, 0, options).map_err(|error| error.to_string())?;
        let link = Link { session, listener, pending: Vec::new(), is_orphan: false };
        fds::set_own(link.fd().as_raw_fd(), true);
        Ok(link)
    }

    /// Where streams are taken.
    pub(crate) fn place(&self) -> (Gid, u16) {
        (self.session.gid(), self.listener.port())
    }

    /// Begins to connect a stream that was offered.
    ///
    /// # Errors
    /// As [`Connecting::start`].
    pub(crate) fn connect(&self, offer: &Offer) -> io::Result<Connecting> {
        let (send_buffer_bytes, receive_buffer_bytes) = (BUFFER_BYTES, BUFFER_BYTES);
        let options = Options {
            send_buffer_bytes,
            receive_buffer_bytes,
            nodelay: true,
            ..Options::default()
        };
        Connecting::start(&self.session, offer.gid, offer.port, options)
    }

    /// The next stream that came and has said which connection it is of.
    pub(crate) fn accept(&mut self) -> Option<(Stream, Frame)> {
        // If the node is gone, so are all that it might bring.
        while self.pending.len() < PENDING_MAX
            && let (since_ns, Ok(Some(stream))) = (now_ns(), self.listener.try_accept())
        {
            stream.set_nonblocking(true);
            let (head, since) = ([0; FRAME_BYTES], Instant::now());
            self.pending.push(Pending { stream, head, len: 0, since, since_ns });
        }
        let mut found = None;
        let mut at = 0;
        while at < self.pending.len() && found.is_none() {
            match self.pending[at].hear() {
                Some(true) => {
                    let Pending { stream, head, .. } = self.pending.remove(at);
                    match Frame::decode(&head) {
                        Some(frame) => found = Some((stream, frame)),
                        None => refuse(stream),
                    }
                }
                Some(false) => refuse(self.pending.remove(at).stream),
                None => at += 1,
            }
        }
        found
    }

    /// Asks to be woken by what they say; how long to sleep at most, or none if one has something.
    pub(crate) fn arm_pending(&self, at_most: Duration) -> Option<Duration> {
        self.pending.iter().try_fold(at_most, |at_most, pending| {
            // One that has failed is ready, and goes.
            Some(at_most.min(pending.stream.arm(Interest::Readable).unwrap_or(None)?))
        })
    }

    /// Whether there are streams of which nobody knows what they carry.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether one of them may carry what was offered until then: its other end has it since it was accepted here, and
    /// takes none into use later.
    pub(crate) fn may_have(&self, until_ns: u64) -> bool {
        self.pending.iter().any(|pending| pending.since_ns <= until_ns)
    }

    /// Has `waker` woken by what any call takes from the node.
    pub(crate) fn wake_on_news(&self, waker: &Waker) {
        self.session.wake_on_news(waker);
    }

    /// As [`Session::arm`]; one without a node has something to tell.
    pub(crate) fn arm(&self) -> bool {
        self.session.arm().unwrap_or(false)
    }

    /// As [`Session::disarm`].
    pub(crate) fn disarm(&self) {
        // Without a node the streams say so.
        let _ = self.session.disarm();
    }

    /// Looks whether its node is there.
    pub(crate) fn look_after(&mut self) {
        self.is_orphan = matches!(self.session.poll(), Err(elver::Error::NodeGone));
    }

    /// Whether its node has gone, as far as was seen.
    pub(crate) fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    /// What becomes readable when the node has told something.
    pub(crate) fn fd<'a>(&self) -> BorrowedFd<'a> {
        crate::tcp::fd(self.session.as_fd().as_raw_fd())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The session closes it.
        fds::set_own(self.fd().as_raw_fd(), false);
    }
}

/// The host's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Pending {
    /// Reads on; whether it has said all, or will not, none if more is to come.
    fn hear(&mut self) -> Option<bool> {
        loop {
            match (&self.stream).read(&mut self.head[self.len..]) {
                Ok(0) => return Some(false),
                Ok(read) => self.len += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (self.since.elapsed() > for_a_stream()).then_some(false);
                }
                Err(_) => return Some(false),
            }
            if self.len == FRAME_BYTES {
                return Some(true);
            }
        }
    }
}
