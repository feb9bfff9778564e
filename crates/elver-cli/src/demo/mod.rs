//! `elver demo`: a cluster on this machine that shows what it can do, and fails if it cannot.

mod nodes;
mod say;
mod steps;

use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use elver_console::{Failure, say};
use elver_testbed::cluster::{Cluster, Ground, NodeSpec};
use elver_testbed::programs::Programs;
use elver_testbed::seat::Seat;
use serde_json::{Map, Value, json};

use crate::demo::nodes::{A, B, BESIDE_A, CORE_OF_A, META, millis};
use crate::demo::say::Say;

const EXAMPLES: &str = "\
Examples:
  elver demo
      on loopback addresses, without privileges
  sudo elver demo
      the same in network namespaces
  elver demo --json | jq .connect
      what was measured, for programs

Three `elverd` are started, the first of them a meta server, and processes beside them. Everything
ends with the command, however that ends (SIGKILL leaves a directory). The exit code is 0 only if
every byte was right, what a killed process had was taken back, and a connection moved from DC to RC.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Where the nodes stand; by default netns for root, else loopback.
    #[arg(long, value_enum)]
    placement: Option<Where>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// A network namespace for each. Needs root.
    Netns,
    /// An address of the loopback for each.
    Loopback,
}

/// Shows it.
pub(crate) fn run(args: &DemoArgs, programs: &Programs) -> Result<(), Failure> {
    let ground = match args.placement {
        Some(Where::Netns) => Ground::Netns,
        Some(Where::Loopback) => Ground::Loopback,
        None => Ground::best(),
    };
    let mut say = Say::new(args.json);
    let start = Instant::now();
    say.doing("starting three nodes");
    let cluster = Cluster::start(programs, ground, &specs())?;
    let up_ms = millis(start.elapsed());
    say.title(&format!(
        "A meta server and two nodes in {}, up in {up_ms:.0} ms",
        match ground {
            Ground::Netns => "network namespaces",
            Ground::Loopback => "this network, on loopback addresses",
        }
    ));
    for (node, name) in [(META, "meta server"), (A, "node a"), (B, "node b")] {
        say.row(name, &cluster.address(node).to_string());
    }
    let mut told = Map::new();
    told.insert("demo".into(), json!("elver"));
    told.insert("placement".into(), json!(ground.name()));
    told.insert("up_ms".into(), json!(up_ms));
    for (name, step) in steps::ALL {
        told.insert(name.into(), step(&cluster, &mut say)?);
    }
    say.doing("ending");
    drop(cluster);
    let seconds = start.elapsed().as_secs_f64();
    told.insert("seconds".into(), json!((seconds * 1e3).round() / 1e3));
    say.title(&format!("All of it held, in {seconds:.1} s; nothing is left behind"));
    if args.json {
        say!("{}", Value::Object(told));
    }
    Ok(())
}

/// The nodes. Peers become hot soon, so that the move to RC need not be waited for; and none is taken for gone that
/// has no core for a moment among so many that run.
fn specs() -> Vec<NodeSpec> {
    let options = ["transfer.hot_ops = 300", "pool.keep_alive_ms = 10000"];
    let options = options.map(str::to_string).to_vec();
    let seats = [BESIDE_A, Seat::On(CORE_OF_A), BESIDE_A];
    ["the meta server", "node a", "node b"]
        .into_iter()
        .zip(seats)
        .map(|(name, seat)| NodeSpec { name, seat, options: options.clone() })
        .collect()
}
