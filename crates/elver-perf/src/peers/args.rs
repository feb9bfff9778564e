//! What both programs are asked for.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::device::{self, DeviceArgs};

/// Seconds of silence after which the other end counts as lost.
pub const SILENCE: f64 = 20.0;

/// Where the other end is, and how long we wait for it.
#[derive(Clone, Debug, Args)]
pub struct PeerArgs {
    /// Address of the server; without it we are the server.
    pub server: Option<IpAddr>,
    /// Address of our device; by default the one that the route to the server gives, or that the
    /// client reached us at.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// TCP port of the exchange.
    #[arg(short, long, default_value_t = device::EXCHANGE_PORT)]
    pub port: u16,
    /// Seconds that a server waits for its client; by default until one comes.
    #[arg(long)]
    pub wait: Option<f64>,
    /// Seconds of silence after which the other end counts as lost.
    #[arg(long, default_value_t = SILENCE)]
    pub timeout: f64,
    /// Our device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Transport service of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "a doc comment would be the help of a value whose name says it")]
pub enum PeerTransport {
    Rc,
    Uc,
    Ud,
}

impl PeerTransport {
    /// Whether the peer acknowledges what we send.
    pub(crate) fn is_reliable(self) -> bool {
        self == PeerTransport::Rc
    }
}
