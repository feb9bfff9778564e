//! What each kind of simulation says of itself.

use std::collections::BTreeMap;

use elver_console::Failure;
use elver_sim::{Fault, OpCount};
use serde_json::Value;

/// A kind of simulation.
pub(crate) trait Simulation: Sync + Sized {
    type Report;
    /// What all seeds together showed.
    type Sum: Default + Send;
    /// Its name on the command line.
    const NAME: &'static str;

    /// What runs are like besides their seeds, and such a simulation.
    fn options(&self) -> Value;

    fn from_options(options: &Value) -> Result<Self, Failure>;

    fn run(&self, seed: u64) -> Result<Self::Report, Box<elver_sim::Failure>>;

    /// How often the planted bug struck.
    fn strikes(report: &Self::Report) -> u64;

    fn add(sum: &mut Self::Sum, report: &Self::Report);

    /// Operations that should have been done and were not.
    fn missing(&self, sum: &Self::Sum) -> Vec<String>;

    /// Packets, and virtual time in nanoseconds.
    fn packets_and_time(sum: &Self::Sum) -> (u64, u64);

    /// Each operation by its transport, where there are several, and its name.
    fn ops(sum: &Self::Sum) -> Vec<(Option<String>, String, OpCount)>;

    fn faults(sum: &Self::Sum) -> &BTreeMap<Fault, u64>;

    /// What else was counted.
    fn more(sum: &Self::Sum) -> BTreeMap<&'static str, Value>;

    /// The same for people, a line each.
    fn lines(sum: &Self::Sum) -> Vec<String>;
}
