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
mod eth;
mod headers;
pub mod icrc;
mod number;
mod opcode;
mod syndrome;
mod timer;
mod view;

pub use eth::{Aeth, AtomicEth, DcConnect, DcEth, DcExtra, Deth, Reth};
pub use headers::{Headers, Message, Route, Tail, WireError, packet_len};
pub use icrc::{Flow, IcrcMismatch, IpId};
pub use number::{Msn, Psn, Qpn};
pub use opcode::{Opcode, Operation, Transport};
pub use syndrome::{Credits, NakCode, Syndrome};
pub use timer::{RnrTimer, Timeout};
pub use view::{PacketView, ParseError};

/// Length of a base transport header in bytes.
pub const BTH_LEN: usize = 12;
/// Length of the invariant CRC in bytes.
pub const ICRC_LEN: usize = 4;
/// Longest payload of a packet in bytes: the largest path MTU.
pub const PAYLOAD_MAX: usize = 4096;
/// Longest headers in front of a payload: those of a DC WRITE_ONLY_WITH_IMM that connects. Atomics
/// have longer ones, and no payload.
pub const HEADERS_MAX: usize = BTH_LEN + DcEth::LEN + DcConnect::LEN + Reth::LEN + 4;
/// Longest packet in bytes, from the BTH to the ICRC.
pub const PACKET_MAX: usize = HEADERS_MAX + PAYLOAD_MAX + ICRC_LEN;
/// The default P_Key: full member of the default partition.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// The UDP port of RoCEv2 (IBTA annex A17.4.5.1).
pub const UDP_PORT: u16 = 4791;
