//! RB²: a ring of messages from one process to another, over one-sided WRITEs (Sun et al., "RB²: Narrow the
//! Gap between RDMA Abstraction and Performance via a Middle Layer").
//!
//! ```no_run
//! use elver_ring::{Listener, ListenerOptions, Options, connect};
//! # fn main() -> Result<(), elver_ring::Error> {
//! # let (session, gid) = (elver::Session::connect_default()?, elver::Gid::default());
//! // One end listens …
//! let listener = Listener::bind(&session, 7, ListenerOptions::default())?;
//! let mut there = listener.accept(None)?;
//! while let Some(message) = there.receiver.recv(None)? {
//!     println!("{} bytes", message.len());
//! }
//! // … and the other connects, and sends.
//! let mut here = connect(&session, gid, 7, Options::default(), None)?;
//! here.sender.send(b"copied into the ring", None)?;
//! let mut room = here.sender.reserve(8, None)?;
//! let [first, second] = room.parts(); // filled where it lies
//! first.fill(1);
//! second.fill(1);
//! room.commit()?;
//! here.sender.flush()?; // nothing more for now: the receiver shall have it
//! # Ok(())
//! # }
//! ```
//!
//! # What it is good at, and what it costs
//! - Small messages go out in batches: a WRITE for β slots, a second one for the tail of α. The last ones
//!   stay here until α slots are there, a [`Sender::flush`], or their deadline
//!   ([`Config::linger_ns`]), which [`Ends::recv`] and [`Sender::poll`] look after.
//! - Nothing is copied by the ring: a message is made and read where it lies.
//! - A message takes whole slots, and 8 bytes for itself ([`Config::for_messages_of`]).
//! - A receiver looks for messages in memory, which costs its processor; one that waits sleeps after a
//!   time ([`Options::spin`]).
//! - Both ends keep all slots, and a VQP each for what they write; a listener's end by another policy than the shared one
//!   has a second VQP, for its messages.
//!
//! What carries it is chosen at each end, for what that end writes ([`Options::policy`], [`ListenerOptions::policy`]):
//! the node's shared queue pairs, or an RC queue pair of the ring's own.
//!
//! The protocol is [`protocol`], two state machines without IO. What it runs over is a [`Carrier`]; the one
//! that is here, [`Wire`], is a VQP of the client library, so that a ring is the same between hosts and on
//! one host.
//!
//! # Waiting
//! [`Receiver::try_recv`] and [`Sender::try_reserve`] do not wait; [`Receiver::recv`] and
//! [`Sender::reserve`] do, and sleep; with the feature `tokio`, `recv_async` and `reserve_async` wait in
//! tasks. A peer or a node that is gone ends each of them with [`Error::Carrier`], within a second. Who waits by the
//! session's descriptor polls a [`Connecting`] at its [`Connecting::deadline`] as well, and a [`Listener`] at
//! [`Listener::deadline`].
//!
//! # Trust
//! A peer may write the words and slots that it was given at any time, and anything. Its pointers are
//! believed only as far as they can be true; else the ring ends with [`Error::Fault`], and nothing more is
//! delivered. A message that is read where it lies is read as atomics, since such a peer may change it
//! meanwhile.
//!
//! `unsafe` stands in [`memory`](Slots), where slots are touched, and at its three callers.

mod answering;
mod asker;
mod carrier;
mod connect;
mod ends;
mod error;
pub mod frames;
mod greeting;
mod inbox;
mod listener;
mod memory;
pub mod parting;
pub mod protocol;
mod receiver;
mod ringer;
mod sender;
mod shares;
mod side;
#[cfg(feature = "tokio")]
mod tasks;
mod wire;

pub use carrier::{Carrier, Cell, Pause, WRITES_MAX, Write};
pub use connect::{Connecting, Options, connect};
pub use ends::Ends;
pub use error::{Error, Refusal};
pub use listener::{Listener, ListenerCounters, ListenerOptions};
pub use memory::Slots;
pub use protocol::{Config, Fault};
pub use receiver::{Message, Receiver};
pub use sender::{Room, Sender};
pub use wire::{Wire, WireCounters};

/// What is fuzzed that is not public: `fuzz` calls it.
#[doc(hidden)]
pub mod fuzzed {
    /// Whether these bytes are a greeting.
    pub fn greeting(bytes: &[u8]) -> bool {
        crate::greeting::Greeting::decode(bytes).is_ok()
    }
}

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
