//! Seeds, many at once, with progress; a failure names the command that replays it.

use std::io::{IsTerminal, Write};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use elver_console::{Failure, say};

use crate::seed_args::SeedArgs;
use crate::simulation::Simulation;

/// How often progress is told, and how long a run may last without any.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Lines of a failure's trace that are shown.
const TRACE_LINES: usize = 20;

/// A run that broke a rule.
pub(crate) struct Broken {
    pub(crate) seed: u64,
    /// Seed, time and rule, in a line.
    pub(crate) what: String,
    pub(crate) trace: Vec<String>,
    /// How often the planted bug had struck.
    pub(crate) strikes: u64,
}

/// What all seeds together showed.
#[derive(Default)]
pub(crate) struct Outcome<S> {
    pub(crate) sum: S,
    /// Runs that broke no rule.
    pub(crate) ran: u64,
    /// Runs in which the planted bug struck.
    pub(crate) struck: u64,
    pub(crate) broken: Vec<Broken>,
    /// Seeds that ended, of either kind.
    pub(crate) seeds: u64,
    pub(crate) seconds: f64,
}

/// Runs the seeds on as many threads as asked; stops early at the first failure unless a planted
/// bug is to be caught. `run` gives a run's report and how often the bug struck.
/// `found` is told of each failure at once.
pub(crate) fn run<S: Default + Send, R>(
    args: &SeedArgs,
    planted: bool,
    run: impl Fn(u64) -> Result<(R, u64), Broken> + Sync,
    add: impl Fn(&mut S, R) + Sync,
    mut found: impl FnMut(&Broken) + Send,
) -> Outcome<S> {
    let start = Instant::now();
    let limit = Limit::of(args, start);
    let found = Mutex::new(&mut found);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = limit.jobs(args.jobs.map_or(cores, |jobs| jobs as usize));
    let running = AtomicUsize::new(jobs);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let _ended = Ended(&running);
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if limit.is_reached(index) {
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
                            found.lock().unwrap_or_else(PoisonError::into_inner)(&broken);
                            outcome.broken.push(broken);
                            failed.fetch_add(1, Ordering::Relaxed);
                            if !planted && !args.keep_going {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
        scope.spawn(|| tell(&limit, &running, &done, &failed, start));
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.seeds = done.into_inner();
    outcome.broken.sort_by_key(|broken| broken.seed);
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome
}

/// A thread that counts itself out when it ends, in whatever way.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When to start no more seeds. The first is always run.
struct Limit {
    seeds: u64,
    until: Option<Instant>,
    run_time: Option<Duration>,
}

impl Limit {
    fn of(args: &SeedArgs, start: Instant) -> Limit {
        let run_time = args.run_time;
        let seeds = if run_time.is_some() { u64::MAX } else { args.seeds };
        Limit { seeds, until: run_time.map(|time| start + time), run_time }
    }

    /// Threads of so many that have something to do.
    fn jobs(&self, wanted: usize) -> usize {
        wanted.min(usize::try_from(self.seeds).unwrap_or(usize::MAX)).max(1)
    }

    fn is_reached(&self, index: u64) -> bool {
        index >= self.seeds || index > 0 && self.until.is_some_and(|end| Instant::now() >= end)
    }
}

/// Runs a simulation of a seed; gives its report and how often the planted bug struck.
pub(crate) fn outcome_of<S: Simulation>(
    simulation: &S,
    seed: u64,
) -> Result<(S::Report, u64), Broken> {
    match simulation.run(seed) {
        Ok(report) => {
            let strikes = S::strikes(&report);
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

/// Runs a seed; a panic is a failure of the seed like any other.
pub(crate) fn run_seed<R>(
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

/// Tells progress until no seed runs any longer.
fn tell(
    limit: &Limit,
    running: &AtomicUsize,
    done: &AtomicU64,
    failed: &AtomicU64,
    start: Instant,
) {
    let terminal = std::io::stderr().is_terminal();
    let mut told = start;
    while running.load(Ordering::Relaxed) > 0 {
        if told.elapsed() >= PROGRESS_INTERVAL {
            told = Instant::now();
            let (count, failed) = (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
            let rate = count as f64 / start.elapsed().as_secs_f64();
            let of = match limit.run_time {
                None => format!("of {} seeds", limit.seeds),
                Some(time) => {
                    let passed = Duration::from_secs(start.elapsed().as_secs());
                    let [passed, time] = [passed, time].map(humantime::format_duration);
                    format!("seeds, {passed} of {time}")
                }
            };
            let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
            let (before, after) = if terminal { ("\r\x1b[K", "") } else { ("", "\n") };
            eprint!("{before}{count} {of}, {rate:.0} a second{failed}{after}");
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
pub(crate) fn judge<S>(
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
            outcome.seeds,
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
pub(crate) fn print_canary<S>(canary: &str, outcome: &Outcome<S>) {
    say!(
        "`{canary}` struck in {} of {} seeds and was caught in {}, in {:.1} s",
        outcome.struck,
        outcome.seeds,
        outcome.broken.len(),
        outcome.seconds
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_begin_than_seeds() {
        let limit = Limit { seeds: 3, until: None, run_time: None };
        assert_eq!([1, 3, 100_000].map(|wanted| limit.jobs(wanted)), [1, 3, 3]);
    }
}
