//! How long heads of requests may take to come, where a connection may be idle between two requests for as long as it likes.

use std::cell::Cell;
use std::future::pending;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a head may take to come; the first one from when its connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTime {
    /// So long, from the answer before it on.
    Each(Duration),
    /// So long from its first byte on. Behind a body of which nobody says how long it is the connection ends with the answer.
    Begun(Duration),
}

/// Whether a head has begun to come on a connection, and when.
#[derive(Debug)]
pub(crate) struct Begun {
    time: Option<HeadTime>,
    since: Cell<Option<Instant>>,
    /// Looks for the end of the head that comes; none once it is not known where that begins: a peer that sends requests
    /// before their answers is taken to have always begun one.
    looks: Cell<Option<Look>>,
    /// How many bytes have come behind the head, of its body and maybe of the next head.
    behind: Cell<Option<u64>>,
    /// Of a request that is not answered yet, how long its body is, if that is known.
    asked: Cell<Option<Option<u64>>>,
    changed: Notify,
}

impl Begun {
    /// Of a connection that was made just now.
    pub(crate) fn new(time: Option<HeadTime>) -> Begun {
        Begun {
            time,
            since: Cell::new(Some(Instant::now())),
            looks: Cell::new(Some(Look::default())),
            behind: Cell::new(None),
            asked: Cell::new(None),
            changed: Notify::new(),
        }
    }

    /// A head has come whole, of a request whose body has so many bytes, if that is known.
    pub(crate) fn asked(&self, length: Option<u64>) {
        self.asked.set(Some(length));
        self.since.set(None);
    }

    /// Its request is answered. Whether the connection has to end behind that: nobody could tell where the next head begins.
    pub(crate) fn answered(&self) -> bool {
        let length = self.asked.take().flatten();
        let came = self.behind.take();
        let has_rest = came.zip(length).is_none_or(|(behind, length)| behind != length);
        self.looks.set(self.looks.get().filter(|_| !has_rest).map(|_| Look::default()));
        self.since.set(has_rest.then(Instant::now));
        self.changed.notify_one();
        let is_lost = length.is_none_or(|length| came.is_some_and(|behind| behind < length));
        is_lost && matches!(self.time, Some(HeadTime::Begun(_)))
    }

    /// Whether a request is not answered yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.get().is_some()
    }

    /// The peer has not taken its answer yet: a head has begun only now, if one has.
    pub(crate) fn put_off(&self) {
        self.since.set(Some(Instant::now()));
    }

    fn heard(&self, bytes: &[u8]) {
        match (self.behind.get(), self.looks.get()) {
            (Some(behind), _) => self.behind.set(Some(behind + bytes.len() as u64)),
            (None, Some(mut look)) => {
                self.behind.set(look.end_in(bytes).map(|end| (bytes.len() - end) as u64));
                self.looks.set(Some(look));
            }
            (None, None) => {}
        }
        if !self.is_asked() && self.since.get().is_none() {
            self.since.set(Some(Instant::now()));
            self.changed.notify_one();
        }
    }

    /// Waits until one that has begun should have come whole.
    pub(crate) async fn late(&self) {
        let most = match self.time {
            Some(HeadTime::Begun(most)) => most,
            None | Some(HeadTime::Each(_)) => return pending().await,
        };
        loop {
            match self.since.get() {
                None => self.changed.notified().await,
                Some(since) => {
                    sleep_until(since + most).await;
                    if self.since.get() == Some(since) {
                        return;
                    }
                }
            }
        }
    }
}

/// Looks for the empty line that ends a head; such lines may stand before one.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    has_begun: bool,
    is_amid_line: bool,
}

impl Look {
    /// How many of these bytes are the head's, if it ends in them.
    fn end_in(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.has_begun && !self.is_amid_line => return Some(at + 1),
                b'\n' => self.is_amid_line = false,
                b'\r' => {}
                _ => (self.has_begun, self.is_amid_line) = (true, true),
            }
        }
        None
    }
}

/// A stream whose heads are looked at.
#[derive(Debug)]
pub(crate) struct Heard<'a, T> {
    pub(crate) stream: T,
    pub(crate) begun: &'a Begun,
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if let bytes @ [_, ..] = &into.filled()[before..] {
            self.begun.heard(bytes);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<'_, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heads_end_is_found_however_its_bytes_come() {
        for (sent, end) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\nabc", Some(27)),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", Some(22)),
            ("GET / HTTP/1.1\nHost: x\n\n\n", Some(24)),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r", None),
            ("\r\n\r\n\r\n", None),
        ] {
            for part in [1, 2, 3, 100] {
                let (mut look, mut found) = (Look::default(), None);
                for (index, bytes) in sent.as_bytes().chunks(part).enumerate() {
                    found = found.or_else(|| Some(look.end_in(bytes)? + index * part));
                }
                assert_eq!(found, end, "{sent:?} by {part}");
            }
        }
    }
}
