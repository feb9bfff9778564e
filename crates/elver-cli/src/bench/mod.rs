//! `elver bench`: what the documentation claims, measured in one run beside what it is compared
//! with. It informs and never fails for a figure.

mod abroad;
pub(crate) mod args;
mod bare;
mod baseline;
pub(crate) mod calls;
mod connect;
mod contract;
mod counted;
mod crowd;
mod data;
pub(crate) mod echo;
mod factors;
pub(crate) mod figure_args;
mod frame;
mod full_verbs;
mod host;
pub(crate) mod hosts;
pub(crate) mod lite_data;
mod load;
mod machine;
mod meet;
mod memory;
mod mesh;
pub(crate) mod node;
mod notes;
mod pool;
mod qos;
mod rnic;
mod rows;
pub(crate) mod sample;
mod storm;
pub(crate) mod tcp;
mod virtual_nodes;
mod vqp_load;
mod waves;
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
        Bench::Echo(args) => echo::run(args),
        Bench::Lite(args) => lite_data::run(args),
        Bench::Calls(args) => calls::run(args),
        Bench::Mesh(args) => mesh::run(args),
        Bench::ZeroCopy(args) => zero_copy::run(args),
        Bench::Factors(args) => factors::run(args),
        Bench::Pool(args) => pool::run(args),
        Bench::Memory(args) => memory::run(args),
        Bench::Storm(args) => storm::run(args),
        Bench::Qos(args) => qos::run(args),
    }
}
