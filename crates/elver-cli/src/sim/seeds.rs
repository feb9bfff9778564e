//! Seeds, many at once, with progress; a failure names the command that replays it.

use std::io::{IsTerminal, Write};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::SeedArgs;
use crate::exit::Failure;
use crate::out::say;

/// How often progress is told, and how long a run may last without any.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Lines of a failure's trace that are shown.
const TRACE_LINES: usize = 20;

/// A run that broke a rule.
pub(super) struct Broken {
    pub(super) seed: u64,
    /// Seed, time and rule, in a line.
    pub(super) what: String,
    pub(super) trace: Vec<String>,
    /// How often the planted bug had struck.
    pub(super) strikes: u64,
}

/// What all seeds together showed.
#[derive(Default)]
pub(super) struct Outcome<S> {
    pub(super) sum: S,
    /// Runs that broke no rule.
    pub(super) ran: u64,
    /// Runs in which the planted bug struck.
    pub(super) struck: u64,
    pub(super) broken: Vec<Broken>,
    pub(super) seconds: f64,
}

/// Runs the seeds on as many threads as asked; stops early at the first failure unless a planted
/// bug is to be caught. `run` gives a run's report and how often the bug struck.
pub(super) fn run<S: Default + Send, R>(
    args: &SeedArgs,
    planted: bool,
    run: impl Fn(u64) -> Result<(R, u64), Broken> + Sync,
    add: impl Fn(&mut S, R) + Sync,
) -> Outcome<S> {
    let start = Instant::now();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= args.seeds {
                        break;
                    }
                    let result = run_seed(args.seed.wrapping_add(index), &run);
                    done.fetch_add(1, Ordering::Relaxed);
                    let mut outcome = lock(&outcome);
                    match result {
                        Ok((report, strikes)) => {
                            outcome.struck += u64::from(strikes > 0);
                            outcome.ran += 1;
                            add(&mut outcome.sum, report);
                        }
                        Err(broken) => {
                            outcome.struck += u64::from(broken.strikes > 0);
                            outcome.broken.push(broken);
                            if !planted && !args.keep_going {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
        scope.spawn(|| tell(args, &done, &stop, start));
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.broken.sort_by_key(|broken| broken.seed);
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome
}

/// Runs a seed; a panic is a failure of the seed like any other.
fn run_seed<R>(
    seed: u64,
    run: impl Fn(u64) -> Result<(R, u64), Broken>,
) -> Result<(R, u64), Broken> {
    std::panic::catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|_| {
        let what = format!("seed {seed}: the run panicked, as told above");
        Err(Broken { seed, what, trace: Vec::new(), strikes: 0 })
    })
}

fn lock<S>(outcome: &Mutex<Outcome<S>>) -> MutexGuard<'_, Outcome<S>> {
    outcome.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells progress until all seeds are done.
fn tell(args: &SeedArgs, done: &AtomicU64, stop: &AtomicBool, start: Instant) {
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

/// Whether no rule was broken; or, with a planted bug, whether that was seen.
pub(super) fn judge<S>(
    args: &SeedArgs,
    simulation: &str,
    canary: Option<String>,
    outcome: &Outcome<S>,
) -> Result<(), Failure> {
    if let Some(canary) = canary {
        if outcome.broken.iter().any(|broken| broken.strikes > 0) {
            return Ok(());
        }
        return Err(Failure::Failed(anyhow::anyhow!(
            "the planted bug `{canary}` was not caught in {} seeds, in {} of which it struck",
            args.seeds,
            outcome.struck
        )));
    }
    let Some(broken) = outcome.broken.first() else { return Ok(()) };
    let shown = if args.trace { usize::MAX } else { TRACE_LINES };
    let others: String =
        outcome.broken[1..].iter().map(|other| format!("\nand {}", other.what)).collect();
    Err(Failure::Failed(anyhow::anyhow!(
        "{}\n{}\nreplay it with: elver sim {simulation} --seed {} --seeds 1 --trace{others}",
        broken.what,
        broken.trace[broken.trace.len().saturating_sub(shown)..].join("\n"),
        broken.seed
    )))
}

/// Prints how a planted bug fared.
pub(super) fn print_canary<S>(args: &SeedArgs, canary: &str, outcome: &Outcome<S>) {
    say!(
        "`{canary}` struck in {} of {} seeds and was caught in {}, in {:.1} s",
        outcome.struck,
        args.seeds,
        outcome.broken.len(),
        outcome.seconds
    );
}
