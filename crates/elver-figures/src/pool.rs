//! `elver bench pool`: what many targets cost on few DC QPs (KRCORE, figure 14), in virtual time.

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, Progress, say};
use elver_core::{Config, ConnectOptions, Policy, Via, VqpId};
use elver_sim::Rng;
use elver_testbed::node;
use elver_verbs::Time;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::report::contract;
use crate::report::rows::Figure;
use crate::virtual_nodes::{Target, VirtualNodes};

/// READs of a batch, and the nodes that they go to, as in figure 14a.
const BATCH: usize = 64;
const BATCH_SERVERS: usize = 10;
/// Clients and servers of figure 14b.
const CLIENTS: usize = 50;
const TAIL_SERVERS: usize = 5;
/// Virtual nanoseconds within which the clients begin.
const BEGIN_NS: u64 = 2_000;
/// Longest latency that is told apart.
const LATENCY_NS_MAX: u64 = 1_000_000_000;
const PERCENTILES: [(&str, f64); 4] =
    [("p50_us", 50.0), ("p90_us", 90.0), ("p99_us", 99.0), ("p999_us", 99.9)];

/// What backs the VQPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// RC QPs, one for each node.
    Rc,
    /// DC QPs.
    Dc { qps: u32, log_streams: u8 },
}

impl Backing {
    fn name(self) -> &'static str {
        match self {
            Backing::Rc => "vqp-rc",
            Backing::Dc { .. } => "vqp-dc",
        }
    }

    /// DC QPs and the streams of each; none for RC.
    fn pool(self) -> Option<(u32, u32)> {
        match self {
            Backing::Rc => None,
            Backing::Dc { qps, log_streams } => Some((qps, 1 << log_streams)),
        }
    }

    fn text(self) -> String {
        match self.pool() {
            None => "vqp-rc".to_string(),
            Some((qps, streams)) => format!("vqp-dc, {qps} QPs, streams {streams}"),
        }
    }

    fn config(self) -> Config {
        let mut config = Config::default();
        config.qos.high_dc_qps = 0;
        if let Backing::Dc { qps, log_streams } = self {
            config.dc_qps = qps;
            config.log_dc_streams = log_streams;
            config.transfer.rc_qps_max = 0;
        }
        config
    }

    fn connect(self, nodes: &mut VirtualNodes, target: Target) -> Result<VqpId> {
        let policy = if self == Backing::Rc { Policy::Lite } else { Policy::Shared };
        let (vqp, via) = nodes.connect(target, ConnectOptions { policy, uncached: false })?;
        ensure!((via == Via::Rc) == (self == Backing::Rc), "{} is backed by {via:?}", self.name());
        Ok(vqp)
    }
}

/// RC, and every pool with one stream a QP, as hardware that has none, and with our default.
fn backings(dc_qps: &[u32]) -> Vec<Backing> {
    let default = Config::default().log_dc_streams;
    let pools = [0, default].into_iter().flat_map(|log_streams| {
        dc_qps.iter().map(move |qps| Backing::Dc { qps: *qps, log_streams })
    });
    std::iter::once(Backing::Rc).chain(pools).collect()
}

const POOL_EXAMPLES: &str = "\
Examples:
  elver bench pool
      64 READs to 10 nodes by the number of DC QPs, and the tail of READs to 5 nodes
  elver bench pool --dc-qps 1,2,48 --rounds 20

It runs in the simulator's virtual time (KRCORE, figures 14a and 14b): the network's constants are
KRCORE's, 2.15 µs for a READ and 7 ns of the NIC for a packet, and code takes no time. So it tells
what requests wait for on the shared QPs, and nothing of the time that posting and polling take.";

