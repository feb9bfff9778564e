//! `elver sim`: what is simulated, in virtual time and under faults.

mod node;
mod replay;
mod report;
mod rnic;
mod seeds;
mod simulation;

use crate::cli::Sim;
use crate::exit::Failure;

/// Runs `elver sim`.
pub(crate) fn run(sim: &Sim) -> Result<(), Failure> {
    match sim {
        Sim::Rnic(args) => rnic::run(args),
        Sim::Node(args) => node::run(args),
    }
}
