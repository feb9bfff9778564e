use std::collections::BTreeMap;

use elver_sim::{Fault, OpCount};
use elver_verbs::SendOpcode;

use crate::canary::Canary;
use crate::forge::{Forger, Forgers};
use crate::lapse::Lapses;
use crate::suspend::Suspends;

/// What a run is to be like, besides its seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug to plant; the run must then fail.
    pub canary: Option<Canary>,
    /// Which runs have somebody who forges packets. A canary that needs one has him in every run.
    pub forgers: Forgers,
    /// No node asks whether its peers are there, as before there was a keep-alive: so that seeds of then find
    /// what they found.
    pub no_keep_alive: bool,
    /// In which runs nodes are suspended, and clocks jump.
    pub suspends: Suspends,
    /// In which runs what was executed is not heard of for so long that it may be forgotten. A canary that
    /// needs that has it in every run.
    pub lapses: Lapses,
    /// Keep the whole trace for a failure, packets included, and not only its end.
    pub trace: bool,
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
    /// Who forged packets.
    pub forger: Option<Forger>,
    /// WRs by operation.
    pub ops: BTreeMap<SendOpcode, OpCount>,
    /// Messages received.
    pub messages: u64,
    /// Everything else that was done and that happened.
    pub acts: Acts,
    /// What the cores counted ([`elver_core::Stats`]), all of them together and gauges left out.
    pub counters: Acts,
    /// What their devices counted.
    pub device_counters: Acts,
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
