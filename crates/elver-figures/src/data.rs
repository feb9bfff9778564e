//! `elver bench data`: what a VQP costs beside a plain QP of the same transport (KRCORE, figures 10,
//! 11, 13).

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use elver_console::{Failure, table};
use elver_core::Via;
use elver_node::config::Config;
use elver_perf::device::{DeviceArgs, IdleMode};
use elver_perf::perf::{self, Load, Mode, Op, Transport};
use elver_soft::UDP_PORT;
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use elver_testbed::worker::OFFERED;
use elver_verbs::SendOp;
use serde_json::json;

use crate::args::{DataOp, RunArgs, Stage, TimeArgs, wants};
use crate::host::{self, Host};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;
use crate::report::rows::{Row, Target};
use crate::vqp_load::{self, VqpLoad};
use crate::window::Window;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    name: &'static str,
    op: DataOp,
    mode: Mode,
    size: u32,
}

impl Key {
    fn words(&self) -> [String; 2] {
        [format!("{:?}", self.op), format!("{:?}", self.mode)].map(|word| word.to_lowercase())
    }

    fn text(&self) -> String {
        let [op, mode] = self.words();
        format!("{} {op} {} B, {mode}", self.name, self.size)
    }
}

/// What backs the QP that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Rc,
    Dc,
}

impl Backing {
    const ALL: [Backing; 2] = [Backing::Rc, Backing::Dc];

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Backing::Rc => ("raw-rc", "vqp-rc"),
            Backing::Dc => ("raw-dc", "vqp-dc"),
        }
    }

    fn transport(self) -> Transport {
        match self {
            Backing::Rc => Transport::Rc,
            Backing::Dc => Transport::Dc,
        }
    }

    /// A node whose VQPs are backed by this alone.
    fn config(self) -> Config {
        let mut config = Config::default();
        if self == Backing::Dc {
            config.transfer.rc_qps_max = 0;
        }
        config
    }

    fn backs(self, via: Via) -> bool {
        match self {
            Backing::Rc => via == Via::Rc,
            Backing::Dc => matches!(via, Via::DcCached | Via::DcLookup),
        }
    }
}

#[derive(Default)]
struct Table(Vec<(Key, Figures)>);

impl Table {
    fn push(&mut self, key: Key, sample: &Sample) {
        match self.0.iter_mut().find(|row| row.0 == key) {
            Some(row) => row.1.push(sample),
            None => {
                let mut figures = Figures::default();
                figures.push(sample);
                self.0.push((key, figures));
            }
        }
    }

    fn find(&self, key: Key) -> Option<&Figures> {
        self.0.iter().find(|row| row.0 == key).map(|row| &row.1)
    }
}

/// Rows of `bench data`.
const DATA_ROWS: [&str; 4] = ["raw-rc", "raw-dc", "vqp-rc", "vqp-dc"];

const DATA_EXAMPLES: &str = "\
Examples:
  sudo elver bench data
      READ, WRITE and SEND through VQPs beside plain QPs on the same kind of device
  sudo elver bench data --ops read --sizes 8,64,1024,65536,1048576 --modes sync
      the slowdown by message size (KRCORE, figure 13)
  elver bench data --placement host
      a client process, the daemon, and memory of another process, or one that takes messages";

#[derive(Debug, Args)]
#[command(after_help = DATA_EXAMPLES)]
pub struct DataArgs {
    /// Operations.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read,write,send")]
    pub(crate) ops: Vec<DataOp>,
    /// One at a time for latency, or many for rate.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sync,async")]
    pub(crate) modes: Vec<Mode>,
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sizes: Vec<u32>,
    /// Only these rows.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(DATA_ROWS))]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl DataArgs {
    /// Whether a row is wanted.
    fn wants(&self, row: &str) -> bool {
        wants(&self.only, row)
    }
}

