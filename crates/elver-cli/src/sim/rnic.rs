//! `elver sim rnic`: networks of RNICs.

use elver_sim::{Canary, Coverage, Options, Report};
use serde_json::{Value, json};

use super::seeds::{self, Broken, Outcome};
use crate::cli::SimRnicArgs;
use crate::exit::Failure;
use crate::out::say;

/// From so many seeds on, an operation that no run posted is a fault of the generator.
const COVERAGE_SEEDS: u64 = 500;

/// What all seeds together showed.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    packets: u64,
    virtual_ns: u64,
}

/// Runs `elver sim rnic`.
pub(super) fn run(args: &SimRnicArgs) -> Result<(), Failure> {
    if args.seeds.list_canaries {
        for canary in Canary::ALL {
            say!("{canary}");
        }
        return Ok(());
    }
    let mut options =
        Options { canary: args.canary, trace: args.seeds.trace, ..Options::default() };
    if !args.transport.is_empty() {
        options.transports.clone_from(&args.transport);
    }
    let outcome = seeds::run(
        &args.seeds,
        args.canary.is_some(),
        |seed| run_seed(seed, &options),
        |sum: &mut Sum, report: Report| {
            sum.packets += report.packets;
            sum.virtual_ns += report.virtual_ns;
            sum.coverage.add(&report);
        },
    );
    let verdict = judge(args, &options, &outcome);
    if args.seeds.json {
        say!("{}", as_json(args, &outcome));
    } else {
        print(args, &outcome);
    }
    verdict
}

fn run_seed(seed: u64, options: &Options) -> Result<(Report, u64), Broken> {
    match elver_sim::run(seed, options) {
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
fn judge(args: &SimRnicArgs, options: &Options, outcome: &Outcome<Sum>) -> Result<(), Failure> {
    seeds::judge(&args.seeds, "rnic", args.canary.map(|canary| canary.to_string()), outcome)?;
    let missing = outcome.sum.coverage.missing(&options.transports);
    if args.canary.is_none() && args.seeds.seeds >= COVERAGE_SEEDS && !missing.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!("no run posted {missing:?}")));
    }
    Ok(())
}

fn print(args: &SimRnicArgs, outcome: &Outcome<Sum>) {
    if let Some(canary) = args.canary {
        return seeds::print_canary(&args.seeds, &canary.to_string(), outcome);
    }
    say!(
        "{} seeds from {}, {} packets, {:.1} s of virtual time, in {:.1} s",
        outcome.sum.coverage.runs(),
        args.seeds.seed,
        outcome.sum.packets,
        outcome.sum.virtual_ns as f64 / 1e9,
        outcome.seconds
    );
    say!("{:<4} {:<14} {:>9} {:>9} {:>9} {:>9}", "", "", "posted", "success", "error", "gone");
    for ((transport, opcode), count) in outcome.sum.coverage.ops() {
        say!(
            "{:<4} {:<14} {:>9} {:>9} {:>9} {:>9}",
            transport.to_string(),
            format!("{opcode:?}"),
            count.posted,
            count.succeeded,
            count.failed,
            count.forgotten
        );
    }
    let faults: Vec<String> = outcome
        .sum
        .coverage
        .faults()
        .iter()
        .map(|(fault, count)| format!("{count} {fault}"))
        .collect();
    say!("faults: {}", faults.join(", "));
}

fn as_json(args: &SimRnicArgs, outcome: &Outcome<Sum>) -> Value {
    let ops: Vec<Value> = outcome
        .sum
        .coverage
        .ops()
        .iter()
        .map(|((transport, opcode), count)| {
            json!({
                "transport": transport.to_string(),
                "op": format!("{opcode:?}"),
                "posted": count.posted,
                "succeeded": count.succeeded,
                "failed": count.failed,
                "forgotten": count.forgotten,
            })
        })
        .collect();
    let faults: serde_json::Map<String, Value> = outcome
        .sum
        .coverage
        .faults()
        .iter()
        .map(|(fault, count)| (fault.to_string(), json!(count)))
        .collect();
    json!({
        "sim": "rnic",
        "seed": args.seeds.seed,
        "seeds": args.seeds.seeds,
        "canary": args.canary.map(|canary| canary.to_string()),
        "canary_struck": outcome.struck,
        "failed_seeds": outcome.broken.iter().map(|broken| broken.seed).collect::<Vec<_>>(),
        "packets": outcome.sum.packets,
        "virtual_s": outcome.sum.virtual_ns as f64 / 1e9,
        "seconds": outcome.seconds,
        "ops": ops,
        "faults": faults,
    })
}
