//! The software RNIC in real time: [`elver_rnic::Rnic`] over a UDP socket, in the process that
//! opens it, without privilege and without a kernel module.
//!
//! [`SoftDevice`] implements [`elver_verbs::Device`]. Its caller drives it, or [`drive`] does on a
//! thread of the caller's, or [`SoftThread`] on one of its own; [`Idle`] says whether that thread
//! spins, yields or sleeps while there is nothing to do.
//!
//! `unsafe` stands in four modules: `memory` (registered memory), `udp` (system calls on many
//! messages), `interface` (questions to the kernel about an interface) and `publish` (memory shared
//! with other processes).

mod capture;
mod device;
mod drive;
mod error;
mod interface;
mod loss;
mod memory;
mod publish;
mod transmit;
mod udp;

pub use device::{SoftConfig, SoftDevice};
pub use drive::{Idle, SoftThread, drive};
pub use error::SoftError;
pub use loss::Loss;
pub use memory::SoftMemory;
pub use publish::{PublishedDevice, published};
