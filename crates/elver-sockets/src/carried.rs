//! A connection whose bytes go by a stream: each direction by TCP up to a byte that its writer names, and by the
//! stream from there on. No byte is on both ways, and none on neither.

use std::ffi::c_int;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use elver_stream::{Closing, Interest, Shutdown, Stream};
use libc::{POLLERR, POLLHUP, POLLRDHUP};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use rustix::time::Timespec;

use crate::errno;
use crate::frame::{FRAME_BYTES, Frame, Nonce};
use crate::meeting::for_a_stream;
use crate::tcp::{self, Failure};

/// Most bytes that are kept beside the stream: for who looks at bytes without taking them.
pub(crate) const PEEKED_MAX: usize = 64 << 10;

/// How often who waits for the end alone looks whether TCP has brought all that was sent before it.
const HELD_BACK: Duration = Duration::from_millis(10);

/// How a call went that does not wait.
pub(crate) enum Done {
    Bytes(usize),
    Wait,
    Failed(c_int),
}

impl From<Result<usize, c_int>> for Done {
    fn from(result: Result<usize, c_int>) -> Done {
        match result {
            Ok(bytes) => Done::Bytes(bytes),
            Err(libc::EAGAIN) => Done::Wait,
            Err(error) => Done::Failed(error),
        }
    }
}

/// What the peer has said of its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    /// Nothing yet: bytes come by TCP, and its end counts only when the stream has ended as well.
    Unsaid,
    /// The first so many bytes come by TCP.
    ByTcp(u64),
    /// The stream ended or failed before it said anything, or is silent behind TCP's end: the peer did not take it, or is
    /// gone, and all comes by TCP.
    Never,
    /// What it said is none of this connection's, or was lost with this end's node.
    Broken,
}

#[derive(Debug)]
pub(crate) struct Carried {
    stream: Stream,
    nonce: Nonce,
    /// Whether what is written goes by the stream.
    writes: bool,
    incoming: Incoming,
    head: [u8; FRAME_BYTES],
    head_len: usize,
    peeked: Vec<u8>,
    reads_no_more: bool,
    writes_no_more: bool,
    /// The program has heard that the connection is broken: once, as the kernel says it.
    told_failure: bool,
    /// An end was found by the last look for one.
    shows_end: bool,
    /// The stream had ended then, and TCP had not brought all that was sent before.
    holds_end_back: bool,
    /// TCP was found to have ended then, and the stream has not said whether more comes by it.
    tcp_ended: Option<Instant>,
}

impl Carried {
    /// A stream that was connected, and says from which byte on it is in use.
    ///
    /// # Errors
    /// The stream's: it is no good then, and nothing was said.
    pub(crate) fn begin(stream: Stream, nonce: Nonce, by_tcp: u64) -> io::Result<Carried> {
        match Carried::say(&stream, nonce, by_tcp) {
            Ok(()) => Ok(Carried::of(stream, nonce, by_tcp, Incoming::Unsaid)),
            Err(error) => {
                refuse(stream);
                Err(error)
            }
        }
    }

    /// A stream that the peer has connected, which has said from where on it uses it.
    pub(crate) fn answer(stream: Stream, nonce: Nonce, by_tcp: u64, peer_by_tcp: u64) -> Carried {
        // A peer that has closed it already reads no answer; what it wrote before is there all the same.
        let _ = Carried::say(&stream, nonce, by_tcp);
        Carried::of(stream, nonce, by_tcp, Incoming::ByTcp(peer_by_tcp))
    }

    fn say(mut stream: &Stream, nonce: Nonce, by_tcp: u64) -> io::Result<()> {
        stream.set_nonblocking(true);
        stream.set_nodelay(true);
        stream.write_all(&Frame { nonce, by_tcp }.encode())
    }

