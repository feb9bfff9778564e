//! The protocol without IO: which message goes to which receive, and what is sent when.
//!
//! ```text
//!   sender                                  receiver
//!   Eager(tag, bytes) ────────────────────▶ matched, or kept: at most so many (Limits)
//!
//!   Offer(tag, number, len, place) ───────▶ kept until it is matched
//!          ◀──────────────────── Clear ──── then, if one of both is no registered memory:
//!   Piece, Piece, … ──────────────────────▶ into the receiver's memory
//!          ◀═════════════ READ, Done ══════ else: from one user's memory into the other's
//! ```
//!
//! [`Engine`] has all peers of a rank, itself included, which it reaches as it reaches others. A caller drives
//! it: he hands in the frames that came ([`Engine::handle`]) and an [`Outlet`] for those that go out
//! ([`Engine::transmit`]), and does the READs that it orders ([`Engine::next_read`]).
//!
//! # Rules
//! - Frames arrive in order, each once; so the first frames of messages have the order in which they were sent,
//!   and matching needs no numbers.
//! - A message that may have to be kept costs credit: one message, and its bytes if it comes whole. Each frame
//!   carries back what was matched. Who has no credit waits, and what he sends to others does not. For whose bytes
//!   there is no room is offered.
//! - Messages of collective operations have a queue of their own, and credit beyond the users'. So they pass those of users,
//!   which no receive can tell: none takes both.
//! - Whatever comes is taken in at once, so that two ends which both wait to send never wait for each other.
//! - An offer is under a number of its sender's; the answers name it. What names none that is open, or is more
//!   than was offered, is a [`Fault`], and the peer is lost.
//! - Who ends a collective operation without its result says so to all (`GaveUp`): they may wait for what he will not send.
//! - A lost peer ends all requests that need it, and those that wait for any.

mod agreement;
mod engine;
mod fault;
mod frame;
mod greeting;
mod kind;
mod limits;
mod matching;
mod memory;
mod request_id;
mod requests;
pub(crate) mod tags;

pub use agreement::Discord;
pub use engine::{Engine, EngineCounters, ReadOrder, Refused};
pub use fault::Fault;
pub use frame::{HEADER_BYTES, Header, MAJOR, MINOR, Offer, Remote};
pub use greeting::{GREETING_BYTES, Greeting};
pub use kind::Kind;
pub use limits::Limits;
pub use matching::Wanted;
pub use memory::{Held, Lent, Memory, Outlet};
pub use request_id::RequestId;
pub use requests::{Failure, Status};
