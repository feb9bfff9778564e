//! The protocol without IO: what is sent when, and what a peer may say.
//!
//! ```text
//!   Caller                                                 Callee
//!   begin ── Request ──▶ Piece ──▶ … ──▶ Stream ──▶ …      handle → Event::Call, Piece, …
//!   finish ◀── … ◀── Stream ◀── … ◀── Piece ◀── Response ── answer
//! ```
//!
//! A caller drives them: it hands in what came and the time, in µs from whenever, and an [`Outlet`] for
//! what is to be sent; [`Caller::transmit`] and [`Callee::transmit`] send what had to wait for room.
//!
//! # Rules
//! - A server has so many slots, and a call is in one, so that how many calls may be under way needs no
//!   look-up and no allocation. A slot's calls are numbered: its turns.
//! - Each request gets one response, also one that was cancelled; only then its slot is free. So an answer
//!   to what was not asked is seen. A cancelled call has its response at once, also where its handler still works on
//!   it: how many are worked on is the server's to bound.
//! - A message is as long as its first frame says, so that one that is too long is refused before it comes.
//! - A request's stream follows its message; a response follows its stream, so that the status comes
//!   last, as in gRPC. A stream has no more bytes than the other end has given credit for.
//! - A response with a status other than success ends its call at any time, whatever had come of it.
//! - What comes for a call that has ended meanwhile is passed over, and counted. Anything else that cannot
//!   be is a [`Fault`], and the connection is over.
//!
//! # Where what is
//! `caller` and `callee` are the ends; in each `arrivals` takes frames in, and `slot` has what is known of a
//! call. `outbox` has what is to be sent, in turns; `flow` the credit of streams; `share` what may be held in all;
//! `frame`, `greeting` and `kind` the bytes.

mod callee;
mod caller;
mod fault;
mod flow;
mod frame;
mod greeting;
mod kind;
mod limits;
mod outbox;
mod share;

pub use callee::{Callee, CalleeCounters, Event, Reply};
pub use caller::{Begun, Caller, CallerCounters, Outcome};
pub use fault::Fault;
pub use frame::{
    FLAG_END, FLAG_NOT_EXECUTED, FLAG_STREAM, HEADER_BYTES, Header, KIND_OPTIONAL, MAJOR, MINOR,
    NO_DEADLINE,
};
pub use greeting::{GREETING_BYTES, Greeting};
pub use kind::{CallId, Kind};
pub use limits::Limits;
pub use outbox::{BODY_MIN, Outlet};
pub use share::Bound;