    fn of(stream: Stream, nonce: Nonce, by_tcp: u64, incoming: Incoming) -> Carried {
        Carried {
            stream,
            nonce,
            writes: by_tcp != Frame::STAYS,
            incoming,
            head: [0; FRAME_BYTES],
            head_len: 0,
            peeked: Vec::new(),
            reads_no_more: false,
            writes_no_more: by_tcp == Frame::STAYS,
            told_failure: false,
            shows_end: false,
            holds_end_back: false,
            tcp_ended: None,
        }
    }

    /// Bytes that were read from the stream, and written to it.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let counters = self.stream.counters();
        let frame = FRAME_BYTES as u64;
        (counters.bytes_read.saturating_sub(frame), counters.bytes_written.saturating_sub(frame))
    }

    /// Asks to be woken; as [`Stream::arm`].
    pub(crate) fn arm(&self, interest: Interest) -> Option<Duration> {
        // One that has failed is ready, and says why when it is read or written.
        let arm = |interest| self.stream.arm(interest).unwrap_or(None);
        match interest {
            Interest::End if self.holds_end_back => Some(HELD_BACK),
            Interest::WritableOrEnd if self.holds_end_back => {
                arm(Interest::Writable).map(|at_most| at_most.min(HELD_BACK))
            }
            _ => arm(interest),
        }
    }

    /// A number that grows when bytes come by the stream.
    pub(crate) fn arrived(&self) -> u64 {
        self.stream.arrived()
    }

    /// Takes what the node told of it.
    pub(crate) fn poll(&self) {
        self.stream.is_ready(Interest::Both);
    }

    /// Reads what the peer says first.
    fn listen(&mut self) {
        while self.incoming == Incoming::Unsaid {
            match (&self.stream).read(&mut self.head[self.head_len..]) {
                Ok(0) => self.incoming = Incoming::Never,
                Ok(read) => self.head_len += read,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                        // Whoever took the stream said so before he ended TCP, so that a node that is only late has brought
                        // it by then; who closed without taking it may never say anything, and keeps it.
                        if self.tcp_ended.is_some_and(|since| since.elapsed() > for_a_stream()) {
                            self.incoming = Incoming::Never;
                        }
                        return;
                    }
                    // The peer lives and may have written by the stream, of which TCP's end says nothing.
                    ErrorKind::ConnectionAborted => self.incoming = Incoming::Broken,
                    _ => self.incoming = Incoming::Never,
                },
            }
            if self.head_len == FRAME_BYTES {
                let frame = Frame::decode(&self.head).filter(|frame| frame.nonce == self.nonce);
                self.incoming = frame.map_or(Incoming::Broken, |it| Incoming::ByTcp(it.by_tcp));
            }
        }
    }

    /// TCP has ended, or has not, while nothing is known of the stream.
    fn note_tcp_s_end(&mut self, has_ended: bool) {
        // Of a socket that was shut for reading before, it says nothing of the peer.
        let has_ended = has_ended && !self.reads_no_more;
        self.tcp_ended = has_ended.then(|| self.tcp_ended.unwrap_or_else(Instant::now));
    }

    /// How many bytes the next read may take from TCP; none if it is the stream's turn.
    fn by_tcp(&mut self, tcp_read: u64) -> Option<u64> {
        self.listen();
        match self.incoming {
            Incoming::Unsaid | Incoming::Never => Some(u64::MAX),
            Incoming::ByTcp(all) => all.checked_sub(tcp_read).filter(|left| *left > 0),
            Incoming::Broken => None,
        }
    }

    /// Reads; `tcp_read` bytes came by TCP so far. Says how many of them did. A failure that the call does not tell is kept
    /// for the next.
    pub(crate) fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        tcp_read: &mut u64,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        failure: Failure,
    ) -> Done {
        match self.read_on(fd, tcp_read, bufs, flags, failure) {
            Done::Wait if self.reads_no_more => Done::Bytes(0),
            // Told once, it is an end.
            Done::Failed(libc::ECONNRESET) if self.told_failure => Done::Bytes(0),
            Done::Failed(error) => {
                self.told_failure |= failure.is_told() && error == libc::ECONNRESET;
                Done::Failed(error)
            }
            done => done,
        }
    }

    fn read_on(
        &mut self,
        fd: BorrowedFd<'_>,
        tcp_read: &mut u64,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        failure: Failure,
    ) -> Done {
        let Some(most) = self.by_tcp(*tcp_read) else {
            let read = self.read_stream(bufs, flags);
            let is_end = matches!(read, Done::Bytes(0)) && bufs.iter().any(|buf| !buf.is_empty());
            // Whoever wrote them did so behind the peer's library.
            return match is_end.then(|| rustix::io::ioctl_fionread(fd)) {
                Some(Ok(bytes)) if bytes > 0 => {
                    crate::log::line(format_args!(
                        "{bytes} bytes came by TCP, of no call that is known"
                    ));
                    Done::Failed(libc::ECONNRESET)
                }
                _ => read,
            };
        };
        let read = tcp::receive(fd, bufs, most, flags, failure);
        let wanted = bufs.iter().any(|buf| !buf.is_empty());
        match (read, self.incoming) {
            // The kernel has it from who shut the socket for reading before the stream was there.
            (Ok(0), _) if wanted && self.reads_no_more => Done::Bytes(0),
            // More may come by the stream, which says whether.
            (Ok(0), Incoming::Unsaid) if wanted => {
                self.note_tcp_s_end(true);
                Done::Wait
            }
            // The kernel brings all bytes ahead of an end, so that some are missing.
            (Ok(0), Incoming::ByTcp(all)) if wanted && all != Frame::STAYS => {
                Done::Failed(libc::ECONNRESET)
            }
            (Ok(read), _) if flags.contains(RecvFlags::PEEK) => {
                let is_all = wanted && read as u64 == most;
                Done::Bytes(read + if is_all { self.peek_on(bufs, read) } else { 0 })
            }
            (Ok(read), _) => {
                *tcp_read += read as u64;
                let is_last = wanted && read as u64 == most;
                Done::Bytes(read + if is_last { self.read_behind(bufs, read) } else { 0 })
            }
            (read, _) => read.into(),
        }
    }

    /// Reads on by the stream, behind the last bytes that come by TCP, of which so many are in the first buffer that holds
    /// any; how many. A call that leaves room has taken all that came: programs believe that where they see an end.
    fn read_behind(&mut self, bufs: &mut [IoSliceMut<'_>], by_tcp: usize) -> usize {
        let Some(at) = bufs.iter().position(|buf| !buf.is_empty()) else { return 0 };
        let mut room: Vec<_> = bufs[at..].iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        room[0].advance(by_tcp);
        // The end, or an error, is told behind these bytes.
        match self.read_stream(&mut room, RecvFlags::empty()) {
            Done::Bytes(read) => read,
            Done::Wait | Done::Failed(_) => 0,
        }
    }

    fn read_stream(&mut self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Done {
        if self.incoming == Incoming::Broken {
            return Done::Failed(libc::ECONNRESET);
        }
        let peeks = flags.contains(RecvFlags::PEEK);
        if peeks {
            let wanted = bufs.iter().map(|buf| buf.len()).sum::<usize>();
            match self.look_ahead(wanted) {
                Ok(0) if self.peeked.is_empty() && wanted > 0 => return Done::Bytes(0),
                Err(error) if self.peeked.is_empty() => {
                    return Err(errno::of_stream(&error)).into();
                }
                _ => {}
            }
        }
        if self.peeked.is_empty() {
            let read = (&self.stream).read_vectored(bufs);
            return read.map_err(|error| errno::of_stream(&error)).into();
        }
        let at = self.copy_peeked(bufs, 0);
        if !peeks {
            self.peeked.drain(..at);
        }
        Done::Bytes(at)
    }

    /// Looks at what comes by the stream behind the last bytes that come by TCP, which were looked at; how many.
    fn peek_on(&mut self, bufs: &mut [IoSliceMut<'_>], behind: usize) -> usize {
        let wanted = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        // The end, or an error, is told behind these bytes.
        let _ = self.look_ahead(wanted - behind);
        self.copy_peeked(bufs, behind)
    }

    /// Copies what was looked at into buffers, of which so many bytes are filled; how many.
    fn copy_peeked(&self, bufs: &mut [IoSliceMut<'_>], mut filled: usize) -> usize {
        let mut at = 0;
        for buf in bufs {
            let skip = filled.min(buf.len());
            filled -= skip;
            let len = (buf.len() - skip).min(self.peeked.len() - at);
            buf[skip..skip + len].copy_from_slice(&self.peeked[at..at + len]);
            at += len;
        }
        at
    }

    /// Takes bytes of the stream that are looked at and not read; how many are new.
    fn look_ahead(&mut self, wanted: usize) -> io::Result<usize> {
        let have = self.peeked.len();
        let wanted = wanted.min(PEEKED_MAX);
        if have >= wanted {
            return Ok(0);
        }
        self.peeked.resize(wanted, 0);
        let read = (&self.stream).read(&mut self.peeked[have..]);
        self.peeked.truncate(have + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Bytes that a read would give at least (`FIONREAD`).
    pub(crate) fn ready_bytes(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> usize {
        if let Some(most) = self.by_tcp(tcp_read) {
            let there = rustix::io::ioctl_fionread(fd).unwrap_or(0);
            if there < most {
                return usize::try_from(there).unwrap_or(usize::MAX);
            }
            let _ = self.look_ahead(PEEKED_MAX);
            return usize::try_from(most).unwrap_or(usize::MAX).saturating_add(self.peeked.len());
        }
        // At the end, or in an error, there are none.
        let _ = self.look_ahead(PEEKED_MAX);
        self.peeked.len()
    }

    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: rustix::net::SendFlags,
        failure: Failure,
    ) -> Done {
        if !self.writes {
            return tcp::send(fd, bufs, flags, failure).into();
        }
        match (&self.stream).write_vectored(bufs).map_err(|error| errno::of_stream(&error)) {
            Err(libc::ECONNRESET) if self.told_failure => Done::Failed(libc::EPIPE),
            written => {
                self.told_failure |= failure.is_told() && written == Err(libc::ECONNRESET);
                written.into()
            }
        }
    }

    /// What failed, if the program has not heard of it (`SO_ERROR`); then it has.
    pub(crate) fn take_failure(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> Option<c_int> {
        let is_news = self.ends(fd, tcp_read) & POLLERR != 0;
        self.told_failure |= is_news;
        is_news.then_some(libc::ECONNRESET)
    }

    /// Whether bytes have come that nobody has read.
    pub(crate) fn has_unread(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> bool {
        if self.by_tcp(tcp_read).is_some() {
            return rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0);
        }
        !self.peeked.is_empty() || self.look_ahead(1).is_ok_and(|read| read > 0)
    }

    /// Ends it, or has the peer hear a reset.
    pub(crate) fn close(self, resets: bool) -> Closing {
        if resets { self.stream.abort() } else { self.stream.close() }
    }

    /// Ends directions, as `shutdown`.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn shutdown(&mut self, how: Shutdown) -> Result<(), c_int> {
        // As with TCP, the peer does not hear that nobody reads.
        self.reads_no_more |= how != Shutdown::Write;
        self.writes_no_more |= how != Shutdown::Read;
        if how == Shutdown::Read || !self.writes {
            return Ok(());
        }
        // Of a connection that is none any more.
        self.stream.shutdown(Shutdown::Write).map_err(|_| libc::ENOTCONN)
    }

    /// What ends there are, of which `poll` tells asked or not: `POLLRDHUP`, `POLLHUP`, `POLLERR`.
    pub(crate) fn look_for_ends(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> i16 {
        let ends = self.ends(fd, tcp_read);
        self.shows_end = ends != 0;
        ends
    }

    /// Whether the last look found one.
    pub(crate) fn has_shown_end(&self) -> bool {
        self.shows_end
    }

    /// Whether both directions have ended, so that there is no connection any more.
    pub(crate) fn is_over(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> bool {
        let is_peer_s = self.has_peer_ended(fd, tcp_read);
        is_peer_s.is_err() || is_peer_s == Ok(true) && self.writes_no_more
    }

    /// Whether the peer has ended its direction; an error if the connection is broken.
    fn has_peer_ended(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> Result<bool, ()> {
        self.by_tcp(tcp_read);
        match self.incoming {
            Incoming::Broken => Err(()),
            Incoming::Never | Incoming::ByTcp(Frame::STAYS) => Ok(tcp_has_ended(fd)),
            // More may come by the stream, which says whether.
            Incoming::Unsaid => {
                self.note_tcp_s_end(self.tcp_ended.is_some() || tcp_has_ended(fd));
                Ok(false)
            }
            Incoming::ByTcp(all) => {
                let has_ended = self.stream.has_peer_ended().map_err(drop)?;
                // The kernel tells of an end when all that was sent before it has arrived.
                let left = all.saturating_sub(tcp_read);
                let has_all =
                    || left == 0 || rustix::io::ioctl_fionread(fd).is_ok_and(|come| come >= left);
                self.holds_end_back = has_ended && !has_all();
                Ok(has_ended && !self.holds_end_back)
            }
        }
    }

    fn ends(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> i16 {
        match self.has_peer_ended(fd, tcp_read) {
            Err(()) if self.told_failure => POLLRDHUP | POLLHUP,
            Err(()) => POLLRDHUP | POLLHUP | POLLERR,
            Ok(ended) if !ended && !self.reads_no_more => 0,
            Ok(_) if self.writes_no_more => POLLRDHUP | POLLHUP,
            Ok(_) => POLLRDHUP,
        }
    }

    pub(crate) fn is_readable(&mut self, fd: BorrowedFd<'_>, tcp_read: u64) -> bool {
        if self.reads_no_more || !self.peeked.is_empty() || self.incoming == Incoming::Broken {
            return true;
        }
        if self.by_tcp(tcp_read).is_none() {
            return self.incoming == Incoming::Broken || self.stream.is_ready(Interest::Readable);
        }
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = Timespec::default();
        if !matches!(poll(&mut fds, Some(&now)), Ok(1)) {
            return false;
        }
        if self.incoming == Incoming::Unsaid {
            let mut byte = [0];
            let peek = RecvFlags::PEEK;
            let buf = &mut [IoSliceMut::new(&mut byte)];
            let ended = tcp::receive(fd, buf, 1, peek, Failure::Kept) == Ok(0);
            self.note_tcp_s_end(ended);
        }
        self.tcp_ended.is_none() || self.incoming != Incoming::Unsaid
    }

    pub(crate) fn is_writable(&self) -> bool {
        // What was shut says so at once.
        !self.writes || self.stream.is_ready(Interest::Writable)
    }

    /// Whether TCP has news for who reads.
    pub(crate) fn reads_tcp(&mut self, tcp_read: u64) -> bool {
        self.by_tcp(tcp_read).is_some() && self.tcp_ended.is_none() && !self.reads_no_more
    }

    /// Whether TCP is who tells of the end.
    pub(crate) fn ends_by_tcp(&mut self, tcp_read: u64) -> bool {
        let is_tcp_s = !matches!(self.incoming, Incoming::ByTcp(all) if all != Frame::STAYS);
        self.reads_tcp(tcp_read) && is_tcp_s
    }
}

/// Drops a stream that nobody uses, without the wait in which one that ends has its last words arrive: who connected it
/// hears of a reset.
pub(crate) fn refuse(stream: Stream) {
    stream.abort().poll();
}

fn tcp_has_ended(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
}