/// Measures and prints.
pub(crate) fn run(args: &DataArgs, programs: &Programs) -> Result<(), Failure> {
    let mut table = Table::default();
    let ended = Frame::begin("data", &args.run)
        .run(|stage, doing| round(programs, stage, args, &mut table, doing))?;
    let claims = match ended.stage() {
        // On one host plain QPs are of two devices, and stand there for what a daemon saves.
        Stage::Host => claims_on_host(&table),
        Stage::Netns | Stage::Loopback => claims(&table),
    };
    ended.tell(
        Some(&claims),
        || {
            let rows = table.0.iter().map(|(key, figures)| {
                json!({
                    "name": key.name,
                    "op": key.op,
                    "mode": key.mode,
                    "size": key.size,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                    "ops_per_s": figures.per_s.median().round(),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>()})
        },
        || {
            let rows = table.0.iter().map(|(key, figures)| {
                let [p50, p99, per_s] = figures.texts();
                let [op, mode] = key.words();
                [key.name.to_string(), op, mode, key.size.to_string(), p50, p99, per_s]
            });
            let heads =
                ["QP", "op", "mode", "bytes", "p50 µs [min … max]", "p99 µs", "operations/s"];
            table::print(heads, &rows.collect::<Vec<_>>(), 3);
        },
    );
    Ok(())
}

fn claims_on_host(table: &Table) -> Vec<Row> {
    let claim = |name| {
        let figures = table.find(Key { name, op: DataOp::Read, mode: Mode::Sync, size: 8 })?;
        Some(Row {
            name: format!("{name}: 8 B READ between processes"),
            unit: "µs",
            ours: figures.p50_us.clone(),
            baseline: None,
            target: Target::AtMost(1.5),
        })
    };
    ["vqp-rc", "vqp-dc"].into_iter().filter_map(claim).collect()
}

/// Every row once, a plain QP and a VQP of a transport in turn.
fn round(
    programs: &Programs,
    stage: Stage,
    args: &DataArgs,
    table: &mut Table,
    doing: &dyn Fn(&str),
) -> Result<(), Failure> {
    for &op in &args.ops {
        for &mode in &args.modes {
            for &size in &args.sizes {
                for backing in Backing::ALL {
                    let (raw, vqp) = backing.names();
                    let key = |name| Key { name, op, mode, size };
                    let duration = args.time.duration;
                    if args.wants(raw) {
                        doing(&key(raw).text());
                        table.push(key(raw), &measure_raw(stage, backing, key(raw), duration)?);
                    }
                    if args.wants(vqp) {
                        doing(&key(vqp).text());
                        table.push(
                            key(vqp),
                            &measure_vqp(programs, stage, backing, key(vqp), duration)?,
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Operations outstanding, and those of one call.
fn depth_and_batch(mode: Mode, size: u32) -> (u32, u32) {
    match (mode, size) {
        (Mode::Sync, _) => (1, 1),
        (Mode::Async, 0..=4096) => (512, 64),
        (Mode::Async, _) => (16, 1),
    }
}

/// A QP that a process has for itself, as a program with verbs makes it.
fn measure_raw(stage: Stage, backing: Backing, key: Key, seconds: f64) -> Result<Sample, Failure> {
    let (depth, batch) = depth_and_batch(key.mode, key.size);
    let op = match key.op {
        DataOp::Read => Op::Read,
        DataOp::Write => Op::Write,
        DataOp::Send => Op::Send,
    };
    let load = Load {
        op,
        transport: backing.transport(),
        size: key.size,
        mode: key.mode,
        depth,
        batch,
        duration: seconds,
        mtu: None,
        is_told: false,
    };
    let device =
        DeviceArgs { idle: IdleMode::Spin, no_offload: false, loss: 0.0, udp_port: UDP_PORT };
    Sample::try_from(perf::measure_pair(&load, stage.pair(), &device, None)?)
}

/// Through a daemon to another process of the host. The node reaches itself over DC, or over an RC
/// QP of the pool, which both of its ends are on.
fn measure_host(
    programs: &Programs,
    backing: Backing,
    key: Key,
    window: Window,
) -> Result<Sample, Failure> {
    let host = Host::start(programs, true)?;
    let (_sink, to) = match key.op {
        DataOp::Read | DataOp::Write => (None, host.client.to),
        DataOp::Send => {
            let (sink, known) = host.sink()?;
            (Some(sink), known)
        }
    };
    let policy = match backing {
        Backing::Rc => elver::Policy::Lite,
        Backing::Dc => elver::Policy::Shared,
    };
    Ok(host.client.run(|session, _| {
        let (vqp, near, via) = host::ready(session, &to, key.size, window.depth, policy)?;
        ensure!(backing.backs(via), "{} is backed by {via:?}", key.name);
        let op = match key.op {
            DataOp::Read => SendOp::Read(to.remote(0)),
            DataOp::Write => SendOp::Write(to.remote(OFFERED / 2)),
            DataOp::Send => SendOp::Send,
        };
        host::post_and_poll(&vqp, &near, op, key.size, window)
    })?)
}

fn measure_vqp(
    programs: &Programs,
    stage: Stage,
    backing: Backing,
    key: Key,
    seconds: f64,
) -> Result<Sample, Failure> {
    let (depth, batch) = depth_and_batch(key.mode, key.size);
    let window = Window { depth, batch, duration: Duration::from_secs_f64(seconds) };
    if stage == Stage::Host {
        return measure_host(programs, backing, key, window);
    }
    let load = VqpLoad { op: key.op, size: key.size, window };
    let check = |via| {
        ensure!(backing.backs(via), "{} is backed by {via:?}", key.name);
        Ok(())
    };
    vqp_load::measure(stage.pair(), &backing.config(), &load, backing == Backing::Rc, check)
}

/// What the rate of a VQP is to be, of a plain QP's, for 8 bytes; over DC by 0.05 less will do.
fn rate_promised(op: DataOp, backing: Backing) -> f64 {
    match (op, backing) {
        (DataOp::Read, Backing::Rc) => 0.98,
        (DataOp::Read, Backing::Dc) => 0.93,
        (DataOp::Write, Backing::Rc) => 0.95,
        (DataOp::Write, Backing::Dc) => 0.90,
        (DataOp::Send, Backing::Rc) => 0.90,
        (DataOp::Send, Backing::Dc) => 0.85,
    }
}

/// READs a second, of WRITEs, for 8 bytes: as many as may be under way must be.
const READS_PER_WRITE: f64 = 0.6;

/// What the ratios should be: of the latency in sync mode, of the rate in async mode.
fn claims(table: &Table) -> Vec<Row> {
    let mut claims = Vec::new();
    for (key, ours) in table.0.iter().filter(|(key, _)| key.name.starts_with("vqp")) {
        let backing = if key.name == "vqp-rc" { Backing::Rc } else { Backing::Dc };
        let (raw, _) = backing.names();
        let Some(baseline) = table.find(Key { name: raw, ..*key }) else { continue };
        // What is promised is promised for 8 bytes, and of latency for READs; the rest is for reference.
        let (unit, ours, baseline, target) = match key.mode {
            Mode::Sync => {
                let is_read = key.op == DataOp::Read;
                let target = if is_read { Target::AtMost(1.10) } else { Target::None };
                ("µs", &ours.p50_us, &baseline.p50_us, target)
            }
            Mode::Async => {
                let least = Target::AtLeast(rate_promised(key.op, backing));
                ("/s", &ours.per_s, &baseline.per_s, least)
            }
        };
        claims.push(Row {
            name: key.text(),
            unit,
            ours: ours.clone(),
            baseline: Some((raw, baseline.clone())),
            target: if key.size == 8 { target } else { Target::None },
        });
    }
    let reads = table.0.iter().filter_map(|(key, reads)| {
        let write = Key { op: DataOp::Write, ..*key };
        let is_claimed = (key.op, key.mode, key.size) == (DataOp::Read, Mode::Async, 8);
        let writes = table.find(write).filter(|_| is_claimed)?;
        Some(Row {
            name: format!("{} read / write 8 B, async", key.name),
            unit: "/s",
            ours: reads.per_s.clone(),
            baseline: Some(("write", writes.per_s.clone())),
            target: Target::AtLeast(READS_PER_WRITE),
        })
    });
    claims.extend(reads);
    claims
}
