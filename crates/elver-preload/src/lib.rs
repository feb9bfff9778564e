//! `libibverbs.so.1` on Elver's soft device: programs that are linked to libibverbs run unmodified on
//! a machine with no RDMA device. `docs/preload.md` says what works and what does not.
//!
//! Each process has one [`elver_soft::SoftDevice`] behind one lock, shared by all contexts. Who polls
//! or posts drives it; while nobody polls, a thread does, which sleeps on the device's socket.
//!
//! The process's own memory is registered as it stands. The kernel would pin it; here it must stay
//! mapped until it is deregistered.
//!
//! Nothing unwinds into a program: each call is [`guard`]ed, and a panic becomes an errno.
// Every exported function takes what libibverbs' function of that name takes, whose manual page states
// the contract: pointers come from this library or are what the page asks for, and are not freed
// while in use. The SAFETY reasons below refer to it as the verbs contract.
#![allow(clippy::missing_safety_doc)]

mod addresses;
mod ah;
mod belongs;
mod buffers;
mod caps;
mod channel;
pub mod cm;
mod context;
mod cq;
mod cq_ex;
mod device;
mod device_memory;
mod direct;
mod dm;
mod doze;
mod engine;
mod errno;
mod events;
mod faults;
mod fork;
mod identity;
pub mod layout;
mod leaving;
mod left;
mod mcast;
mod memory;
pub mod mlx5;
mod moderation;
mod mw;
mod names;
mod odp;
mod outage;
mod owned;
mod parents;
mod paths;
mod pd;
mod private;
mod qp;
mod qp_ex;
mod region;
mod ring;
mod service;
mod srq;
mod staged;
mod sysfs;
mod threads;
mod timed;
mod told;
mod tree;
mod vain;
mod vendor;
mod wishes;
mod wr;
mod xrc;
mod xrc_table;

pub use errno::guard;
