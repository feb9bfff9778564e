//! `elver bench rnic`: the claims of docs/performance.md.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, Progress, say};
use elver_perf::device::{DeviceArgs, IdleMode};
use elver_perf::perf::{self, Load, Mode, Op, Transport, connect_by_hand};
use elver_soft::{SoftConfig, SoftDevice, UDP_PORT};
use elver_testbed::pair::Placement;
use elver_testbed::seat::pin;
use serde_json::json;

use crate::args::seconds;
use crate::baseline;
use crate::report::machine::Watch;
use crate::report::rows::{self, Figure, Row, Target};

/// Bytes of an 8-byte READ's request, from the BTH to the ICRC: what the ping-pong sends.
const READ_REQUEST_BYTES: usize = 12 + 16 + 4;
/// Bytes of a 64-byte WRITE's packet.
const WRITE_PACKET_BYTES: usize = 12 + 16 + 64 + 4;
/// Shares of packets dropped for the table of goodput, in percent.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];
/// Message sizes of that table.
const LOSS_SIZES: [u32; 3] = [4096, 65_536, 1 << 20];

const EXAMPLES: &str = "\
Examples:
  elver bench rnic
      the device against bare UDP, sendto and TCP, in the same run
  elver bench rnic --json
      the same as an object for a script";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RnicArgs {
    /// Repetitions of each measurement, ours and the baseline's in turn.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub(crate) duration: f64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures and prints.
pub(crate) fn run(args: &RnicArgs) -> Result<(), Failure> {
    let root = rustix::process::geteuid().is_root();
    let placement = if root { Placement::Netns } else { Placement::Loopback };
    let watch = Watch::begin();
    let progress = Progress::begin();
    progress.doing("one process");
    let mut rows = in_process(args)?;
    rows.extend(between_hosts(args, placement, &progress)?);
    rows.push(set_up(args)?);
    progress.doing("goodput under loss");
    let goodput = goodput(args, placement)?;
    drop(progress);
    let machine = watch.end();
    if args.json {
        let mut object = json!({
            "bench": "rnic",
            "placement": placement,
            "rounds": args.rounds,
            "rows": rows.iter().map(Row::as_json).collect::<Vec<_>>(),
            "goodput": goodput.iter().map(|(loss, size, gbps)| {
                json!({"loss_percent": loss, "size": size, "gbps": gbps})
            }).collect::<Vec<_>>(),
        });
        machine.tell(&mut object);
        say!("{object}");
        return Ok(());
    }
    let between = format!("{placement:?}").to_lowercase();
    machine.print(&format!(
        "rounds: {}, of {} s; between hosts: {between}",
        args.rounds, args.duration
    ));
    rows::print("claim", &rows);
    let [none, little, some, much] = LOSSES.map(|loss| format!("{loss} %"));
    let row = |size: u32| {
        let of = |loss: f64| goodput.iter().find(|row| (row.0, row.1) == (loss, size));
        let [none, little, some, much] =
            LOSSES.map(|loss| of(loss).map_or(String::new(), |row| number(row.2)));
        [format!("{size} B"), none, little, some, much]
    };
    let title = "goodput of WRITEs in Gbit/s, packets lost:";
    let heads = [title, none.as_str(), little.as_str(), some.as_str(), much.as_str()];
    table::print(heads, &LOSS_SIZES.map(row), 1);
    Ok(())
}

fn load(op: Op, transport: Transport, size: u32, mode: Mode, args: &RnicArgs) -> Load {
    let (depth, batch) = match (mode, size) {
        (Mode::Sync, _) => (1, 1),
        (Mode::Async, 0..=4096) => (512, 64),
        (Mode::Async, _) => (16, 1),
    };
    Load {
        op,
        transport,
        size,
        mode,
        depth,
        batch,
        duration: args.duration,
        mtu: None,
        is_told: false,
    }
}

fn device(loss: f64) -> DeviceArgs {
    DeviceArgs { idle: IdleMode::Spin, no_offload: false, loss, udp_port: UDP_PORT }
}

fn measure(load: &Load, placement: Placement, loss: f64) -> Result<perf::Measured, Failure> {
    perf::measure_pair(load, placement, &device(loss), None)?.whole()
}

