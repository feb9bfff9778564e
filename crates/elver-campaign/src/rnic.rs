//! `elver sim rnic`: networks of RNICs.

use std::collections::BTreeMap;

use anyhow::anyhow;
use clap::Args;
use elver_console::Failure;
use elver_sim::{Canary, Coverage, Fault, OpCount, Options, Report};
use serde_json::{Value, json};

use crate::campaign;
use crate::seed_args::SeedArgs;
use crate::simulation::Simulation;

const EXAMPLES: &str = "\
Examples:
  elver sim rnic --seed 1 --seeds 1000
      a thousand networks, all of whose runs can be had again
  elver sim rnic --seed random --for 90s --keep-going
      new ones for a while, with a file of those that fail";

/// What `elver sim rnic` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RnicArgs {
    /// Plant a bug; the command succeeds only if the model catches it.
    #[arg(long)]
    pub(crate) canary: Option<Canary>,
    /// Use these transports alone: rc, uc, ud, dc.
    #[arg(long, value_delimiter = ',')]
    pub(crate) transport: Vec<elver_sim::Transport>,
    /// Nobody forges packets, which somebody does in a quarter of the seeds: what seeds did before there was one.
    #[arg(long)]
    pub(crate) no_forger: bool,
    #[command(flatten)]
    pub(crate) seeds: SeedArgs,
}

/// What all seeds together showed.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    packets: u64,
    virtual_ns: u64,
}

struct Rnics(Options);

/// Runs `elver sim rnic`.
pub(crate) fn run(args: &RnicArgs) -> Result<(), Failure> {
    if args.seeds.list_canaries {
        campaign::list(Canary::ALL, &args.seeds);
        return Ok(());
    }
    let mut options = Options {
        canary: args.canary,
        trace: args.seeds.trace,
        forger: !args.no_forger,
        ..Options::default()
    };
    if !args.transport.is_empty() {
        options.transports.clone_from(&args.transport);
    }
    campaign::run(&Rnics(options), &args.seeds, args.canary.map(|canary| canary.to_string()))
}

impl Simulation for Rnics {
    type Report = Report;
    type Sum = Sum;
    const NAME: &'static str = "rnic";

    fn options(&self) -> Value {
        let transports = self.0.transports.iter().map(ToString::to_string);
        json!({ "transport": transports.collect::<Vec<_>>(), "forger": self.0.forger })
    }

    fn from_options(options: &Value) -> Result<Rnics, Failure> {
        let names = options["transport"].as_array();
        let names = names.ok_or_else(|| anyhow!("a seed of `sim rnic` names its transports"))?;
        let transports = names.iter().map(|name| name.as_str().unwrap_or_default().parse());
        let transports = transports.collect::<Result<Vec<_>, _>>()?;
        if transports.is_empty() {
            return Err(anyhow!("a seed of `sim rnic` names its transports").into());
        }
        let forger = options["forger"].as_bool().unwrap_or(false);
        Ok(Rnics(Options { transports, forger, ..Options::default() }))
    }

    fn run(&self, seed: u64) -> Result<Report, Box<elver_sim::Failure>> {
        elver_sim::run(seed, &self.0)
    }

    fn strikes(report: &Report) -> u64 {
        report.canary_strikes
    }

    fn add(sum: &mut Sum, report: &Report) {
        sum.packets += report.packets;
        sum.virtual_ns += report.virtual_ns;
        sum.coverage.add(report);
    }

    fn missing(&self, sum: &Sum) -> Vec<String> {
        let missing = sum.coverage.missing(&self.0.transports).into_iter();
        missing.map(|(transport, opcode)| format!("{transport} {opcode:?}")).collect()
    }

    fn packets_and_time(sum: &Sum) -> (u64, u64) {
        (sum.packets, sum.virtual_ns)
    }

    fn ops(sum: &Sum) -> Vec<(Option<String>, String, OpCount)> {
        let ops = sum.coverage.ops().iter();
        ops.map(|((transport, opcode), count)| {
            (Some(transport.to_string()), format!("{opcode:?}"), *count)
        })
        .collect()
    }

    fn faults(sum: &Sum) -> &BTreeMap<Fault, u64> {
        sum.coverage.faults()
    }

    fn more(_: &Sum) -> BTreeMap<&'static str, Value> {
        BTreeMap::new()
    }

    fn lines(_: &Sum) -> Vec<String> {
        Vec::new()
    }
}
