//! `elver verbs-profile`: where the time of a program's verbs calls goes, seen from outside; calls of the control path in
//! random orders, each in a cold process; and the host's cache, made of what was the same in all of them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, value_parser};
use elver_console::{Failure, Progress, say, table};
use elver_hostcache::{HostCache, file};
use elver_random::Rng;
use serde_json::{Value, json};

use crate::calls::{self, Call, Made, Plan};
use crate::cold::{Cold, library};
use crate::trace::{CALIBRATION, NotRun, Seen, Spent, Watch};

const EXAMPLES: &str = "\
Examples:
  sudo elver verbs-profile
      what each call of the control path takes here, and the cache for the fast library
  LD_PRELOAD=/usr/lib/elver/libelver_fastverbs.so PROGRAM
      a program that uses the cache; every container may, if it sees the file
  elver verbs-profile --no-write --seed 7 --json
      only measures, in the orders that seed 7 gives
  elver verbs-profile -- ibv_rc_pingpong -g 1 192.0.2.1
      where the time of that program's verbs calls goes; no cache is made of it

Programs are watched by ptrace, unpatched: breakpoints at the functions of libibverbs, libnl and the C library, and every
system call. A call's time is in user space or in the kernel; what the watching takes is measured first, and
taken away. Short calls are told too long all the same: `unwatched` is what the same call takes when nobody looks.
Where ptrace is not allowed, only that is told.

Each run is a process of its own, so that nothing is warm, and makes calls in a random order that is possible. Into the
cache goes what the kernel and sysfs said in the same way in every run: the devices, their character devices,
fixed attributes, and the provider library of each. It is believed only where the kernel, its devices, the
processors, libibverbs and the providers are still the same. Run this again after an upgrade; the fast library
does it by itself where it may write the file, and with ELVER_FASTVERBS=renew in any case.

The exit code is the watched program's own; 127 if it is not there, 126 if it cannot be run.";

/// What `elver verbs-profile` is asked for.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfileArgs {
    /// Cold processes, each with calls in an order of its own.
    #[arg(long, default_value_t = 12, value_parser = value_parser!(u32).range(2..=1_000))]
    runs: u32,
    /// What the orders follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The device; the first if none is named.
    #[arg(long)]
    device: Option<String>,
    /// The cache's file.
    #[arg(long, value_name = "FILE", default_value = file::PATH)]
    cache: PathBuf,
    /// Do not write it.
    #[arg(long)]
    no_write: bool,
    /// The fast library, which makes the cache; by default the one that belongs to this program.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Print one JSON object instead of tables; what a watched program prints goes to the standard error.
    #[arg(long)]
    json: bool,
    /// A program to watch, and its arguments.
    #[arg(last = true)]
    command: Vec<String>,
    /// Makes system calls, and prints what one takes.
    #[arg(long, hide = true)]
    calibrate: bool,
    /// Makes these calls, and prints what each took.
    #[arg(long, hide = true)]
    calls: Option<Plan>,
    /// When this process was started.
    #[arg(long, hide = true)]
    since: Option<u64>,
}

