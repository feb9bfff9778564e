//! All seeds of a simulation, from the first of them to what is told of what they showed.

use std::collections::BTreeMap;
use std::fmt::Display;

use elver_console::{Failure, say, table};
use elver_sim::OpCount;
use serde_json::{Value, json};

use crate::replay;
use crate::report::{Found, Report};
use crate::seed_args::SeedArgs;
use crate::seeds::{self, Broken, Outcome};
use crate::simulation::Simulation;

/// From so many seeds on, an operation that no run did is a fault of the generator.
const COVERAGE_SEEDS: u64 = 500;

/// Prints the names of bugs that can be planted.
pub(crate) fn list(canaries: impl IntoIterator<Item = impl Display>, args: &SeedArgs) {
    let names: Vec<String> = canaries.into_iter().map(|canary| canary.to_string()).collect();
    if args.json {
        say!("{}", json!(names));
        return;
    }
    for name in names {
        say!("{name}");
    }
}

/// Runs all seeds, and tells what they showed.
pub(crate) fn run<S: Simulation>(
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::report;

    /// A simulation that breaks a rule in each seed that is a multiple of one number, and panics in
    /// those of another.
    struct Failing {
        breaks: u64,
        panics: u64,
    }

    impl Simulation for Failing {
        type Report = ();
        type Sum = ();
        const NAME: &'static str = "failing";

        fn options(&self) -> Value {
            json!({ "breaks": self.breaks, "panics": self.panics })
        }

        fn from_options(options: &Value) -> Result<Failing, Failure> {
            let number = |name: &str| options[name].as_u64().unwrap();
            Ok(Failing { breaks: number("breaks"), panics: number("panics") })
        }

        fn run(&self, seed: u64) -> Result<(), Box<elver_sim::Failure>> {
            assert!(!seed.is_multiple_of(self.panics), "this seed panics");
            if !seed.is_multiple_of(self.breaks) {
                return Ok(());
            }
            Err(Box::new(elver_sim::Failure {
                seed,
                virtual_ns: 7,
                violation: "it broke".into(),
                trace: Vec::new(),
                canary_strikes: 0,
            }))
        }

        fn strikes((): &()) -> u64 {
            0
        }

        fn add((): &mut (), (): &()) {}

        fn missing(&self, (): &()) -> Vec<String> {
            Vec::new()
        }

        fn packets_and_time((): &()) -> (u64, u64) {
            (0, 0)
        }

        fn ops((): &()) -> Vec<(Option<String>, String, OpCount)> {
            Vec::new()
        }

        fn faults((): &()) -> &BTreeMap<elver_sim::Fault, u64> {
            static NONE: BTreeMap<elver_sim::Fault, u64> = BTreeMap::new();
            &NONE
        }

        fn more((): &()) -> BTreeMap<&'static str, Value> {
            BTreeMap::new()
        }

        fn lines((): &()) -> Vec<String> {
            Vec::new()
        }
    }

    const FAILING: Failing = Failing { breaks: 5, panics: 7 };
    /// Passes all seeds that a test runs.
    const PASSING: Failing = Failing { breaks: 1_000, panics: 1_000 };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        seeds: SeedArgs,
    }

    /// What `elver sim failing` does with a command line.
    fn command(simulation: &Failing, line: &[&str]) -> Result<(), Failure> {
        let line = Line::parse_from(["failing"].iter().chain(line));
        run(simulation, &line.seeds, None)
    }

    fn said(result: Result<(), Failure>) -> String {
        match result {
            Err(Failure::Failed(error)) => error.to_string(),
            Err(_) => panic!("it was not tried"),
            Ok(()) => panic!("nothing failed"),
        }
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("elver-campaign-{}-{name}.jsonl", std::process::id()))
    }

    /// The seeds of a report, in order.
    fn seeds_in(path: &std::path::Path) -> Vec<u64> {
        let found = report::read(path, Failing::NAME).unwrap();
        let mut seeds: Vec<u64> = found.iter().map(|found| found.seed).collect();
        seeds.sort_unstable();
        seeds
    }

    /// Each seed that fails has a line, whether it broke a rule or panicked, and the file replays: with what
    /// the runs were like that failed, and not with what the command line would have.
    #[test]
    fn a_failing_run_writes_what_replays() {
        let path = scratch("replays");
        let file = path.to_str().unwrap();
        let all = ["--seed", "1", "--seeds", "20", "--keep-going", "--report", file];
        let told = said(command(&FAILING, &all));
        assert!(told.contains("replay it with: elver sim failing --seed 5 --seeds 1"), "{told}");
        assert_eq!(seeds_in(&path), [5, 7, 10, 14, 15, 20]);
        let of = |seed| {
            let found = report::read(&path, Failing::NAME).unwrap();
            found.into_iter().find(|found| found.seed == seed).unwrap()
        };
        assert!(of(5).failure.contains("it broke"), "{}", of(5).failure);
        assert!(of(7).failure.contains("panicked"), "{}", of(7).failure);

        let again = said(command(&PASSING, &["--replay", file]));
        assert_eq!(again, format!("6 of 6 seeds of {file} still fail"));
        // A build in which one of them is mended.
        let mended = std::fs::read_to_string(&path).unwrap();
        let mended = mended.replacen(r#""breaks":5"#, r#""breaks":1000"#, 6);
        std::fs::write(&path, mended).unwrap();
        let again = said(command(&FAILING, &["--replay", file, "--json"]));
        assert_eq!(again, format!("2 of 6 seeds of {file} still fail"));
        std::fs::remove_file(&path).unwrap();
    }

    /// A run for a time writes the same file, and ends with a failure.
    #[test]
    fn a_run_for_a_time_writes_what_failed() {
        let path = scratch("time");
        let file = path.to_str().unwrap();
        // The first seed is run, however slow the machine is.
        let all = ["--seed", "5", "--for", "1ms", "--keep-going", "--report", file];
        assert!(said(command(&FAILING, &all)).contains("seed 5"));
        assert_eq!(seeds_in(&path).first(), Some(&5));
        let again = said(command(&PASSING, &["--replay", file]));
        assert!(again.ends_with("still fail"), "{again}");
        std::fs::remove_file(&path).unwrap();
    }

    /// Without `--keep-going` a run stops at what failed; where nothing fails, a file that nobody named is not made.
    #[test]
    fn a_run_stops_and_writes_only_what_it_must() {
        let path = scratch("stops");
        let file = path.to_str().unwrap();
        let first = ["--seed", "4", "--seeds", "20", "--jobs", "1", "--report", file];
        said(command(&FAILING, &first));
        assert_eq!(seeds_in(&path), [5]);
        std::fs::remove_file(&path).unwrap();

        let quiet = ["--seed", "1", "--seeds", "20", "--keep-going"];
        assert!(command(&PASSING, &quiet).is_ok());
        let args = Line::parse_from(["failing"].iter().chain(&quiet)).seeds;
        let report = Report::of(&args, Failing::NAME).unwrap().unwrap();
        assert_eq!(report.path(), std::path::Path::new("elver-sim-failing-1.jsonl"));
        assert!(!report.path().exists());
    }
}
