//! `elver bench factors`: what each part of the way adds to a READ of 8 bytes (KRCORE, figure 12a).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use elver::{EmbeddedNode, Session, SessionOptions, VqpOptions};
use elver_console::{Failure, table};
use elver_core::{ClientLimits, ConnectOptions, Via, VqpInit};
use elver_node::config::Config;
use elver_node::now;
use elver_perf::device::{DeviceArgs, IdleMode};
use elver_perf::perf::{self, Load, Mode, Op, Transport};
use elver_soft::UDP_PORT;
use elver_testbed::node;
use elver_testbed::node_pair;
use elver_testbed::sample::{Clock, Sample};
use elver_testbed::seat::pin;
use elver_verbs::{
    AccessFlags, Device, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use serde_json::json;

use crate::args::{DataOp, RunArgs, Stage, TimeArgs};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;
use crate::vqp_load::{self, VqpLoad};
use crate::window::Window;

const BYTES: u32 = 8;
const PORT: u16 = 9;
/// Regions that are read for the first time, in a round; a client may have 1,024.
const REGIONS: usize = 1_000;
const REGION: u64 = 4_096;
/// The node whose processes are on its own host.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 0, 1));
const STALL: Duration = Duration::from_secs(60);
const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ);

/// A row: its name, what it is compared with, and how it is measured.
struct Factor {
    name: &'static str,
    beside: Option<&'static str>,
    measure: fn(Stage, f64) -> Result<Sample, Failure>,
}

const FACTORS: [Factor; 7] = [
    Factor { name: "raw-rc", beside: None, measure: raw_rc },
    Factor { name: "vqp-rc", beside: Some("raw-rc"), measure: vqp_rc },
    Factor { name: "vqp-dc", beside: Some("vqp-rc"), measure: vqp_dc },
    Factor { name: "mr-miss", beside: Some("vqp-dc"), measure: mr_miss },
    Factor { name: "embedded-host", beside: None, measure: embedded_host },
    Factor { name: "portal-inline", beside: Some("embedded-host"), measure: portal_inline },
    Factor { name: "portal-host", beside: Some("portal-inline"), measure: portal_host },
];

const FACTORS_EXAMPLES: &str = "\
Examples:
  sudo elver bench factors
      what each part of the way adds to a READ of 8 bytes
  elver bench factors --placement loopback --rounds 3 --duration 0.1

Rows of two nodes (KRCORE, figure 12a):
  raw-rc          an RC QP on the bare device
  vqp-rc          the same through a VQP: its checks, and dispatch
  vqp-dc          a VQP on a DC QP
  mr-miss         the first access to a region: its validity is looked up
Rows of one node on this host, where the bytes do not cross a network:
  embedded-host   the core called by the process that owns it
  portal-inline   through a session's rings, the node driven by the same thread
  portal-host     through a session's rings, the node on a thread of its own as in elverd";

