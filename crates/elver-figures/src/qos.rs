//! `elver bench qos`: what a flood of the low class does to the high one (KRCORE, the earlier
//! version, section 4.7).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use elver_console::Failure;
use elver_console::table::{self, number};
use elver_core::{Class, ConnectOptions, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::{self, Node};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::sample::{Clock, Sample};
use elver_verbs::{Payload, SendFlags, SendOp, SendWr};
use serde_json::json;

use crate::args::{RunArgs, TimeArgs};
use crate::busy::beside;
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};

const PORT: u16 = 7;
/// VQPs of the flood, WRITEs outstanding on each, and their bytes.
const FLOODS: usize = 4;
const FLOOD_DEPTH: u64 = 16;
const FLOOD_BYTES: u32 = 65_536;
/// A READ that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);

/// A row: what is there beside the READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    name: &'static str,
    flood: bool,
    /// Else all are of one class, and no queue pairs are kept for the high one.
    qos: bool,
    /// A third thread takes what it gets of the two cores, as any other program on the machine might.
    busy: bool,
}

/// What the rounds of one gave. READs go one at a time, so that a turn of the third thread is one of thousands: it
/// shows in the last percentile, if anywhere.
struct Beside {
    case: Case,
    figures: Figures,
    p999_us: Figure,
    flood: Figure,
}

const CASES: [Case; 5] = [
    Case { name: "alone", flood: false, qos: true, busy: false },
    Case { name: "qos-on", flood: true, qos: true, busy: false },
    Case { name: "qos-off", flood: true, qos: false, busy: false },
    Case { name: "alone-busy", flood: false, qos: true, busy: true },
    Case { name: "qos-on-busy", flood: true, qos: true, busy: true },
];
/// p99 beside the flood, by p99 alone.
const SLOWER_MAX: f64 = 2.0;

const QOS_EXAMPLES: &str = "\
Examples:
  sudo elver bench qos
      READs of the high class alone, and beside a flood of the low class with QoS on and off; the
      rows \"-busy\" have a third thread beside both ends, which spins and is pinned nowhere";

#[derive(Debug, Args)]
#[command(after_help = QOS_EXAMPLES)]
pub struct QosArgs {
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &QosArgs) -> Result<(), Failure> {
    let mut rows = CASES.map(|case| Beside {
        case,
        figures: Figures::default(),
        p999_us: Figure::default(),
        flood: Figure::default(),
    });
    let duration = Duration::from_secs_f64(args.time.duration);
    let ended = Frame::begin_between_nodes("qos", &args.run)?.run(|stage, doing| {
        for Beside { case, figures, p999_us, flood } in &mut rows {
            doing(case.name);
            let case = *case;
            let measured = || {
                node_pair::run(
                    stage.pair(),
                    &config(case),
                    |_| Ok(()),
                    |_, ()| Ok(()),
                    |node, far| measure(node, far, case, duration),
                )
            };
            let (sample, bytes_per_s) =
                if case.busy { beside(&[None], measured)? } else { measured()? };
            figures.push(&sample);
            p999_us.push(sample.us(99.9));
            flood.push(bytes_per_s / 1e6);
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows.each_ref().map(|row| &row.figures))),
        || {
            let rows = rows.iter().map(|Beside { case, figures, p999_us, flood }| {
                json!({
                    "name": case.name,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                    "p999_us": contract::us(p999_us.median()),
                    "ops_per_s": figures.per_s.median().round(),
                    "flood_mb_per_s": contract::us(flood.median()),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>()})
        },
        || {
            let rows = rows.each_ref().map(|Beside { case, figures, p999_us, flood }| {
                let (p50, p99) = (figures.p50_us.text(), figures.p99_us.text());
                let (p999, flood) = (number(p999_us.median()), number(flood.median()));
                [case.name.to_string(), p50, p99, p999, flood]
            });
            let heads =
                ["8 B READ", "p50 µs [min … max]", "p99 µs [min … max]", "p99.9 µs", "flood MB/s"];
            table::print(heads, &rows, 1);
        },
    );
    Ok(())
}

/// Without QoS there are no reserved QPs and no rate. RC QPs are left out: they are a peer's alone.
fn config(case: Case) -> Config {
    let mut config = Config::default();
    config.transfer.rc_qps_max = 0;
    if !case.qos {
        config.qos.high_dc_qps = 0;
    }
    config
}

/// READs one at a time, and the flood beside; with the bytes a second that it moved.
fn measure(node: &mut Node, far: &Far, case: Case, duration: Duration) -> Result<(Sample, f64)> {
    // Without QoS all are of one class.
    let class = if case.qos { Class::High } else { Class::Low };
    let vqp = node.vqp(VqpInit { class, ..VqpInit::default() })?;
    node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
    let floods = if case.flood { FLOODS } else { 0 };
    let mut flood: Vec<VqpId> = Vec::new();
    for _ in 0..floods {
        let vqp = node.vqp(VqpInit { class: Class::Low, ..VqpInit::default() })?;
        node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
        flood.push(vqp);
    }
    let near = node.region(u64::from(FLOOD_BYTES))?;
    let (read_sges, flood_sges) = ([near.sge(8)], [near.sge(FLOOD_BYTES)]);
    let wr = |op, sges| SendWr {
        wr_id: 0,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(sges),
        dest: None,
    };
    let read = wr(SendOp::Read(far.remote), &read_sges);
    let write = wr(SendOp::Write(far.remote), &flood_sges);
    for vqp in &flood {
        for _ in 0..FLOOD_DEPTH {
            node.post(*vqp, &[write])?;
        }
    }
    let mut sample = Sample::new()?;
    let mut clock = Clock::new(duration);
    let mut completions = node::blank::<32>();
    let (mut moved, began) = (0u64, Instant::now());
    while clock.goes_on(&mut sample) {
        let since = Instant::now();
        node.post(vqp, &[read])?;
        let mut done = false;
        while !done {
            let found = node.take(&mut completions);
            for completion in &completions[..found] {
                node::succeeded(completion)?;
                if completion.vqp == vqp {
                    sample.record(since.elapsed());
                    done = true;
                } else {
                    moved += u64::from(FLOOD_BYTES);
                    node.post(completion.vqp, &[write])?;
                }
            }
            ensure!(since.elapsed() < STALL, "a READ did not end within {STALL:?}");
        }
    }
    clock.finish(&mut sample);
    Ok((sample, moved as f64 / began.elapsed().as_secs_f64()))
}

fn claims(figures: &[&Figures; 5]) -> Vec<Row> {
    let [alone, on, off, alone_busy, on_busy] = figures.map(|figures| figures.p99_us.clone());
    let row = |name: &str, ours, baseline, target| Row {
        name: name.into(),
        unit: "µs",
        ours,
        baseline: Some(baseline),
        target,
    };
    let most = Target::AtMost(SLOWER_MAX);
    vec![
        row("p99 with QoS / alone", on.clone(), ("alone", alone), most),
        row("p99 with QoS / alone, a busy thread beside", on_busy, ("alone", alone_busy), most),
        row("p99 without QoS / with", off, ("with QoS", on), Target::None),
    ]
}
