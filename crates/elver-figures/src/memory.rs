//! `elver bench memory`: what connections take (KRCORE, figure 15a).

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, Progress, say};
use elver_core::{ClientId, ClientLimits, Config, ConnectOptions, Core, Event, VqpId, VqpInit};
use elver_node::now;
use elver_soft::{SoftConfig, SoftDevice};
use elver_testbed::node;
use elver_testbed::programs::Programs;
use elver_verbs::{
    AccessFlags, AddressVector, CqInit, Device, Gid, MrInfo, Payload, QpAttr, QpCap, QpInit,
    QpState, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};
use serde_json::{Value, json};

use crate::report::contract;
use crate::report::rows::{Figure, Row, Target};

/// Bytes that LITE takes for a connection (KRCORE, section 2.3.2), with the depths of its queues.
const LITE_BYTES: u64 = 159 << 10;
const LITE_SQ: u32 = 292;
const LITE_CQ: u32 = 257;
/// What 5,000 peers may take: KRCORE's figure.
const PEERS_JUDGED: u64 = 5_000;
const MB_MAX: f64 = 6.3;
const ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 79, 0, 1), Ipv4Addr::new(127, 79, 0, 2), Ipv4Addr::new(127, 79, 0, 3)];
const STALL: Duration = Duration::from_secs(60);
const REGION: u64 = 4_096;

const MEMORY_EXAMPLES: &str = "\
Examples:
  elver bench memory
      what connections to up to 10,000 nodes take (KRCORE, figure 15a)
  elver bench memory --peers 0,5000 --vqps 1000 --json

The peers are records in a meta server's table: to connect over DC nothing else is asked. Each
round is a process of its own, since a heap that was used before tells nothing.
`counted` is what the node says of itself, with the send queues as an mlx5 NIC takes them;
`RssAnon` is the growth of the process as Linux counts it, allocator's waste included.";

#[derive(Debug, Args)]
#[command(after_help = MEMORY_EXAMPLES)]
pub struct MemoryArgs {
    /// Nodes that this one is connected to, or was.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1000,5000,10000",
        value_parser = value_parser!(u32).range(0..=16_000)
    )]
    pub(crate) peers: Vec<u32>,
    /// VQPs.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,10000,50000",
        value_parser = value_parser!(u32).range(1..=60_000)
    )]
    pub(crate) vqps: Vec<u32>,
    /// RC QPs that are made for comparison.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=16_000))]
    pub(crate) rc_qps: u32,
    /// Repetitions; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures and prints.
pub(crate) fn run(args: &MemoryArgs, programs: &Programs) -> Result<(), Failure> {
    let rounds = if args.rounds == 1 {
        vec![round(args)?]
    } else {
        let progress = Progress::begin();
        let apart = |number| {
            progress.doing(&format!("round {number} of {}", args.rounds));
            round_apart(args, programs)
        };
        (1..=args.rounds).map(apart).collect::<Result<_>>()?
    };
    let result = median(&rounds)?;
    if args.json {
        say!("{result}");
    } else {
        print_table(&result);
    }
    Ok(())
}

/// A round in a process of its own.
fn round_apart(args: &MemoryArgs, programs: &Programs) -> Result<Value> {
    let list = |values: &[u32]| values.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let output = Command::new(programs.own())
        .args(["bench", "memory", "--rounds", "1", "--json"])
        .args(["--peers", &list(&args.peers), "--vqps", &list(&args.vqps)])
        .args(["--rc-qps", &args.rc_qps.to_string()])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("a round's output")
}

/// All that is measured, once.
fn round(args: &MemoryArgs) -> Result<Value> {
    let mut peers = args.peers.clone();
    peers.sort_unstable();
    let before_all = rss()?;
    let mut meta = open(ADDRESSES[0], 0)?;
    let most = peers.last().copied().unwrap_or(0);
    let server = meta.core.serve_meta(most + 16)?;
    let record = meta.core.record();
    for peer in 0..most {
        meta.core.meta_put(gid_of(peer), record)?;
    }

    let before = rss()?;
    let mut own = open(ADDRESSES[1], 32)?;
    own.core.set_meta_servers(&[server], now());
    let mut peer_rows = Vec::new();
    let mut connected = 0;
    for count in peers {
        while connected < count {
            let vqp = own.connect(&mut meta, gid_of(connected))?;
            own.core.vqp_destroy(own.client, vqp, now())?;
            connected += 1;
        }
        peer_rows.push(json!({
            "peers": count,
            "counted_bytes": own.core.connection_bytes(),
            "rss_bytes": rss()?.saturating_sub(before),
            "lite_bytes": u64::from(count) * LITE_BYTES,
        }));
    }

    let vqp_rows = vqp_rows(&mut own, &mut meta, &args.vqps)?;
    let rc = rc_qps(args.rc_qps, meta.core.gid())?;
    ensure!(before >= before_all, "the process has shrunk while it was measured");
    Ok(json!({
        "bench": "memory",
        "measured_by": "RssAnon of /proc/self/status",
        "peers": peer_rows,
        "vqps": vqp_rows,
        "rc_qps": {"count": args.rc_qps, "rss_bytes_each": rc, "lite_bytes_each": LITE_BYTES},
        "rounds": 1,
    }))
}

