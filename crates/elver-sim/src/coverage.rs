use std::collections::{BTreeMap, BTreeSet};

use elver_verbs::SendOpcode;

use crate::faults::Fault;
use crate::options::{OpCount, Report, Transport};

/// What many runs have exercised together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    runs: u64,
    ops: BTreeMap<(Transport, SendOpcode), OpCount>,
    under: BTreeSet<(Transport, SendOpcode, Fault)>,
    faults: BTreeMap<Fault, u64>,
}

impl Coverage {
    /// Adds what a run did.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        for (fault, count) in &report.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (&(transport, opcode), count) in &report.ops {
            self.ops.entry((transport, opcode)).or_default().add(count);
            let seen = report.faults.iter().filter(|(_, count)| **count > 0);
            self.under.extend(seen.map(|(fault, _)| (transport, opcode, *fault)));
        }
    }

    /// Adds what other runs did.
    pub fn merge(&mut self, other: &Coverage) {
        self.runs += other.runs;
        for (key, count) in &other.ops {
            self.ops.entry(*key).or_default().add(count);
        }
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.under.extend(&other.under);
    }

    /// Runs that were added.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// WRs by transport and operation.
    pub fn ops(&self) -> &BTreeMap<(Transport, SendOpcode), OpCount> {
        &self.ops
    }

    /// Faults injected.
    pub fn faults(&self) -> &BTreeMap<Fault, u64> {
        &self.faults
    }

    /// The faults that some run had which also posted this operation on this transport.
    pub fn faults_under(
        &self,
        transport: Transport,
        opcode: SendOpcode,
    ) -> impl Iterator<Item = Fault> {
        Fault::ALL
            .into_iter()
            .filter(move |fault| self.under.contains(&(transport, opcode, *fault)))
    }

    /// Operations that `transports` allow and no run posted.
    pub fn missing(&self, transports: &[Transport]) -> Vec<(Transport, SendOpcode)> {
        let allowed = transports.iter().flat_map(|transport| {
            let supported =
                SendOpcode::ALL.into_iter().filter(|op| transport.sender().supports(*op));
            supported.map(|opcode| (*transport, opcode))
        });
        allowed.filter(|key| !self.ops.contains_key(key)).collect()
    }
}
