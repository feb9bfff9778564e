//! `elver bench ring-ablation`: RB²'s rings, and what each of its choices brings (RB², table II).

use std::time::Duration;

use clap::{Args, value_parser};
use elver_console::Failure;
use elver_console::say;
use elver_console::table::{self, number};
use elver_ring::Config;
use elver_testbed::sample::Sample;
use serde_json::{Value, json};

use crate::args::{RunArgs, Stage, TimeArgs};
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use crate::ring::far;
use crate::ring::measures::Measures;
use crate::ring::rb2::{self, Setting};

const EXAMPLES: &str = "\
Examples:
  sudo elver bench ring-ablation
      messages of 512 B and of 1 MB between two nodes in two network namespaces
  elver bench ring-ablation --placement host --sizes 512 --rounds 5
      short messages between two processes at one node";

/// The paper's short and long messages (section V-B, experiment 4).
const SIZES: &str = "512,1048576";
/// Latency is not of interest beyond so many messages.
const LATENCY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AblationArgs {
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = SIZES, value_parser = value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// A row of table II: all optimizations, or all without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    Batching,
    SyncAhead,
    ElasticThreshold,
    LazyPush,
    ZeroCopy,
    CacheFriendliness,
    HugePages,
    NumaPlacement,
}

/// Their names, and the paper's throughput by that of the row above all, of 512 B and of 1 MB.
const ROWS: [(Without, &str, &str, [f64; 2]); 9] = [
    (Without::Nothing, "M1", "all optimizations", [1.0, 1.0]),
    (Without::Batching, "M2", "without any batching", [0.33, 1.0]),
    (Without::SyncAhead, "M3", "without transmission ahead", [0.85, 1.0]),
    (Without::ElasticThreshold, "M4", "without elastic threshold", [0.62, 1.0]),
    (Without::LazyPush, "M5", "without lazy push", [0.85, 1.0]),
    (Without::ZeroCopy, "M6", "without zero copy", [0.87, 0.55]),
    (Without::CacheFriendliness, "M7", "without cache friendliness", [0.92, 0.71]),
    (Without::HugePages, "M8", "without huge pages", [1.0, 1.0]),
    (Without::NumaPlacement, "M9", "without NUMA placement", [0.92, 1.0]),
];
/// The size up to which a message counts as short.
const SHORT: u32 = 4_096;

impl Without {
    /// The setting of a row, for messages of a size.
    fn setting(self, size: u32) -> anyhow::Result<Setting> {
        let full = Setting { huge_pages: true, ..Setting::of(Measures::default().config(size)?) };
        let config = full.config;
        Ok(match self {
            Without::Nothing => full,
            Without::Batching => {
                let config = Config { gamma: 1, ..config.unbatched() };
                Setting { config, elastic: false, ..full }
            }
            Without::SyncAhead => {
                Setting { config: Config { beta: config.alpha, ..config }, ..full }
            }
            Without::ElasticThreshold => Setting { elastic: false, ..full },
            Without::LazyPush => Setting { config: Config { gamma: 1, ..config }, ..full },
            Without::ZeroCopy => Setting { copies: true, ..full },
            Without::CacheFriendliness => {
                Setting { config: config.packed_for_messages_of(size)?, ..full }
            }
            Without::HugePages => Setting { huge_pages: false, ..full },
            // As in the paper: the thread is at the wrong node.
            Without::NumaPlacement => Setting { far: true, ..full },
        })
    }

    /// Why this machine cannot show it, if so.
    fn obstacle(self, machine: &Machine) -> Option<&'static str> {
        match self {
            Without::HugePages if !machine.has_huge_pages => {
                Some("no huge pages are set aside: all rows are without (vm.nr_hugepages)")
            }
            Without::NumaPlacement => machine.far,
            _ => None,
        }
    }
}

/// What two of the rows need.
struct Machine {
    has_huge_pages: bool,
    /// Why memory cannot be laid far from a thread.
    far: Option<&'static str>,
}

impl Machine {
    fn look() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let huge: u64 = read("/proc/sys/vm/nr_hugepages").trim().parse().unwrap_or(0);
        Machine { has_huge_pages: huge > 0, far: far::obstacle() }
    }
}

/// A row for one size.
struct Ablated {
    without: Without,
    size: u32,
    per_s: Figure,
    mean_us: Figure,
    p999_us: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &AblationArgs) -> Result<(), Failure> {
    let machine = Machine::look();
    let duration = Duration::from_secs_f64(args.time.duration);
    let mut rows = Vec::new();
    for size in &args.sizes {
        let shown = ROWS.iter().filter(|(without, ..)| without.obstacle(&machine).is_none());
        rows.extend(shown.map(|(without, ..)| Ablated::new(*without, *size)));
    }
    let ended = Frame::begin("ring-ablation", &args.run).run(|stage, doing| {
        for row in &mut rows {
            doing(&format!("{}, {} B", row.name(), row.size));
            row.measure(stage, duration)?;
        }
        Ok(())
    })?;
    let not_measured: Vec<(&str, &str)> = ROWS
        .iter()
        .filter_map(|(without, name, ..)| Some((*name, without.obstacle(&machine)?)))
        .collect();
    ended.tell(
        Some(&claims(&rows)),
        || {
            let missing = not_measured.iter().map(|(name, why)| json!({"row": name, "why": why}));
            json!({
                "rows": rows.iter().map(|row| row.as_json(&rows)).collect::<Vec<_>>(),
                "not_measured": missing.collect::<Vec<_>>(),
            })
        },
        || {
            let cells: Vec<_> = rows.iter().map(|row| row.cells(&rows)).collect();
            let heads = [
                "row",
                "",
                "bytes",
                "Mmsg/s [min … max]",
                "Gbit/s",
                "by M1",
                "paper",
                "mean µs",
                "p99.9 µs",
            ];
            table::print(heads, &cells, 3);
            for (name, why) in &not_measured {
                say!("{name}: {why}");
            }
        },
    );
    Ok(())
}