/// VQPs that are connected, and then once used.
fn vqp_rows(own: &mut End, meta: &mut End, counts: &[u32]) -> Result<Vec<Value>> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    let (before, counted) = (rss()?, own.core.vqp_bytes());
    let mut vqps: Vec<VqpId> = Vec::with_capacity(counts.last().copied().unwrap_or(0) as usize);
    let mut rows = Vec::new();
    let mut row = |own: &End, count: usize, used: bool| -> Result<()> {
        let each = |bytes: u64| contract::us(bytes as f64 / count as f64);
        rows.push(json!({
            "vqps": count,
            "used": used,
            "counted_bytes_each": each(own.core.vqp_bytes().saturating_sub(counted)),
            "rss_bytes_each": each(rss()?.saturating_sub(before)),
            "connection_bytes": own.core.connection_bytes(),
        }));
        Ok(())
    };
    let gid = meta.core.gid();
    for count in counts {
        while vqps.len() < count as usize {
            vqps.push(own.connect(meta, gid)?);
        }
        row(own, vqps.len(), false)?;
    }
    for vqp in &vqps {
        own.read(meta, *vqp)?;
    }
    row(own, vqps.len(), true)?;
    Ok(rows)
}

/// Bytes that each of so many RC QPs of the device's takes, as LITE would make them, connected and
/// not used.
fn rc_qps(count: u32, peer: Gid) -> Result<f64> {
    let config = soft(ADDRESSES[2]);
    let mut device = SoftDevice::open(config)?;
    let pd = device.alloc_pd()?;
    let before = rss()?;
    for number in 0..count {
        let cq = device.create_cq(CqInit { cqe: LITE_CQ })?;
        let cap = QpCap { max_send_wr: LITE_SQ, max_recv_wr: 1, ..QpCap::default() };
        let qp = device.create_qp(QpInit { cap, ..QpInit::new(QpType::Rc, pd, cq) })?;
        let attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ,
            ah_attr: AddressVector { dgid: peer, ..AddressVector::default() },
            dest_qp_num: number + 1,
            timeout: 14,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        for qp_state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            device.advance_qp(qp, &QpAttr { qp_state, ..attr })?;
        }
    }
    Ok(contract::us(rss()?.saturating_sub(before) as f64 / f64::from(count)))
}

/// A node's core, on loopback, and its one client.
struct End {
    core: Core<SoftDevice>,
    client: ClientId,
    region: MrInfo,
}

fn soft(address: Ipv4Addr) -> SoftConfig {
    SoftConfig { publish: false, ..SoftConfig::for_address(IpAddr::V4(address)) }
}

fn open(address: Ipv4Addr, rc_qps_max: u32) -> Result<End> {
    let mut config = Config::default();
    config.transfer.rc_qps_max = rc_qps_max;
    let mut core = Core::new(SoftDevice::open(soft(address))?, config, 1, now())?;
    let limits = ClientLimits { vqps: u32::MAX, completions: u32::MAX, ..ClientLimits::default() };
    let client = core.client_open(limits)?;
    let memory = core.device().alloc_memory(REGION)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let region = core.reg_mr(client, memory, None, access)?;
    Ok(End { core, client, region })
}

/// A node that is nothing but a record.
fn gid_of(peer: u32) -> Gid {
    Gid::from(IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + peer)))
}

impl End {
    fn connect(&mut self, meta: &mut End, gid: Gid) -> Result<VqpId> {
        let init = VqpInit::default();
        let vqp = self.core.vqp_create(self.client, init)?;
        let options = ConnectOptions::default();
        if self.core.qconnect(self.client, vqp, gid, 1, options, 0, now())?.is_some() {
            return Ok(vqp);
        }
        let start = Instant::now();
        while start.elapsed() < STALL {
            self.core.poll(now());
            meta.core.poll(now());
            while let Some(event) = self.core.poll_event() {
                if let Event::Connected { result, .. } = event {
                    result?;
                    return Ok(vqp);
                }
            }
        }
        bail!("a connect did not end")
    }