#[derive(Debug, Args)]
#[command(after_help = FACTORS_EXAMPLES)]
pub struct FactorsArgs {
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &FactorsArgs) -> Result<(), Failure> {
    let mut rows = FACTORS.map(|_| Figures::default());
    let ended = Frame::begin_between_nodes("factors", &args.run)?.run(|stage, doing| {
        for (factor, row) in FACTORS.iter().zip(&mut rows) {
            doing(factor.name);
            row.push(&(factor.measure)(stage, args.time.duration)?);
        }
        Ok(())
    })?;
    // What a row has beyond the one that it is compared with.
    let adds = |factor: &Factor, row: &Figures| {
        let beside = FACTORS.iter().position(|other| Some(other.name) == factor.beside)?;
        Some(row.p50_us.median() - rows[beside].p50_us.median())
    };
    let table = FACTORS.iter().zip(&rows).map(|(factor, row)| (factor, row, adds(factor, row)));
    ended.tell(
        None,
        || {
            let rows = table.clone().map(|(factor, row, adds)| {
                json!({
                    "name": factor.name,
                    "p50_us": contract::us(row.p50_us.median()),
                    "p99_us": contract::us(row.p99_us.median()),
                    "spread_us": row.p50_us.spread(),
                    "beside": factor.beside,
                    "adds_us": adds.map(contract::us),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>()})
        },
        || {
            let rows = table.clone().map(|(factor, row, adds)| {
                let [p50, p99, _] = row.texts();
                let adds = adds.map_or(String::new(), |adds| format!("{adds:+.3}"));
                let beside = factor.beside.map_or(String::new(), String::from);
                [factor.name.to_string(), beside, p50, p99, adds]
            });
            let heads = ["READ of 8 B", "beside", "p50 µs [min … max]", "p99 µs", "adds µs"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
        },
    );
    Ok(())
}

fn raw_rc(stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    let load = Load {
        op: Op::Read,
        transport: Transport::Rc,
        size: BYTES,
        mode: Mode::Sync,
        depth: 1,
        batch: 1,
        duration: seconds,
        mtu: None,
        is_told: false,
    };
    let device =
        DeviceArgs { idle: IdleMode::Spin, no_offload: false, loss: 0.0, udp_port: UDP_PORT };
    Sample::try_from(perf::measure_pair(&load, stage.pair(), &device, None)?)
}

fn vqp_rc(stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    vqp(stage, seconds, &Config::default(), true)
}

fn vqp_dc(stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    vqp(stage, seconds, &over_dc(), false)
}

fn vqp(stage: Stage, seconds: f64, config: &Config, rc: bool) -> Result<Sample, Failure> {
    let duration = Duration::from_secs_f64(seconds);
    let window = Window { depth: 1, batch: 1, duration };
    let load = VqpLoad { op: DataOp::Read, size: BYTES, window };
    vqp_load::measure(stage.pair(), config, &load, rc, |via| {
        ensure!((via == Via::Rc) == rc, "the VQP is backed by {via:?}");
        Ok(())
    })
}

/// A node whose VQPs are backed by DC QPs alone.
fn over_dc() -> Config {
    let mut config = Config::default();
    config.transfer.rc_qps_max = 0;
    config
}

/// READs of regions that were not read before.
fn mr_miss(stage: Stage, _seconds: f64) -> Result<Sample, Failure> {
    let regions = OnceLock::new();
    node_pair::run(
        stage.pair(),
        &over_dc(),
        |node| {
            let made: Vec<_> = (0..REGIONS).map(|_| node.region(REGION)).collect::<Result<_>>()?;
            let _ = regions.set(made.iter().map(node::Region::remote).collect::<Vec<_>>());
            Ok(made)
        },
        |_, _| Ok(()),
        |node, far| {
            let vqp = node.vqp(VqpInit::default())?;
            node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
            let own = node.region(REGION)?;
            let sges = [own.sge(BYTES)];
            let mut sample = Sample::new()?;
            let remotes = regions.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            for remote in remotes {
                let start = Instant::now();
                node.post(vqp, &[read(&sges, *remote)])?;
                let mut completions = node::blank::<1>();
                while node.take(&mut completions) == 0 {
                    ensure!(start.elapsed() < STALL, "a READ did not complete");
                }
                node::succeeded(&completions[0])?;
                sample.record(start.elapsed());
            }
            Ok(sample)
        },
    )
}

fn read(sges: &[Sge], from: RemoteAddr) -> SendWr<'_> {
    let (op, flags) = (SendOp::Read(from), SendFlags::SIGNALED);
    SendWr { wr_id: 0, op, flags, payload: Payload::Sges(sges), dest: None }
}

/// A node that serves its own host.
fn host_node() -> Result<elver_node::Node> {
    let mut config = Config::default();
    config.node.address = HOST;
    Ok(elver_node::Node::embedded(config)?)
}

/// On a thread of its own, which is pinned to the first core.
fn apart(job: impl FnOnce() -> Result<Sample> + Send) -> Result<Sample, Failure> {
    let pinned = || {
        pin(0);
        job()
    };
    let joined = std::thread::scope(|scope| scope.spawn(pinned).join());
    Ok(joined.map_err(|_| anyhow!("a thread panicked"))??)
}

/// The core is called by the process that owns the node.
fn embedded_host(_stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    apart(|| {
        let mut node = host_node()?;
        let core = node.core();
        let client = core.client_open(ClientLimits::default())?;
        let memory = core.device().alloc_memory(REGION)?;
        let mr = core.reg_mr(client, memory, None, ACCESS)?;
        let vqp = core.vqp_create(client, VqpInit::default())?;
        let gid = core.gid();
        let via = core.qconnect(client, vqp, gid, PORT, ConnectOptions::default(), 0, now())?;
        ensure!(via.is_some(), "a node's own record was not at hand");
        let sges = [Sge { addr: mr.addr, length: BYTES, lkey: mr.lkey }];
        let remote = RemoteAddr { addr: mr.addr, rkey: mr.rkey };
        let mut sample = Sample::new()?;
        let mut clock = Clock::new(Duration::from_secs_f64(seconds));
        while clock.goes_on(&mut sample) {
            let start = Instant::now();
            let posted = node.core().post_send(client, vqp, &[read(&sges, remote)], now());
            posted.map_err(|(_, error)| error)?;
            let mut completions = node::blank::<1>();
            while node.core().poll_completions(client, &mut completions) == 0 {
                node.poll();
                ensure!(start.elapsed() < STALL, "a READ did not complete");
            }
            node::succeeded(&completions[0])?;
            sample.record(start.elapsed());
        }
        clock.finish(&mut sample);
        Ok(sample)
    })
}

/// Through the rings of a session, the node driven by the thread that waits.
fn portal_inline(_stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    apart(|| {
        let node = EmbeddedNode::new(host_node()?);
        through_a_session(&node.session(SessionOptions::default())?, seconds)
    })
}

/// Through the rings of a session, the node on a thread and a core of its own.
fn portal_host(_stage: Stage, seconds: f64) -> Result<Sample, Failure> {
    apart(|| {
        // The node's thread stays where the one that makes it stands.
        pin(1);
        let node = host_node()?.spawn()?;
        pin(0);
        let session = Session::over(node.connect()?, SessionOptions::default())?;
        let sample = through_a_session(&session, seconds)?;
        session.close()?;
        node.stop()?;
        Ok(sample)
    })
}

fn through_a_session(session: &Session, seconds: f64) -> Result<Sample> {
    let mr = session.alloc(REGION, ACCESS)?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(session.gid(), PORT)?;
    let (sges, remote) = ([mr.sge(0, BYTES)], mr.remote(0));
    let mut sample = Sample::new()?;
    let mut clock = Clock::new(Duration::from_secs_f64(seconds));
    while clock.goes_on(&mut sample) {
        let start = Instant::now();
        vqp.post_send(&[read(&sges, remote)])?;
        let mut wcs = [Wc::default()];
        while vqp.poll_cq(&mut wcs)? == 0 {
            ensure!(start.elapsed() < STALL, "a READ did not complete");
        }
        ensure!(wcs[0].status == WcStatus::Success, "a READ failed: {}", wcs[0].status);
        sample.record(start.elapsed());
    }
    clock.finish(&mut sample);
    Ok(sample)
}