/// M1 by each of the others: what an optimization brings.
fn claims(rows: &[Ablated]) -> Vec<Row> {
    let others = rows.iter().filter(|row| row.without != Without::Nothing);
    let claims = others.filter_map(|row| {
        let name = format!("M1: messages of {} B", row.size);
        let baseline = Some((row.name(), row.per_s.clone()));
        let ours = row.full(rows)?.per_s.clone();
        Some(Row { name, unit: "/s", ours, baseline, target: Target::None })
    });
    claims.collect()
}

impl Ablated {
    fn new(without: Without, size: u32) -> Ablated {
        let none = Figure::default();
        let [per_s, mean_us, p999_us] = [none.clone(), none.clone(), none];
        Ablated { without, size, per_s, mean_us, p999_us }
    }

    fn measure(&mut self, stage: Stage, duration: Duration) -> Result<(), Failure> {
        let setting = self.without.setting(self.size)?;
        let sample: Sample = rb2::throughput(stage.into(), self.size, setting, duration)?;
        self.per_s.push(sample.per_s());
        let sample = rb2::latency(stage.into(), self.size, setting, duration.min(LATENCY))?;
        self.mean_us.push(sample.mean_us());
        self.p999_us.push(sample.us(99.9));
        Ok(())
    }

    fn row(&self) -> &'static (Without, &'static str, &'static str, [f64; 2]) {
        let row = ROWS.iter().find(|(without, ..)| *without == self.without);
        row.expect("each has its row")
    }

    fn name(&self) -> &'static str {
        self.row().1
    }

    /// The row with all optimizations, of the same size.
    fn full<'a>(&self, rows: &'a [Ablated]) -> Option<&'a Ablated> {
        rows.iter().find(|row| row.without == Without::Nothing && row.size == self.size)
    }

    fn by_full(&self, rows: &[Ablated]) -> f64 {
        let full = self.full(rows).map_or(f64::NAN, |full| full.per_s.median());
        self.per_s.median() / full
    }

    fn by_full_in_paper(&self) -> f64 {
        self.row().3[usize::from(self.size > SHORT)]
    }

    fn gbps(&self) -> f64 {
        self.per_s.median() * f64::from(self.size) * 8.0 / 1e9
    }

    fn as_json(&self, rows: &[Ablated]) -> Value {
        let thousandth = |value: f64| (value * 1e3).round() / 1e3;
        let millionth = |value: f64| (value * 1e6).round() / 1e6;
        let (_, row, what, _) = self.row();
        json!({
            "row": row,
            "what": what,
            "size": self.size,
            "gbps": thousandth(self.gbps()),
            "mmsg_per_s": millionth(self.per_s.median() / 1e6),
            "mmsg_per_s_spread": self.per_s.spread().map(|per_s| millionth(per_s / 1e6)),
            "by_m1": thousandth(self.by_full(rows)),
            "by_m1_in_paper": self.by_full_in_paper(),
            "lat_us": {
                "mean": contract::us(self.mean_us.median()),
                "p999": contract::us(self.p999_us.median()),
            },
        })
    }

    fn cells(&self, rows: &[Ablated]) -> [String; 9] {
        let mut rate = Figure::default();
        let [least, most] = self.per_s.spread();
        [least, self.per_s.median(), most].iter().for_each(|per_s| rate.push(per_s / 1e6));
        let (_, row, what, _) = self.row();
        [
            row.to_string(),
            what.to_string(),
            self.size.to_string(),
            rate.text(),
            number(self.gbps()),
            number(self.by_full(rows)),
            number(self.by_full_in_paper()),
            number(self.mean_us.median()),
            number(self.p999_us.median()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_differs_from_the_full_one_in_its_optimization_alone() {
        let full = Without::Nothing.setting(512).unwrap();
        let changed = |without: Without| {
            let Setting { config, elastic, copies, huge_pages, far, .. } =
                without.setting(512).unwrap();
            let same = full.config;
            [
                config.alpha != same.alpha,
                config.beta != same.beta,
                config.gamma != same.gamma,
                elastic != full.elastic,
                copies != full.copies,
                config.is_packed() != same.is_packed(),
                huge_pages != full.huge_pages,
                far != full.far,
            ]
        };
        let only = |which: &[usize]| std::array::from_fn(|at| which.contains(&at));
        assert_eq!(changed(Without::Batching), only(&[0, 1, 2, 3]));
        assert_eq!(changed(Without::SyncAhead), only(&[1]));
        assert_eq!(changed(Without::ElasticThreshold), only(&[3]));
        assert_eq!(changed(Without::LazyPush), only(&[2]));
        assert_eq!(changed(Without::ZeroCopy), only(&[4]));
        assert_eq!(changed(Without::CacheFriendliness), only(&[5]));
        assert_eq!(changed(Without::HugePages), only(&[6]));
        assert_eq!(changed(Without::NumaPlacement), only(&[7]));
        for (without, ..) in ROWS {
            for size in [512, 1 << 20] {
                assert!(without.setting(size).unwrap().config.check().is_ok());
            }
        }
    }
}
