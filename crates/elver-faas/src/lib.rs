//! Serverless functions whose RDMA is ready when they start: the serverless side of Swift (seed paper, §4).
//!
//! [`orchestrator::serve`] takes requests and runs them in containers of a real OCI runtime. How a
//! request starts follows from what exists ([`schedule`]): cold in a new container, warm in a new INIT
//! process of a container of the same owner, or as a fork of an INIT process, which has imported the
//! handler. In each container `elver-init` ([`init`]) is the first process. Functions speak the AWS
//! Lambda Runtime API.
//!
//! # Trade-offs
//! - A container is one owner's, and runs as that owner's user of the host, without capabilities, in a
//!   read-only root and a network namespace with nothing but loopback. Memory and processes are bounded by
//!   resource limits; by a cgroup only where the configuration asks for it, since those are not to be had everywhere.
//! - An INIT process runs its first request itself, and is not forked before that has ended: requests
//!   that come meanwhile start warm.
//! - A child runs one request and ends.
//! - What handlers in Python have of RDMA is Python (`python/elver_context.py`), over the module of
//!   elver-python: sessions can be inherited from the process alone that prepared them, and that is Python's.

#![forbid(unsafe_code)]

mod accepting;
pub mod action;
pub mod bundle;
pub mod client;
pub mod config;
pub mod containers;
mod http;
pub mod init;
pub mod orchestrator;
mod progress;
pub mod protocol;
pub mod schedule;
mod seccomp;
pub mod state;

pub use config::Config;
