//! `elver bench`: what the documentation claims, measured in one run beside what it is compared
//! with. It informs and never fails for a figure.

pub(crate) mod args;
mod baseline;
mod connect;
mod contract;
mod crowd;
mod data;
mod factors;
pub(crate) mod figure_args;
mod frame;
mod host;
mod machine;
mod meet;
mod memory;
mod mesh;
mod node;
mod pool;
mod qos;
mod rnic;
mod rows;
pub(crate) mod sample;
mod storm;
pub(crate) mod tcp;
mod virtual_nodes;
mod vqp_load;
pub(crate) mod ways;
mod window;
mod zero_copy;

use crate::cli::Bench;
use crate::exit::Failure;

/// Runs a benchmark.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench {
        Bench::Rnic(args) => rnic::run(args),
        Bench::Connect(args) => connect::run(args),
        Bench::Data(args) => data::run(args),
        Bench::Mesh(args) => mesh::run(args),
        Bench::ZeroCopy(args) => zero_copy::run(args),
        Bench::Factors(args) => factors::run(args),
        Bench::Pool(args) => pool::run(args),
        Bench::Memory(args) => memory::run(args),
        Bench::Storm(args) => storm::run(args),
        Bench::Qos(args) => qos::run(args),
    }
}
