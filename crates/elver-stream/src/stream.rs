use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use elver::{Gid, Session, SessionCell, SessionRefMut};
#[cfg(feature = "tokio")]
use elver_ring::Wire;
use elver_ring::{Ends, Error};

use crate::error;
use crate::state::State;
use crate::{Options, StreamCounters};

/// A connected stream of bytes, both ways. As std's `TcpStream`; what differs the crate's page says.
///
/// It belongs to its session's thread. Dropped, it ends: the drop waits, a second at most, until what was
/// written has arrived, and the peer hears that this end neither writes nor reads any more. If it has not arrived by
/// then, what is missing is lost, and the peer hears of a reset: [`Stream::close`] and [`Stream::finish`] wait longer.
pub struct Stream {
    state: SessionCell<State>,
    /// Known where it was connected; else the node is asked.
    peer: Cell<Option<Gid>>,
    port: u16,
    nonblocking: Cell<bool>,
    read_timeout: Cell<Option<Duration>>,
    write_timeout: Cell<Option<Duration>>,
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, or the end.
    Readable,
    /// Room.
    Writable,
    /// Either of them.
    Both,
    /// The end of what the peer writes ([`Stream::has_peer_ended`]), or a failure, whatever is to be read before.
    End,
    /// Room, or what is [`Interest::End`].
    WritableOrEnd,
}

impl Stream {
    /// Connects to a listener, waiting at most so long.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there, or the listener does not take it: it says why.
    /// `HostUnreachable` if no such node is found. `TimedOut`. `InvalidInput` for buffers that cannot be.
    pub fn connect(
        session: &Session,
        gid: Gid,
        port: u16,
        options: Options,
        at_most: Option<Duration>,
    ) -> io::Result<Stream> {
        Connecting::start(session, gid, port, options)?.wait(at_most)
    }

    pub(crate) fn new(ends: Ends, peer: Option<Gid>, port: u16, nodelay: bool) -> Stream {
        let state = State::new(ends, nodelay);
        let session = state.wire().vqp().session().clone();
        Stream {
            state: SessionCell::new(&session, state),
            peer: Cell::new(peer),
            port,
            nonblocking: Cell::default(),
            read_timeout: Cell::default(),
            write_timeout: Cell::default(),
        }
    }

    /// The peer's node.
    ///
    /// # Errors
    /// `ConnectionAborted` if this end's node is gone; `NotConnected` if it has forgotten the peer.
    pub fn peer_gid(&self) -> io::Result<Gid> {
        if let Some(gid) = self.peer.get() {
            return Ok(gid);
        }
        let info = self.state().wire().vqp().info().map_err(|error| error::of(error.into()))?;
        let (gid, _) = info.peer.ok_or(ErrorKind::NotConnected)?;
        self.peer.set(Some(gid));
        Ok(gid)
    }

    /// The listener's port, at both ends.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The session that it belongs to.
    pub fn session(&self) -> Session {
        self.state().wire().vqp().session().clone()
    }

    /// What it did.
    pub fn counters(&self) -> StreamCounters {
        self.state().counters()
    }

