//! A whole program's life up to what it was started for: one READ, or one echo over TCP.

use std::net::SocketAddr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::tcp;
use crate::worker::client;
use crate::worker::task::{Known, Place};
use crate::worker::tell::tell;

/// When a program had what it came for, by the monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// In nanoseconds.
    pub at_ns: u64,
}

/// Attaches, connects and READs 8 bytes.
pub(super) fn read(at: &Place, to: &Known) -> Result<()> {
    client::first_contact(at, to)?;
    done()
}

/// Connects, sends 8 bytes and has them back.
pub(super) fn echo(server: SocketAddr) -> Result<()> {
    tcp::connect_once(server, true)?;
    done()
}

fn done() -> Result<()> {
    tell(&Done { at_ns: elver_node::now().0 })
}
