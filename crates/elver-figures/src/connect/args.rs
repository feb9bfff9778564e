//! What `elver bench connect` is asked for.

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use elver_testbed::hosts::HOSTS_MAX;

use crate::args::{RunArgs, TimeArgs, wants};

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

#[derive(Debug, Args)]
#[command(after_help = CONNECT_EXAMPLES)]
pub struct ConnectArgs {
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

impl ConnectArgs {
    /// Whether a row is wanted.
    pub(crate) fn wants(&self, row: &str) -> bool {
        wants(&self.only, row)
    }
}
