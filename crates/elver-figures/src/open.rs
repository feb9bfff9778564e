//! `elver bench open`: the control path of the host's own libibverbs in cold processes, a row a call, with and without
//! the fast library (Swift, section 5.2 and figure 6).

use std::path::PathBuf;

use clap::{Args, value_parser};
use elver_console::{Failure, Progress, say, table};
use elver_profile::calls::{Call, Made, Plan};
use elver_profile::cold::{Cold, library};
use elver_testbed::programs::Programs;
use elver_testbed::scratch::Scratch;
use serde_json::json;

use crate::report::contract;
use crate::report::rows::{self, Figure, Row, Target};

const EXAMPLES: &str = "\
Examples:
  elver bench open --rounds 20
      each call of the control path by Debian's libibverbs, and with the fast library before it
  cargo xtask lab run open --engine qemu --verbose
      the same on a machine without RDMA, by rxe of a Debian kernel

Each round is two processes that begin cold, one with the library and one without; the queue pair is connected
to itself. `start` is from the call that starts the process to its first line, `load` is loading libibverbs;
`control` is the calls from list to rts, and `whole` is all, with the first READ.";

/// Swift's goals here: the parts of what libibverbs takes that may be left.
const LIST_RATIO_MAX: f64 = 1.0 / 6.0;
const CONTROL_RATIO_MAX: f64 = 1.0 / 3.0;
/// The counter of lists that the cache helped with, and of those that it did not.
const LISTS: usize = 0;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct OpenArgs {
    /// Cold processes of each kind, in turn.
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// The device; the first if none is named.
    #[arg(long)]
    device: Option<String>,
    /// The fast library; by default the one that belongs to this program.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// What the processes of one kind took.
#[derive(Default)]
struct Times(Vec<Figure>);

/// The rows: two before the calls, and two sums behind them.
fn names() -> Vec<&'static str> {
    let calls = Call::ALL.iter().map(|call| call.name());
    ["start", "load"].into_iter().chain(calls).chain(["control", "whole"]).collect()
}

impl Times {
    fn push(&mut self, made: &Made) {
        let calls: Vec<f64> = made.calls.iter().map(|(_, us)| *us).collect();
        let before = [made.start_us.unwrap_or(f64::NAN), made.load_us];
        let control = calls[..calls.len() - 1].iter().sum::<f64>();
        let whole = before.iter().chain(&calls).sum::<f64>();
        let values = before.into_iter().chain(calls).chain([control, whole]);
        self.0.resize_with(names().len(), Figure::default);
        self.0.iter_mut().zip(values).for_each(|(figure, value)| figure.push(value));
    }
}

/// Measures and prints.
pub(crate) fn run(args: &OpenArgs, programs: &Programs) -> Result<(), Failure> {
    let library = library(args.library.as_deref(), programs.own())?;
    let place = Scratch::new()?;
    let plain = Cold {
        program: programs.own().to_path_buf(),
        device: args.device.clone(),
        fast: None,
        mode: "on",
    };
    let fast = Cold { fast: Some((library, place.path().join("verbs"))), ..plain.clone() };
    let plan = Plan::usual();
    // The first has no cache, and makes one.
    Cold { mode: "renew", ..fast.clone() }.run(&plan)?;
    let (mut plainly, mut faster) = (Times::default(), Times::default());
    let mut provider = None;
    let progress = Progress::begin();
    for round in 1..=args.rounds {
        progress.doing(&format!("round {round} of {}", args.rounds));
        let made = plain.run(&plan)?;
        plainly.push(&made);
        let made = fast.run(&plan)?;
        let helped = made.counts.as_ref().and_then(|counts| counts.get(LISTS)).copied();
        if helped != Some(1) {
            let why = format!("the cache did not help: counters {:?}", made.counts);
            return Err(Failure::Failed(anyhow::anyhow!(why)));
        }
        provider = made.provider.clone();
        faster.push(&made);
    }
    drop(progress);
    tell(args, provider.as_deref().unwrap_or("unknown"), &plainly, &faster)
}

fn tell(args: &OpenArgs, provider: &str, plainly: &Times, faster: &Times) -> Result<(), Failure> {
    let both = || names().into_iter().zip(plainly.0.iter().zip(&faster.0));
    let claim = |call: &str, name: &str, most| {
        let (_, (plain, fast)) = both().find(|(name, _)| *name == call)?;
        Some(Row {
            name: name.into(),
            unit: "µs",
            ours: fast.clone(),
            baseline: Some(("libibverbs", plain.clone())),
            target: Target::AtMost(most),
        })
    };
    let claims: Vec<Row> = [
        claim("list", "the list of devices", LIST_RATIO_MAX),
        claim("control", "the control path", CONTROL_RATIO_MAX),
    ]
    .into_iter()
    .flatten()
    .collect();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if args.json {
        let row = |(name, (plain, fast)): (&str, (&Figure, &Figure))| {
            json!({
                "call": name,
                "libibverbs_us": contract::us(plain.median()),
                "libibverbs_spread_us": plain.spread(),
                "fast_us": contract::us(fast.median()),
                "fast_spread_us": fast.spread(),
                "ratio": plain.median() / fast.median(),
            })
        };
        let object = json!({
            "bench": "open",
            "rounds": args.rounds,
            "kernel": kernel,
            "processors": processors,
            "provider": provider,
            "rows": both().map(row).collect::<Vec<_>>(),
            "claims": contract::claims_as_json(&claims),
        });
        say!("{object}");
        return Ok(());
    }
    say!("kernel {kernel}; processors: {processors}; rounds: {}; {provider}", args.rounds);
    let rows: Vec<[String; 4]> = both()
        .map(|(name, (plain, fast))| {
            let times = plain.median() / fast.median();
            [name.into(), plain.text(), fast.text(), table::number(times)]
        })
        .collect();
    table::print(["call", "libibverbs µs [min … max]", "fast µs", "times"], &rows, 1);
    rows::print("claim", &claims);
    Ok(())
}
