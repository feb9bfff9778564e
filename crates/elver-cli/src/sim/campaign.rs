//! All seeds of a simulation, from the first of them to what is told of what they showed.

use std::collections::BTreeMap;
use std::fmt::Display;

use elver_console::{Failure, say, table};
use elver_sim::OpCount;
use serde_json::{Value, json};

use super::replay;
use super::report::{Found, Report};
use super::seed_args::SeedArgs;
use super::seeds::{self, Broken, Outcome};
use super::simulation::Simulation;

/// From so many seeds on, an operation that no run did is a fault of the generator.
const COVERAGE_SEEDS: u64 = 500;

/// Prints the names of bugs that can be planted.
pub(super) fn list(canaries: impl IntoIterator<Item = impl Display>) {
    for canary in canaries {
        say!("{canary}");
    }
}

/// Runs all seeds, and tells what they showed.
pub(super) fn run<S: Simulation>(
    simulation: &S,
    args: &SeedArgs,
    canary: Option<String>,
) -> Result<(), Failure> {
    if let Some(path) = &args.replay {
        if canary.is_some() {
            return Err(Failure::unusable("a report is replayed without a planted bug"));
        }
        return replay::run::<S>(path, args.json);
    }
    let mut report = if canary.is_some() { None } else { Report::of(args, S::NAME)? };
    let mut written = Ok(());
    let found = |broken: &Broken| {
        let found = Found::new(S::NAME, broken.seed, simulation.options(), &broken.what);
        if let (Some(report), Ok(())) = (&mut report, &written) {
            written = report.add(&found);
        }
    };
    let run_seed = |seed| seeds::outcome_of(simulation, seed);
    let add = |sum: &mut S::Sum, report| S::add(sum, &report);
    let outcome = seeds::run(args, canary.is_some(), run_seed, add, found);
    let report = report.filter(|_| !outcome.broken.is_empty());
    if args.json {
        say!("{}", as_json::<S>(args, canary.as_deref(), &outcome, report.as_ref()));
    } else if let Some(canary) = &canary {
        seeds::print_canary(canary, &outcome);
    } else {
        print::<S>(args, &outcome);
    }
    written?;
    if let Some(report) = &report {
        let path = report.path().display();
        eprintln!("replay what failed with: elver sim {} --replay {path}", S::NAME);
    }
    let planted = canary.is_some();
    seeds::judge(args, S::NAME, canary, &outcome)?;
    let missing = simulation.missing(&outcome.sum);
    if !planted && outcome.seeds >= COVERAGE_SEEDS && !missing.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!("no run did {}", missing.join(", "))));
    }
    Ok(())
}

fn print<S: Simulation>(args: &SeedArgs, outcome: &Outcome<S::Sum>) {
    let (packets, virtual_ns) = S::packets_and_time(&outcome.sum);
    say!(
        "{} seeds from {}: {packets} packets in {:.1} s of virtual time, run in {:.1} s",
        outcome.ran,
        args.seed,
        virtual_ns as f64 / 1e9,
        outcome.seconds
    );
    let rows = S::ops(&outcome.sum).into_iter().map(|(transport, op, count)| {
        let OpCount { posted, succeeded, failed, forgotten } = count;
        let [posted, succeeded, failed, forgotten] =
            [posted, succeeded, failed, forgotten].map(|count| count.to_string());
        [transport.unwrap_or_default(), op, posted, succeeded, failed, forgotten]
    });
    let heads = ["", "operation", "posted", "success", "error", "gone"];
    table::print(heads, &rows.collect::<Vec<_>>(), 2);
    say!("");
    S::lines(&outcome.sum).iter().for_each(|line| say!("{line}"));
    let faults = S::faults(&outcome.sum).iter().filter(|(_, count)| **count > 0);
    let faults: Vec<String> = faults.map(|(fault, count)| format!("{count} {fault}")).collect();
    say!("faults: {}", faults.join(", "));
}

fn as_json<S: Simulation>(
    args: &SeedArgs,
    canary: Option<&str>,
    outcome: &Outcome<S::Sum>,
    report: Option<&Report>,
) -> Value {
    let ops = S::ops(&outcome.sum).into_iter().map(|(transport, op, count)| {
        let mut row = json!({
            "op": op,
            "posted": count.posted,
            "succeeded": count.succeeded,
            "failed": count.failed,
            "forgotten": count.forgotten,
        });
        if let Some(transport) = transport {
            row["transport"] = transport.into();
        }
        row
    });
    let faults: BTreeMap<String, u64> =
        S::faults(&outcome.sum).iter().map(|(fault, count)| (fault.to_string(), *count)).collect();
    let (packets, virtual_ns) = S::packets_and_time(&outcome.sum);
    let mut object = json!({
        "sim": S::NAME,
        "seed": args.seed,
        "seeds": outcome.seeds,
        "report": report.map(|report| report.path().display().to_string()),
        "canary": canary,
        "canary_struck": outcome.struck,
        "failed_seeds": outcome.broken.iter().map(|broken| broken.seed).collect::<Vec<_>>(),
        "packets": packets,
        "virtual_s": virtual_ns as f64 / 1e9,
        "seconds": outcome.seconds,
        "ops": ops.collect::<Vec<_>>(),
        "faults": faults,
    });
    for (key, value) in S::more(&outcome.sum) {
        object[key] = value;
    }
    object
}
