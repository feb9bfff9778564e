//! The RDMA verbs vocabulary, and the [`Device`] trait that every Elver device offers.
//!
//! This crate holds words and rules, no behaviour: work requests and completions ([`SendWr`],
//! [`RecvWr`], [`Wc`]), queue pair attributes and the table of their state transitions
//! ([`qp_state`]), errors that name what is missing or wrong ([`VerbsError`]), asynchronous events
//! and capabilities. The names are those of the InfiniBand Architecture Specification, volume 1,
//! chapters 10 and 11, and of `libibverbs`; DC follows `mlx5dv`.
//!
//! The state machines above share one more word: [`bug!`] names what only they themselves can cause.
//!
//! Objects are small numbered handles. Calls take `&mut self`: a device has one owner, so nothing
//! in it is locked.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bug;

mod access;
mod caps;
mod device;
mod error;
mod event;
mod gid;
mod handle;
mod maybe;
mod memory;
mod qp;
pub mod qp_state;
mod region;
mod time;
mod vqp;
mod wc;
mod wr;
mod wr_shape;

pub use access::AccessFlags;
pub use caps::{AtomicCap, DeviceAttr, PortAttr, PortState, TransportCaps};
pub use device::{CqInit, Device, Intake, MrInfo, MwInfo, SrqAttr, SrqInit};
pub use error::{ObjectKind, PostError, VerbsError};
pub use event::AsyncEvent;
pub use gid::{Gid, GidParseError, InGroups};
pub use handle::{Ah, Cq, Mr, Mw, Pd, Qp, Srq, Xrcd};
pub use maybe::MaybeSlot;
pub use memory::{Memory, MemoryError};
pub use qp::{
    AddressVector, DciInit, Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpMade, QpState, QpType,
    SendHead, qpn_valid,
};
pub use region::check_region;
pub use time::Time;
pub use vqp::{Class, ConnectOptions, Policy, Via, VqpState};
pub use wc::{AccessFault, Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{
    BindMw, Dest, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendOpcode, SendWr, Sge,
};
pub use wr_shape::WrLimits;
