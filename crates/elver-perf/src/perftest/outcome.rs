//! What a test gave.

use elver_verbs::Mtu;

use crate::perftest::message::{Keys, RateReport};

/// What came out.
pub(crate) enum Outcome {
    /// Of a test of the rate; at the server, what the client told.
    Rate(RateReport),
    /// Nanoseconds.
    Latency(Vec<u64>),
    /// At a server that only served.
    Served,
}

/// What it was measured over.
pub(crate) struct Setting {
    pub(crate) peer_version: String,
    pub(crate) mtu: Mtu,
    pub(crate) own: Keys,
    pub(crate) theirs: Keys,
}