/// Profiles and prints; `own` is this program.
///
/// # Errors
/// It cannot be done here.
pub fn run(args: &ProfileArgs, own: &Path) -> Result<(), Failure> {
    if let Some(plan) = &args.calls {
        let made = calls::make(plan, args.device.as_deref(), args.since)?;
        say!("{}", serde_json::to_string(&made)?);
        return Ok(());
    }
    if args.calibrate {
        let begun = Instant::now();
        for _ in 0..CALIBRATION {
            std::hint::black_box(rustix::process::getppid());
        }
        say!("{}", begun.elapsed().as_nanos() as f64 / f64::from(CALIBRATION));
        return Ok(());
    }
    let watch = calibrated(own);
    if let Some((program, arguments)) = args.command.split_first() {
        return watched(args, watch?, program, arguments);
    }
    let library = library(args.library.as_deref(), own)?;
    let place = std::env::temp_dir().join(format!("elver-verbs-profile-{}", std::process::id()));
    let plain =
        Cold { program: own.to_path_buf(), device: args.device.clone(), fast: None, mode: "on" };
    let recorder = Cold { fast: Some((library, place.clone())), mode: "renew", ..plain.clone() };
    let list = Plan(vec![Call::List]);
    let has_devices = plain.run(&list)?.devices > 0;
    let mut rng = Rng::new(args.seed);
    let (mut times, mut caches, mut seen) = (Times::default(), Vec::new(), Seen::default());
    let progress = Progress::begin();
    for run in 1..=args.runs {
        let plan = Plan::random(&mut rng, has_devices);
        progress.doing(&format!("run {run} of {}: {plan}", args.runs));
        times.add(&plain.run(&plan)?);
        if let Ok(watch) = &watch {
            let mut command = plain.command(&plan);
            command.stdout(Stdio::null());
            seen.add(watch.run(command)?.0);
        }
        if has_devices {
            caches.push(recorded(&recorder, &list, &place)?);
        }
    }
    drop(progress);
    let written = match same(&caches) {
        Some(cache) if !args.no_write => {
            let what =
                || format!("cannot write {}; --cache names another file", args.cache.display());
            file::write(&args.cache, cache).with_context(what)?;
            true
        }
        _ => false,
    };
    let told = Told { watch: watch.as_ref().map_err(|error| format!("{error:#}")), seen: &seen };
    tell(args, &told, &times, &caches, written);
    Ok(())
}

/// How programs can be watched here.
fn calibrated(own: &Path) -> anyhow::Result<Watch> {
    let command = || {
        let mut command = Command::new(own);
        command.args(["verbs-profile", "--calibrate"]).env_remove("LD_PRELOAD");
        command
    };
    let output = command().output().with_context(|| format!("cannot run {}", own.display()))?;
    let unwatched: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    let mut watched = command();
    watched.stdout(Stdio::null());
    Watch::calibrated(watched, unwatched)
}

/// Watches a program of the user's.
fn watched(
    args: &ProfileArgs,
    watch: Watch,
    program: &str,
    arguments: &[String],
) -> Result<(), Failure> {
    let mut command = Command::new(program);
    command.args(arguments);
    if args.json {
        // Standard output is one object.
        let errors = std::io::stderr().as_fd().try_clone_to_owned();
        command.stdout(errors.context("cannot give the program an output")?);
    }
    let (seen, code) =
        watch.run(command).map_err(|error| match error.downcast_ref::<NotRun>() {
            Some(not_run) => Failure::not_run(not_run.reason.kind(), not_run),
            None => error.into(),
        })?;
    Told { watch: Ok(&watch), seen: &seen }.tell(args, &Times::default());
    match code {
        0 => Ok(()),
        code => Err(Failure::handed_on(code, format!("{program} ended with {code}"))),
    }
}

/// What was seen, and how.
struct Told<'a> {
    watch: Result<&'a Watch, String>,
    seen: &'a Seen,
}

/// Rows that are shown of a long table.
const ROWS_MAX: usize = 16;

