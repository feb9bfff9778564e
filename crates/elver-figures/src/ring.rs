//! `elver bench ring`: messages through RB²'s rings, beside the designs that it is compared with and WRITEs that
//! are posted one by one (RB², figures 5 and 6).

pub(crate) mod far;
pub(crate) mod measures;
mod raw;
pub(crate) mod rb2;
pub(crate) mod rivals;
pub(crate) mod stage;

use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, ValueEnum, value_parser};
use elver::Policy;
use elver_console::table::{self, number};
use elver_console::{Failure, say};
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::{RunArgs, TimeArgs};
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use measures::Measures;
use rb2::Setting;
use rivals::Choices;
use stage::Ground;

const EXAMPLES: &str = "\
Examples:
  sudo elver bench ring
      messages of 64 B to 1 MB between two nodes in two network namespaces
  elver bench ring --placement host
      between two processes at one node, which a third thread drives
  elver bench ring --placement host --sizes 64 --threads 1,2,4
      by several threads at one node
  elver bench ring --sizes 64 --modes throughput --placement loopback --rounds 1";

/// Most threads: each has ports of its own.
const THREADS_MAX: i64 = 64;
/// Sizes by default, of figure 5.
const SIZES: &str = "64,512,4096,32768,1048576";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RingArgs {
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = SIZES, value_parser = value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Designs to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rb2,farm,socksdirect,l5,mvapich,raw"
    )]
    designs: Vec<Design>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "throughput,latency")]
    modes: Vec<Mode>,
    /// Threads that send, each to a process of its own, at one node (figure 7); several need `--placement host`.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Vec<u32>,
    /// What carries the rings of `rb2`, both ways.
    #[arg(long, value_enum, default_value = "shared")]
    policy: By,
    #[command(flatten)]
    measures: Measures,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// How messages get to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Design {
    /// Rings of as many slots as `--slots` says, a message each, with `--alpha`, `--beta` and `--gamma`. For
    /// latency nothing is batched.
    Rb2,
    /// A WRITE a message through the same kind of VQP, from and to as many buffers in turn as the ring
    /// has slots, 128 under way, one in 64 signalled; for latency WRITEs back and forth.
    Raw,
    /// The same from and to one buffer, which stays in the cache, as perftest does.
    RawHot,
    /// FaRM: ring at the receiver, a WRITE and its length for each message, zeroing.
    Farm,
    /// SocksDirect: WRITE_WITH_IMM, ten under way, copies.
    #[value(name = "socksdirect")]
    SocksDirect,
    /// L5: two WRITEs for each message, copies.
    L5,
    /// MVAPICH: a WRITE and its length for each message, the head after each, copies.
    Mvapich,
    /// The micro-benchmark: the sender reads the head, completions tell the tail.
    PullCq,
    /// The micro-benchmark: the receiver writes the head, completions tell the tail.
    PushCq,
    /// The micro-benchmark: the sender reads the head, a second WRITE tells the tail.
    PullWt,
    /// The micro-benchmark: the receiver writes the head, a second WRITE tells the tail.
    PushWt,
}

/// What carries rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The nodes' shared queue pairs: DC, and RC once the peer is hot.
    Shared,
    /// RC queue pairs that are shared, from the beginning.
    Lite,
    /// An RC queue pair of each ring's own.
    Leased,
}

