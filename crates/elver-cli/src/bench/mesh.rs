//! `elver bench mesh`: all connections among many workers at once (KRCORE, figure 8b).
//!
//! The workers stand at two nodes in turn, each of them an own client of VQPs. With `tcp`, `verbs`
//! and `lite` a pair of workers has one connection, which serves both ways; a VQP is of one worker,
//! so that a pair has two. `verbs` and `lite` make a QP for every pair, as in the paper, where every
//! worker's pool is empty; VQPs begin with empty caches too, and share what they look up.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use elver_core::{ConnectOptions, Policy, VqpId, VqpInit};
use elver_node::config::Config;
use serde_json::json;

use crate::bench::args::MeshArgs;
use crate::bench::contract;
use crate::bench::frame::Frame;
use crate::bench::meet::{self, Meet, Target};
use crate::bench::node::{self, Node};
use crate::bench::rows::{Figure, Row};
use crate::bench::{rows, tcp};
use crate::cli::Placement;
use crate::exit::Failure;
use crate::{pair, table};

const PORT: u16 = 7;
/// A mesh that takes longer has failed.
const STALL: Duration = Duration::from_secs(20);

/// Depth of a VQP: thousands of the rivals' QPs stand at once.
const DEPTH: u32 = 16;

/// A way to connect the workers.
struct Way {
    name: &'static str,
    options: ConnectOptions,
    both_ways: bool,
}

const fn way(name: &'static str, policy: Policy, uncached: bool, both_ways: bool) -> Way {
    Way { name, options: ConnectOptions { policy, uncached }, both_ways }
}

const WAYS: [Way; 5] = [
    way("verbs", Policy::Leased, false, false),
    way("lite", Policy::Lite, true, false),
    way("rpc-meta", Policy::RpcMeta, false, true),
    way("vqp", Policy::Shared, false, true),
    way("vqp-uncached", Policy::Shared, true, true),
];

/// Measures and prints.
pub(crate) fn run(args: &MeshArgs) -> Result<(), Failure> {
    let mut rows: Vec<(&'static str, Figure)> = vec![("tcp", Figure::default())];
    rows.extend(WAYS.iter().map(|way| (way.name, Figure::default())));
    let ended = Frame::begin_between_nodes("mesh", &args.run)?.run(|stage, doing| {
        doing("tcp");
        rows[0].1.push(mesh_of_tcp(stage.pair(), args.workers)?);
        for (row, way) in rows[1..].iter_mut().zip(&WAYS) {
            doing(way.name);
            row.1.push(mesh_of_vqps(stage.pair(), args.workers, way)?);
        }
        Ok(())
    })?;
    ended.tell(
        Some(&claims(&rows)),
        || {
            let rows = rows.iter().map(
                |(name, total)| json!({"name": name, "total_us": contract::us(total.median())}),
            );
            json!({"workers": args.workers, "rows": rows.collect::<Vec<_>>()})
        },
        || {
            let title = format!("{} workers", args.workers);
            let rows = rows.iter().map(|(name, total)| [name.to_string(), total.text()]);
            table::print([&title, "total µs [min … max]"], &rows.collect::<Vec<_>>(), 1);
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

fn mesh_of_vqps(placement: Placement, workers: u32, way: &Way) -> Result<f64, Failure> {
    let meet = Meet::default();
    let targets = [0, 1].map(|end| meet::targets(workers, end, way.both_ways));
    let took = node::run_both(placement, &Config::default(), |node, peer, end| {
        mesh_end(node, peer, &targets[end], way, &meet)
    })?;
    Ok(took[0].max(took[1]).as_secs_f64() * 1e6)
}

/// One end's part: all its VQPs from creation to connection.
fn mesh_end(
    node: &mut Node,
    peer: elver_verbs::Gid,
    targets: &[Target],
    way: &Way,
    meet: &Meet,
) -> Result<Duration> {
    let own = node.gid();
    // They stand before, as in `bench connect`: a connect makes what it needs beyond them.
    let init = VqpInit { max_send_wr: DEPTH, ..VqpInit::default() };
    let vqps: Vec<VqpId> = targets.iter().map(|_| node.vqp(init)).collect::<Result<_>>()?;
    meet.wait()?;
    let start = Instant::now();
    let mut pending = 0usize;
    for (vqp, target) in vqps.into_iter().zip(targets) {
        let gid = if *target == Target::Own { own } else { peer };
        pending += usize::from(node.begin_connect(vqp, gid, PORT, way.options)?.is_none());
    }
    let mut took = None;
    loop {
        if pending == 0 && took.is_none() {
            took = Some(start.elapsed());
            meet.done();
        }
        if let Some(took) = took
            && meet.all_done()
        {
            return Ok(took);
        }
        node.poll();
        while let Some((_, result)) = node.next_connected() {
            result?;
            pending -= 1;
        }
        ensure!(start.elapsed() < STALL, "{}: {pending} connects did not end", way.name);
    }
}

fn claims(figures: &[(&'static str, Figure)]) -> Vec<Row> {
    let find = |name| figures.iter().find(|row| row.0 == name).map(|row| row.1.clone());
    let Some(vqp) = find("vqp") else { return Vec::new() };
    let claim = |rival: &'static str, target| {
        Some(Row {
            name: format!("{rival} / vqp"),
            unit: "µs",
            ours: find(rival)?,
            baseline: Some(("vqp", vqp.clone())),
            target,
        })
    };
    [
        claim("verbs", rows::Target::AtLeast(50.0)),
        claim("lite", rows::Target::AtLeast(50.0)),
        claim("rpc-meta", rows::Target::None),
        claim("tcp", rows::Target::None),
    ]
    .into_iter()
    .flatten()
    .collect()
}
