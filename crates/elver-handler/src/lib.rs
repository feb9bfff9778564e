//! A serverless function in Rust as the runtime `native` of `elver faas` starts it; elver-handler-c is the same for C. Its
//! program is an INIT process, which makes connections ahead, runs its first request itself, and is then forked
//! for each later one. A child inherits a session with its connections, and gives it back by ending (Swift, sections
//! 4.1.2 and 4.1.3).
//!
//! ```no_run
//! fn main() -> Result<(), elver_handler::Error> {
//!     elver_handler::serve(|event, context| {
//!         let rdma = context.rdma()?;
//!         // rdma.read("10.0.0.2", 0, 64, elver::RemoteAddr { addr, rkey })?;
//!         Ok(format!("{{\"bytes\":{},\"inherited\":{}}}", event.len(), rdma.inherited).into_bytes())
//!     })
//! }
//! ```
//!
//! # Trade-offs
//! - A process that is forked has one thread. What starts threads before [`serve`], or in its first request, is told so
//!   with each request that would have been a fork.
//! - A program that cannot be forked, as one of the crate `lambda_runtime`, has [`Rdma::open`] in place of [`serve`].
//! - A child runs one request and ends: what it has put in its memory nobody sees.
//! - A session's calls block; a handler that wants several operations in flight posts them at the [`elver::Vqp`].
//!
//! `unsafe` stands in `process`, for `fork` and what goes before it.

mod ahead;
mod alone;
mod api;
mod assignments;
mod context;
mod error;
mod found;
mod init;
mod policy;
mod process;
mod rdma;
pub mod strays;

pub use context::Context;
pub use elver;
pub use error::Error;
pub use rdma::Rdma;

use std::panic::{AssertUnwindSafe, catch_unwind};

use api::Api;
use init::Init;

/// What a handler gives: an answer in JSON, or an error.
pub type Answer = Result<Vec<u8>, Box<dyn std::error::Error>>;

/// Serves requests with a handler, of an event in JSON, until the platform ends this process.
///
/// # Errors
/// [`Error`] if no platform has started this process, or the first request cannot be had.
pub fn serve(mut handler: impl FnMut(&[u8], &mut Context) -> Answer) -> Result<(), Error> {
    let mut init = Init::start()?;
    let first = init.first;
    init.tell_connected()?;
    run_one(&mut init, &mut handler, first)?;
    let Some(request) = init.serve()? else { return Ok(()) };
    let ran = run_one(&mut init, &mut handler, request);
    if let Err(error) = &ran {
        eprintln!("elver-handler: request {request}: {error}");
    }
    process::exit(i32::from(ran.is_err()))
}

/// Takes a request and answers it.
fn run_one(
    init: &mut Init,
    handler: &mut impl FnMut(&[u8], &mut Context) -> Answer,
    request: u64,
) -> Result<(), Error> {
    let mut api = Api::connect()?;
    let invocation = api.next(request)?;
    let mut context = init.context(&invocation);
    let own = std::process::id();
    let answer = catch_unwind(AssertUnwindSafe(|| handler(&invocation.event, &mut context)));
    if std::process::id() != own {
        // The handler forked, and both came back: one of them has the request, and the orders that come.
        process::exit(1);
    }
    match answer {
        Ok(Ok(answer)) => api.respond(&invocation.id, &answer),
        Ok(Err(error)) => api.fail(&invocation.id, "Error", &error.to_string()),
        Err(_) => api.fail(&invocation.id, "Panic", "the handler panicked; its log has the reason"),
    }
}

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
