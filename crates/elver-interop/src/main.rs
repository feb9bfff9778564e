//! The software RNIC against the Linux kernel's rdma_rxe, on one Ethernet link: every operation,
//! in both roles, over every transport and path MTU, with and without faults.
//!
//! The guest runs `lab/interop/agent.c`; this program tells it what to do over a control line, does
//! our part itself, and compares what both ends report and what both memories hold.

mod adopt;
mod axes;
mod bench;
mod cells;
mod limits;
mod ours;
mod refusals;
mod relay;
mod report;
mod side;
mod theirs;

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use elver_soft::LocalAddress;

use crate::axes::{Axes, Cell, Op, Role, Transport};
use crate::bench::{Bench, Who};
use crate::cells::{Ends, Outcome};
use crate::ours::Ours;
use crate::refusals::Wrong;
use crate::relay::Relay;
use crate::report::Results;
use crate::theirs::Agent;

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(2);

/// Runs the table of operations against a guest's rdma_rxe.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The descriptor that carries the link's Ethernet frames, as fd:NUMBER
    #[arg(long)]
    link: Inherited,

    /// The descriptor of the line to the guest's program, as fd:NUMBER
    #[arg(long)]
    control: Inherited,

    /// Our address on the link
    #[arg(long, default_value = "10.9.0.1/24")]
    address: LocalAddress,

    /// Longest IP packet of the link in bytes
    #[arg(long, default_value_t = 9_000)]
    mtu: u32,

    /// Only a selection: two path MTUs, no fault and loss, nothing above 64 KB
    #[arg(long)]
    reduced: bool,

    /// Only this transport
    #[arg(long)]
    transport: Option<Transport>,

    /// Only this operation
    #[arg(long)]
    op: Option<Op>,

    /// Only this refusal, and no cells
    #[arg(long)]
    refusal: Option<Wrong>,

    /// Seed of the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Directory for table.md and results.json
    #[arg(long, default_value = ".")]
    out: PathBuf,
}

/// A descriptor that this program was started with.
#[derive(Clone, Copy, Debug)]
struct Inherited(i32);

impl FromStr for Inherited {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Inherited> {
        let number = text.strip_prefix("fd:").and_then(|number| number.parse().ok());
        Ok(Inherited(number.context("not of the form fd:NUMBER")?))
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("elver-interop: {failures} cells or refusals went wrong; see table.md");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("elver-interop: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<usize> {
    let axes = if args.reduced { Axes::reduced() } else { Axes::full() };
    let (relay, link) = Relay::new(adopt::adopt(args.link.0)?, args.seed)?;
    let ours = Ours::open(relay, link, args.address, args.mtu)?;
    let agent = Agent::new(adopt::adopt(args.control.0)?)?;
    let mut bench = Bench::new(ours, agent);
    let ends = Ends {
        ours: bench.at(Who::Ours, |side| side.about())?,
        theirs: bench.at(Who::Theirs, |side| side.about())?,
    };
    let (ours_mtu, theirs_mtu) = (ends.ours.mtu, ends.theirs.mtu);
    anyhow::ensure!(
        ours_mtu == 4096 && theirs_mtu == 4096,
        "the link carries a path MTU of {ours_mtu} here and {theirs_mtu} in the guest, not 4096; \
         set its MTU to 9000"
    );

    let mut results = Results { ends, cells: Vec::new(), refusals: Vec::new(), seed: args.seed };
    if args.refusal.is_none() {
        let mut progress = Progress::new();
        for transport in Transport::ALL {
            if args.transport.is_none_or(|only| only == transport) {
                run_transport(&mut bench, &mut results, &axes, transport, args, &mut progress)
                    .with_context(|| format!("{transport}"))?;
            }
        }
    }
    if args.transport.is_none_or(|only| only == Transport::Rc) && args.op.is_none() {
        for role in Role::ALL {
            for wrong in Wrong::ALL.iter().copied() {
                if args.refusal.is_none_or(|only| only == wrong) {
                    let report = refusals::run(&mut bench, &results.ends, role, wrong)
                        .with_context(|| format!("{}, we as {role}", wrong.text()))?;
                    results.refusals.push((role, wrong, report));
                }
            }
        }
    }
    bench.quit()?;
    write(args, &axes, &results)?;
    println!("{}", results.table(&axes));
    for (name, value) in bench.ours.counters() {
        println!("{name:32} {value:>12}");
    }
    Ok(results.failures())
}

/// All cells of a transport. A pair of QPs serves as long as nothing goes wrong with it.
fn run_transport(
    bench: &mut Bench,
    results: &mut Results,
    axes: &Axes,
    transport: Transport,
    args: &Args,
    progress: &mut Progress,
) -> Result<()> {
    for mtu in axes.mtus.iter().copied() {
        for fault in axes.faults.iter().copied() {
            let mut pair = None;
            bench.ours.relay.set_fault(fault);
            for role in Role::ALL {
                let ops = transport.ops().iter().copied();
                for op in ops.filter(|op| args.op.is_none_or(|only| only == *op)) {
                    for size in axes.sizes(transport, op, mtu) {
                        let cell = Cell { transport, mtu, fault, role, op, size };
                        if !cell.exists() {
                            continue;
                        }
                        let outcome = cells::run(bench, &results.ends, &mut pair, &cell)
                            .with_context(|| cell.to_string())?;
                        if let Outcome::Fail(why) = &outcome
                            && limits::of_cell(&cell, why).is_none()
                        {
                            println!("{cell}: {why}");
                        }
                        results.cells.push((cell, outcome));
                        progress.tell(results.cells.len(), &cell);
                    }
                }
            }
            bench.ours.relay.set_fault(axes::Fault::None);
            if let Some(pair) = pair {
                cells::disconnect(bench, pair)?;
            }
        }
    }
    Ok(())
}

fn write(args: &Args, axes: &Axes, results: &Results) -> Result<()> {
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let json = serde_json::to_string_pretty(&results.json())? + "\n";
    for (name, text) in [("table.md", results.table(axes)), ("results.json", json)] {
        let path = args.out.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Says how far it is.
struct Progress {
    told: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { told: Instant::now() }
    }

    fn tell(&mut self, done: usize, cell: &Cell) {
        if self.told.elapsed() < PROGRESS {
            return;
        }
        self.told = Instant::now();
        let mut error = std::io::stderr();
        let end = if error.is_terminal() { "\x1b[K\r" } else { "\n" };
        // Progress that cannot be shown is no reason to stop.
        let _ = write!(error, "{done} cells; {cell}{end}");
    }
}
