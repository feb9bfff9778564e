//! Messages among the ranks of a group, as MPI has them: tags, wildcards, matching in order, and collective
//! operations; over rings of messages ([`elver_ring`]).
//!
//! ```no_run
//! use elver_msg::{Group, Source, Tag, ops};
//! # fn main() -> Result<(), elver_msg::Error> {
//! let group = Group::from_env()?; // started by `elver launch -n 4 -- PROGRAM`
//! let (rank, size) = (group.rank(), group.size());
//! if rank > 0 {
//!     group.send(0, 7, format!("rank {rank}").as_bytes())?;
//! } else {
//!     for _ in 1..size {
//!         let (status, text) = group.recv_vec(Source::Any, Tag::Is(7))?;
//!         println!("{} from rank {}", String::from_utf8_lossy(&text), status.source);
//!     }
//! }
//! let mut sum = [f64::from(rank)];
//! group.allreduce(&mut sum, ops::sum)?;
//! group.finish()
//! # }
//! ```
//!
//! # What it is good at, and what it costs
//! - A message of up to 8 KiB goes whole, at once ([`protocol::Limits::eager_bytes`]): it is copied into the ring, and out of it
//!   once. A short one takes a slot of 64 bytes.
//! - A longer one is offered, and comes when it is received. From [`Region`] to [`Region`], memory that is
//!   registered, it is READ by the receiver's node where it lies: no process copies a byte of it. Otherwise it
//!   comes in pieces through the ring, copied once into it and once out of it.
//! - All ranks have rings with all others, 256 KiB each ([`Options::ring_bytes`]), and one VQP a pair.
//! - Nothing moves but in calls of this crate: there is no thread. Who computes for long behind short sends calls
//!   [`Group::flush`], or the last of several may stay here until his next call; behind every other call nothing
//!   stays. A long message waits until both ends are in a call.
//!
//! # Order
//! Of two messages from one rank to another that both fit a receive, the first one sent is received first,
//! whatever their lengths; of two receives that a message fits the first one posted takes it (MPI 4.1, section
//! 3.5). Messages of different ranks have no order among them.
//!
//! # Messages that nobody waits for
//! They are kept for later receives, of each rank as many as [`protocol::Limits::unexpected_messages`] and as many bytes as
//! [`protocol::Limits::unexpected_bytes`] say; then its sends wait, and those to others do not. A rank that sends thousands of
//! messages under one tag, and then one under another which is the only one received, waits for ever: as in MPI.
//! To itself a rank sends without limit: what is not received is copied, and waits.
//!
//! # Errors
//! A receive that has too little room leaves the message where it is ([`Error::Truncated`]). A rank that dies is
//! missed within a second by all that are in a call: what they have to do with it fails, and so does what waits
//! for any rank, and every collective operation ([`Error::Lost`] says who and why); messages among the others go
//! on. A rank that drops its group leaves so too. One that has finished ([`Group::finish`]) fails only what needs it.
//! One that sends what cannot be is heard no more, and counts as dead.
//!
//! # Threads
//! A group belongs to its session's thread.
//!
//! # How it is built
//! [`protocol`] has matching, credit and both ways of long messages as a state machine without IO; the rest ties it
//! to rings and READs. docs/msg.md has the wire form.

#![forbid(unsafe_code)]

mod address;
mod blocking;
mod closing;
mod collective;
mod element;
mod environment;
mod error;
mod finish;
mod group;
mod inner;
mod join;
mod link;
mod options;
mod payload;
pub mod protocol;
mod rank;
mod reads;
mod region;
mod rendezvous;
mod request;
mod waiting;

pub use address::{Address, NoAddress};
pub use element::{Bits, Element, Number, ops};
pub use environment::{
    Launched, RANK_VARIABLE, RENDEZVOUS_VARIABLE, SIZE_VARIABLE, TOKEN_VARIABLE,
};
pub use error::{Error, Loss, Unwanted};
pub use group::{Counters, Group};
pub use options::{APPLICATION, Options};
pub use payload::Payload;
pub use protocol::{EngineCounters, Limits, Status};
pub use rank::{Source, TAG_MAX, Tag};
pub use region::Region;
pub use rendezvous::{RANKS_MAX, Rendezvous};
pub use request::{Completed, Request};

/// What is fuzzed that is not public: `fuzz` calls it.
#[doc(hidden)]
pub mod fuzzed {
    /// Reads bytes as what comes to a rendezvous, and from one.
    pub fn rendezvous(bytes: &[u8]) {
        crate::rendezvous::read_any(bytes);
    }
}

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
