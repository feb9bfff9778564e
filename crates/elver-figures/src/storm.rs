//! `elver bench storm`: many connects at once to one node. All must finish, and in the order in
//! which they began; the benchmark fails otherwise.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, say};
use elver_core::{ConnectOptions, Policy, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::Node;
use elver_testbed::node_pair::{self, Far};
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::{RunArgs, Stage};
use crate::host::Host;
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::Figure;

const PORT: u16 = 7;
/// A storm that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);
/// Depth of a VQP in a storm: many QPs of the rivals stand at once.
const DEPTH: u32 = 16;

/// What storms, and how.
const WAYS: [(&str, ConnectOptions); 3] = [
    ("verbs", ConnectOptions { policy: Policy::Leased, uncached: false }),
    ("lite", ConnectOptions { policy: Policy::Lite, uncached: false }),
    ("vqp-uncached", ConnectOptions { policy: Policy::Shared, uncached: true }),
];

/// Figures of a row, over the rounds.
struct Row {
    name: &'static str,
    p50_us: Figure,
    p99_us: Figure,
    total_us: Figure,
}

impl Row {
    fn new(name: &'static str) -> Row {
        let [p50_us, p99_us, total_us] = Default::default();
        Row { name, p50_us, p99_us, total_us }
    }

    fn push(&mut self, (sample, total): &(Sample, Duration)) {
        self.p50_us.push(sample.us(50.0));
        self.p99_us.push(sample.us(99.0));
        self.total_us.push(total.as_secs_f64() * 1e6);
    }
}

const STORM_EXAMPLES: &str = "\
Examples:
  elver bench storm --clients 240
      240 connects at once to one node: all finish, and how late the last do";

#[derive(Debug, Args)]
#[command(after_help = STORM_EXAMPLES)]
pub struct StormArgs {
    /// Connects at once.
    #[arg(long, default_value_t = 240, value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) clients: u32,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &StormArgs, programs: &Programs) -> Result<(), Failure> {
    let frame = Frame::begin("storm", &args.run);
    let mut rows: Vec<Row> = Vec::new();
    if frame.stage != Stage::Host {
        rows.extend(WAYS.map(|(name, _)| Row::new(name)));
    }
    let mut processes = Row::new("first-connect");
    let ended = frame.run(|stage, doing| {
        for (row, (name, options)) in rows.iter_mut().zip(WAYS) {
            doing(name);
            row.push(&node_pair::run(
                stage.pair(),
                &Config::default(),
                |_| Ok(()),
                |_, ()| Ok(()),
                |node, far| connects(node, far, options, args.clients),
            )?);
        }
        doing(processes.name);
        processes.push(&Host::start(programs, false)?.firsts_at_once(args.clients)?);
        Ok(())
    })?;
    rows.push(processes);
    ended.tell(
        None,
        || {
            let rows = rows.iter().map(|row| {
                json!({
                    "name": row.name,
                    "p50_us": contract::us(row.p50_us.median()),
                    "p99_us": contract::us(row.p99_us.median()),
                    "total_us": contract::us(row.total_us.median()),
                    "clients": args.clients,
                })
            });
            json!({"rows": rows.collect::<Vec<_>>()})
        },
        || {
            let title = format!("{} at once", args.clients);
            let rows = rows.iter().map(|row| {
                let [p50, p99] = [&row.p50_us, &row.p99_us].map(|figure| number(figure.median()));
                [row.name.to_string(), p50, p99, row.total_us.text()]
            });
            let heads = [&title, "p50 µs", "p99 µs", "until the last, µs [min … max]"];
            table::print(heads, &rows.collect::<Vec<_>>(), 1);
            say!("\nAll of them ended, the connects of a node in the order in which they began.");
        },
    );
    Ok(())
}

/// All connects begin in one go.
fn connects(
    node: &mut Node,
    far: &Far,
    options: ConnectOptions,
    clients: u32,
) -> Result<(Sample, Duration)> {
    let init = VqpInit { max_send_wr: DEPTH, ..VqpInit::default() };
    let vqps: Vec<VqpId> = (0..clients).map(|_| node.vqp(init)).collect::<Result<_>>()?;
    let mut sample = Sample::new()?;
    // The meta server has an RC QP to everybody, which LITE would share.
    let gid = if options.policy == Policy::Leased { far.meta } else { far.idle };
    let start = Instant::now();
    for &vqp in &vqps {
        let begun = node.begin_connect(vqp, gid, PORT, options)?;
        ensure!(begun.is_none(), "a connect that should have asked did not");
    }
    let mut ended = Vec::with_capacity(vqps.len());
    while ended.len() < vqps.len() {
        node.poll();
        while let Some((vqp, result)) = node.next_connected() {
            result?;
            sample.record(start.elapsed());
            ended.push(vqp);
        }
        let left = vqps.len() - ended.len();
        ensure!(start.elapsed() < STALL, "{left} connects did not end within {STALL:?}");
    }
    let total = start.elapsed();
    // Handshakes under way side by side may overtake each other by what is under way at once.
    let together = node.handshakes_at_once();
    let late = ended.iter().enumerate().all(|(at, vqp)| {
        let began = vqps.iter().position(|other| other == vqp).unwrap_or(0);
        began < at + together
    });
    ensure!(late, "connects ended in another order than they began");
    Ok((sample, total))
}
