//! Calls.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod client;
mod error;
mod link;
pub mod message;
mod method;
pub mod protocol;
mod ring;
mod server;
mod status;

pub use client::{Call, Client, ClientOptions, Download, Upload};
pub use error::Error;
pub use message::{Decoder, Encoder, Malformed, Message, assert_optional_last, decode, encode};
pub use method::Method;
pub use protocol::{CalleeCounters, CallerCounters, Limits};
pub use server::{Context, Responder, Server, ServerCounters, ServerOptions, Sink, Source};
pub use status::{Code, Executed, Status};
