//! A stream whose peer must read: one who takes nothing of what is written keeps no connection.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a peer may take none of what is written to it.
pub(crate) const WRITE_MAX: Duration = Duration::from_secs(30);

/// The stream.
#[derive(Debug)]
pub(crate) struct Progress<'a, T> {
    stream: T,
    /// Until when what is to be written waits.
    waits: Option<Pin<Box<Sleep>>>,
    is_waiting: &'a Cell<bool>,
}

impl<T> Progress<'_, T> {
    /// `is_waiting` is told whether something is to be written that the peer has not taken.
    pub(crate) fn new(stream: T, is_waiting: &Cell<bool>) -> Progress<'_, T> {
        Progress { stream, waits: None, is_waiting }
    }

    /// What came of an attempt to write; an error if none has brought anything for too long.
    fn note<U>(
        &mut self,
        context: &mut Context<'_>,
        attempt: Poll<io::Result<U>>,
    ) -> Poll<io::Result<U>> {
        self.is_waiting.set(attempt.is_pending());
        if attempt.is_ready() {
            self.waits = None;
            return attempt;
        }
        let new = || Box::pin(tokio::time::sleep(WRITE_MAX));
        let waits = self.waits.get_or_insert_with(new);
        waits.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Progress<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Progress<'_, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.note(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
