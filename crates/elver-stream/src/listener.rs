use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use elver::Session;
use elver_ring::{Ends, ListenerCounters};

use crate::{ListenerOptions, Stream, error};

/// Accepts streams at a port of its session's node. Dropped, it refuses others; the port stays taken as long
/// as one that it accepted lives.
pub struct Listener {
    ring: elver_ring::Listener,
    nodelay: bool,
}

impl Listener {
    /// Listens at a port; 0 takes a free one.
    ///
    /// # Errors
    /// `AddrInUse` if another has the port, `QuotaExceeded`, `ConnectionAborted` if the node is gone.
    pub fn bind(session: &Session, port: u16, options: ListenerOptions) -> io::Result<Listener> {
        let ring = elver_ring::Listener::bind(session, port, options.ring()).map_err(error::of)?;
        Ok(Listener { ring, nodelay: options.nodelay })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.ring.port()
    }

    /// What it has seen.
    pub fn counters(&self) -> ListenerCounters {
        self.ring.counters()
    }

    /// The next stream, if somebody has connected one. Who does not fit is told why, and counted. Nothing ends a
    /// [`Session::wait_ready`] when one that is being answered can be taken ([`Listener::is_answering`]).
    ///
    /// # Errors
    /// `ConnectionAborted` if the node is gone.
    pub fn try_accept(&self) -> io::Result<Option<Stream>> {
        let ends = self.ring.try_accept().map_err(error::of)?;
        Ok(ends.map(|ends| self.stream(ends)))
    }

    /// Whether VQPs are being connected to who has greeted, as by another policy than the shared one
    /// ([`ListenerOptions::policy`]). Their end ends no [`Session::wait_ready`], but is something for [`Session::arm`]: who
    /// waits by the former calls [`Listener::try_accept`] again soon.
    pub fn is_answering(&self) -> bool {
        self.ring.is_answering()
    }

    /// When to accept next, if the session's descriptor ([`Session::arm`]) tells of nothing before: the node hung when it was
    /// asked who connects, and is asked again then. None while nobody waits for that.
    pub fn deadline(&self) -> Option<Instant> {
        self.ring.deadline()
    }

    /// As [`Listener::try_accept`], but waits for one, at most so long.
    ///
    /// # Errors
    /// As [`Listener::try_accept`]; `TimedOut`.
    pub fn accept(&self, at_most: Option<Duration>) -> io::Result<Stream> {
        self.ring.accept(at_most).map(|ends| self.stream(ends)).map_err(error::of)
    }

    /// As [`Listener::accept`], in a task.
    #[cfg(feature = "tokio")]
    pub(crate) async fn next(&self, session: &elver::tokio::AsyncSession) -> io::Result<Stream> {
        let ends = self.ring.accept_async(session).await.map_err(error::of)?;
        Ok(self.stream(ends))
    }

    fn stream(&self, ends: Ends) -> Stream {
        Stream::new(ends, None, self.port(), self.nodelay)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("port", &self.port()).finish_non_exhaustive()
    }
}
