//! `elver bench cases`: a network function, a database and an HTTP server over RB²'s rings, beside the designs that
//! it is compared with (RB², section V-C, figures 8 to 10).

mod carriage;
mod programs;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, value_parser};
use elver_cases::flows::RECORD;
use elver_cases::store::Store;
use elver_cases::{pcap, trace::Traffic};
use elver_console::table::{self, number};
use elver_console::{Failure, say};
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::RunArgs;
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use carriage::Design;
use programs::{FILE, Questions};

const EXAMPLES: &str = "\
Examples:
  sudo elver bench cases
      all three between two nodes in two network namespaces
  elver bench cases --placement host --cases nf --trace traffic.pcap
      packets of a capture, counted by flow, between two processes at one node
  elver bench cases --cases http --gets 100000 --rounds 3";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CasesArgs {
    /// Programs to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "nf,database,http")]
    cases: Vec<Case>,
    /// What carries their messages.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rb2,farm,socksdirect,l5,mvapich,alone"
    )]
    designs: Vec<Design>,
    /// nf: packets, at most.
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=50_000_000))]
    packets: u32,
    /// nf: a capture, pcap or pcapng, in place of traffic that is made up.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// nf: flows of the traffic that is made up; the k-th has 1/k of the first one's packets.
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    flows: u32,
    /// database: records of 16 + 128 bytes in it.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// database: requests, by YCSB's workload C.
    #[arg(long, default_value_t = 300_000, value_parser = value_parser!(u32).range(1..=50_000_000))]
    requests: u32,
    /// database: requests under way.
    #[arg(long, default_value_t = 512, value_parser = value_parser!(u32).range(1..=1_024))]
    in_flight: u32,
    /// http: requests for a file of 1 KB, one under way.
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=50_000_000))]
    gets: u32,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Records of packets, 40 bytes each, are sent one way and counted by flow (figure 8).
    Nf,
    /// 16 bytes are answered with 128 (figure 9).
    Database,
    /// A request for a file of 1 KB is answered; nothing is batched (figure 10).
    Http,
}

/// A row: what is measured, and what the rounds gave.
struct Measured {
    case: Case,
    design: Design,
    count: usize,
    seconds: Figure,
    per_s: Figure,
    mean_us: Figure,
    p999_us: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &CasesArgs) -> Result<(), Failure> {
    let wants = |case| args.cases.contains(&case);
    let traffic = if wants(Case::Nf) { traffic(args)? } else { Vec::new() };
    let store = Store::with_records(if wants(Case::Database) { args.records } else { 1 });
    let store = store.map_err(anyhow::Error::from)?;
    let (requests, gets) = (args.requests as usize, args.gets as usize);
    let questions =
        Questions { records: args.records, requests, under_way: args.in_flight as usize };
    let mut rows = Vec::new();
    for case in &args.cases {
        let count = match case {
            Case::Nf => traffic.len(),
            Case::Database => requests,
            Case::Http => gets,
        };
        rows.extend(args.designs.iter().map(|design| Measured::new(*case, *design, count)));
    }
    let ended = Frame::begin("cases", &args.run).run(|stage, doing| {
        for row in &mut rows {
            doing(&format!("{}, {}", row.case.name(), row.design.name()));
            row.push(&match row.case {
                Case::Nf => programs::count_flows(stage, row.design, &traffic)?,
                Case::Database => programs::ask(stage, row.design, &store, questions)?,
                Case::Http => programs::get_files(stage, row.design, gets)?,
            });
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows)),
        || json!({"rows": rows.iter().map(Measured::as_json).collect::<Vec<_>>()}),
        || {
            let cells: Vec<_> = rows.iter().map(Measured::cells).collect();
            table::print(["case", "design", "count", "s", "/s [min … max]", "mean µs", "p99.9 µs"], &cells, 2);
            say!(
                "\nalone: the program calls itself on one thread; database: {} requests under way; http: a file of \
                 {FILE} bytes, one under way",
                args.in_flight
            );
        },
    );
    Ok(())
}

