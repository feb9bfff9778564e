//! Typed calls over rings: pipelined, with deadlines, cancellation and streams of bytes, in gRPC's words.
//!
//! ```no_run
//! use elver_rpc::{Client, ClientOptions, Method, Server, ServerOptions};
//! # fn main() -> Result<(), elver_rpc::Error> {
//! # let (session, gid) = (elver::Session::connect_default().unwrap(), elver::Gid::default());
//! const LENGTH: Method<String, u64> = Method::new(1, "text.Length");
//! // One end serves …
//! let mut server = Server::bind(&session, 7, ServerOptions::default())?;
//! server.on(LENGTH, |text, _context| Ok(text.len() as u64));
//! server.run(&std::sync::atomic::AtomicBool::new(false))?;
//! // … and the other calls.
//! let client = Client::connect(&session, gid, 7, ClientOptions::default(), None)?;
//! let second = Some(std::time::Duration::from_secs(1));
//! assert_eq!(client.call(LENGTH, &"four".to_string(), second)?, 4);
//! let calls = ["one", "three"].map(|text| client.start(LENGTH, &text.to_string(), second));
//! for call in calls {
//!     println!("{}", call?.wait()?); // both are under way
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it is good at, and what it costs
//! - Many calls under way on one connection: they go in the ring's batches, and are answered in any order.
//! - Nothing is allocated for a small call. A request is written where it lies in the ring; what comes is
//!   copied out of it once, since a peer may change it there. A response is made in a buffer that is kept,
//!   and copied into the ring.
//! - A server is one thread. More cores are more servers, each with a session and a port of its own, over
//!   which clients spread ([`ServerOptions::group`], [`ClientOptions::spread`]).
//! - A connection is a pair of rings, 256 KiB at each end by default, and one VQP.
//!
//! # How a call ends
//! Each call ends once: with the response, or with an [`Error`] whose [`Status`] has one of gRPC's codes
//! and says whether the server may have executed it. Nothing is tried again by itself. A peer that is
//! gone ends all calls with [`Code::Unavailable`], within a second.
//!
//! # How it is built
//! [`protocol`] has both ends as state machines without IO, [`mod@message`] what messages are as bytes; the
//! rest ties them to rings. Everything that a peer can cause is bounded by [`Limits`] and
//! [`ServerOptions`], and counted.
#![forbid(unsafe_code)]

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
pub use ring::APPLICATION;
pub use server::{Context, Responder, Server, ServerCounters, ServerOptions, Sink, Source};
pub use status::{Code, Executed, Status};

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
