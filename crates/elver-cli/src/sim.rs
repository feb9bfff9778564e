//! `elver sim`: seeds, many at once, with progress; a failure names the command that replays it.

use std::io::{IsTerminal, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elver_sim::{Canary, Coverage, Failure as Broken, Options, Report};
use serde_json::{Value, json};

use crate::cli::{Sim, SimRnicArgs};
use crate::exit::Failure;

/// How often progress is told, and how long a run may last without any.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// From so many seeds on, an operation that no run posted is a fault of the generator.
const COVERAGE_SEEDS: u64 = 500;
/// Lines of a failure's trace that are shown.
const TRACE_LINES: usize = 20;

/// What all seeds together showed.
#[derive(Default)]
struct Outcome {
    coverage: Coverage,
    packets: u64,
    virtual_ns: u64,
    /// Runs in which the planted bug struck.
    struck: u64,
    broken: Vec<Broken>,
}

/// Runs `elver sim`.
pub(crate) fn run(sim: &Sim) -> Result<(), Failure> {
    let Sim::Rnic(args) = sim;
    if args.list_canaries {
        for canary in Canary::ALL {
            println!("{canary}");
        }
        return Ok(());
    }
    let mut options = Options { canary: args.canary, trace: args.trace, ..Options::default() };
    if !args.transport.is_empty() {
        options.transports.clone_from(&args.transport);
    }
    let start = Instant::now();
    let outcome = run_seeds(args, &options, start);
    let seconds = start.elapsed().as_secs_f64();
    let verdict = judge(args, &options, &outcome);
    if args.json {
        println!("{}", as_json(args, &outcome, seconds));
    } else {
        print(args, &outcome, seconds);
    }
    verdict
}

/// Runs the seeds on as many threads as asked; stops early at the first failure unless a canary is
/// to be caught.
fn run_seeds(args: &SimRnicArgs, options: &Options, start: Instant) -> Outcome {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let mut coverage = Coverage::default();
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= args.seeds {
                        break;
                    }
                    let result = run_seed(args.seed.wrapping_add(index), options);
                    done.fetch_add(1, Ordering::Relaxed);
                    let mut outcome = lock(&outcome);
                    match result {
                        Ok(report) => {
                            outcome.packets += report.packets;
                            outcome.virtual_ns += report.virtual_ns;
                            outcome.struck += u64::from(report.canary_strikes > 0);
                            coverage.add(&report);
                        }
                        Err(broken) => {
                            outcome.struck += u64::from(broken.canary_strikes > 0);
                            outcome.broken.push(*broken);
                            if args.canary.is_none() && !args.keep_going {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                }
                lock(&outcome).coverage.merge(&coverage);
            });
        }
        scope.spawn(|| tell(args, &done, &stop, start));
    });
    outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a seed; a panic is a failure of the seed like any other.
fn run_seed(seed: u64, options: &Options) -> Result<Report, Box<Broken>> {
    let run = || elver_sim::run(seed, options);
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(Box::new(Broken {
            seed,
            virtual_ns: 0,
            violation: "the run panicked, as told above".into(),
            trace: Vec::new(),
            canary_strikes: 0,
        }))
    })
}

fn lock(outcome: &Mutex<Outcome>) -> std::sync::MutexGuard<'_, Outcome> {
    outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tells progress until all seeds are done.
fn tell(args: &SimRnicArgs, done: &AtomicU64, stop: &AtomicBool, start: Instant) {
    let terminal = std::io::stderr().is_terminal();
    let mut told = start;
    loop {
        let count = done.load(Ordering::Relaxed);
        if count >= args.seeds || stop.load(Ordering::Relaxed) {
            break;
        }
        if told.elapsed() >= PROGRESS_INTERVAL {
            told = Instant::now();
            let rate = count as f64 / start.elapsed().as_secs_f64();
            let (before, after) = if terminal { ("\r", "") } else { ("", "\n") };
            eprint!("{before}{count} of {} seeds, {rate:.0} a second{after}", args.seeds);
            // Progress that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    if terminal && told != start {
        eprintln!();
    }
}

/// Whether the command did what it was asked.
fn judge(args: &SimRnicArgs, options: &Options, outcome: &Outcome) -> Result<(), Failure> {
    if let Some(canary) = args.canary {
        let caught = outcome.broken.iter().filter(|broken| broken.canary_strikes > 0).count();
        if caught == 0 {
            return Err(Failure::Failed(anyhow::anyhow!(
                "the planted bug `{canary}` was not caught in {} seeds, in {} of which it struck",
                args.seeds,
                outcome.struck
            )));
        }
        return Ok(());
    }
    if let Some(broken) = outcome.broken.first() {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{broken}\n{}\nreplay it with: elver sim rnic --seed {} --seeds 1 --trace",
            broken.trace[broken.trace.len().saturating_sub(shown(args))..].join("\n"),
            broken.seed
        )));
    }
    let missing = outcome.coverage.missing(&options.transports);
    if args.seeds >= COVERAGE_SEEDS && !missing.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!("no run posted {missing:?}")));
    }
    Ok(())
}

fn shown(args: &SimRnicArgs) -> usize {
    if args.trace { usize::MAX } else { TRACE_LINES }
}

fn print(args: &SimRnicArgs, outcome: &Outcome, seconds: f64) {
    if let Some(canary) = args.canary {
        println!(
            "`{canary}` struck in {} of {} seeds and was caught in {}, in {seconds:.1} s",
            outcome.struck,
            args.seeds,
            outcome.broken.len()
        );
        return;
    }
    println!(
        "{} seeds from {}, {} packets, {:.1} s of virtual time, in {seconds:.1} s",
        outcome.coverage.runs(),
        args.seed,
        outcome.packets,
        outcome.virtual_ns as f64 / 1e9
    );
    println!("{:<4} {:<14} {:>9} {:>9} {:>9} {:>9}", "", "", "posted", "success", "error", "gone");
    for ((transport, opcode), count) in outcome.coverage.ops() {
        println!(
            "{:<4} {:<14} {:>9} {:>9} {:>9} {:>9}",
            transport.to_string(),
            format!("{opcode:?}"),
            count.posted,
            count.succeeded,
            count.failed,
            count.forgotten
        );
    }
    let faults: Vec<String> =
        outcome.coverage.faults().iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    println!("faults: {}", faults.join(", "));
}

fn as_json(args: &SimRnicArgs, outcome: &Outcome, seconds: f64) -> Value {
    let ops: Vec<Value> = outcome
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
        .coverage
        .faults()
        .iter()
        .map(|(fault, count)| (fault.to_string(), json!(count)))
        .collect();
    json!({
        "sim": "rnic",
        "seed": args.seed,
        "seeds": args.seeds,
        "canary": args.canary.map(|canary| canary.to_string()),
        "canary_struck": outcome.struck,
        "failed_seeds": outcome.broken.iter().map(|broken| broken.seed).collect::<Vec<_>>(),
        "packets": outcome.packets,
        "virtual_s": outcome.virtual_ns as f64 / 1e9,
        "seconds": seconds,
        "ops": ops,
        "faults": faults,
    })
}
