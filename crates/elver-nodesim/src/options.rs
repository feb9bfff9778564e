use std::collections::BTreeMap;

use elver_sim::Fault;
use elver_verbs::SendOpcode;
use thiserror::Error;

use crate::canary::Canary;

/// What a run is to be like, besides its seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug to plant; the run must then fail.
    pub canary: Option<Canary>,
    /// Keep the whole trace for a failure, packets included, and not only its end.
    pub trace: bool,
}

/// How the WRs of one operation went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// WRs posted.
    pub posted: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those that failed or were flushed.
    pub failed: u64,
    /// Those whose VQP, client or node went before they completed.
    pub forgotten: u64,
}

/// What happened in a run, or in many, by name: acts of clients, of operators and of fate.
pub type Acts = BTreeMap<&'static str, u64>;

/// What happened in a run that broke no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// WRs by operation.
    pub ops: BTreeMap<SendOpcode, OpCount>,
    /// Messages received.
    pub messages: u64,
    /// Everything else that was done and that happened.
    pub acts: Acts,
    /// Faults injected.
    pub faults: BTreeMap<Fault, u64>,
    /// Packets that nodes sent.
    pub packets: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_ns: u64,
    /// Virtual time from the end of the faults until all that was pending had ended, in nanoseconds.
    pub recovery_ns: u64,
    /// How often the canary's bug struck.
    pub canary_strikes: u64,
    /// Hash of everything that happened: equal for equal runs.
    pub trace_hash: u64,
}

/// A run that broke a rule. Its `Display` is one line; [`Failure::trace`] tells how it came to it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("seed {seed}, at {:.3} us: {violation}", *.virtual_ns as f64 / 1_000.0)]
pub struct Failure {
    /// The seed that reproduces it, with the same options.
    pub seed: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// What was violated.
    pub violation: String,
    /// The events before it, oldest first, a line each.
    pub trace: Vec<String>,
    /// How often the canary's bug had struck.
    pub canary_strikes: u64,
}
