//! Elastic verbs: RDMA queue pairs that a process creates and connects in about a microsecond.
//!
//! A [`Session`] attaches the process to the node of its host: the daemon `elverd`, which owns the
//! RDMA device; or to a node in the process itself (`Session::embedded`, with the feature
//! `embedded`). Memory is registered as
//! [`Mr`]; a [`Vqp`] is a virtual queue pair (KRCORE, USENIX ATC 2022): it has an RC QP's meaning
//! and shares the node's few physical ones, so that connecting it needs no handshake.
//!
//! ```no_run
//! use elver::{AccessFlags, Completed, Payload, SendFlags, SendOp, SendWr, Session, VqpOptions, Wc};
//! # fn main() -> Result<(), elver::Error> {
//! # let (gid, remote) = (elver::Gid::default(), elver::RemoteAddr { addr: 0, rkey: 0 });
//! let session = Session::connect_default()?;
//! let mr = session.alloc(4096, AccessFlags::LOCAL_WRITE)?;
//! let vqp = session.create_vqp(VqpOptions::default())?;
//! vqp.qconnect(gid, 0)?;
//! let sges = [mr.sge(0, 8)];
//! let payload = Payload::Sges(&sges);
//! let op = SendOp::Read(remote);
//! let read = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
//! vqp.post_send(&[read])?;
//! let mut wcs = [Wc::default()];
//! vqp.wait_cq(&mut wcs, None)?;
//! let [wc] = wcs.map(Completed::succeeded);
//! println!("{} bytes", wc?.byte_len);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//! A session and all that it made belong to one thread, so that nothing in it is locked. Each thread
//! opens its own, which costs some tens of microseconds. What may go from thread to thread are GIDs, addresses, keys and
//! descriptors, which are plain values, a [`Waker`], and [`SharedMemory`]: memory that one session has allocated
//! ([`Session::alloc_shared`]), and others of the process register too ([`Session::attach`]).
//!
//! # fork
//! A session belongs to the process that opened it: after `fork`, every call on it in the child fails
//! with [`Error::Forked`], dropping it there touches nothing, and the child opens its own. Memory
//! that the session allocated is shared with the child, as shared memory is. A process that wants its
//! children to have connections at once prepares sessions for them ([`Session::prepare`]), of which each
//! takes one over ([`Heirs::take`]).
//!
//! # Waiting
//! A call that waits looks for the answer for some time ([`SessionOptions::spin`]), lets other
//! threads run meanwhile, and then sleeps until the node wakes it. When the node is gone, all calls
//! fail with [`Error::NodeGone`]: at once while they sleep, and within a tenth of a second of polling.
//! [`Vqp::wait_cq`] waits for one VQP, [`Cq::wait`] for those that share a CQ, and
//! [`Session::wait_ready`] for all of the session's. A [`Waker`] ends such a wait from another thread,
//! and a signal does if [`SessionOptions::end_on_signal`] says so.
//!
//! What a call asks the node for, and waits to be answered, may fail with [`Error::Silent`] and [`Error::TimedOut`] where that
//! stands still, with [`Error::NodeGone`], and in a child with [`Error::Forked`], whatever else the call names.
//!
//! To wait beside other things a session has a descriptor ([`Session::arm`] says how), and with the
//! feature `tokio` the module `tokio` waits in tasks.
//!
//! # Tables
//! With the feature `kv` the module `kv` puts a hash table into a region, which peers look keys up in by one-sided READs.
//!
//! # Completions that failed
//! [`Wc::status`] says how; [`Completed::succeeded`] makes an [`Error`] of it that says what helps.
//! [`Wc::vendor_err`] is an [`AccessFault`] where that is [`WcStatus::RemAccessErr`], and 0 else: a node
//! has no other details of its own there. [`Vqp::failure`] says why a VQP has failed where no completion
//! does.
//!
//! `unsafe` stands in four modules: `mr`, for memory of the caller's, `fork`, `clock`, and `tokio` for
//! its descriptor.

mod arena;
mod clock;
mod closing;
mod connecting;
mod descriptor;
mod destination;
mod direct;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod fork;
mod heirs;
mod inner;
#[cfg(feature = "kv")]
pub mod kv;
mod link;
mod mr;
mod options;
mod path;
mod placement;
mod ready;
mod regions;
mod session;
mod session_cell;
#[cfg(test)]
mod silent;
#[cfg(feature = "tokio")]
pub mod tokio;
mod vqp;
mod wait;
mod waker;

pub use closing::Closing;
pub use connecting::Connecting;
pub use destination::Destination;
#[cfg(feature = "embedded")]
pub use elver_node as node;
pub use elver_portal::{
    Class, ConnectOptions, Layout, Limits, Policy, RefusalCode, Via, VqpInfo, VqpOptions, VqpState,
};
pub use elver_verbs::{
    AccessFault, AccessFlags, Gid, GidParseError, Payload, PostError, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, Sge, Wc, WcFlags, WcOpcode, WcStatus,
};
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedNode;
pub use error::{Completed, Error, NotInherited, PostFailed};
pub use fork::{Origin, note_child, watch_forks};
pub use heirs::{Heir, HeirState, Heirs, PrepareOptions, Preparing};
pub use inner::Session;
pub use mr::{Mr, SharedMemory};
pub use options::SessionOptions;
pub use path::SOCKET_VARIABLE;
pub use placement::{Numa, Placement};
pub use ready::{Cq, Ready};
pub use session_cell::{SessionCell, SessionRef, SessionRefMut};
pub use vqp::{Message, Vqp};
pub use waker::Waker;

/// The README's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
