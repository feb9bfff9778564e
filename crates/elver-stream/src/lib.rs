//! Connected byte streams over RB²'s rings ([`elver_ring`]), with the shape of [`std::net`].
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

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
pub use stream::{Connecting, Interest, Stream};
#[cfg(feature = "tokio")]
pub use tasks::AsyncStream;
