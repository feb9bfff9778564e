//! RB²'s protocol as two state machines: Algorithm 1 of the paper, the sender's half and the receiver's.
//!
//! ```text
//!   sender                                                    receiver
//!   reserve, fill, commit                                     frame, read, release
//!        │                                                         │
//!        ▼                                                         ▼
//!   RB_S  ··░░▒▒██··   ── WRITE slots (1st), at β ─────────▶  RB_R  ··░░▒▒··
//!         │ │ │ tail   ── WRITE tail  (2nd), at α ─────────▶  local_tail
//!         │ │ esc_tail                                        head
//!         │ synced_tail                                       synced_head
//!         local_head   ◀───────── WRITE head (lazy), at γ ──
//! ```
//!
//! A caller drives them: it fills slots and reads them, does the WRITEs that [`Sender::due`] and
//! [`Receiver::due`] ask for, in their order, and tells what it found in the words that the peer writes.
//! A word of the peer's is believed only within what both ends know; one that is beyond is a [`Fault`],
//! and the ring is over.
//!
//! # Write twice
//! The tail is written by a WRITE of its own behind the slots', which an RC queue pair executes in this
//! order. Nothing depends on the order of bytes within a WRITE.
//!
//! # Where this differs from the paper
//! - Algorithm 1, line 2, compares the tail with `local_tail`, which is the receiver's. The sender knows
//!   `local_head`, and that is meant (section III-B: "`(tail+1)%N=head`").
//! - Line 9 moves `synced_tail` whether or not lines 10 to 12 have told the tail, so that what was
//!   deferred is told with the next α slots only, or never. Here `synced_tail` is what was told: an
//!   advancement that was put off is done when the previous one has completed ([`Sender::advanced`]).
//! - The text has the test of the pointer advancement as `tail − synced_tail ≥ β`. It is α, as in line 6.
//! - The text counts `tail − esc_tail + 1` slots for the transmission, after `tail` has moved. It is `tail
//!   − esc_tail`, as in line 13.
//! - Pointers count slots from the ring's beginning and never wrap (64 bits); their place is their value
//!   modulo the number of slots, a power of two. So a full ring and an empty one differ, all slots can be
//!   in use, and a word that goes back is seen.
//! - A message has a header of [`HEADER_BYTES`], in its first slot, and takes as many slots as it needs; it
//!   may begin in the last one and go on in the first.
//! - When a message does not fit, what was committed is told without waiting for α, or both ends would
//!   wait: the receiver for α slots, the sender for room.
//! - A flush tells the tail whatever is under way: nobody may come back to do it later.
//! - A message takes at most `slots − γ + 1` slots, or a receiver that keeps fewer than γ processed slots to
//!   itself would leave no room for it for ever.

#![forbid(unsafe_code)]

mod config;
mod fault;
mod receiver;
mod sender;
mod shape;

pub use config::{Config, ConfigError, SLOTS_MAX};
pub use fault::Fault;
pub use receiver::{Receiver, ReceiverCounters};
pub use sender::{Refused, Sender, SenderCounters, Transmission};
pub use shape::{Frame, HEADER_BYTES, PACKED_UNIT, SLOT_UNIT, Shape, Span};