/// Records as they are sent.
fn traffic(args: &CasesArgs) -> Result<Vec<[u8; RECORD]>, Failure> {
    let most = args.packets as usize;
    let Some(path) = &args.trace else {
        let traffic = Traffic { flows: args.flows, ..Traffic::default() };
        return Ok(traffic.packets(1).take(most).map(|record| record.encode()).collect());
    };
    let capture = capture(path, most)
        .map_err(|error| Failure::unusable(format!("{}: {error}", path.display())))?;
    if capture.records.is_empty() {
        let what = format!("{}: none of its {} packets is IPv4", path.display(), capture.skipped);
        return Err(Failure::unusable(what));
    }
    Ok(capture.records.iter().map(|record| record.encode()).collect())
}

fn capture(path: &Path, most: usize) -> Result<pcap::Capture, pcap::Error> {
    pcap::read(std::fs::File::open(path)?, most)
}

/// RB² beside the best of the rivals: of the first two it is twice as fast in the paper, of the third its tail is the
/// shortest.
fn claims(rows: &[Measured]) -> Vec<Row> {
    let ours = rows.iter().filter(|row| row.design == Design::Rb2);
    ours.map(|row| {
        let is_latency = row.case == Case::Http;
        let figure =
            |row: &Measured| if is_latency { row.p999_us.clone() } else { row.per_s.clone() };
        let same = rows.iter().filter(|other| other.case == row.case);
        let mut rivals: Vec<_> = same.filter(|other| other.design.is_published()).collect();
        rivals.sort_by(|one, other| figure(one).median().total_cmp(&figure(other).median()));
        let best = if is_latency { rivals.first() } else { rivals.last() };
        let (unit, name, target) = match row.case {
            Case::Nf => ("/s", "nf: packets counted by flow", Target::AtLeast(2.0)),
            Case::Database => ("/s", "database: requests answered", Target::AtLeast(2.0)),
            Case::Http => ("µs", "http: p99.9 of a file of 1 KB", Target::AtMost(1.0)),
        };
        Row {
            name: name.into(),
            unit,
            ours: figure(row),
            baseline: best.map(|best| (best.design.name(), figure(best))),
            target: best.map_or(Target::None, |_| target),
        }
    })
    .collect()
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Nf => "nf",
            Case::Database => "database",
            Case::Http => "http",
        }
    }
}

impl Measured {
    fn new(case: Case, design: Design, count: usize) -> Measured {
        let [seconds, per_s, mean_us, p999_us] = [(); 4].map(|()| Figure::default());
        Measured { case, design, count, seconds, per_s, mean_us, p999_us }
    }

    fn push(&mut self, sample: &Sample) {
        self.per_s.push(sample.per_s());
        self.seconds.push(self.count as f64 / sample.per_s());
        // A record of the network function has no answer whose time could be taken.
        if self.case != Case::Nf {
            self.mean_us.push(sample.mean_us());
            self.p999_us.push(sample.us(99.9));
        }
    }

    fn as_json(&self) -> serde_json::Value {
        let latency = (self.case != Case::Nf).then(|| {
            json!({
                "mean": contract::us(self.mean_us.median()),
                "p999": contract::us(self.p999_us.median()),
            })
        });
        json!({
            "case": self.case.name(),
            "design": self.design.name(),
            "count": self.count,
            "seconds": self.seconds.median(),
            "seconds_spread": self.seconds.spread(),
            "per_s": self.per_s.median().round(),
            "per_s_spread": self.per_s.spread().map(f64::round),
            "lat_us": latency,
        })
    }

    fn cells(&self) -> [String; 7] {
        let latency = |figure: &Figure| match self.case {
            Case::Nf => String::new(),
            _ => number(figure.median()),
        };
        let (mean, p999) = (latency(&self.mean_us), latency(&self.p999_us));
        let (case, design) = (self.case.name().into(), self.design.name().into());
        let seconds = format!("{:.3}", self.seconds.median());
        [case, design, self.count.to_string(), seconds, self.per_s.text(), mean, p999]
    }
}
