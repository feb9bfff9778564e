//! `elver sim node`: whole nodes with clients and a registry.

use std::collections::BTreeMap;

use elver_nodesim::{Acts, Canary, OpCount, Options, Report};
use elver_sim::Fault;
use elver_verbs::SendOpcode;
use serde_json::{Value, json};

use super::seeds::{self, Broken, Outcome};
use crate::cli::SimNodeArgs;
use crate::exit::Failure;
use crate::out::say;

/// From so many seeds on, an operation that never succeeded is a fault of the generator.
const COVERAGE_SEEDS: u64 = 500;
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

/// What all seeds together showed.
#[derive(Default)]
struct Sum {
    runs: u64,
    ops: BTreeMap<SendOpcode, OpCount>,
    acts: Acts,
    faults: BTreeMap<Fault, u64>,
    messages: u64,
    packets: u64,
    virtual_ns: u64,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.messages += report.messages;
        self.packets += report.packets;
        self.virtual_ns += report.virtual_ns;
        for (opcode, count) in &report.ops {
            let sum = self.ops.entry(*opcode).or_default();
            sum.posted += count.posted;
            sum.succeeded += count.succeeded;
            sum.failed += count.failed;
            sum.forgotten += count.forgotten;
        }
        for (act, count) in &report.acts {
            *self.acts.entry(act).or_default() += count;
        }
        for (fault, count) in &report.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
    }
}

/// Runs `elver sim node`.
pub(super) fn run(args: &SimNodeArgs) -> Result<(), Failure> {
    if args.seeds.list_canaries {
        for canary in Canary::all() {
            say!("{canary}");
        }
        return Ok(());
    }
    let options = Options { canary: args.canary, trace: args.seeds.trace };
    let outcome = seeds::run(
        &args.seeds,
        args.canary.is_some(),
        |seed| run_seed(seed, &options),
        |sum: &mut Sum, report: Report| sum.add(&report),
    );
    let verdict = judge(args, &outcome);
    if args.seeds.json {
        say!("{}", as_json(args, &outcome));
    } else {
        print(args, &outcome);
    }
    verdict
}

fn run_seed(seed: u64, options: &Options) -> Result<(Report, u64), Broken> {
    match elver_nodesim::run(seed, options) {
        Ok(report) => {
            let strikes = report.canary_strikes;
            Ok((report, strikes))
        }
        Err(failure) => Err(Broken {
            seed,
            what: failure.to_string(),
            trace: failure.trace,
            strikes: failure.canary_strikes,
        }),
    }
}

/// Whether the command did what it was asked.
fn judge(args: &SimNodeArgs, outcome: &Outcome<Sum>) -> Result<(), Failure> {
    seeds::judge(&args.seeds, "node", args.canary.map(|canary| canary.to_string()), outcome)?;
    let done =
        |opcode: &SendOpcode| outcome.sum.ops.get(opcode).is_some_and(|count| count.succeeded > 0);
    let missing: Vec<SendOpcode> = OFFERED.into_iter().filter(|opcode| !done(opcode)).collect();
    if args.canary.is_none() && args.seeds.seeds >= COVERAGE_SEEDS && !missing.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!("no run did {missing:?}")));
    }
    Ok(())
}

fn print(args: &SimNodeArgs, outcome: &Outcome<Sum>) {
    if let Some(canary) = args.canary {
        return seeds::print_canary(&args.seeds, &canary.to_string(), outcome);
    }
    let sum = &outcome.sum;
    say!(
        "{} seeds from {}, {} packets, {} messages, {:.1} s of virtual time, in {:.1} s",
        sum.runs,
        args.seeds.seed,
        sum.packets,
        sum.messages,
        sum.virtual_ns as f64 / 1e9,
        outcome.seconds
    );
    say!("{:<14} {:>9} {:>9} {:>9} {:>9}", "", "posted", "success", "error", "gone");
    for (opcode, count) in &sum.ops {
        say!(
            "{:<14} {:>9} {:>9} {:>9} {:>9}",
            format!("{opcode:?}"),
            count.posted,
            count.succeeded,
            count.failed,
            count.forgotten
        );
    }
    let acts: Vec<String> = sum.acts.iter().map(|(act, count)| format!("{count} {act}")).collect();
    say!("acts: {}", acts.join(", "));
    let faults = sum.faults.iter().filter(|(_, count)| **count > 0);
    let faults: Vec<String> = faults.map(|(fault, count)| format!("{count} {fault}")).collect();
    say!("faults: {}", faults.join(", "));
}

fn as_json(args: &SimNodeArgs, outcome: &Outcome<Sum>) -> Value {
    let sum = &outcome.sum;
    let ops: Vec<Value> = sum
        .ops
        .iter()
        .map(|(opcode, count)| {
            json!({
                "op": format!("{opcode:?}"),
                "posted": count.posted,
                "succeeded": count.succeeded,
                "failed": count.failed,
                "forgotten": count.forgotten,
            })
        })
        .collect();
    let faults: BTreeMap<String, u64> =
        sum.faults.iter().map(|(fault, count)| (fault.to_string(), *count)).collect();
    json!({
        "sim": "node",
        "seed": args.seeds.seed,
        "seeds": args.seeds.seeds,
        "canary": args.canary.map(|canary| canary.to_string()),
        "canary_struck": outcome.struck,
        "failed_seeds": outcome.broken.iter().map(|broken| broken.seed).collect::<Vec<_>>(),
        "messages": sum.messages,
        "packets": sum.packets,
        "virtual_s": sum.virtual_ns as f64 / 1e9,
        "seconds": outcome.seconds,
        "ops": ops,
        "acts": sum.acts,
        "faults": faults,
    })
}
