//! What the benchmarks of KRCORE's single figures are asked for.

use clap::{Args, value_parser};

use crate::bench::args::{RunArgs, TimeArgs};

const ZERO_COPY_EXAMPLES: &str = "\
Examples:
  sudo elver bench zero-copy
      echoes of 8 B to 1 MB, copied and read by the receiver, and where they cross
  elver bench zero-copy --sizes 4096,65536 --placement loopback --rounds 3

A message is copied from the node's buffer to the posted receive, or the receiver READs it from
where it lies at the sender (KRCORE, section 4.5 and figure 9b). The size at which both take the
same time is what `messages.eager_bytes_max` should be, as far as the receive buffers allow.";

const FACTORS_EXAMPLES: &str = "\
Examples:
  sudo elver bench factors
      what each part of the way adds to a READ of 8 bytes
  elver bench factors --placement loopback --rounds 3 --duration 0.1

Rows of two nodes (KRCORE, figure 12a):
  raw-rc          an RC QP on the bare device
  vqp-rc          the same through a VQP: its checks, and dispatch
  vqp-dc          a VQP on a DC QP
  mr-miss         the first access to a region: its validity is looked up
Rows of one node on this host, where the bytes do not cross a network:
  embedded-host   the core called by the process that owns it
  portal-inline   through a session's rings, the node driven by the same thread
  portal-host     through a session's rings, the node on a thread of its own as in elverd";

const POOL_EXAMPLES: &str = "\
Examples:
  elver bench pool
      64 READs to 10 nodes by the number of DC QPs, and the tail of READs to 5 nodes
  elver bench pool --dc-qps 1,2,48 --rounds 20

It runs in the simulator's virtual time (KRCORE, figures 14a and 14b): the network's constants are
KRCORE's, 2.15 µs for a READ and 7 ns of the NIC for a packet, and code takes no time. So it tells
what requests wait for on the shared QPs, and nothing of the time that posting and polling take.";

const MEMORY_EXAMPLES: &str = "\
Examples:
  elver bench memory
      what connections to up to 10,000 nodes take (KRCORE, figure 15a)
  elver bench memory --peers 0,5000 --vqps 1000 --json

The peers are records in a meta server's table: to connect over DC nothing else is asked. Each
round is a process of its own, since a heap that was used before tells nothing.
`counted` is what the node says of itself, with the send queues as an mlx5 NIC takes them;
`RssAnon` is the growth of the process as Linux counts it, allocator's waste included.";

/// Sizes by default, as figure 9b has them.
const SIZES: &str = "8,64,512,1024,4096,8192,16384,32768,65536,131072,262144,524288,1048576";

#[derive(Debug, Args)]
#[command(after_help = ZERO_COPY_EXAMPLES)]
pub(crate) struct ZeroCopyArgs {
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = SIZES, value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sizes: Vec<u32>,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = FACTORS_EXAMPLES)]
pub(crate) struct FactorsArgs {
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = POOL_EXAMPLES)]
pub(crate) struct PoolArgs {
    /// Sizes of the pool of DC QPs.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) dc_qps: Vec<u32>,
    /// READs of each client for the tail.
    #[arg(long, default_value_t = 400, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) reads: u32,
    /// Repetitions, each with other targets and keys; figures are their medians.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = MEMORY_EXAMPLES)]
pub(crate) struct MemoryArgs {
    /// Nodes that this one is connected to, or was.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1000,5000,10000",
        value_parser = value_parser!(u32).range(0..=16_000)
    )]
    pub(crate) peers: Vec<u32>,
    /// VQPs.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,10000,50000",
        value_parser = value_parser!(u32).range(1..=60_000)
    )]
    pub(crate) vqps: Vec<u32>,
    /// RC QPs that are made for comparison.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=16_000))]
    pub(crate) rc_qps: u32,
    /// Repetitions; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
