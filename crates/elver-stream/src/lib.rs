//! Connected byte streams over RB²'s rings ([`elver_ring`]), with the shape of [`std::net`].
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use elver_stream::{Listener, ListenerOptions, Options, Shutdown, Stream};
//! # fn main() -> std::io::Result<()> {
//! # let session = elver::Session::connect_default().map_err(std::io::Error::other)?;
//! # let gid = elver::Gid::default();
//! // One end listens …
//! let listener = Listener::bind(&session, 7, ListenerOptions::default())?;
//! let mut there = listener.accept(None)?;
//! let mut said = String::new();
//! there.read_to_string(&mut said)?;
//! // … and the other connects, and writes.
//! let mut here = Stream::connect(&session, gid, 7, Options::default(), None)?;
//! here.write_all(b"and that was all")?;
//! here.shutdown(Shutdown::Write)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it is good at, and what it costs
//! - A byte is copied into the ring's slots, where the peer's node takes it from, and out of the slots that it
//!   was brought to: nothing is buffered beside.
//! - A write takes whole slots of 128 bytes, 8 of them for itself: a byte alone takes 128. Long writes are
//!   cut into pieces of an eighth of the buffer.
//! - Each end has both buffers ([`Options`]), and one VQP. A full buffer holds its writer back.
//! - Who waits looks for some time ([`Options::spin`]), and then sleeps.
//!
//! `elver run --streams` gives unmodified programs such streams (docs/sockets.md).
//!
//! # When bytes go out
//! A write goes out at once when none is on its way; what is written meanwhile goes with the next one, as by
//! Nagle's rule. Whoever waits sends first what he has: a read or a write that has to wait, [`Stream::arm`],
//! and a read that fails with `WouldBlock`. So a question and its answer need no flush. A stream has no
//! thread of its own, so that one case is left: *who writes several times and then neither writes, reads,
//! waits, ends nor drops the stream must `flush`*, or the last of them may stay here. With
//! [`Stream::set_nodelay`] each write goes out by itself, and that is never needed.
//!
//! # The end
//! [`Stream::shutdown`] ends one direction, and the other goes on. Its peer reads what was written, then 0;
//! dropping a stream ends both. What was written has its place in the peer's buffer, so that it arrives whether or not the
//! peer reads; but nobody looks after it when its stream is gone, so that the drop waits for it, a second at
//! most. What a slow way has not taken by then is lost, unlike what a `TcpStream` leaves to the kernel: the peer reads what
//! has arrived, and then hears `ConnectionReset`, and no end. Who has written more than that lets the way take calls
//! [`Stream::finish`], or [`Stream::close`], which does not wait, and polls what that gives as long as he likes.
//! [`Stream::abort`] ends both as if this end had died. Nothing says whether the peer has *read* it but an answer, or
//! [`Stream::finish`].
//!
//! # Errors
//! Each has its cause inside ([`std::io::Error::get_ref`]: an [`elver_ring::Error`]).
//!
//! | kind | when |
//! | --- | --- |
//! | `ConnectionRefused` | nobody listens at the port; the listener is gone, takes no such buffers, or carries something else (messages), and says so |
//! | `HostUnreachable` | no node has that GID, or it does not answer |
//! | `AddrInUse`, `QuotaExceeded`, `OutOfMemory` | what a node refuses: the text names the option |
//! | `WouldBlock` | nothing to read, or no room to write, in non-blocking mode |
//! | `TimedOut` | the time set has passed; on all systems |
//! | `BrokenPipe` | writing after this end's `shutdown(Write)`, or after the peer's `shutdown(Read)` or drop |
//! | `ConnectionReset` | the peer died, its node, or the way to it: told within a second, behind all that came before |
//! | `ConnectionAborted` | this end's node is gone |
//! | `InvalidData` | the peer wrote what no stream writes; nothing of it is delivered |
//! | `Interrupted` | a signal came ([`elver::SessionOptions::end_on_signal`]) |
//! | `InvalidInput` | a buffer that cannot be, a timeout of no time |
//! | `Other` | a [`elver::Waker`] ended the wait; the process forked |
//!
//! # Many streams, one descriptor
//! A session has one descriptor for all. Since a peer's bytes come without a word to this end, the peer must
//! know who sleeps. The way to wait, which loses nothing:
//!
//! 1. take all there is: [`Listener::try_accept`] until there is none, and each stream until `WouldBlock`;
//! 2. [`Stream::arm`] each stream; if one has something, go to 1; of the times that they give keep the least;
//! 3. [`elver::Session::arm`]; if that says false, go to 1;
//! 4. wait for the descriptor, at most that time; [`elver::Session::disarm`], and go to 1.
//!
//! A [`Connecting`] is polled in 1, and its [`Connecting::deadline`] is one of the times in 2, as is [`Listener::deadline`].
//! [`Listener::is_answering`] needs nothing: [`elver::Session::arm`] tells of its end.
//!
//! The time is a millisecond at first and up to a quarter of a second: bytes that crossed the word of who
//! lies down may wake nobody. A round looks at each stream, which costs some tens of nanoseconds each and
//! is for hundreds of them, not for hundreds of thousands. A call that waits on one stream of several looks
//! on without sleeping while another has something: with several, do not wait on one.
//!
//! With the feature `tokio` `AsyncStream` has `AsyncRead` and `AsyncWrite`.
//!
//! # Threads
//! A stream belongs to its session's thread. `&Stream` reads and writes as well, so that a reader and a
//! writer of one thread share it.
//!
//! # Trust
//! A listener and who connects tell each other that they speak streams; what a peer writes is believed as far
//! as rings believe it, and a message's length is read once.

#![forbid(unsafe_code)]

mod error;
mod listener;
mod options;
mod state;
mod stream;
#[cfg(feature = "tokio")]
mod tasks;

pub use elver_ring::ListenerCounters;
pub use listener::Listener;
pub use options::{ListenerOptions, Options};
pub use state::StreamCounters;
pub use std::net::Shutdown;
pub use stream::{Closing, Connecting, Interest, Stream};
#[cfg(feature = "tokio")]
pub use tasks::AsyncStream;

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
