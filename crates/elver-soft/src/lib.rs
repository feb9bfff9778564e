//! The software RNIC in real time: [`elver_rnic::Rnic`] over a UDP socket or over Ethernet frames,
//! in the process that opens it, without privilege and without a kernel module.
//!
//! [`SoftDevice`] implements [`elver_verbs::Device`]. Its caller drives it, or [`drive`] does on a
//! thread of the caller's, or [`SoftThread`] on one of its own; [`Idle`] says whether that thread
//! spins, yields or sleeps while there is nothing to do.
//!
//! Packets travel over one of two [`Link`]s. Over the kernel's UDP the device shares an address of
//! this host. Over frames ([`FrameLink`]) it is a station of an Ethernet link, such as a virtual
//! machine's, and needs nothing of the host's network.
//!
//! `unsafe` stands in four modules: `udp` (system calls on many messages), `interface` (questions to
//! the kernel about an interface), `publish` (memory shared with other processes) and
//! `frames::adopt` (descriptors that the process was started with).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod bypass;
mod capture;
mod clock;
mod device;
mod drive;
mod errands;
mod error;
mod faults;
mod frames;
mod groups;
mod inlet;
mod intake;
mod interface;
mod link;
mod publish;
mod transmit;
mod udp;

/// Recording what goes over a device's link for another thread, and writing it as pcapng.
pub mod record {
    pub use crate::capture::pcapng::{Direction, LinkType, Recorded, begin, packet, statistics};
    pub use crate::capture::tap::{Tap, TapReader, tap, unix_ns};
    pub use crate::capture::{left_out, recorded};
}

pub use bypass::{Bypass, Carried};
pub use clock::now;
pub use device::{SoftConfig, SoftDevice, path_mtu_of};
pub use drive::{Idle, SoftThread, drive};
pub use elver_memory::{
    Copier, CopierCounters, MapError, ProcessMemory, Reservation, SoftMemory, Sought, fault,
};
pub use elver_rnic::{MrChange, Reach};
pub use elver_wire::UDP_PORT;
pub use error::SoftError;
pub use faults::{Faults, Loss};
pub use frames::{FrameCounters, FrameLink, FrameSocket, LocalAddress, Mac};
pub use interface::{are_on_two_interfaces, has_address};
pub use link::Link;
pub use publish::{PublishedDevice, allow_file, published};
