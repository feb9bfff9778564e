//! Campaigns of simulations: seeds by the thousand, side by side, under faults and in virtual time; what failed is kept
//! in a file, from which another build replays it.
//!
//! | module | what |
//! | --- | --- |
//! | `simulation` | what each kind of simulation says of itself |
//! | `rnic`, `node`, `ring` | the kinds, and what each one's command takes |
//! | `seed_args` | which seeds run: what the commands have in common |
//! | `campaign` | all seeds of one, from the first to what is told of them |
//! | `seeds` | seeds, many at once |
//! | `report`, `replay` | the file of what failed, written and run again |
//!
//! `elver sim` is its face.

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

/// What is simulated, and over which seeds.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Networks of RNICs: loss, duplication, reordering, corruption, partitions, crashes.
    Rnic(rnic::RnicArgs),
    /// Whole nodes: clients that connect, move data and die, a registry, meta servers, crashes.
    Node(node::NodeArgs),
    /// Rings between clients of nodes: whatever is read was sent, whole, once and in order.
    Ring(ring::RingArgs),
}

/// Runs `elver sim`.
///
/// # Errors
///
/// [`Failure::Unusable`] for arguments that do not go together, or a report that cannot be replayed; [`Failure::Failed`]
/// if a seed breaks a rule, a planted bug is not caught, or the report cannot be written.
pub fn run(sim: &Sim) -> Result<(), Failure> {
    match sim {
        Sim::Rnic(args) => rnic::run(args),
        Sim::Node(args) => node::run(args),
        Sim::Ring(args) => ring::run(args),
    }
}
