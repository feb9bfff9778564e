//! `elver bench`: what the documentation claims, measured in one run beside what it is compared
//! with. It informs and never fails for a figure.
//!
//! A file has what one command is asked for, how it measures and what it prints: `connect`, `data`,
//! `echo` and so on. Beneath them stand what they share: `report`, in what form it is told; `host`, a
//! daemon with processes; `vqp_load` and `window`, many WRs under way; `bare` and `baseline`, the
//! same without a node, and without a device; `busy`, threads that want the cores too; `running`, another's
//! program for a bounded time; `virtual_nodes`, nodes in the simulator's time.

mod ablation;
mod args;
mod bare;
mod baseline;
mod busy;
mod calls;
mod cases;
mod connect;
mod data;
mod echo;
mod factors;
mod fork;
mod host;
mod lite_data;
mod memory;
mod mesh;
mod open;
mod pool;
mod programs;
mod qos;
mod report;
mod ring;
mod rnic;
mod rpc;
mod running;
mod start;
mod storm;
mod stream;
mod virtual_nodes;
mod vqp_load;
mod window;
mod zero_copy;

use clap::Subcommand;
use elver_console::Failure;
use elver_testbed::programs::Programs;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The RNIC against bare UDP, sendto and TCP in the same run.
    Rnic(rnic::RnicArgs),
    /// Connecting: VQPs, their rivals and TCP, beside one 8-byte READ.
    Connect(connect::ConnectArgs),
    /// READ, WRITE and SEND through VQPs, beside plain QPs on the same kind of device.
    Data(data::DataArgs),
    /// A message and its answer, one at a time and many under way.
    Echo(echo::EchoArgs),
    /// LITE's data path beside VQPs, by the number of threads.
    Lite(lite_data::LiteArgs),
    /// The calls of the control path that ask nobody.
    Calls(calls::CallsArgs),
    /// A child's first READ by a session that its parent prepared, and what a fork costs.
    Fork(fork::ForkArgs),
    /// Functions that start cold, warm and forked, without RDMA and with a READ: Swift's figure 7.
    Start(start::StartArgs),
    /// Opening a device and connecting by the host's own libibverbs, with and without the fast library: Swift's
    /// figure 6.
    Open(open::OpenArgs),
    /// All connections among many workers, through VQPs and their rivals.
    Mesh(mesh::MeshArgs),
    /// Messages that are copied, beside those that the receiver reads from where they lie.
    ZeroCopy(zero_copy::ZeroCopyArgs),
    /// What each part of the way adds to one 8-byte READ.
    Factors(factors::FactorsArgs),
    /// READs to many nodes by the number of shared DC QPs, in virtual time.
    Pool(pool::PoolArgs),
    /// Memory of connections by peers and by VQPs.
    Memory(memory::MemoryArgs),
    /// Messages through RB²'s rings, beside rival designs and WRITEs that are posted one by one.
    Ring(ring::RingArgs),
    /// What each of the ring's choices brings: the paper's table II.
    RingAblation(ablation::AblationArgs),
    /// A network function, a database and an HTTP server over rings: the paper's figures 8 to 10.
    Cases(cases::CasesArgs),
    /// Bytes through streams over RB²'s rings, beside TCP.
    Stream(stream::StreamArgs),
    /// Calls of 64 bytes by how many are under way, beside gRPC's.
    Rpc(rpc::RpcArgs),
    /// Unmodified verbs programs by `elver run`: perftest beside UCX's shared memory and `elver perf`.
    Programs(programs::ProgramsArgs),
    /// Many connects at once to one node.
    Storm(storm::StormArgs),
    /// The high class of VQPs beside a flood of the low class.
    Qos(qos::QosArgs),
}

/// Measures and prints. Clusters are made of `programs`, and [`Bench::Memory`] starts the program
/// that is our own again, as `bench memory`, since a heap that was used before tells nothing.
///
/// # Errors
/// It cannot be done here, or not with these arguments; or it failed.
pub fn run(bench: &Bench, programs: &Programs) -> Result<(), Failure> {
    match bench {
        Bench::Rnic(args) => rnic::run(args),
        Bench::Connect(args) => connect::run(args, programs),
        Bench::Data(args) => data::run(args, programs),
        Bench::Echo(args) => echo::run(args),
        Bench::Lite(args) => lite_data::run(args),
        Bench::Calls(args) => calls::run(args, programs),
        Bench::Fork(args) => fork::run(args, programs),
        Bench::Start(args) => start::run(args, programs),
        Bench::Open(args) => open::run(args, programs),
        Bench::Mesh(args) => mesh::run(args),
        Bench::ZeroCopy(args) => zero_copy::run(args),
        Bench::Factors(args) => factors::run(args),
        Bench::Pool(args) => pool::run(args),
        Bench::Memory(args) => memory::run(args, programs),
        Bench::Ring(args) => ring::run(args),
        Bench::RingAblation(args) => ablation::run(args),
        Bench::Cases(args) => cases::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Rpc(args) => rpc::run(args),
        Bench::Programs(args) => programs::run(args, programs),
        Bench::Storm(args) => storm::run(args, programs),
        Bench::Qos(args) => qos::run(args),
    }
}
