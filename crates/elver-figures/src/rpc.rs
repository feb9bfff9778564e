//! `elver bench rpc`: calls with 64 bytes there and back, by how many are under way, beside gRPC's.

mod ours;
mod rival;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, say};
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::{RunArgs, TimeArgs};
use crate::busy::Load;
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use ours::SIZE;

const EXAMPLES: &str = "\
Examples:
  elver bench rpc --placement host
      between two processes at one node
  cargo build --release -p elver-rivals
  sudo elver bench rpc --rival target/release/elver-rival-grpc
      beside gRPC's (tonic), between two network namespaces";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RpcArgs {
    /// Calls under way.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_parser = value_parser!(u32).range(1..=1024))]
    in_flight: Vec<u32>,
    /// What else runs on the two cores.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "quiet,busy")]
    loads: Vec<Load>,
    /// The program elver-rival-grpc, to be measured beside.
    #[arg(long)]
    rival: Option<PathBuf>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// A row: what is measured, and what the rounds gave.
struct Measured {
    load: Load,
    name: &'static str,
    in_flight: u32,
    per_s: Figure,
    mean_us: Figure,
    p50_us: Figure,
    p999_us: Figure,
}

const OURS: &str = "elver-rpc";
const DEFAULT: &str = "elver-rpc-default";
const GRPC: &str = "grpc-tonic";

/// Measures and prints.
pub(crate) fn run(args: &RpcArgs) -> Result<(), Failure> {
    let duration = Duration::from_secs_f64(args.time.duration);
    let mut rows = Vec::new();
    for load in &args.loads {
        for in_flight in &args.in_flight {
            let rival = args.rival.as_ref().map(|_| GRPC);
            let names = [OURS, DEFAULT].into_iter().chain(rival);
            rows.extend(names.map(|name| Measured::new(*load, name, *in_flight)));
        }
    }
    let ended = Frame::begin("rpc", &args.run).run(|stage, doing| {
        for row in &mut rows {
            let Measured { load, name, in_flight, .. } = *row;
            doing(&format!("{name}, {in_flight} under way, {}", load.name()));
            let sample = load.beside(|| match &args.rival {
                Some(program) if name == GRPC => {
                    rival::Calls { in_flight, size: SIZE, duration }.echo(stage, program)
                }
                _ => {
                    let spin = (name == OURS).then_some(ours::SPIN);
                    ours::echo(stage, in_flight, spin, duration)
                }
            })?;
            row.push(&sample);
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows)),
        || json!({"rows": rows.iter().map(Measured::as_json).collect::<Vec<_>>()}),
        || {
            let cells: Vec<_> = rows.iter().map(Measured::cells).collect();
            let heads = ["", "cores", "in flight", "calls/s", "mean µs", "p50 µs", "p99.9 µs"];
            table::print(heads, &cells, 2);
            say!(
                "\nof {SIZE} bytes each way, over one connection; {OURS} looks for as long as it takes, \
                 {DEFAULT} for 0.1 ms before it sleeps; busy: beside a thread on each core, which spins"
            );
        },
    );
    Ok(())
}

/// Calls a second beside the rival's.
fn claims(rows: &[Measured]) -> Vec<Row> {
    let ours = rows.iter().filter(|row| row.name != GRPC);
    ours.map(|row| {
        let mut rivals = rows.iter().filter(|other| other.name == GRPC);
        let rival = rivals.find(|other| other.in_flight == row.in_flight && other.load == row.load);
        // Also by default, when ends that wait for longer sleep, as the rival's do: that is what users have.
        let target = match row.load {
            Load::Busy => Target::AtLeast(0.5),
            Load::Quiet => Target::AtLeast(3.0),
        };
        let Measured { load, name, in_flight, .. } = row;
        Row {
            name: format!("{name}, {}: echo of {SIZE} B, {in_flight} under way", load.name()),
            unit: "/s",
            ours: row.per_s.clone(),
            baseline: rival.map(|rival| (GRPC, rival.per_s.clone())),
            target: rival.map_or(Target::None, |_| target),
        }
    })
    .collect()
}

impl Measured {
    fn new(load: Load, name: &'static str, in_flight: u32) -> Measured {
        let [per_s, mean_us, p50_us, p999_us] = [(); 4].map(|()| Figure::default());
        Measured { load, name, in_flight, per_s, mean_us, p50_us, p999_us }
    }

    fn push(&mut self, sample: &Sample) {
        self.per_s.push(sample.per_s());
        self.mean_us.push(sample.mean_us());
        self.p50_us.push(sample.us(50.0));
        self.p999_us.push(sample.us(99.9));
    }

    fn as_json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "cores": self.load.name(),
            "size": SIZE,
            "in_flight": self.in_flight,
            "calls_per_s": self.per_s.median().round(),
            "calls_per_s_spread": self.per_s.spread().map(f64::round),
            "lat_us": {
                "mean": contract::us(self.mean_us.median()),
                "p50": contract::us(self.p50_us.median()),
                "p999": contract::us(self.p999_us.median()),
            },
        })
    }

    fn cells(&self) -> [String; 7] {
        let latency = [&self.mean_us, &self.p50_us, &self.p999_us];
        let [mean, p50, p999] = latency.map(|figure| number(figure.median()));
        let load = self.load.name().into();
        [self.name.into(), load, self.in_flight.to_string(), self.per_s.text(), mean, p50, p999]
    }
}
