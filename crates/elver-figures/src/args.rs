//! What several benchmarks are asked for.

use clap::{Args, ValueEnum, value_parser};
use elver_testbed::pair::Placement;

/// Where the two ends of a benchmark are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
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

/// Whether a row is among those that are wanted; none stands for all.
pub(crate) fn wants(only: &[String], row: &str) -> bool {
    only.is_empty() || only.iter().any(|name| name == row)
}

/// Where, how often, and how it is told.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
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
pub struct TimeArgs {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    pub(crate) duration: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataOp {
    Read,
    Write,
    Send,
}

/// A time that a measurement may take.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "it must be a number of seconds".to_string())?;
    if value > 0.0 && value <= 3_600.0 {
        Ok(value)
    } else {
        Err("it must be above 0 and at most 3600 seconds".into())
    }
}
