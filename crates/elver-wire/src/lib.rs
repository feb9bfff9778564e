//! RoCEv2 on the wire: headers and the invariant CRC, without IO.
//!
//! Two layers. [`PacketView`] is a checked view over received bytes: once it is made, every field
//! can be read. [`Headers`] is a value that cannot hold nonsense: only combinations of transport
//! and message that the specification, or our DC extension, knows can be built, and each knows how
//! to write itself.
//!
//! The sources are the InfiniBand Architecture Specification, volume 1, release 1.4 ("IBTA"):
//! chapter 9 for the headers, annex A17 for RoCEv2. What is ours, and not the specification's, is
//! in `docs/wire.md`: the DC opcodes, [`DcEth`], [`DcExtra`], [`NakCode::DcNoContext`] and
//! [`NakCode::DcProve`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
#[macro_use]
extern crate std;

mod bytes;
pub mod cm;
mod error;
mod eth;
mod headers;
pub mod icrc;
mod number;
mod opcode;
mod sizes;
mod syndrome;
mod timer;
mod view;

pub use error::ParseError;
pub use eth::{Aeth, AtomicEth, DcConnect, DcEth, DcExtra, Deth, Reth, XrcEth};
pub use headers::{HEADERS_MAX, Headers, Message, PACKET_MAX, Route, Tail, WireError, packet_len};
pub use icrc::{Flow, IcrcMismatch, IpId};
pub use number::{Msn, Psn, Qpn};
pub use opcode::{Opcode, Operation, Transport};
pub use sizes::{BTH_LEN, ICRC_LEN, PAYLOAD_MAX, PKEY_DEFAULT, UDP_PORT};
pub use syndrome::{Credits, NakCode, Syndrome};
pub use timer::{RnrTimer, Timeout};
pub use view::PacketView;
