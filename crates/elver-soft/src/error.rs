use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use elver_memory::MapError;
use elver_verbs::VerbsError;
use thiserror::Error;

/// Why a soft device could not be opened or driven.
#[derive(Debug, Error)]
pub enum SoftError {
    /// The configuration is out of range.
    #[error(transparent)]
    Config(#[from] VerbsError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The UDP socket could not be bound.
    #[error(
        "cannot bind UDP {address}: {reason}; \
         is the address one of this host's, and does no other device use it, nor the kernel's rdma_rxe?"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        reason: io::Error,
    },
    /// A socket option could not be set.
    #[error("cannot set {option} on the UDP socket: {reason}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What the kernel said.
        reason: io::Error,
    },
    /// No interface has the address.
    #[error("no interface has the address {address}; `ip address` lists those there are")]
    NoInterface {
        /// The address.
        address: IpAddr,
    },
    /// The interface carries no packets of even the smallest path MTU.
    #[error("interface {interface} has an MTU of {mtu}, but RoCEv2 needs at least {needed}")]
    Mtu {
        /// Name of the interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// Bytes that the smallest path MTU needs.
        needed: u32,
    },
    /// A frame link was described in a way that cannot be.
    #[error("a frame link cannot be like this: {what}")]
    FrameLink {
        /// What does not fit, with its value.
        what: String,
    },
    /// What was given as a frame link's socket carries no frames.
    #[error(
        "no frames can be exchanged over this: {what}; \
         it takes a datagram or sequenced-packet socket, or a tap device"
    )]
    FrameSocket {
        /// What it is.
        what: String,
    },
    /// The capture file could not be made.
    #[error("cannot create the capture file {path}: {reason}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        reason: io::Error,
    },
    /// An operating system call failed.
    #[error("{call}: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        reason: io::Error,
    },
}
