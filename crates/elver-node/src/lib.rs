//! A node: one device, one engine, and what lets processes and other nodes find it.
//!
//! [`Node`] is the whole of it, embedded in a process or as the daemon `elverd`. Its engine owns
//! the device and [`elver_core::Core`] and serves processes over portals; [`registry`] joins it to
//! a cluster; [`config`] is what it is made with, and [`Status`] how it is.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod asking;
pub mod capture;
mod clock;
pub mod config;
mod engine;
mod error;
mod metrics;
mod node;
mod observer;
mod pulse;
pub mod registry;
mod slow;
mod status;
mod worker;

pub use clock::now;
pub use error::NodeError;
pub use node::{Node, NodeThread, Stopper};
pub use observer::Observer;
pub use pulse::Watchdog;
pub use status::{
    LatencyStatus, PeerStatus, RefusalStatus, SessionStatus, Status, UserStatus, VqpStatus,
};