/// One address space, 8 bytes.
fn in_process(args: &RnicArgs) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for op in [Op::Read, Op::Write] {
        let mut latency = [Figure::default(), Figure::default()];
        let mut rate = [Figure::default(), Figure::default()];
        for _ in 0..args.rounds {
            for (index, transport) in [Transport::Rc, Transport::Dc].into_iter().enumerate() {
                let sync = load(op, transport, 8, Mode::Sync, args);
                let measured = measure(&sync, Placement::Process, 0.0)?;
                latency[index].push(measured.latency_us(50.0));
                let many = load(op, transport, 8, Mode::Async, args);
                rate[index].push(measure(&many, Placement::Process, 0.0)?.ops_per_s() / 1e6);
            }
        }
        for (index, transport) in ["RC", "DC"].into_iter().enumerate() {
            rows.push(Row {
                name: format!("one process, {transport} {op:?} 8 B, sync p50"),
                unit: "µs",
                ours: latency[index].clone(),
                baseline: None,
                target: Target::AtMost(0.25),
            });
            rows.push(Row {
                name: format!("one process, {transport} {op:?} 8 B, async"),
                unit: "M/s",
                ours: rate[index].clone(),
                baseline: None,
                target: Target::AtLeast(8.0),
            });
        }
        let [rc, dc] = rate;
        rows.push(Row {
            name: format!("one process, DC {op:?} against RC, async"),
            unit: "M/s",
            ours: dc,
            baseline: Some(("RC", rc)),
            target: Target::AtLeast(0.85),
        });
    }
    Ok(rows)
}

/// Two namespaces, or two loopback addresses without root.
fn between_hosts(
    args: &RnicArgs,
    placement: Placement,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    let duration = Duration::from_secs_f64(args.duration);
    let mut figures: [Figure; 9] = Default::default();
    for number in 1..=args.rounds {
        progress.doing(&format!("between hosts, round {number} of {}", args.rounds));
        let [read, dc_read, ping, writes, singles, sendto, large, tcp, send] = &mut figures;
        let sync = load(Op::Read, Transport::Rc, 8, Mode::Sync, args);
        read.push(measure(&sync, placement, 0.0)?.latency_us(50.0));
        ping.push(baseline::udp_ping_pong(placement, READ_REQUEST_BYTES, duration)?);
        let dc = load(Op::Read, Transport::Dc, 8, Mode::Sync, args);
        dc_read.push(measure(&dc, placement, 0.0)?.latency_us(50.0));
        let sends = load(Op::Send, Transport::Rc, 8, Mode::Sync, args);
        send.push(measure(&sends, placement, 0.0)?.latency_us(50.0));

        let many = load(Op::Write, Transport::Rc, 64, Mode::Async, args);
        writes.push(measure(&many, placement, 0.0)?.ops_per_s() / 1e6);
        let single = Load { batch: 1, ..many };
        singles.push(measure(&single, placement, 0.0)?.ops_per_s() / 1e6);
        sendto.push(baseline::udp_rate(placement, WRITE_PACKET_BYTES, duration)? / 1e6);

        let bulk = load(Op::Write, Transport::Rc, 1 << 20, Mode::Async, args);
        large.push(measure(&bulk, placement, 0.0)?.gbps(bulk.size));
        tcp.push(baseline::tcp_stream(placement, duration)?);
    }
    let [read, dc_read, ping, writes, singles, sendto, large, tcp, send] = figures;
    let row = |name: &str, unit, ours, baseline, target| Row {
        name: name.into(),
        unit,
        ours,
        baseline: Some(baseline),
        target,
    };
    let (udp, bare) = ("UDP ping-pong", "sendto");
    Ok(vec![
        row("RC READ 8 B, sync p50", "µs", read, (udp, ping.clone()), Target::AtMost(1.25)),
        row("DC READ 8 B, sync p50", "µs", dc_read, (udp, ping.clone()), Target::None),
        row("RC SEND 8 B, sync p50", "µs", send, (udp, ping), Target::None),
        row("RC WRITE 64 B, async", "M/s", writes, (bare, sendto.clone()), Target::AtLeast(8.0)),
        row("RC WRITE 64 B, async, batches of one", "M/s", singles, (bare, sendto), Target::None),
        row("RC WRITE 1 MB, async", "Gbit/s", large, ("TCP stream", tcp), Target::AtLeast(1.5)),
    ])
}

/// Creating and connecting an RC QP pair by hand.
fn set_up(args: &RnicArgs) -> Result<Row, Failure> {
    pin(0);
    let mut config = SoftConfig::for_address([127, 78, 0, 1].into());
    config.publish = false;
    let mut device = SoftDevice::open(config)?;
    let mut ours = Figure::default();
    for _ in 0..args.rounds {
        ours.push(connect_by_hand(&mut device)?);
    }
    Ok(Row {
        name: "creating and connecting an RC QP pair".into(),
        unit: "µs",
        ours,
        baseline: None,
        target: Target::AtMost(20.0),
    })
}

/// Gbit/s of WRITEs by share of packets lost and message size.
fn goodput(args: &RnicArgs, placement: Placement) -> Result<Vec<(f64, u32, f64)>, Failure> {
    let mut table = Vec::new();
    for size in LOSS_SIZES {
        for loss in LOSSES {
            let mut figure = Figure::default();
            for _ in 0..args.rounds.min(3) {
                let bulk = load(Op::Write, Transport::Rc, size, Mode::Async, args);
                figure.push(measure(&bulk, placement, loss)?.gbps(size));
            }
            table.push((loss, size, figure.median()));
        }
    }
    Ok(table)
}
