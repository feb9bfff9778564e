//! `elver sim node`: whole nodes with clients and a registry.

use std::collections::BTreeMap;

use clap::Args;
use elver_console::Failure;
use elver_nodesim::{Acts, Canary, Forgers, Lapses, Options, Report, Suspends};
use elver_sim::{Fault, OpCount};
use elver_verbs::SendOpcode;
use serde_json::{Value, json};

use crate::campaign;
use crate::seed_args::SeedArgs;
use crate::simulation::Simulation;

/// The operations that VQPs have.
const OFFERED: [SendOpcode; 7] = [
    SendOpcode::Send,
    SendOpcode::SendWithImm,
    SendOpcode::Write,
    SendOpcode::WriteWithImm,
    SendOpcode::Read,
    SendOpcode::CompareSwap,
    SendOpcode::FetchAdd,
];

/// What cores count ([`elver_core::Stats`]) of what must have happened in many runs.
const NEEDED: [&str; 16] = [
    "accepts",
    "connects_busy",
    "control_resent",
    "lanes_reset",
    "links_reclaimed",
    "lookups_failed_over",
    "low_held",
    "messages_held",
    "messages_refused",
    "mr_refusals",
    "peers_answered",
    "peers_given_up",
    "transfers_to_dc",
    "transfers_to_rc",
    "vqps_forsaken",
    "wrs_reposted",
];

const EXAMPLES: &str = "\
Examples:
  elver sim node --seeds 1000
      clusters under loss, partitions and crashes, checked by a model
  elver sim node --replay elver-sim-node-1.jsonl
      what failed, again";

/// What `elver sim node` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct NodeArgs {
    /// Plant a bug; the command succeeds only if the model catches it.
    #[arg(long)]
    pub(crate) canary: Option<Canary>,
    /// Who forges packets: `drawn`, which has somebody in a quarter of the seeds; `none`; or in every
    /// seed `stranger` (a host off the path, without a secret), `process` (of another user on a
    /// node's host), `member` (one gone bad) or `on-path`.
    #[arg(long, value_name = "KIND", default_value_t)]
    pub(crate) forger: Forgers,
    /// No node asks whether its peers are there: what seeds did before there was a keep-alive.
    #[arg(long)]
    pub(crate) no_keep_alive: bool,
    /// In which seeds nodes are suspended and clocks jump: `drawn`, a quarter of them; `none`; `always`.
    #[arg(long, value_name = "WHICH", default_value_t)]
    pub(crate) suspends: Suspends,
    /// In which seeds what was executed is not heard of until it may be forgotten: `drawn`, an eighth of them;
    /// `none`; `always`.
    #[arg(long, value_name = "WHICH", default_value_t)]
    pub(crate) lapses: Lapses,
    #[command(flatten)]
    pub(crate) seeds: SeedArgs,
}

/// What all seeds together showed.
#[derive(Default)]
struct Sum {
    ops: BTreeMap<SendOpcode, OpCount>,
    acts: Acts,
    counters: Acts,
    faults: BTreeMap<Fault, u64>,
    /// Runs in which somebody forged, by who it was.
    forgers: BTreeMap<String, u64>,
    messages: u64,
    packets: u64,
    virtual_ns: u64,
}

struct Nodes(Options);

/// Runs `elver sim node`.
pub(crate) fn run(args: &NodeArgs) -> Result<(), Failure> {
    if args.seeds.list_canaries {
        campaign::list(Canary::ALL, &args.seeds);
        return Ok(());
    }
    let options = Options {
        canary: args.canary,
        forgers: args.forger,
        no_keep_alive: args.no_keep_alive,
        suspends: args.suspends,
        lapses: args.lapses,
        trace: args.seeds.trace,
    };
    campaign::run(&Nodes(options), &args.seeds, args.canary.map(|canary| canary.to_string()))
}

impl Simulation for Nodes {
    type Report = Report;
    type Sum = Sum;
    const NAME: &'static str = "node";

    fn options(&self) -> Value {
        json!({
            "forger": self.0.forgers.to_string(),
            "no_keep_alive": self.0.no_keep_alive,
            "suspends": self.0.suspends.to_string(),
            "lapses": self.0.lapses.to_string(),
        })
    }

    fn from_options(options: &Value) -> Result<Nodes, Failure> {
        let forgers = match options["forger"].as_str() {
            Some(name) => name.parse().map_err(Failure::unusable)?,
            None => Forgers::default(),
        };
        let no_keep_alive = options["no_keep_alive"].as_bool().unwrap_or_default();
        // A report that does not say is of before there were any.
        let suspends = match options["suspends"].as_str() {
            Some(name) => name.parse().map_err(Failure::unusable)?,
            None => Suspends::None,
        };
        let lapses = match options["lapses"].as_str() {
            Some(name) => name.parse().map_err(Failure::unusable)?,
            None => Lapses::None,
        };
        let options = Options { forgers, no_keep_alive, suspends, lapses, ..Options::default() };
        Ok(Nodes(options))
    }

    fn run(&self, seed: u64) -> Result<Report, Box<elver_sim::Failure>> {
        elver_nodesim::run(seed, &self.0)
    }

    fn strikes(report: &Report) -> u64 {
        report.canary_strikes
    }

    fn add(sum: &mut Sum, report: &Report) {
        sum.messages += report.messages;
        sum.packets += report.packets;
        sum.virtual_ns += report.virtual_ns;
        if let Some(forger) = report.forger {
            *sum.forgers.entry(forger.to_string()).or_default() += 1;
        }
        for (opcode, count) in &report.ops {
            sum.ops.entry(*opcode).or_default().add(count);
        }
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
        let done =
            |opcode: &SendOpcode| sum.ops.get(opcode).is_some_and(|count| count.succeeded > 0);
        let missing = OFFERED.into_iter().filter(|opcode| !done(opcode));
        let idle = |counter: &&str| sum.counters.get(*counter).is_none_or(|count| *count == 0);
        let idle = NEEDED.iter().filter(|counter| idle(counter));
        missing.map(|opcode| format!("{opcode:?}")).chain(idle.map(ToString::to_string)).collect()
    }

    fn packets_and_time(sum: &Sum) -> (u64, u64) {
        (sum.packets, sum.virtual_ns)
    }

    fn ops(sum: &Sum) -> Vec<(Option<String>, String, OpCount)> {
        sum.ops.iter().map(|(opcode, count)| (None, format!("{opcode:?}"), *count)).collect()
    }

    fn faults(sum: &Sum) -> &BTreeMap<Fault, u64> {
        &sum.faults
    }

    fn more(sum: &Sum) -> BTreeMap<&'static str, Value> {
        let [acts, counters] = [&sum.acts, &sum.counters].map(|counts| json!(counts));
        let (messages, forgers) = (json!(sum.messages), json!(sum.forgers));
        [("messages", messages), ("forgers", forgers), ("acts", acts), ("counters", counters)]
            .into()
    }

    fn lines(sum: &Sum) -> Vec<String> {
        let acts: Vec<String> =
            sum.acts.iter().map(|(act, count)| format!("{count} {act}")).collect();
        let forgers: Vec<String> =
            sum.forgers.iter().map(|(forger, runs)| format!("{runs} {forger}")).collect();
        vec![
            format!("{} messages", sum.messages),
            format!("acts: {}", acts.join(", ")),
            format!("runs in which somebody forged: {}", forgers.join(", ")),
        ]
    }
}