impl Told<'_> {
    fn way(&self) -> String {
        match &self.watch {
            Ok(watch) => format!("ptrace; {} ns of each stop are taken away", watch.stop_ns),
            Err(error) => format!("timing alone, since this cannot be watched: {error}"),
        }
    }

    fn as_json(&self) -> Value {
        let us = |ns: u64| ns as f64 / 1e3;
        let row = |call: &str, name: Option<&str>, spent: &Spent| {
            json!({
                "call": call, "name": name, "count": spent.count, "us": us(spent.total_ns),
                "kernel_us": us(spent.kernel_ns), "system_calls": spent.system_calls,
            })
        };
        let pairs = |rows: &BTreeMap<(String, String), Spent>| -> Vec<Value> {
            rows.iter().map(|((call, name), spent)| row(call, Some(name), spent)).collect()
        };
        let found = self.seen.results.iter().map(|((call, what), found)| {
            json!({"call": call, "what": what, "count": found.count, "values": found.values.len()})
        });
        json!({
            "by": if self.watch.is_ok() { "ptrace" } else { "timing" },
            "way": self.way(),
            "verbs": self.seen.calls.iter().map(|(call, spent)| row(call, None, spent)).collect::<Vec<_>>(),
            "functions": pairs(&self.seen.functions),
            "system_calls": pairs(&self.seen.system_calls),
            "found": found.collect::<Vec<_>>(),
        })
    }

    /// Tables; the JSON if that is asked for.
    fn tell(&self, args: &ProfileArgs, times: &Times) {
        if args.json {
            say!("{}", self.as_json());
            return;
        }
        say!("watched by {}", self.way());
        let each =
            |spent: &Spent, ns: u64| table::number(ns as f64 / 1e3 / spent.count.max(1) as f64);
        let mut calls: Vec<_> = self.seen.calls.iter().collect();
        calls.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.total_ns));
        let rows: Vec<[String; 7]> = calls
            .into_iter()
            .map(|(call, spent)| {
                let user = spent.total_ns.saturating_sub(spent.kernel_ns);
                [
                    call.clone(),
                    spent.count.to_string(),
                    each(spent, spent.total_ns),
                    each(spent, user),
                    each(spent, spent.kernel_ns),
                    table::number(spent.system_calls as f64 / spent.count.max(1) as f64),
                    times.unwatched(call).map_or("–".into(), table::number),
                ]
            })
            .collect();
        let heads =
            ["verbs call", "times", "µs each", "user", "kernel", "system calls", "unwatched µs"];
        table::print(heads, &rows, 1);
        for (title, rows) in [
            ("function inside", &self.seen.functions),
            ("system call inside", &self.seen.system_calls),
        ] {
            let mut rows: Vec<_> = rows.iter().collect();
            rows.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.total_ns));
            let rows: Vec<[String; 5]> = rows
                .into_iter()
                .take(ROWS_MAX)
                .map(|((call, name), spent)| {
                    let all = table::number(spent.total_ns as f64 / 1e3);
                    [
                        call.clone(),
                        name.clone(),
                        spent.count.to_string(),
                        all,
                        each(spent, spent.total_ns),
                    ]
                })
                .collect();
            table::print(["verbs call", title, "times", "µs in all", "µs each"], &rows, 2);
        }
        let same = self
            .seen
            .results
            .iter()
            .filter(|(_, found)| found.count > 1 && found.values.len() == 1);
        let mut kinds: BTreeMap<(&str, &str), (usize, u64)> = BTreeMap::new();
        for ((call, what), found) in same {
            let (number, count) = kinds.entry((call, kind(what))).or_default();
            (*number, *count) = (*number + 1, *count + found.count);
        }
        let rows: Vec<[String; 4]> = kinds
            .into_iter()
            .map(|((call, kind), (number, count))| {
                [call.into(), kind.into(), number.to_string(), count.to_string()]
            })
            .collect();
        table::print(["verbs call", "found the same each time", "different", "times"], &rows, 2);
        let others: Vec<[String; 4]> = self
            .seen
            .results
            .iter()
            .filter(|(_, found)| found.values.len() > 1)
            .map(|((call, what), found)| {
                [
                    call.clone(),
                    what.clone(),
                    found.values.len().to_string(),
                    found.count.to_string(),
                ]
            })
            .collect();
        table::print(["verbs call", "found to differ", "values", "times"], &others, 2);
    }
}

/// What kind of thing an inner result is.
fn kind(what: &str) -> &'static str {
    let path = what.split(", ").next().and_then(|what| what.rsplit(' ').next()).unwrap_or(what);
    let kinds = [
        (what.starts_with("netlink"), "netlink answers"),
        (path.contains(".so"), "provider libraries"),
        (path.contains("libibverbs.d"), "configuration of providers"),
        (path.starts_with("/sys"), "sysfs"),
        (path == "/proc/cpuinfo", "cpuinfo"),
        (path.starts_with("/dev"), "device files"),
    ];
    kinds.iter().find(|(is_it, _)| *is_it).map_or("other files", |(_, kind)| kind)
}

/// What a process that makes the cache anew finds.
fn recorded(recorder: &Cold, list: &Plan, place: &Path) -> Result<HostCache, Failure> {
    recorder.run(list)?;
    let cache = file::read(place).context("the fast library made no cache");
    // It may not be there.
    let _ = std::fs::remove_file(place);
    Ok(cache?)
}

