//! What a worker is asked for, and what it must know.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use elver::{AccessFlags, Connecting, Destination, Gid, RemoteAddr, Session, SessionOptions, Vqp};
use serde::{Deserialize, Serialize};

use crate::seat::Seat;

/// The longest that one step of a worker may take.
pub const STEP: Duration = Duration::from_secs(60);
/// Bytes that a target offers: the first half to be read, the other one to be written.
pub const OFFERED: u64 = 2 << 20;
/// Access for everybody.
pub(super) const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// What a worker does: `at` is where it runs, `to` is whom it connects to.
#[expect(missing_docs, reason = "fields are named alike, and said of each task where they differ")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Task {
    /// Offers memory and answers messages.
    Target { at: Place },
    /// Times a way to connect.
    Connects { at: Place, to: Known, way: String, repeats: u32 },
    /// Moves bytes to and fro and compares them.
    Traffic { at: Place, to: Known, seed: u64 },
    /// READs and compares until it is told to end.
    Steady { at: Place, to: Known },
    /// READs without end, with many VQPs and regions: it is there to be killed.
    Victim { at: Place, to: Known },
    /// READs until its VQP has moved to an RC QP.
    Hot { at: Place, to: Known, repeats: u32 },
    /// From the first call into the library to the first READ.
    First { at: Place, to: Known },
    /// As first, but begins when it is told.
    Storm { at: Place, to: Known },
    /// Takes messages, and does nothing with them.
    Sink { at: Place },
    #[cfg(feature = "nodes")]
    /// A meta server, and hosts with their memory, from an address on.
    Abroad { at: Place, meta: std::net::IpAddr, first: std::net::Ipv4Addr, hosts: u32 },
    /// As first, from the program's begin.
    Program { at: Place, to: Known },
    /// Connects to a TCP server that echoes.
    TcpProgram { at: Place, server: SocketAddr },
    /// One of a crowd: connects again and again as it is asked. One that is alone never sleeps.
    Member { at: Place, alone: bool },
}

impl Task {
    pub(super) fn place(&self) -> &Place {
        match self {
            Task::Target { at }
            | Task::Connects { at, .. }
            | Task::Traffic { at, .. }
            | Task::Steady { at, .. }
            | Task::Victim { at, .. }
            | Task::Hot { at, .. }
            | Task::First { at, .. }
            | Task::Storm { at, .. }
            | Task::Sink { at }
            | Task::Program { at, .. }
            | Task::TcpProgram { at, .. }
            | Task::Member { at, .. } => at,
            #[cfg(feature = "nodes")]
            Task::Abroad { at, .. } => at,
        }
    }
}

/// Where a worker finds its node, and where it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The node's socket.
    pub socket: PathBuf,
    /// The cores.
    pub seat: Seat,
}

/// What must be known of a target.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Its node's GID.
    pub gid: [u8; 16],
    /// Where it takes messages.
    pub port: u16,
    /// Where its memory begins.
    pub addr: u64,
    /// The memory's key.
    pub rkey: u32,
}

impl Known {
    /// Its node's GID.
    pub fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    /// Its memory from `offset` on.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr + offset, rkey: self.rkey }
    }
}

impl Place {
    pub(super) fn attach(&self) -> Result<Session> {
        self.attach_with(SessionOptions::default())
    }

    pub(super) fn attach_with(&self, options: SessionOptions) -> Result<Session> {
        Ok(Session::connect_with(Some(&self.socket), options)?)
    }

    pub(super) fn dial(&self, to: &Destination) -> Result<(Vqp, Connecting)> {
        Ok(Session::dial(Some(&self.socket), SessionOptions::default(), to)?)
    }
}
