//! Streams in tasks (feature `tokio`).

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use elver::Gid;
use elver::tokio::AsyncSession;
use elver_ring::{Error, Pause, Wire};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::state::State;
use crate::{Connecting, Listener, Options, Stream, error};

/// A [`Stream`] that tasks read and write. As its session it belongs to one thread: a current-thread runtime,
/// or a `LocalSet`.
///
/// A read that has to wait lets out what was written; else it goes out by `flush`, as all of tokio's writers
/// may ask for. Dropping it holds the thread until what was written has arrived, as a [`Stream`]'s drop: some microseconds
/// where the way is free, a second where it is not, and what is missing then is lost.
/// [`AsyncStream::into_inner`] and [`Stream::close`] do not wait.
pub struct AsyncStream {
    stream: Stream,
    session: Rc<AsyncSession>,
    reading: Wait,
    writing: Wait,
}

impl AsyncStream {
    /// Takes a stream of this session's. What was set for its waits has no meaning any more.
    pub fn new(stream: Stream, session: &Rc<AsyncSession>) -> AsyncStream {
        let session = session.clone();
        AsyncStream { stream, session, reading: Wait::none(), writing: Wait::none() }
    }

    /// As [`Stream::connect`], in a task.
    ///
    /// # Errors
    /// As [`Stream::connect`].
    pub async fn connect(
        session: &Rc<AsyncSession>,
        gid: Gid,
        port: u16,
        options: Options,
    ) -> io::Result<AsyncStream> {
        let connecting = Connecting::start(session.session(), gid, port, options)?;
        Ok(AsyncStream::new(connecting.wait_async(session).await?, session))
    }

    /// The stream, for all that does not wait.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream alone.
    pub fn into_inner(self) -> Stream {
        self.stream
    }
}

impl Listener {
    /// As [`Listener::accept`], in a task: `session` is the listener's.
    ///
    /// # Errors
    /// As [`Listener::try_accept`].
    pub async fn accept_async(&self, session: &Rc<AsyncSession>) -> io::Result<AsyncStream> {
        Ok(AsyncStream::new(self.next(session).await?, session))
    }
}

impl AsyncStream {
    /// Lets out what was written, and waits while there is no room below for all of it: nobody else may come by.
    fn let_out(
        &mut self,
        cx: &mut Context<'_>,
        mut begin: impl FnMut(&mut State) -> Result<(), Error>,
    ) -> Poll<io::Result<()>> {
        let AsyncStream { stream, session, writing, .. } = self;
        writing.until(stream, session, cx, |stream| {
            let mut state = stream.state();
            begin(&mut state)?;
            if state.is_held_up() {
                state.tell_room()?;
            }
            Ok((!state.is_held_up()).then_some(()))
        })
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let AsyncStream { stream, session, reading, .. } = this;
        let mut bytes = [IoSliceMut::new(buf.initialize_unfilled())];
        let read = ready!(reading.until(stream, session, cx, |stream| {
            let read = stream.state().try_read(&mut bytes)?;
            if read.is_none() {
                // What is waited for may be an answer.
                stream.state().send_all();
            }
            Ok(read)
        }))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let AsyncStream { stream, session, writing, .. } = self.get_mut();
        writing.until(stream, session, cx, |stream| {
            let mut state = stream.state();
            let written = state.try_write(bufs)?;
            if written.is_none() {
                state.tell_room()?;
            }
            Ok(written)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().let_out(cx, State::begin_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().let_out(cx, |state| match state.begin_end() {
            // Who reads no more needs not hear of the end.
            Err(Error::Deaf) => Ok(()),
            ended => ended,
        })
    }
}

impl fmt::Debug for AsyncStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

/// A wait that is going on, made when the first look has found nothing and gone when one finds something:
/// rests without an end, each of which wakes its task to look.
struct Wait(Option<Pin<Box<dyn Future<Output = Error>>>>);

impl Wait {
    fn none() -> Wait {
        Wait(None)
    }

    /// Looks; rests if nothing is there.
    fn until<T>(
        &mut self,
        stream: &Stream,
        session: &Rc<AsyncSession>,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&Stream) -> Result<Option<T>, Error>,
    ) -> Poll<io::Result<T>> {
        // One that always finds something lets others run all the same.
        let turn = ready!(tokio::task::coop::poll_proceed(cx));
        let found = look(stream).transpose();
        if let Some(found) = found {
            turn.made_progress();
            self.0 = None;
            return Poll::Ready(found.map_err(error::of));
        }
        let rests = self.0.get_or_insert_with(|| Box::pin(rests(stream.wire(), session.clone())));
        let failed = ready!(rests.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Err(error::of(failed)))
    }
}

/// Rests again and again, until one fails.
async fn rests(wire: Wire, session: Rc<AsyncSession>) -> Error {
    let mut pause = Pause::new(None);
    loop {
        if let Err(error) = wire.rest_async(&session, &mut pause).await {
            return error;
        }
    }
}
