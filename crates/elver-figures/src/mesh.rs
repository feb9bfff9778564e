//! `elver bench mesh`: all connections among many workers at once (KRCORE, figure 8b).
//!
//! The workers stand at two nodes in turn; a meta server stands beside. With `tcp`, `verbs` and `lite`
//! a pair of workers has one connection, which serves both ways; a VQP is of one worker, so that a
//! pair has two. `verbs` makes a QP for every pair, `lite` one for all pairs of two nodes. The rivals
//! know from the start how the other node is asked. `vqp-cold` knows nothing of it, no record and no
//! RC QP, and does what a node does by itself: all of its VQPs to one node share one look-up.
//! `vqp` knows the record, and `vqp-uncached` does not look at it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, value_parser};
use elver_console::{Failure, say, table};
use elver_core::{ConnectOptions, Policy, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::meet::{self, Meet, Target};
use elver_testbed::node::Node;
use elver_testbed::node_pair;
use elver_testbed::pair::{self, Placement};
use elver_testbed::tcp;
use serde_json::json;

use crate::args::RunArgs;
use crate::report::contract;
use crate::report::counted::Counted;
use crate::report::frame::Frame;
use crate::report::rows::{self, Figure, Row};

const PORT: u16 = 7;
/// A mesh that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);

/// Workers' connects that a node takes before its engine turns, as a daemon takes them from the rings
/// of its clients.
const CONNECTS_A_TURN: usize = 64;

/// Depth of a VQP: thousands of the rivals' QPs stand at once.
const DEPTH: u32 = 16;

/// A way to connect the workers.
struct Way {
    name: &'static str,
    options: ConnectOptions,
    both_ways: bool,
    /// Whether the nodes have each other's records before the clock begins.
    known: bool,
}

const fn way(name: &'static str, policy: Policy, uncached: bool, known: bool) -> Way {
    let both_ways = !matches!(policy, Policy::Leased | Policy::Lite);
    Way { name, options: ConnectOptions { policy, uncached }, both_ways, known }
}

const WAYS: [Way; 6] = [
    way("verbs", Policy::Leased, false, true),
    way("lite", Policy::Lite, false, true),
    way("rpc-meta", Policy::RpcMeta, true, true),
    way("vqp-cold", Policy::Shared, false, false),
    way("vqp", Policy::Shared, false, true),
    way("vqp-uncached", Policy::Shared, true, true),
];

/// What the rounds of a row gave.
struct MeshRow {
    name: &'static str,
    connections: usize,
    total_us: Figure,
    counted: Counted,
}

const MESH_EXAMPLES: &str = "\
Examples:
  sudo elver bench mesh --workers 64
      all connections among 64 workers of two nodes (KRCORE, figure 8b)";

#[derive(Debug, Args)]
#[command(after_help = MESH_EXAMPLES)]
pub struct MeshArgs {
    /// Workers, half of them at each end.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(2..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &MeshArgs) -> Result<(), Failure> {
    let row = |name, both_ways| {
        let connections = (0..2).map(|end| meet::targets(args.workers, end, both_ways).len()).sum();
        MeshRow { name, connections, total_us: Figure::default(), counted: Counted::default() }
    };
    let mut rows = vec![row("tcp", false)];
    rows.extend(WAYS.iter().map(|way| row(way.name, way.both_ways)));
    let ended = Frame::begin_between_nodes("mesh", &args.run)?.run(|stage, doing| {
        doing("tcp");
        rows[0].total_us.push(mesh_of_tcp(stage.pair(), args.workers)?);
        for (row, way) in rows[1..].iter_mut().zip(&WAYS) {
            doing(way.name);
            let (total_us, counted) = mesh_of_vqps(stage.pair(), args.workers, way)?;
            row.total_us.push(total_us);
            row.counted = row.counted.and(counted);
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows)),
        || {
            let rows = rows.iter().map(|row| {
                let mut told = json!({
                    "name": row.name,
                    "total_us": contract::us(row.total_us.median()),
                    "connections": row.connections,
                });
                row.counted.tell(&mut told);
                told
            });
            json!({"workers": args.workers, "rows": rows.collect::<Vec<_>>()})
        },
        || {
            let title = format!("{} workers", args.workers);
            let rows = rows.iter().map(|row| {
                let Counted { reads, rpcs, rc_made, .. } = row.counted;
                let counts = [row.connections as u64, reads, rpcs, rc_made];
                let [connections, reads, rpcs, rc] = counts.map(|count| count.to_string());
                [row.name.to_string(), row.total_us.text(), connections, reads, rpcs, rc]
            });
            let heads = [&title, "total µs [min … max]", "connections", "READs", "RPCs", "RC QPs"];
            table::print(heads, &rows.collect::<Vec<_>>(), 1);
            say!(
                "\nREADs of the meta server, RPCs and RC QPs (one of each end's) of all rounds \
                 together; what goes to one node is asked once for all who wait."
            );
        },
    );
    Ok(())
}

fn mesh_of_tcp(placement: Placement, workers: u32) -> Result<f64, Failure> {
    let meet = Meet::default();
    let targets = [0, 1].map(|end| meet::targets(workers, end, false));
    let (theirs, ours) = pair::run(
        placement,
        |end, client| {
            client.begin();
            tcp::mesh_end(end, &targets[1], &meet)
        },
        |end| tcp::mesh_end(end, &targets[0], &meet),
    )?;
    Ok(theirs.max(ours).as_secs_f64() * 1e6)
}

fn mesh_of_vqps(placement: Placement, workers: u32, way: &Way) -> Result<(f64, Counted), Failure> {
    let meet = Meet::default();
    let targets = [0, 1].map(|end| meet::targets(workers, end, way.both_ways));
    let [ours, theirs] =
        node_pair::run_both(placement, &Config::default(), |node, meta, peer, end| {
            mesh_end(node, meta, peer, &targets[end], way, &meet)
        })?;
    Ok((ours.0.max(theirs.0).as_secs_f64() * 1e6, ours.1.and(theirs.1)))
}

/// One end's part: all its VQPs from creation to connection.
fn mesh_end(
    node: &mut Node,
    mut meta: Option<&mut Node>,
    peer: elver_verbs::Gid,
    targets: &[Target],
    way: &Way,
    meet: &Meet,
) -> Result<(Duration, Counted)> {
    let own = node.gid();
    // They stand before, as in `bench connect`: a connect makes what it needs beyond them.
    let init = VqpInit { max_send_wr: DEPTH, ..VqpInit::default() };
    let vqps: Vec<VqpId> = targets.iter().map(|_| node.vqp(init)).collect::<Result<_>>()?;
    let mut beside = || meta.as_mut().map_or((), |meta| meta.poll());
    if way.known {
        node.learn(&[peer], &mut beside)?;
    }
    meet.wait_while(|| {
        node.poll();
        beside();
    })?;
    let met = node.peers().iter().any(|known| known.gid == peer);
    ensure!(met == way.known, "{}: the other node is known: {met}", way.name);
    let before = Counted::of(node);
    let start = Instant::now();
    let mut pending = 0usize;
    for (begun, (vqp, target)) in vqps.into_iter().zip(targets).enumerate() {
        let gid = if *target == Target::Own { own } else { peer };
        pending += usize::from(node.begin_connect(vqp, gid, PORT, way.options)?.is_none());
        if begun % CONNECTS_A_TURN == CONNECTS_A_TURN - 1 {
            node.poll();
            beside();
            pending -= connected(node)?;
        }
    }
    let mut took = None;
    loop {
        if pending == 0 && took.is_none() {
            took = Some((start.elapsed(), Counted::of(node).since(before)));
            meet.done();
        }
        if let Some((_, counted)) = took
            && meet.all_done()
        {
            let asks = !way.known && targets.contains(&Target::Peer);
            ensure!(!asks || counted.reads > 0, "{}: nothing was looked up", way.name);
            return took.context("a mesh without an end");
        }
        node.poll();
        beside();
        pending -= connected(node)?;
        ensure!(start.elapsed() < STALL, "{}: {pending} connects did not end", way.name);
    }
}

/// How many connects have ended.
fn connected(node: &mut Node) -> Result<usize> {
    let mut ended = 0;
    while let Some((_, result)) = node.next_connected() {
        result?;
        ended += 1;
    }
    Ok(ended)
}

fn claims(rows: &[MeshRow]) -> Vec<Row> {
    let find = |name| rows.iter().find(|row| row.name == name).map(|row| row.total_us.clone());
    let claim = |rival: &'static str, ours: &'static str, target| {
        Some(Row {
            name: format!("{rival} / {ours}"),
            unit: "µs",
            ours: find(rival)?,
            baseline: Some((ours, find(ours)?)),
            target,
        })
    };
    [
        claim("verbs", "vqp-cold", rows::Target::AtLeast(50.0)),
        claim("lite", "vqp-cold", rows::Target::None),
        claim("rpc-meta", "vqp-cold", rows::Target::None),
        claim("tcp", "vqp-cold", rows::Target::None),
        claim("verbs", "vqp", rows::Target::None),
        claim("verbs", "vqp-uncached", rows::Target::None),
    ]
    .into_iter()
    .flatten()
    .collect()
}
