//! `elver sim`: what is simulated, in virtual time and under faults.

mod campaign;
mod node;
mod replay;
mod report;
mod ring;
mod rnic;
mod seed_args;
mod seeds;
mod simulation;

use clap::Subcommand;
use elver_console::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Networks of RNICs: loss, duplication, reordering, corruption, partitions, crashes.
    Rnic(rnic::RnicArgs),
    /// Whole nodes: clients that connect, move data and die, a registry, meta servers, crashes.
    Node(node::NodeArgs),
    /// Rings between clients of nodes: whatever is read was sent, whole, once and in order.
    Ring(ring::RingArgs),
}

/// Runs `elver sim`.
pub(crate) fn run(sim: &Sim) -> Result<(), Failure> {
    match sim {
        Sim::Rnic(args) => rnic::run(args),
        Sim::Node(args) => node::run(args),
        Sim::Ring(args) => ring::run(args),
    }
}