    /// Whether reads and writes that would wait fail with `WouldBlock` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.set(nonblocking);
    }

    /// Whether each write goes out at once, as long as there is room; without, as long as no other batch
    /// is on its way.
    pub fn set_nodelay(&self, nodelay: bool) {
        self.state().nodelay = nodelay;
    }

    /// What was set so.
    pub fn nodelay(&self) -> bool {
        self.state().nodelay
    }

    /// The longest that a read waits, before it fails with `TimedOut`; as long as it takes by default.
    ///
    /// # Errors
    /// `InvalidInput` for no time at all, as std.
    pub fn set_read_timeout(&self, at_most: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(some_time(at_most)?);
        Ok(())
    }

    /// The longest that a write waits for room, before it fails with `TimedOut`.
    ///
    /// # Errors
    /// `InvalidInput` for no time at all, as std.
    pub fn set_write_timeout(&self, at_most: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(some_time(at_most)?);
        Ok(())
    }

    /// What was set so.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.read_timeout.get()
    }

    /// What was set so.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.write_timeout.get()
    }

    /// Ends a direction, or both. Without writing, the peer reads what was written, and then the end;
    /// without reading, its writes fail with `BrokenPipe`, and reads here give 0. Again, it does nothing.
    ///
    /// # Errors
    /// `ConnectionReset` if the peer is gone.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut state = self.state();
        let ended = if how == Shutdown::Read { Ok(()) } else { state.end() };
        let stopped = if how == Shutdown::Write { Ok(()) } else { state.stop() };
        match ended.and(stopped) {
            Err(Error::Deaf) => Ok(()),
            ended => ended.map_err(error::of),
        }
    }

    /// Whether the peer has said that it writes no more, also where bytes before that were not read.
    ///
    /// # Errors
    /// As reads, also ahead of bytes that were not read.
    pub fn has_peer_ended(&self) -> io::Result<bool> {
        self.state().has_peer_ended().map_err(error::of)
    }

    /// A number that grows when bytes come, read or not, and is of no unit: for who tells others of what is new.
    pub fn arrived(&self) -> u64 {
        self.state().arrived()
    }

    /// As dropping it, but without waiting until what was written has arrived, and without an end of that wait: poll it
    /// until it says so, or as long as you like.
    pub fn close(self) -> Closing {
        let mut state = self.state.into_inner();
        state.begin_close();
        Closing(state)
    }

    /// Ends both directions without the word that each is ended: the peer reads what has arrived, and then hears
    /// `ConnectionReset`, within a second of when this is dropped, as from an end that died.
    pub fn abort(self) -> Closing {
        self.state().abandon();
        self.close()
    }

    /// Ends writing, and waits until the peer has read everything, at most so long.
    ///
    /// # Errors
    /// `BrokenPipe` if it stopped reading before, `ConnectionReset` if it is gone, `TimedOut`.
    pub fn finish(&self, at_most: Option<Duration>) -> io::Result<()> {
        self.state().finish(at_most).map_err(error::of)
    }

    /// For who waits by the session's descriptor: has the peer wake this session when there is something,
    /// and lets out what was written. None if there is something already; else how long to wait at most
    /// before looking again. [`elver::Session::arm`] follows; the crate's page has the whole way.
    ///
    /// # Errors
    /// `ConnectionAborted` if the node is gone. A stream that has failed is ready: its reads and writes
    /// tell why.
    pub fn arm(&self, interest: Interest) -> io::Result<Option<Duration>> {
        let mut state = self.state();
        let slept = match state.lie_down() {
            Ok(slept) => slept,
            Err(Error::Carrier(elver::Error::NodeGone)) => {
                return Err(error::of(elver::Error::NodeGone.into()));
            }
            Err(_) => None,
        };
        // Behind it: what comes from here on wakes.
        let ready = is_ready(&mut state, interest);
        Ok(slept.filter(|_| !ready))
    }

    /// Whether a read, or a write, would not wait, as far as can be seen from here: nothing is sent, and the peer
    /// is not asked to wake anybody. A stream that has failed is ready, as for [`Stream::arm`].
    pub fn is_ready(&self, interest: Interest) -> bool {
        is_ready(&mut self.state(), interest)
    }

    #[inline]
    pub(crate) fn state(&self) -> SessionRefMut<'_, State> {
        self.state.borrow_mut()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wire(&self) -> Wire {
        self.state().wire().clone()
    }

    #[inline]
    fn read_bufs(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        let mut until = None;
        loop {
            if let Some(read) = state.try_read(bufs).map_err(error::of)? {
                return Ok(read);
            }
            if self.nonblocking.get() {
                // Who has nothing to read may wait for an answer.
                state.send_all();
                return Err(ErrorKind::WouldBlock.into());
            }
            let left = until.get_or_insert_with(|| Until::new(self.read_timeout.get())).left();
            // Also where there is always something, which are no bytes.
            if left.is_some_and(|left| left.is_zero()) {
                return Err(error::of(elver_ring::Error::TimedOut));
            }
            state.wait_readable(left).map_err(error::of)?;
        }
    }

    #[inline]
    fn write_bufs(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        let mut until = None;
        loop {
            if let Some(written) = state.try_write(bufs).map_err(error::of)? {
                return Ok(written);
            }
            if self.nonblocking.get() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let left = *until.get_or_insert_with(|| Until::new(self.write_timeout.get()));
            state.wait_writable(left.left()).map_err(error::of)?;
        }
    }
}

