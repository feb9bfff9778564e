use std::collections::BTreeMap;

use elver_sim::Fault;

use crate::canary::Canary;

/// What a run is to be like, besides its seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug to plant; the run must then fail.
    pub canary: Option<Canary>,
    /// Keep the whole trace for a failure, packets included, and not only its end.
    pub trace: bool,
}

/// How often something happened, by its name.
pub type Acts = BTreeMap<&'static str, u64>;

/// What happened in a run that broke no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// Messages that were sent, and those that were read.
    pub sent: u64,
    /// Messages that were read.
    pub read: u64,
    /// What ends, nodes and fate did.
    pub acts: Acts,
    /// What the cores counted ([`elver_core::Stats`]), all of them together.
    pub counters: Acts,
    /// Faults injected.
    pub faults: BTreeMap<Fault, u64>,
    /// Packets that nodes sent.
    pub packets: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_ns: u64,
    /// How often the canary's bug struck.
    pub canary_strikes: u64,
    /// Hash of everything that happened: equal for equal runs.
    pub trace_hash: u64,
}
