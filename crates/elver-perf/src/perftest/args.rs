//! What `elver perftest` is asked for.

use clap::{Args, ValueEnum, value_parser};
use serde::Serialize;

use crate::peers::{PeerArgs, PeerTransport};

/// Receives posted ahead.
pub const RX_DEPTH: u32 = 512;

const PERFTEST_EXAMPLES: &str = "\
Examples:
  elver perftest write-bw            on one host, and on another, whose kernel has rdma_rxe:
  ib_write_bw -F 192.0.2.1
      the original WRITEs into our memory and tells us what it measured
  ib_send_lat -F -s 64               there, and here:
  elver perftest send-lat 192.0.2.2 -s 64
      the original as server of a ping-pong
  elver perftest read-lat --bind 127.0.0.1   and beside it:
  elver perftest read-lat 127.0.0.1 --bind 127.0.0.2
      both ends are ours

The two ends agree on the path MTU, and not on the rest: give both the same operation, -s, -n and
-c. `elver perf` measures more, between two ends of ours.";

/// Plays one end of a perftest program: the server without an address, the client with one.
#[derive(Debug, Args)]
#[command(after_help = PERFTEST_EXAMPLES)]
pub struct PerftestArgs {
    /// The test.
    pub test: PeerTest,
    /// Where the other end is.
    #[command(flatten)]
    pub peer: PeerArgs,
    /// Transport service; perftest takes it in capitals.
    #[arg(short, long, value_enum, ignore_case = true, default_value_t = PeerTransport::Rc)]
    pub connection: PeerTransport,
    /// Bytes of a message; by default 65536 for a rate and 2 for a latency.
    #[arg(short, long)]
    pub size: Option<u32>,
    /// Messages; by default 5000 for write-bw and 1000 else.
    #[arg(short = 'n', long, value_parser = value_parser!(u32).range(5..=20_000_000))]
    pub iters: Option<u32>,
    /// Path MTU in bytes; by default the largest that both ends carry.
    #[arg(short, long)]
    pub mtu: Option<u32>,
    /// Operations outstanding in a test of the rate.
    #[arg(short, long, default_value_t = 128, value_parser = value_parser!(u32).range(1..=8192))]
    pub tx_depth: u32,
    /// Receives posted ahead in send-lat.
    #[arg(
        short,
        long,
        default_value_t = RX_DEPTH,
        value_parser = value_parser!(u32).range(1..=8192)
    )]
    pub rx_depth: u32,
    /// Taken as perftest takes it, and without effect: our device has one GID, its address.
    #[arg(short = 'x', long)]
    pub gid_index: Option<u8>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A program of perftest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerTest {
    /// ib_write_bw: the client WRITEs.
    #[value(aliases = ["write_bw", "ib_write_bw"])]
    WriteBw,
    /// ib_read_bw: the client READs.
    #[value(aliases = ["read_bw", "ib_read_bw"])]
    ReadBw,
    /// ib_read_lat: the client READs, one at a time.
    #[value(aliases = ["read_lat", "ib_read_lat"])]
    ReadLat,
    /// ib_send_lat: SENDs back and forth.
    #[value(aliases = ["send_lat", "ib_send_lat"])]
    SendLat,
}

impl PeerTest {
    /// Whether the test is of READs.
    pub(crate) fn reads(self) -> bool {
        matches!(self, PeerTest::ReadBw | PeerTest::ReadLat)
    }

    /// Whether the test is of the rate.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, PeerTest::WriteBw | PeerTest::ReadBw)
    }
}
