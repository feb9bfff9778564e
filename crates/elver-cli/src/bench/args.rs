//! What the benchmarks of connections and VQPs are asked for.

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum, value_parser};

use crate::bench::hosts::HOSTS_MAX;
use crate::cli::Placement;

/// Rows of `bench connect`, in the table's order.
pub(crate) const CONNECT_ROWS: [&str; 15] = [
    "tcp",
    "verbs",
    "verbs-full",
    "lite-miss",
    "lite-hit",
    "rpc-meta",
    "vqp-cold",
    "vqp-uncached",
    "vqp-dccache",
    "vqp-rc",
    "first-connect",
    "first-connect-asleep",
    "first-connect-host",
    "exec-to-read",
    "exec-to-tcp",
];

/// Rows of `bench data`.
const DATA_ROWS: [&str; 4] = ["raw-rc", "raw-dc", "vqp-rc", "vqp-dc"];

const CONNECT_EXAMPLES: &str = "\
Examples:
  sudo elver bench connect
      every way to connect, between two network namespaces
  elver bench connect --placement host
      processes of one daemon, through its portal
  sudo elver bench connect --clients 1,16,64,240 --rounds 3
      the same with many connects under way at once (KRCORE, figure 8a)
  elver bench connect --placement host --clients 240 --rounds 3
      240 processes of one daemon, each of which connects again and again";

const DATA_EXAMPLES: &str = "\
Examples:
  sudo elver bench data
      READ, WRITE and SEND through VQPs beside plain QPs on the same kind of device
  sudo elver bench data --ops read --sizes 8,64,1024,65536,1048576 --modes sync
      the slowdown by message size (KRCORE, figure 13)
  elver bench data --placement host
      a client process, the daemon, and memory of another process, or one that takes messages";

const MESH_EXAMPLES: &str = "\
Examples:
  sudo elver bench mesh --workers 64
      all connections among 64 workers of two nodes (KRCORE, figure 8b)";

const STORM_EXAMPLES: &str = "\
Examples:
  elver bench storm --clients 240
      240 connects at once to one node: all finish, and how late the last do";

const QOS_EXAMPLES: &str = "\
Examples:
  sudo elver bench qos
      READs of the high class alone, and beside a flood of the low class with QoS on and off";

/// Where the two ends of a benchmark are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// Processes of one daemon, through its portal.
    Host,
    /// Two embedded nodes in two network namespaces. Needs root.
    Netns,
    /// Two embedded nodes on two loopback addresses.
    Loopback,
}

impl Stage {
    /// The one asked for; else namespaces for root, and the loopback for others.
    pub(crate) fn chosen(asked: Option<Stage>) -> Stage {
        let root = rustix::process::geteuid().is_root();
        asked.unwrap_or(if root { Stage::Netns } else { Stage::Loopback })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Host => "host",
            Stage::Netns => "netns",
            Stage::Loopback => "loopback",
        }
    }

    /// Where TCP, and two embedded nodes, stand.
    pub(crate) fn pair(self) -> Placement {
        match self {
            Stage::Netns => Placement::Netns,
            Stage::Host | Stage::Loopback => Placement::Loopback,
        }
    }
}

impl ConnectArgs {
    /// Whether a row is wanted.
    pub(crate) fn wants(&self, row: &str) -> bool {
        wants(&self.only, row)
    }
}

impl DataArgs {
    /// Whether a row is wanted.
    pub(crate) fn wants(&self, row: &str) -> bool {
        wants(&self.only, row)
    }
}

fn wants(only: &[String], row: &str) -> bool {
    only.is_empty() || only.iter().any(|name| name == row)
}

/// Where, how often, and how it is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Where the two ends are; by default netns for root, else loopback.
    #[arg(long, value_enum)]
    pub(crate) placement: Option<Stage>,
    /// Repetitions of each measurement, in turn; figures are their medians.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How long.
#[derive(Clone, Debug, Args)]
pub(crate) struct TimeArgs {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    pub(crate) duration: f64,
}

#[derive(Debug, Args)]
#[command(after_help = CONNECT_EXAMPLES)]
pub(crate) struct ConnectArgs {
    /// Connects under way at once; several numbers give several rows, each to one node and to many.
    /// On a host each is a process of its own; between nodes they are VQPs of one client. Rows of
    /// first connects are always of processes.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) clients: Vec<u32>,
    /// Nodes that rows to many nodes, or to nodes that nobody has met, go to.
    #[arg(long, default_value_t = 240, value_parser = value_parser!(u32).range(1..=i64::from(HOSTS_MAX)))]
    pub(crate) hosts: u32,
    /// Only these rows.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(CONNECT_ROWS))]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = DATA_EXAMPLES)]
pub(crate) struct DataArgs {
    /// Operations.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read,write,send")]
    pub(crate) ops: Vec<DataOp>,
    /// One at a time for latency, or many for rate.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sync,async")]
    pub(crate) modes: Vec<crate::cli::Mode>,
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sizes: Vec<u32>,
    /// Only these rows.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(DATA_ROWS))]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = MESH_EXAMPLES)]
pub(crate) struct MeshArgs {
    /// Workers, half of them at each end.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(2..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = STORM_EXAMPLES)]
pub(crate) struct StormArgs {
    /// Connects at once.
    #[arg(long, default_value_t = 240, value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) clients: u32,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = QOS_EXAMPLES)]
pub(crate) struct QosArgs {
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DataOp {
    Read,
    Write,
    Send,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "it must be a number of seconds".to_string())?;
    if value > 0.0 && value <= 3_600.0 {
        Ok(value)
    } else {
        Err("it must be above 0 and at most 3600 seconds".into())
    }
}