impl By {
    fn policy(self) -> Policy {
        match self {
            By::Shared => Policy::Shared,
            By::Lite => Policy::Lite,
            By::Leased => Policy::Leased,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// One way, as fast as it goes.
    Throughput,
    /// Back and forth, one at a time: the time of both ways.
    Latency,
}

/// A row: what is measured, and what the rounds gave.
struct Measured {
    design: Design,
    mode: Mode,
    size: u32,
    threads: u32,
    per_s: Figure,
    mean_us: Figure,
    p999_us: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &RingArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for mode in &args.modes {
        for size in &args.sizes {
            for threads in &args.threads {
                let row = |design: &Design| Measured::new(*design, *mode, *size, *threads);
                rows.extend(args.designs.iter().map(row));
            }
        }
    }
    let ended = Frame::begin("ring", &args.run).run(|stage, doing| {
        for row in &mut rows {
            let Measured { design, mode, size, threads, .. } = *row;
            let threads_text =
                if threads > 1 { format!(", {threads} threads") } else { String::new() };
            doing(&format!("{}, {size} B, {}{threads_text}", design.name(), mode.name()));
            let measure = |ground: Ground<'_>| measure(args, ground, design, mode, size);
            row.push(&stage::at_once(stage, threads, measure)?);
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows)),
        || json!({"rows": rows.iter().map(Measured::as_json).collect::<Vec<_>>()}),
        || {
            let cells: Vec<_> = rows.iter().map(Measured::cells).collect();
            let heads = [
                "design",
                "bytes",
                "threads",
                "",
                "Mmsg/s [min … max]",
                "Gbit/s",
                "mean µs",
                "p99.9 µs",
            ];
            table::print(heads, &cells, 4);
            say!(
                "\nlatency is of both ways; in throughput's rows the receiver reads a word of each"
            );
        },
    );
    Ok(())
}

/// Measures one of the designs.
fn measure(
    args: &RingArgs,
    ground: Ground<'_>,
    design: Design,
    mode: Mode,
    size: u32,
) -> Result<Sample, Failure> {
    let duration = Duration::from_secs_f64(args.time.duration);
    let setting = |config| Setting { policy: args.policy.policy(), ..Setting::of(config) };
    match (design, mode) {
        (Design::Rb2, Mode::Throughput) => {
            rb2::throughput(ground, size, setting(args.measures.config(size)?), duration)
        }
        (Design::Rb2, Mode::Latency) => {
            rb2::latency(ground, size, setting(Measures::default().config(size)?), duration)
        }
        (Design::Raw, Mode::Throughput) => {
            raw::throughput(ground, size, args.measures.slots_for(size), duration)
        }
        (Design::RawHot, Mode::Throughput) => raw::throughput(ground, size, 1, duration),
        (Design::Raw | Design::RawHot, Mode::Latency) => raw::latency(ground, size, duration),
        (design, mode) => {
            let rival = design.rival().ok_or_else(|| anyhow!("no rival is that"))?;
            match mode {
                Mode::Throughput => {
                    let slots = args.measures.slots_for(size);
                    rivals::throughput(ground, size, slots, rival, duration)
                }
                Mode::Latency => rivals::latency(ground, size, rival, duration),
            }
        }
    }
}

/// RB² beside the WRITEs, and beside the best of the rivals; of 1 MB, of those that copy.
fn claims(rows: &[Measured]) -> Vec<Row> {
    let beside = |row: &Measured, design: fn(Design) -> bool| -> Vec<&Measured> {
        let same = |other: &&Measured| {
            (other.mode, other.size, other.threads) == (row.mode, row.size, row.threads)
        };
        rows.iter().filter(same).filter(|other| design(other.design)).collect()
    };
    let ours = rows.iter().filter(|row| row.design == Design::Rb2);
    let mut claims = Vec::new();
    for row in ours {
        let is_latency = row.mode == Mode::Latency;
        let figure =
            |row: &Measured| if is_latency { row.p999_us.clone() } else { row.per_s.clone() };
        let raw = beside(row, |design| design == Design::Raw);
        let mut rivals = beside(row, Design::is_published);
        rivals.retain(|row| row.size < 1_048_576 || row.design.copies());
        rivals.sort_by(|one, other| figure(one).median().total_cmp(&figure(other).median()));
        let best = if is_latency { rivals.first() } else { rivals.last() };
        let targets = match (row.mode, row.size) {
            _ if row.threads > 1 => [Target::None, Target::None],
            (Mode::Latency, 64) => [Target::None, Target::AtMost(1.0)],
            (Mode::Throughput, 64) => [Target::AtLeast(2.0), Target::AtLeast(2.5)],
            (Mode::Throughput, 1_048_576) => [Target::AtLeast(0.97), Target::AtLeast(1.8)],
            _ => [Target::None, Target::None],
        };
        let by = if row.threads > 1 { format!(", {} threads", row.threads) } else { String::new() };
        let (unit, name) = match row.mode {
            Mode::Throughput => ("/s", format!("rb2: messages of {} B{by}", row.size)),
            Mode::Latency => ("µs", format!("rb2: p99.9 of {} B and back{by}", row.size)),
        };
        for (other, target) in [raw.first(), best].into_iter().zip(targets) {
            let Some(other) = other else { continue };
            let baseline = Some((other.design.name(), figure(other)));
            claims.push(Row { name: name.clone(), unit, ours: figure(row), baseline, target });
        }
    }
    claims
}

impl Measured {
    fn new(design: Design, mode: Mode, size: u32, threads: u32) -> Measured {
        let none = Figure::default();
        let [per_s, mean_us, p999_us] = [none.clone(), none.clone(), none];
        Measured { design, mode, size, threads, per_s, mean_us, p999_us }
    }

    fn push(&mut self, sample: &Sample) {
        self.per_s.push(sample.per_s());
        if self.mode == Mode::Latency {
            self.mean_us.push(sample.mean_us());
            self.p999_us.push(sample.us(99.9));
        }
    }

    fn gbps(&self) -> f64 {
        self.per_s.median() * f64::from(self.size) * 8.0 / 1e9
    }

    fn as_json(&self) -> serde_json::Value {
        let thousandth = |value: f64| (value * 1e3).round() / 1e3;
        let millionth = |value: f64| (value * 1e6).round() / 1e6;
        let mut row = json!({
            "design": self.design.name(),
            "size": self.size,
            "threads": self.threads,
            "mode": self.mode.name(),
            "gbps": thousandth(self.gbps()),
            "mmsg_per_s": millionth(self.per_s.median() / 1e6),
            "mmsg_per_s_spread": self.per_s.spread().map(|per_s| millionth(per_s / 1e6)),
        });
        if self.mode == Mode::Latency {
            row["lat_us"] = json!({
                "mean": contract::us(self.mean_us.median()),
                "p999": contract::us(self.p999_us.median()),
            });
        }
        row
    }

    fn cells(&self) -> [String; 8] {
        let mut rate = Figure::default();
        let [least, most] = self.per_s.spread();
        [least, self.per_s.median(), most].iter().for_each(|per_s| rate.push(per_s / 1e6));
        let latency = |figure: &Figure| match self.mode {
            Mode::Latency => number(figure.median()),
            Mode::Throughput => String::new(),
        };
        let (design, mode) = (self.design.name().to_string(), self.mode.name().to_string());
        let [mean, p999] = [&self.mean_us, &self.p999_us].map(latency);
        let [size, threads] = [self.size, self.threads].map(|count| count.to_string());
        [design, size, threads, mode, rate.text(), number(self.gbps()), mean, p999]
    }
}

impl Design {
    fn name(self) -> &'static str {
        match self {
            Design::Rb2 => "rb2",
            Design::Raw => "raw",
            Design::RawHot => "raw-hot",
            Design::Farm => "farm",
            Design::SocksDirect => "socksdirect",
            Design::L5 => "l5",
            Design::Mvapich => "mvapich",
            Design::PullCq => "pull-cq",
            Design::PushCq => "push-cq",
            Design::PullWt => "pull-wt",
            Design::PushWt => "push-wt",
        }
    }

    /// What it chooses, if it is a rival.
    fn rival(self) -> Option<Choices> {
        Some(match self {
            Design::Rb2 | Design::Raw | Design::RawHot => return None,
            Design::Farm => Choices::farm(),
            Design::SocksDirect => Choices::socksdirect(),
            Design::L5 => Choices::l5(),
            Design::Mvapich => Choices::mvapich(),
            Design::PullCq => Choices::pull_cq(),
            Design::PushCq => Choices::push_cq(),
            Design::PullWt => Choices::pull_wt(),
            Design::PushWt => Choices::push_wt(),
        })
    }

    fn copies(self) -> bool {
        self.rival().is_some_and(|choices| choices.copies)
    }

    /// Whether it is one that the paper's figures 5 and 6 have.
    fn is_published(self) -> bool {
        matches!(self, Design::Farm | Design::SocksDirect | Design::L5 | Design::Mvapich)
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Throughput => "throughput",
            Mode::Latency => "latency",
        }
    }
}