/// The cache that all are, if they are.
fn same(caches: &[HostCache]) -> Option<&HostCache> {
    let (first, others) = caches.split_first()?;
    others.iter().all(|cache| cache == first).then_some(first)
}

/// What calls took, in microseconds: the first of a process, and later ones.
#[derive(Default)]
struct Times(BTreeMap<(Call, bool), Vec<f64>>);

impl Times {
    fn add(&mut self, made: &Made) {
        for (at, (call, us)) in made.calls.iter().enumerate() {
            let again = made.calls[..at].iter().any(|(before, _)| before == call);
            self.0.entry((*call, again)).or_default().push(*us);
        }
    }

    /// What the calls of this function take when nobody watches; nothing for one that several are made by.
    fn unwatched(&self, function: &str) -> Option<f64> {
        let call = match function {
            "ibv_get_device_list" => Call::List,
            "ibv_open_device" => Call::Open,
            "ibv_alloc_pd" => Call::Pd,
            "ibv_reg_mr" => Call::Mr,
            "ibv_create_cq" => Call::Cq,
            "ibv_create_qp" => Call::Qp,
            _ => return None,
        };
        let all = self.0.iter().filter(|((one, _), _)| *one == call).flat_map(|(_, times)| times);
        let (sum, count) = all.fold((0.0, 0), |(sum, count), us| (sum + us, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Call, whether it is a later one, how often it was made, median, least and most.
    fn rows(&self) -> impl Iterator<Item = (Call, bool, usize, [f64; 3])> {
        self.0.iter().map(|((call, again), times)| {
            let mut times = times.clone();
            times.sort_by(f64::total_cmp);
            let figures = [times[times.len() / 2], times[0], times[times.len() - 1]];
            (*call, *again, times.len(), figures)
        })
    }
}

/// The parts of a cache, and of how many runs each was as in the first.
fn parts(caches: &[HostCache]) -> Vec<(&'static str, usize, usize)> {
    let Some(first) = caches.first() else { return Vec::new() };
    let part = |name, count, is_same: &dyn Fn(&HostCache) -> bool| {
        (name, count, caches.iter().filter(|cache| is_same(cache)).count())
    };
    vec![
        part("netlink: the devices", first.devices.len(), &|one| one.devices == first.devices),
        part("netlink: their character devices", first.chardevs.len(), &|one| {
            one.chardevs == first.chardevs
        }),
        part("sysfs: fixed attributes", first.attributes.len(), &|one| {
            one.attributes == first.attributes
        }),
        part("provider files", first.providers.len(), &|one| one.providers == first.providers),
        part("processors", 1, &|one| one.processors == first.processors),
    ]
}

fn as_json(
    args: &ProfileArgs,
    told: &Told<'_>,
    times: &Times,
    caches: &[HostCache],
    written: bool,
) -> Value {
    let calls = times.rows().map(|(call, again, count, [median, min, max])| {
        json!({"call": call, "again": again, "count": count, "us": median, "min_us": min, "max_us": max})
    });
    let same = parts(caches).into_iter().map(|(what, count, same)| {
        json!({"what": what, "count": count, "same": same, "runs": caches.len()})
    });
    json!({
        "seed": args.seed,
        "runs": args.runs,
        "calls": calls.collect::<Vec<_>>(),
        "watched": told.as_json(),
        "results": same.collect::<Vec<_>>(),
        "cache": written.then(|| args.cache.display().to_string()),
    })
}

fn tell(args: &ProfileArgs, told: &Told<'_>, times: &Times, caches: &[HostCache], written: bool) {
    let runs = caches.len();
    if args.json {
        say!("{}", as_json(args, told, times, caches, written));
        return;
    }
    say!("seed {}, {} cold processes", args.seed, args.runs);
    let rows: Vec<[String; 6]> = times
        .rows()
        .map(|(call, again, count, figures)| {
            let [median, min, max] = figures.map(table::number);
            let which = if again { "again" } else { "first" };
            [call.name().into(), which.into(), count.to_string(), median, min, max]
        })
        .collect();
    table::print(["call", "", "times", "median µs", "least", "most"], &rows, 2);
    told.tell(args, times);
    let rows: Vec<[String; 3]> = parts(caches)
        .into_iter()
        .map(|(what, count, same)| [what.into(), count.to_string(), format!("{same} of {runs}")])
        .collect();
    table::print(["inner results", "number", "the same in"], &rows, 1);
    match (written, same(caches)) {
        (true, _) => say!("\n{} is written", args.cache.display()),
        (false, Some(_)) => say!("\nnothing is written"),
        (false, None) if caches.is_empty() => {
            say!("\nthere is no RDMA device, and nothing to remember")
        }
        (false, None) => say!("\nthey were not always the same: nothing is written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_always_the_same_is_a_cache() {
        let one = HostCache { kernel: b"6.1".to_vec(), ..HostCache::default() };
        let other = HostCache { processors: b"0-3".to_vec(), ..one.clone() };
        assert_eq!(same(&[one.clone(), one.clone()]), Some(&one));
        assert_eq!(same(&[one.clone(), other.clone()]), None);
        assert_eq!(same(&[]), None);
        let parts = parts(&[one.clone(), other, one]);
        assert!(parts.contains(&("processors", 1, 2)) && parts.contains(&("provider files", 0, 3)));
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ProfileArgs,
    }

    #[test]
    fn json_says_what_was_seen_and_how() {
        let Line { args } = clap::Parser::parse_from(["verbs-profile", "--json"]);
        let spent = Spent { count: 2, total_ns: 9_000, kernel_ns: 4_000, system_calls: 6 };
        let call = "ibv_open_device".to_string();
        let mut seen = Seen::default();
        seen.calls.insert(call.clone(), spent);
        seen.functions.insert((call.clone(), "dlopen".into()), spent);
        seen.system_calls.insert((call, "openat".into()), spent);
        let told = |watch| Told { watch, seen: &seen };
        let one = HostCache { kernel: b"6.1".to_vec(), ..HostCache::default() };
        let watch = Watch { stop_ns: 700 };
        let said = as_json(&args, &told(Ok(&watch)), &Times::default(), &[one], true);
        let row = json!({
            "call": "ibv_open_device", "name": null, "count": 2, "us": 9.0, "kernel_us": 4.0, "system_calls": 6
        });
        let watched = &said["watched"];
        assert_eq!((&watched["by"], &watched["verbs"]), (&json!("ptrace"), &json!([row])));
        assert!(watched["way"].as_str().unwrap().contains("700 ns"), "{watched}");
        let names = [&watched["functions"][0]["name"], &watched["system_calls"][0]["name"]];
        assert_eq!(names, ["dlopen", "openat"]);
        assert_eq!(said["results"][0]["runs"], 1);
        assert_eq!(said["cache"], file::PATH);
        // Where ptrace is not allowed, that is said, and why.
        let refused = told(Err("ptrace: not permitted".into()));
        let said = as_json(&args, &refused, &Times::default(), &[], false);
        let watched = &said["watched"];
        assert_eq!((&watched["by"], &said["cache"]), (&json!("timing"), &Value::Null));
        assert!(watched["way"].as_str().unwrap().ends_with("ptrace: not permitted"), "{watched}");
    }

    #[test]
    fn what_is_found_has_a_kind() {
        let kinds = [
            "file /sys/class/x",
            "no file /lib/libx.so",
            "netlink answer to 0x1401 of 0",
            "file /proc/cpuinfo",
        ];
        assert_eq!(kinds.map(kind), ["sysfs", "provider libraries", "netlink answers", "cpuinfo"]);
    }

    #[test]
    fn first_calls_are_told_from_later_ones() {
        let mut times = Times::default();
        let calls =
            vec![(Call::List, 9.0), (Call::List, 1.0), (Call::List, 3.0), (Call::Open, 5.0)];
        times.add(&Made {
            start_us: None,
            load_us: 0.0,
            calls,
            devices: 1,
            provider: None,
            counts: None,
        });
        let rows: Vec<_> = times.rows().collect();
        assert_eq!(rows[0], (Call::List, false, 1, [9.0; 3]));
        assert_eq!(rows[1], (Call::List, true, 2, [3.0, 1.0, 3.0]));
        assert_eq!(rows[2], (Call::Open, false, 1, [5.0; 3]));
    }
}