/// Whether what is of interest would not wait.
fn is_ready(state: &mut State, interest: Interest) -> bool {
    match interest {
        Interest::Readable => state.is_readable(),
        Interest::Writable => state.is_writable(),
        Interest::Both => state.is_readable() || state.is_writable(),
        Interest::End => has_end(state),
        Interest::WritableOrEnd => state.is_writable() || has_end(state),
    }
}

/// Whether the peer's direction has ended, well or not.
fn has_end(state: &mut State) -> bool {
    !matches!(state.has_peer_ended(), Ok(false))
}

/// When a wait ends.
#[derive(Clone, Copy)]
struct Until(Option<Instant>);

impl Until {
    fn new(at_most: Option<Duration>) -> Until {
        Until(at_most.and_then(|at_most| Instant::now().checked_add(at_most)))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// As std: no time at all is not what anybody means.
fn some_time(at_most: Option<Duration>) -> io::Result<Option<Duration>> {
    match at_most {
        Some(Duration::ZERO) => {
            let text = "a timeout of no time at all: use set_nonblocking, or None to wait";
            Err(io::Error::new(ErrorKind::InvalidInput, text))
        }
        at_most => Ok(at_most),
    }
}

impl Read for &Stream {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_bufs(&mut [IoSliceMut::new(buf)])
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_bufs(bufs)
    }
}

impl Write for &Stream {
    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_bufs(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_bufs(bufs)
    }

    /// Lets out what was written, without waiting for the peer.
    fn flush(&mut self) -> io::Result<()> {
        self.state().flush().map_err(error::of)
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vqp = self.state().wire().vqp().id();
        f.debug_struct("Stream")
            .field("vqp", &vqp)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// A stream that ends. Dropped, what has not arrived is lost, and the peer may hear of a reset.
pub struct Closing(State);

impl Closing {
    /// Whether all has arrived, or never will.
    pub fn poll(&mut self) -> bool {
        self.0.is_settled()
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Closing").field(self.0.wire()).finish()
    }
}

/// A stream that is being connected. Dropped, it is given up.
#[derive(Debug)]
pub struct Connecting {
    ring: elver_ring::Connecting,
    gid: Gid,
    port: u16,
    nodelay: bool,
}

impl Connecting {
    /// Begins to connect, and does not wait for the listener.
    ///
    /// # Errors
    /// As [`Stream::connect`].
    pub fn start(
        session: &Session,
        gid: Gid,
        port: u16,
        options: Options,
    ) -> io::Result<Connecting> {
        let ring = elver_ring::Connecting::start(session, gid, port, options.ring()?);
        let ring = ring.map_err(error::connecting)?;
        Ok(Connecting { ring, gid, port, nodelay: options.nodelay })
    }

    /// When to poll next, if the session's descriptor tells of nothing before: the listener's answer may have been lost, for
    /// which it is asked then. None as long as that need not be.
    pub fn deadline(&self) -> Option<Instant> {
        self.ring.deadline()
    }

    /// The stream, once, if the listener has answered. Until then the session's descriptor ([`Session::arm`]) tells when to
    /// look again, and [`Connecting::deadline`].
    ///
    /// # Errors
    /// As [`Stream::connect`].
    pub fn poll(&mut self) -> io::Result<Option<Stream>> {
        let ends = self.ring.poll().map_err(error::connecting)?;
        Ok(ends.map(|ends| Stream::new(ends, Some(self.gid), self.port, self.nodelay)))
    }

    /// As [`Connecting::poll`], but waits, at most so long.
    ///
    /// # Errors
    /// As [`Stream::connect`].
    pub fn wait(self, at_most: Option<Duration>) -> io::Result<Stream> {
        let Connecting { ring, gid, port, nodelay } = self;
        let ends = ring.wait(at_most).map_err(error::connecting)?;
        Ok(Stream::new(ends, Some(gid), port, nodelay))
    }

    /// As [`Connecting::wait`], in a task.
    #[cfg(feature = "tokio")]
    pub(crate) async fn wait_async(
        self,
        session: &elver::tokio::AsyncSession,
    ) -> io::Result<Stream> {
        let Connecting { ring, gid, port, nodelay } = self;
        let ends = ring.wait_async(session).await.map_err(error::connecting)?;
        Ok(Stream::new(ends, Some(gid), port, nodelay))
    }
}