#[derive(Debug, Args)]
#[command(after_help = POOL_EXAMPLES)]
pub struct PoolArgs {
    /// Sizes of the pool of DC QPs.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) dc_qps: Vec<u32>,
    /// READs of each client for the tail.
    #[arg(long, default_value_t = 400, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) reads: u32,
    /// Repetitions, each with other targets and keys; figures are their medians.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures and prints.
pub(crate) fn run(args: &PoolArgs) -> Result<(), Failure> {
    let mut batches = Vec::new();
    let mut tails = Vec::new();
    let progress = Progress::begin();
    for backing in backings(&args.dc_qps) {
        progress.doing(&backing.text());
        let mut took = Figure::default();
        let mut tail = [(); PERCENTILES.len()].map(|()| Figure::default());
        for round in 0..args.rounds {
            took.push(batch(backing, u64::from(round))?);
            let latency = fan_out(backing, args.reads, u64::from(round))?;
            for (figure, (_, percentile)) in tail.iter_mut().zip(PERCENTILES) {
                figure.push(latency.value_at_percentile(percentile) as f64 / 1e3);
            }
        }
        batches.push((backing, took));
        tails.push((backing, tail));
    }
    drop(progress);
    if args.json {
        print_json(args, &batches, &tails);
    } else {
        print_table(args, &batches, &tails);
    }
    Ok(())
}

type Batches = [(Backing, Figure)];
type Tails = [(Backing, [Figure; PERCENTILES.len()])];

fn print_json(args: &PoolArgs, batches: &Batches, tails: &Tails) {
    let row = |backing: Backing| {
        let pool = backing.pool();
        json!({
            "name": backing.name(),
            "dc_qps": pool.map(|(qps, _)| qps),
            "streams": pool.map(|(_, streams)| streams),
        })
    };
    let batches = batches.iter().map(|(backing, took)| {
        let mut row = row(*backing);
        row["batch_us"] = contract::us(took.median()).into();
        row["spread_us"] = json!(took.spread());
        row
    });
    let tails = tails.iter().map(|(backing, tail)| {
        let mut row = row(*backing);
        for (figure, (name, _)) in tail.iter().zip(PERCENTILES) {
            row[name] = contract::us(figure.median()).into();
        }
        row["p999_spread_us"] = json!(tail.last().map(Figure::spread));
        row
    });
    say!(
        "{}",
        json!({
            "bench": "pool",
            "time": "virtual",
            "batch": BATCH,
            "batch_nodes": BATCH_SERVERS,
            "rows": batches.collect::<Vec<Value>>(),
            "tail_clients": CLIENTS,
            "tail_nodes": TAIL_SERVERS,
            "tail": tails.collect::<Vec<Value>>(),
            "rounds": args.rounds,
        })
    );
}

fn print_table(args: &PoolArgs, batches: &Batches, tails: &Tails) {
    say!(
        "rounds: {}, in virtual time: the network takes KRCORE's, and code takes none",
        args.rounds
    );
    let title = format!("{BATCH} READs to {BATCH_SERVERS} nodes");
    let rows = batches.iter().map(|(backing, took)| [backing.text(), took.text()]);
    table::print([&title, "µs [min … max]"], &rows.collect::<Vec<_>>(), 1);
    let title = format!("{CLIENTS} clients, {TAIL_SERVERS} nodes");
    let rows = tails.iter().map(|(backing, [p50, p90, p99, p999])| {
        let [p50, p90, p99] = [p50, p90, p99].map(|figure| number(figure.median()));
        [backing.text(), p50, p90, p99, p999.text()]
    });
    let heads = [&title, "p50 µs", "p90 µs", "p99 µs", "p99.9 µs [min … max]"];
    table::print(heads, &rows.collect::<Vec<_>>(), 1);
}

/// Microseconds of a batch of READs, each through a VQP of its own to a node that is drawn.
fn batch(backing: Backing, seed: u64) -> Result<f64> {
    let (mut nodes, servers) = VirtualNodes::new(BATCH_SERVERS, &backing.config(), seed)?;
    let mut rng = Rng::new(seed).split("targets");
    let mut reads = Vec::new();
    for _ in 0..BATCH {
        let target = rng.pick(&servers);
        reads.push((backing.connect(&mut nodes, target)?, target));
    }
    // The first READ of a region has it looked up, which is no part of this.
    all(&mut nodes, &reads)?;
    let start = nodes.now();
    all(&mut nodes, &reads)?;
    Ok(nodes.now().ns_since(start) as f64 / 1e3)
}

/// Posts all at once, and waits until the last one has completed.
fn all(nodes: &mut VirtualNodes, reads: &[(VqpId, Target)]) -> Result<()> {
    for (vqp, target) in reads {
        nodes.read(*vqp, *target)?;
    }
    let mut left = reads.len();
    while left > 0 {
        left -= nodes.take(&mut node::blank::<BATCH>())?;
    }
    Ok(())
}

/// A client that does one READ after the other, each at a node that is drawn.
struct Client {
    vqps: Vec<VqpId>,
    posted_at: Time,
    left: u32,
}

/// Latencies in nanoseconds of READs by many clients of one node.
fn fan_out(backing: Backing, reads: u32, seed: u64) -> Result<Histogram<u64>> {
    let (mut nodes, servers) = VirtualNodes::new(TAIL_SERVERS, &backing.config(), seed)?;
    let mut rng = Rng::new(seed).split("clients");
    let mut owners = std::collections::HashMap::new();
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let vqps: Vec<VqpId> = servers
            .iter()
            .map(|server| backing.connect(&mut nodes, *server))
            .collect::<Result<_>>()?;
        owners.extend(vqps.iter().map(|vqp| (*vqp, client)));
        clients.push(Client { vqps, posted_at: nodes.now(), left: reads });
    }
    let warm: Vec<_> = clients[0].vqps.iter().copied().zip(servers.iter().copied()).collect();
    all(&mut nodes, &warm)?;

    let mut latency =
        Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(anyhow::Error::from)?;
    let mut post = |nodes: &mut VirtualNodes, client: &mut Client| {
        let server = rng.index(servers.len());
        client.posted_at = nodes.now();
        nodes.read(client.vqps[server], servers[server])
    };
    // They do not begin at one moment, as processes do not.
    let start = nodes.now();
    for (index, client) in clients.iter_mut().enumerate() {
        nodes.advance(start.saturating_add_ns(BEGIN_NS * index as u64 / CLIENTS as u64))?;
        post(&mut nodes, client)?;
    }
    let mut running = CLIENTS;
    while running > 0 {
        let mut completions = node::blank::<CLIENTS>();
        let taken = nodes.take(&mut completions)?;
        for completion in &completions[..taken] {
            let Some(client) = owners.get(&completion.vqp).map(|owner| &mut clients[*owner]) else {
                continue;
            };
            latency.saturating_record(nodes.now().ns_since(client.posted_at));
            client.left -= 1;
            if client.left == 0 {
                running -= 1;
            } else {
                post(&mut nodes, client)?;
            }
        }
    }
    Ok(latency)
}
