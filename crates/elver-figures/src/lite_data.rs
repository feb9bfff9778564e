//! `elver bench lite`: LITE's data path beside VQPs, by the number of threads (KRCORE, figure 15b).
//!
//! LITE gives all threads of a node one RC QP to another node, posts to it without any check, and
//! does not look whether there is room. Its send queue has 292 entries (KRCORE, section 2.3.2), and
//! KRCORE saw it fail with more than six threads; so a thread here has 48 READs under way, of which
//! six fit. All threads are one here, in turn: there are two cores.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::{Args, value_parser};
use elver_console::Failure;
use elver_console::table::{self, number};
use elver_core::{ConnectOptions, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::{self, Node};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::pair::{self, Placement};
use elver_testbed::sample::{Clock, Sample};
use elver_verbs::{Device, Payload, SendFlags, SendOp, SendWr, Wc, WcStatus};
use serde_json::json;

use crate::args::{RunArgs, TimeArgs};
use crate::bare::{Bare, Desk};
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::Figure;

const EXAMPLES: &str = "\
Examples:
  sudo elver bench lite
      READs of 64 bytes by up to 12 threads over LITE's shared QP, and through VQPs
  elver bench lite --threads 6,7 --placement loopback --rounds 1";

/// Bytes of a READ.
const BYTES: u32 = 64;
/// Entries of LITE's send queue.
const LITE_SQ: u32 = 292;
/// READs that a thread has under way, async.
const WINDOW: usize = 48;
const PORT: u16 = 7;
/// A READ that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["lite", "vqp-rc", "vqp-dc"];

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LiteArgs {
    /// Threads that share the node's connection.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,6,7,12", value_parser = value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

struct LiteRow {
    name: &'static str,
    threads: u32,
    /// READs of each thread under way.
    window: usize,
    p50_us: Figure,
    per_s: Figure,
    failed: Option<String>,
}

/// READs that went well, or what LITE came to.
type Outcome = Result<Sample, String>;

/// Measures and prints.
pub(crate) fn run(args: &LiteArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for window in [1, WINDOW] {
        for &threads in &args.threads {
            let row = |name| {
                let [p50_us, per_s] = Default::default();
                LiteRow { name, threads, window, p50_us, per_s, failed: None }
            };
            rows.extend(NAMES.map(row));
        }
    }
    let duration = Duration::from_secs_f64(args.time.duration);
    let ended = Frame::begin_between_nodes("lite", &args.run)?.run(|stage, doing| {
        for row in &mut rows {
            doing(&format!("{}, {} threads", row.name, row.threads));
            let (threads, window) = (row.threads as usize, row.window);
            let outcome = match row.name {
                "lite" => shared(stage.pair(), threads, window, duration)?,
                name => Ok(vqps(stage.pair(), name == "vqp-rc", threads, window, duration)?),
            };
            match outcome {
                Ok(sample) => {
                    row.p50_us.push(sample.us(50.0));
                    row.per_s.push(sample.per_s());
                }
                Err(failed) => row.failed = Some(failed),
            }
        }
        Ok(())
    })?;
    let mode = |row: &LiteRow| if row.window == 1 { "sync" } else { "async" };
    ended.tell(
        None,
        || {
            let rows = rows.iter().map(|row| {
                let told = row.failed.is_none();
                json!({
                    "name": row.name,
                    "mode": mode(row),
                    "threads": row.threads,
                    "window": row.window,
                    "p50_us": told.then(|| contract::us(row.p50_us.median())),
                    "ops_per_s": told.then(|| row.per_s.median().round()),
                    "failed": row.failed,
                })
            });
            json!({"rows": rows.collect::<Vec<_>>(), "send_queue": LITE_SQ})
        },
        || {
            let rows = rows.iter().map(|row| {
                let (p50, per_s) = match &row.failed {
                    Some(failed) => ("-".to_string(), failed.clone()),
                    None => (row.p50_us.text(), number(row.per_s.median())),
                };
                [row.name.into(), mode(row).into(), row.threads.to_string(), p50, per_s]
            });
            let heads = ["64 B READ", "", "threads", "p50 µs [min … max]", "READs/s"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
        },
    );
    Ok(())
}

/// All threads over one QP, as LITE's.
fn shared(
    placement: Placement,
    threads: usize,
    window: usize,
    duration: Duration,
) -> Result<Outcome, Failure> {
    let desk = Desk::default();
    let (_, outcome) = pair::run(
        placement,
        |end, client| {
            let mut bare = Bare::open(end.own, 16, 16, &desk, 1, || client.begin())?;
            while !client.is_gone() {
                bare.device.poll_cq(bare.cq, &mut [Wc::default()])?;
            }
            Ok(())
        },
        |end| {
            let mut bare = Bare::open(end.own, LITE_SQ, 16, &desk, 0, || {})?;
            read_over(&mut bare, threads, window, duration)
        },
    )?;
    Ok(outcome)
}

fn read_over(
    bare: &mut Bare,
    threads: usize,
    window: usize,
    duration: Duration,
) -> Result<Outcome> {
    let sges = [bare.sge(BYTES)];
    let mut sample = Sample::of_batches(window)?;
    let mut posted_at = vec![Instant::now(); threads];
    let mut idle: Vec<usize> = (0..threads).collect();
    let mut clock = Clock::new(duration);
    let mut last = Instant::now();
    while clock.goes_on(&mut sample) {
        for thread in idle.drain(..) {
            posted_at[thread] = Instant::now();
            let wrs = batch(window, thread as u64, SendOp::Read(bare.remote), &sges);
            if let Err((_, error)) = bare.device.post_send(bare.qp, &wrs) {
                // A NIC that is not asked whether there is room is in error from here on.
                return Ok(Err(format!("{threads} threads: {error}")));
            }
        }
        let mut wcs = [Wc::default(); 16];
        let found = bare.device.poll_cq(bare.cq, &mut wcs)?;
        if found > 0 {
            last = Instant::now();
        }
        ensure!(last.elapsed() < STALL, "a READ did not end within {STALL:?}");
        for wc in &wcs[..found] {
            ensure!(wc.status == WcStatus::Success, "a READ failed: {}", wc.status);
            sample.record(last - posted_at[wc.wr_id as usize]);
            idle.push(wc.wr_id as usize);
        }
    }
    clock.finish(&mut sample);
    Ok(Ok(sample))
}

/// Each thread has a VQP; all of them share what the node has.
fn vqps(
    placement: Placement,
    rc: bool,
    threads: usize,
    window: usize,
    duration: Duration,
) -> Result<Sample, Failure> {
    let mut config = Config::default();
    if !rc {
        config.transfer.rc_qps_max = 0;
    }
    let run = |node: &mut Node, far: &Far| {
        if rc {
            node.link_to(far.meta, PORT)?;
        }
        let vqps = (0..threads).map(|_| {
            let vqp = node.vqp(VqpInit::default())?;
            let via = node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
            ensure!((via == Via::Rc) == rc, "a VQP is backed by {via:?}");
            Ok(vqp)
        });
        let vqps: Vec<VqpId> = vqps.collect::<Result<_>>()?;
        read_through(node, far, &vqps, window, duration)
    };
    node_pair::run(placement, &config, |_| Ok(()), |_, ()| Ok(()), run)
}

fn read_through(
    node: &mut Node,
    far: &Far,
    vqps: &[VqpId],
    window: usize,
    duration: Duration,
) -> Result<Sample> {
    let near = node.region(u64::from(BYTES))?;
    let sges = [near.sge(BYTES)];
    let mut sample = Sample::of_batches(window)?;
    let mut posted_at = vec![Instant::now(); vqps.len()];
    let mut idle: Vec<usize> = (0..vqps.len()).collect();
    let mut completions = node::blank::<16>();
    let mut clock = Clock::new(duration);
    let mut last = Instant::now();
    while clock.goes_on(&mut sample) {
        for thread in idle.drain(..) {
            posted_at[thread] = Instant::now();
            let wrs = batch(window, thread as u64, SendOp::Read(far.remote), &sges);
            node.post(vqps[thread], &wrs)?;
        }
        let found = node.take(&mut completions);
        if found > 0 {
            last = Instant::now();
        }
        ensure!(last.elapsed() < STALL, "a READ did not end within {STALL:?}");
        for completion in &completions[..found] {
            node::succeeded(completion)?;
            let thread = vqps.iter().position(|vqp| *vqp == completion.vqp);
            let thread = thread.ok_or_else(|| anyhow!("a completion of no thread's"))?;
            sample.record(last - posted_at[thread]);
            idle.push(thread);
        }
    }
    clock.finish(&mut sample);
    Ok(sample)
}

/// Equal WRs, the last of them signalled.
fn batch(count: usize, wr_id: u64, op: SendOp, sges: &[elver_verbs::Sge]) -> Vec<SendWr<'_>> {
    let wr = |index| SendWr {
        wr_id,
        op,
        flags: if index + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() },
        payload: Payload::Sges(sges),
        dest: None,
    };
    (0..count).map(wr).collect()
}
