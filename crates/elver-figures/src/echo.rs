//! `elver bench echo`: a message and its answer (KRCORE, figure 11), one at a time and many under way,
//! through VQPs and over a QP of the process's own.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use elver_console::{Failure, table};
use elver_core::{ConnectOptions, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::{self, Node, Region};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::pair::{self, Placement};
use elver_testbed::sample::Sample;
use elver_verbs::{
    Device, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use serde_json::json;

use crate::args::{RunArgs, TimeArgs};
use crate::bare::{Bare, Desk};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;
use crate::report::rows::{Row, Target};
use crate::window::{Step, Window};

const EXAMPLES: &str = "\
Examples:
  sudo elver bench echo
      echoes of 8 bytes, one at a time and 64 under way
  elver bench echo --placement loopback --rounds 1 --duration 0.05";

/// Bytes of a message.
const BYTES: u32 = 8;
const PORT: u16 = 9;
/// Echoes under way, async, and those that are posted at once.
const DEPTH: u32 = 64;
const BATCH: u32 = 16;
/// Receives and sends that fit an end: also what its completions have not been taken of.
const QUEUE: u32 = 512;
/// Completions that are taken at once.
const TAKE: usize = 32;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EchoArgs {
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

const ROWS: [&str; 3] = ["raw-rc", "vqp-rc", "vqp-dc"];
const MODES: [(&str, u32, u32); 2] = [("sync", 1, 1), ("async", DEPTH, BATCH)];

/// Measures and prints.
pub(crate) fn run(args: &EchoArgs) -> Result<(), Failure> {
    let mut rows: Vec<_> =
        MODES.iter().flat_map(|mode| ROWS.map(|name| (name, *mode, Figures::default()))).collect();
    let duration = Duration::from_secs_f64(args.time.duration);
    let ended = Frame::begin_between_nodes("echo", &args.run)?.run(|stage, doing| {
        for (name, (mode, depth, batch), figures) in &mut rows {
            doing(&format!("{name}, {mode}"));
            let window = Window { depth: *depth, batch: *batch, duration };
            figures.push(&match *name {
                "raw-rc" => bare(stage.pair(), window)?,
                name => vqp(stage.pair(), name == "vqp-rc", window)?,
            });
        }
        Ok(())
    })?;
    let figures = |name: &str, mode: &str| {
        rows.iter().find(|row| row.0 == name && row.1.0 == mode).map(|row| row.2.clone())
    };
    let claims = ["vqp-rc", "vqp-dc"].into_iter().flat_map(|name| {
        [("sync", "µs"), ("async", "/s")].into_iter().filter_map(move |(mode, unit)| {
            let (ours, raw) = (figures(name, mode)?, figures("raw-rc", mode)?);
            let of = |figures: Figures| if mode == "sync" { figures.p50_us } else { figures.per_s };
            Some(Row {
                name: format!("{name}: echo, {mode}"),
                unit,
                ours: of(ours),
                baseline: Some(("raw-rc", of(raw))),
                target: Target::None,
            })
        })
    });
    ended.tell(
        Some(&claims.collect::<Vec<_>>()),
        || {
            let rows = rows.iter().map(|(name, (mode, depth, _), figures)| {
                json!({
                    "name": name,
                    "mode": mode,
                    "under_way": depth,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                    "echoes_per_s": figures.per_s.median().round(),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>(), "bytes": BYTES})
        },
        || {
            let rows = rows.iter().map(|(name, (mode, depth, _), figures)| {
                let [p50, p99, per_s] = figures.texts();
                [name.to_string(), mode.to_string(), depth.to_string(), p50, p99, per_s]
            });
            let heads =
                ["echo of 8 B", "", "under way", "p50 µs [min … max]", "p99 µs", "echoes/s"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
        },
    );
    Ok(())
}

/// SENDs of which the last is signalled.
fn sends(count: usize, sges: &[Sge]) -> Vec<SendWr<'_>> {
    let wr = |index| SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: if index + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() },
        payload: Payload::Sges(sges),
        dest: None,
    };
    (0..count).map(wr).collect()
}

/// Turns echoes that came into batches that are complete.
#[derive(Default)]
struct Batches {
    echoes: usize,
}

impl Batches {
    fn complete(&mut self, echoes: usize, batch: usize) -> usize {
        self.echoes += echoes;
        let complete = self.echoes / batch;
        self.echoes %= batch;
        complete
    }
}

/// Over an RC QP of the process's own.
fn bare(placement: Placement, window: Window) -> Result<Sample, Failure> {
    let desk = Desk::default();
    let (_, sample) = pair::run(
        placement,
        |end, client| {
            let mut bare = Bare::open(end.own, QUEUE, QUEUE, &desk, 1, || client.begin())?;
            bare.post_recv(QUEUE as usize / 2, BYTES)?;
            while !client.is_gone() {
                let came = bare_receives(&mut bare)?;
                bare_answer(&mut bare, came)?;
            }
            Ok(())
        },
        |end| {
            let mut bare = Bare::open(end.own, QUEUE, QUEUE, &desk, 0, || {})?;
            let batch = window.batch as usize;
            let mut batches = Batches::default();
            window.run(|step| match step {
                Step::Post => {
                    bare.post_recv(batch, BYTES)?;
                    bare_send(&mut bare, batch)?;
                    Ok(0)
                }
                Step::Take => Ok(batches.complete(bare_receives(&mut bare)?, batch)),
            })
        },
    )?;
    Ok(sample)
}

/// Messages that came; sends that have ended are taken too.
fn bare_receives(bare: &mut Bare) -> Result<usize> {
    let mut wcs = [Wc::default(); TAKE];
    let came = bare.device.poll_cq(bare.recv_cq, &mut wcs)?;
    // Sends first: why one failed explains why receives were flushed.
    let mut sends = [Wc::default(); TAKE];
    let sent = bare.device.poll_cq(bare.cq, &mut sends)?;
    for wc in sends[..sent].iter().chain(&wcs[..came]) {
        ensure!(wc.status == WcStatus::Success, "a message failed: {}", wc.status);
    }
    Ok(came)
}

fn bare_send(bare: &mut Bare, count: usize) -> Result<()> {
    let sges = [bare.sge(BYTES)];
    bare.device.post_send(bare.qp, &sends(count, &sges)).map_err(|(_, error)| error.into())
}

fn bare_answer(bare: &mut Bare, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    bare.post_recv(count, BYTES)?;
    bare_send(bare, count)
}

/// The end that answers, through VQPs.
struct Echo {
    bound: VqpId,
    region: Region,
}

/// Through a VQP to one that is bound, which answers over the sender's.
fn vqp(placement: Placement, rc: bool, window: Window) -> Result<Sample, Failure> {
    let mut config = Config::default();
    if !rc {
        config.transfer.rc_qps_max = 0;
    }
    let run = |node: &mut Node, far: &Far| {
        if rc {
            node.link_to(far.meta, PORT)?;
        }
        let vqp = node.vqp(VqpInit {
            max_send_wr: QUEUE,
            max_recv_wr: QUEUE,
            sq_sig_all: false,
            ..VqpInit::default()
        })?;
        let via = node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
        ensure!((via == Via::Rc) == rc, "a VQP is backed by {via:?}");
        let region = node.region(u64::from(BYTES))?;
        let (sges, batch) = ([region.sge(BYTES)], window.batch as usize);
        let receives = vec![RecvWr { wr_id: 0, sges: &sges }; batch];
        let messages = sends(batch, &sges);
        let mut completions = node::blank::<TAKE>();
        let mut batches = Batches::default();
        window.run(|step| match step {
            Step::Post => {
                node.post_recv(vqp, &receives)?;
                node.post(vqp, &messages)?;
                Ok(0)
            }
            Step::Take => {
                let found = node.take(&mut completions);
                completions[..found].iter().try_for_each(node::succeeded)?;
                let came = completions[..found].iter().filter(|c| c.wc.opcode == WcOpcode::Recv);
                Ok(batches.complete(came.count(), batch))
            }
        })
    };
    node_pair::run(placement, &config, Echo::open, Echo::serve, run)
}

impl Echo {
    fn open(node: &mut Node) -> Result<Echo> {
        let bound = node.vqp(VqpInit { max_recv_wr: QUEUE, ..VqpInit::default() })?;
        node.bind(bound, PORT)?;
        let echo = Echo { bound, region: node.region(u64::from(BYTES))? };
        echo.post_recv(node, QUEUE as usize / 2)?;
        Ok(echo)
    }

    fn serve(node: &mut Node, echo: &mut Echo) -> Result<()> {
        let mut completions = node::blank::<TAKE>();
        let found = node.taken(&mut completions);
        completions[..found].iter().try_for_each(node::succeeded)?;
        let came = completions[..found].iter().filter_map(|completion| completion.source);
        let (count, sender) = came.fold((0, None), |(count, _), source| (count + 1, Some(source)));
        let Some(sender) = sender else { return Ok(()) };
        echo.post_recv(node, count)?;
        let sges = [echo.region.sge(BYTES)];
        node.post(sender, &sends(count, &sges))
    }

    fn post_recv(&self, node: &mut Node, count: usize) -> Result<()> {
        let sges = [self.region.sge(BYTES)];
        node.post_recv(self.bound, &vec![RecvWr { wr_id: 0, sges: &sges }; count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_echo_is_lost_between_batches() {
        let mut batches = Batches::default();
        let complete: usize =
            [3, 14, 0, 30, 17].map(|came| batches.complete(came, 16)).iter().sum();
        assert_eq!((complete, batches.echoes), (4, 0));
    }
}