    /// Reads 8 bytes of the meta server's.
    fn read(&mut self, meta: &mut End, vqp: VqpId) -> Result<()> {
        let sges = [Sge { addr: self.region.addr, length: 8, lkey: self.region.lkey }];
        let from = RemoteAddr { addr: meta.region.addr, rkey: meta.region.rkey };
        let (op, flags) = (SendOp::Read(from), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 0, op, flags, payload: Payload::Sges(&sges), dest: None };
        self.core.post_send(self.client, vqp, &[wr], now()).map_err(|(_, error)| error)?;
        let start = Instant::now();
        let mut completions = node::blank::<1>();
        while start.elapsed() < STALL {
            self.core.poll(now());
            meta.core.poll(now());
            if self.core.poll_completions(self.client, &mut completions) > 0 {
                return node::succeeded(&completions[0]);
            }
        }
        bail!("a READ did not complete")
    }
}

/// Bytes of memory that this process has touched and that no file holds: its heap, its stacks, and
/// what its devices have for messages.
fn rss() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.ok_or_else(|| anyhow!("Linux does not tell this process's RssAnon"))?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

/// Each number replaced by the median of the rounds, with a claim or two.
fn median(rounds: &[Value]) -> Result<Value> {
    let first = rounds.first().ok_or_else(|| anyhow!("there was no round"))?;
    let mut result = first.clone();
    merge(&mut result, &rounds.iter().collect::<Vec<_>>());
    result["rounds"] = rounds.len().into();
    let judged = rounds.iter().map(|round| {
        let rows = round["peers"].as_array().into_iter().flatten();
        rows.filter(|row| row["peers"] == PEERS_JUDGED).collect::<Vec<_>>()
    });
    let judged: Vec<&Value> = judged.flatten().collect();
    let claim = |name: &str, key: &str| Row {
        name: format!("{PEERS_JUDGED} peers, {name}"),
        unit: "MB",
        ours: megabytes(&judged, key),
        baseline: None,
        target: Target::AtMost(MB_MAX),
    };
    let claims = if judged.is_empty() {
        Vec::new()
    } else {
        vec![claim("counted", "counted_bytes"), claim("RssAnon", "rss_bytes")]
    };
    result["claims"] = contract::claims_as_json(&claims);
    Ok(result)
}

fn megabytes(rows: &[&Value], key: &str) -> Figure {
    let mut figure = Figure::default();
    for bytes in rows.iter().filter_map(|row| row[key].as_f64()) {
        figure.push(contract::us(bytes / 1e6));
    }
    figure
}

fn merge(into: &mut Value, from: &[&Value]) {
    match into {
        Value::Object(map) => {
            for (key, value) in map {
                merge(value, &from.iter().map(|other| &other[key.as_str()]).collect::<Vec<_>>());
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                merge(item, &from.iter().map(|other| &other[index]).collect::<Vec<_>>());
            }
        }
        Value::Number(_) => {
            let mut figure = Figure::default();
            from.iter().filter_map(|value| value.as_f64()).for_each(|value| figure.push(value));
            *into = json!(contract::us(figure.median()));
        }
        _ => {}
    }
}

fn print_table(result: &Value) {
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let rows = |key: &str| result[key].as_array().cloned().unwrap_or_default();
    say!("rounds: {}, each a process of its own", result["rounds"]);
    let peers = rows("peers").into_iter().map(|row| {
        let bytes = ["counted_bytes", "rss_bytes", "lite_bytes"];
        let [counted, rss, lite] = bytes.map(|key| number(of(&row, key) / 1e6));
        [format!("{:.0}", of(&row, "peers")), counted, rss, lite]
    });
    let heads = ["peers", "counted MB", "RssAnon MB", "LITE MB"];
    table::print(heads, &peers.collect::<Vec<_>>(), 0);
    let vqps = rows("vqps").into_iter().map(|row| {
        let used = if row["used"] == true { "used once" } else { "connected" };
        let keys = ["vqps", "counted_bytes_each", "rss_bytes_each"];
        let [vqps, counted, rss] = keys.map(|key| format!("{:.0}", of(&row, key)));
        [used.into(), vqps, counted, rss]
    });
    let heads = ["", "VQPs", "counted B each", "RssAnon B each"];
    table::print(heads, &vqps.collect::<Vec<_>>(), 1);
    let rc = &result["rc_qps"];
    say!(
        "\nan RC QP of our device with LITE's queues, not used: {:.0} B RssAnon; LITE's: {:.0} B",
        of(rc, "rss_bytes_each"),
        of(rc, "lite_bytes_each")
    );
    let claims = rows("claims").into_iter().map(|claim| {
        let word = |key: &str| claim[key].as_str().unwrap_or("").to_string();
        let met = if claim["met"] == true { "met" } else { "MISSED" };
        let ours = number(of(&claim["ours"], "median"));
        [word("name"), word("unit"), ours, word("target"), met.into()]
    });
    table::print(["claim", "", "median", "target", ""], &claims.collect::<Vec<_>>(), 2);
}
