//! What a request does at its target: its checks, in the order of the IBTA (vol. 1, 9.7.4.1), what
//! it changes in memory and in the receive queue, and the verdict.
//!
//! All three ways that a request can come end here: packets of RC and DC ([`crate::responder`]),
//! packets of UC and UD ([`crate::unreliable`]), and WRs between QPs of one device
//! ([`crate::local`]). Each of them only brings bytes ([`Source`]), piece by piece or all at once,
//! and does what the verdict ([`Fault`]) means on its transport: a NAK, a drop, a completion with
//! an error. So they cannot differ in what a peer may do.
//!
//! The order for one request: a READ or an atomic is within `max_dest_rd_atomic`; the QP grants the
//! operation; an atomic's address is aligned; key, range and rights of the region. A receive is
//! taken only when all that is good, so that a refused request uses none, and before the first byte
//! of the packet that needs it is written.

mod access;
mod fault;
mod inbound;
mod source;

pub(crate) use self::access::Atomic;
pub(crate) use self::fault::Fault;
pub(crate) use self::inbound::{End, Inbound, Sender};
pub(crate) use self::source::{Segments, Source};
