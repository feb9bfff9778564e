use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use elver_verbs::{QpType, SendOpcode};
use thiserror::Error;

use crate::canary::Canary;
use crate::faults::Fault;

/// A transport, as a run is restricted to some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// Dynamically Connected.
    Dc,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Transport; 4] = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Dc];

    /// The type of the QPs that send on it.
    pub const fn sender(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            Transport::Dc => QpType::Dci,
        }
    }

    /// The transport of a type of QP. There are no pairs of XRC here, which is RC but for where receives come from.
    pub const fn of(qp_type: QpType) -> Transport {
        match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
            QpType::Dci | QpType::Dct => Transport::Dc,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
            Transport::Dc => "dc",
        })
    }
}

/// No transport has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown transport `{0}`; the transports are rc, uc, ud and dc")]
pub struct UnknownTransport(pub String);

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Transport, UnknownTransport> {
        Transport::ALL
            .into_iter()
            .find(|transport| transport.to_string() == name)
            .ok_or_else(|| UnknownTransport(name.into()))
    }
}

/// What a run is to be like, besides its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A bug to plant; the run must then fail.
    pub canary: Option<Canary>,
    /// Transports that the run may use; at least one.
    pub transports: Vec<Transport>,
    /// Somebody forges in a quarter of the runs: the seed says in which.
    pub forger: bool,
    /// Keep the whole trace for a failure, not only its end.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { canary: None, transports: Transport::ALL.to_vec(), forger: true, trace: false }
    }
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
    /// Those whose QP or VQP went or was reset, or whose client or host did, before they completed.
    pub forgotten: u64,
}

impl OpCount {
    /// Adds others.
    pub fn add(&mut self, other: &OpCount) {
        self.posted += other.posted;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.forgotten += other.forgotten;
    }
}

/// What happened in a run that broke no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Hosts.
    pub hosts: usize,
    /// QPs, counting those that were made anew.
    pub qps: usize,
    /// WRs by transport and operation.
    pub ops: BTreeMap<(Transport, SendOpcode), OpCount>,
    /// WRs that were wrong on purpose.
    pub bad_wrs: u64,
    /// Faults injected.
    pub faults: BTreeMap<Fault, u64>,
    /// Packets that hosts sent.
    pub packets: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_ns: u64,
    /// Virtual time from the end of the faults to the last completion, in nanoseconds.
    pub recovery_ns: u64,
    /// How often the canary's bug struck.
    pub canary_strikes: u64,
    /// Hash of everything that happened: equal for equal runs.
    pub trace_hash: u64,
}

impl Report {
    /// WRs of all kinds.
    pub fn total(&self) -> OpCount {
        let mut sum = OpCount::default();
        self.ops.values().for_each(|count| sum.add(count));
        sum
    }
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
