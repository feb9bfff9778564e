//! `elver sim ring`: rings between clients of whole nodes.

use std::collections::BTreeMap;

use clap::Args;
use elver_console::Failure;
use elver_ringsim::{Acts, Canary, Options, Report};
use elver_sim::{Fault, OpCount};
use serde_json::{Value, json};

use crate::campaign;
use crate::seed_args::SeedArgs;
use crate::simulation::Simulation;

/// What cores count ([`elver_core::Stats`]) of what must have happened in many runs.
const NEEDED: [&str; 6] = [
    "fates_asked",
    "lanes_reset",
    "transfers_to_dc",
    "transfers_to_rc",
    "wrs_executed_unseen",
    "wrs_reposted",
];

const EXAMPLES: &str = "\
Examples:
  elver sim ring --seeds 1000
      rings between clients of such clusters
  elver sim ring --seed 7 --seeds 1 --trace
      one seed, with all that happened if it fails";

/// What `elver sim ring` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RingArgs {
    /// Plant a bug; the command succeeds only if the model catches it.
    #[arg(long)]
    pub(crate) canary: Option<Canary>,
    #[command(flatten)]
    pub(crate) seeds: SeedArgs,
}

/// What all seeds together showed.
#[derive(Default)]
struct Sum {
    sent: u64,
    read: u64,
    acts: Acts,
    counters: Acts,
    faults: BTreeMap<Fault, u64>,
    packets: u64,
    virtual_ns: u64,
}

struct Rings(Options);

/// Runs `elver sim ring`.
pub(crate) fn run(args: &RingArgs) -> Result<(), Failure> {
    if args.seeds.list_canaries {
        campaign::list(Canary::ALL, &args.seeds);
        return Ok(());
    }
    let options = Options { canary: args.canary, trace: args.seeds.trace };
    campaign::run(&Rings(options), &args.seeds, args.canary.map(|canary| canary.to_string()))
}

impl Simulation for Rings {
    type Report = Report;
    type Sum = Sum;
    const NAME: &'static str = "ring";

    fn options(&self) -> Value {
        json!({})
    }

    fn from_options(_: &Value) -> Result<Rings, Failure> {
        Ok(Rings(Options::default()))
    }

    fn run(&self, seed: u64) -> Result<Report, Box<elver_sim::Failure>> {
        elver_ringsim::run(seed, &self.0)
    }

    fn strikes(report: &Report) -> u64 {
        report.canary_strikes
    }

    fn add(sum: &mut Sum, report: &Report) {
        sum.sent += report.sent;
        sum.read += report.read;
        sum.packets += report.packets;
        sum.virtual_ns += report.virtual_ns;
        for (act, count) in &report.acts {
            *sum.acts.entry(act).or_default() += count;
        }
        for (counter, count) in &report.counters {
            *sum.counters.entry(counter).or_default() += count;
        }
        for (fault, count) in &report.faults {
            *sum.faults.entry(*fault).or_default() += count;
        }
    }

    fn missing(&self, sum: &Sum) -> Vec<String> {
        let idle = |counter: &&str| sum.counters.get(*counter).is_none_or(|count| *count == 0);
        NEEDED.into_iter().filter(idle).map(String::from).collect()
    }

    fn packets_and_time(sum: &Sum) -> (u64, u64) {
        (sum.packets, sum.virtual_ns)
    }

    fn ops(sum: &Sum) -> Vec<(Option<String>, String, OpCount)> {
        let (posted, succeeded) = (sum.sent, sum.read);
        // Those of pairs that ended before they were read.
        let forgotten = posted - succeeded;
        vec![(None, "message".into(), OpCount { posted, succeeded, failed: 0, forgotten })]
    }

    fn faults(sum: &Sum) -> &BTreeMap<Fault, u64> {
        &sum.faults
    }

    fn more(sum: &Sum) -> BTreeMap<&'static str, Value> {
        let [acts, counters] = [&sum.acts, &sum.counters].map(|counts| json!(counts));
        [("acts", acts), ("counters", counters)].into()
    }

    fn lines(sum: &Sum) -> Vec<String> {
        let acts: Vec<String> =
            sum.acts.iter().map(|(act, count)| format!("{count} {act}")).collect();
        vec![format!("acts: {}", acts.join(", "))]
    }
}
