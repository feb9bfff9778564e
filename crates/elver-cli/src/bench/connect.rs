//! `elver bench connect`: the ways to have a connection (KRCORE, figures 8a and 9a).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver::{Session, VqpOptions};
use elver_core::{ConnectOptions, Policy, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_verbs::{Gid, Payload, SendFlags, SendOp, SendWr};
use serde_json::json;

use crate::bench::args::{ConnectArgs, Stage};
use crate::bench::contract::{self, Figures};
use crate::bench::host::{self, Client, Host};
use crate::bench::machine::line_round_trip_ns;
use crate::bench::node::{self, Far, Node};
use crate::bench::rows::{Figure, Row, Target};
use crate::bench::sample::{Clock, Sample};
use crate::bench::tcp;
use crate::exit::Failure;

/// Any port: no message is sent.
const PORT: u16 = 7;
/// Fresh processes for each round of a first connect.
const FIRSTS: u32 = 20;
/// A connect, or a READ, that takes longer has failed.
const STALL: Duration = Duration::from_secs(10);
/// Polls between two looks at whether connects have stalled.
const POLLS_PER_LOOK: u32 = 1024;

/// A way to connect through a node.
struct Way {
    name: &'static str,
    options: ConnectOptions,
    to: To,
    /// By what it must be connected.
    via: &'static [Via],
}

/// Whom it connects to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// The meta server, which answers and has an RC QP to it.
    Meta,
    /// A node whose metadata is all that is needed of it.
    Idle,
}

impl Way {
    /// Whether it supposes that the node knows the peer.
    fn is_cached(&self) -> bool {
        !self.options.uncached && self.options.policy == Policy::Shared
    }

    /// Whether it was connected by what it should be.
    fn check(&self, via: Via) -> Result<()> {
        ensure!(self.via.contains(&via), "{} connected by {via:?}", self.name);
        Ok(())
    }

    /// The options as the client library has them.
    fn options_of_a_process(&self) -> elver::ConnectOptions {
        let policy = match self.options.policy {
            Policy::Shared => elver::Policy::Shared,
            Policy::Lite => elver::Policy::Lite,
            Policy::RpcMeta => elver::Policy::RpcMeta,
            Policy::Leased => elver::Policy::Leased,
        };
        elver::ConnectOptions { policy, uncached: self.options.uncached }
    }
}

const fn options(policy: Policy, uncached: bool) -> ConnectOptions {
    ConnectOptions { policy, uncached }
}

/// In the order of the table.
const WAYS: [Way; 6] = [
    Way {
        name: "verbs",
        options: options(Policy::Leased, false),
        to: To::Meta,
        via: &[Via::Leased],
    },
    Way {
        name: "lite",
        options: options(Policy::Lite, true),
        to: To::Meta,
        via: &[Via::Rc, Via::Leased],
    },
    Way {
        name: "rpc-meta",
        options: options(Policy::RpcMeta, true),
        to: To::Meta,
        via: &[Via::DcLookup, Via::DcCached],
    },
    Way {
        name: "vqp-uncached",
        options: options(Policy::Shared, true),
        to: To::Idle,
        via: &[Via::DcLookup],
    },
    Way {
        name: "vqp-dccache",
        options: options(Policy::Shared, false),
        to: To::Idle,
        via: &[Via::DcCached],
    },
    Way { name: "vqp-rc", options: options(Policy::Shared, false), to: To::Meta, via: &[Via::Rc] },
];

/// What the rounds gave: a row for each name and number of clients.
struct Table {
    rows: Vec<(&'static str, u32, Figures)>,
    read: Figure,
}

impl Table {
    fn push(&mut self, name: &'static str, clients: u32, sample: &Sample) {
        let row = self.rows.iter_mut().find(|row| row.0 == name && row.1 == clients);
        match row {
            Some(row) => row.2.push(sample),
            None => {
                let mut figures = Figures::default();
                figures.push(sample);
                self.rows.push((name, clients, figures));
            }
        }
    }

    fn p50(&self, name: &str) -> Option<Figure> {
        let row = self.rows.iter().find(|row| row.0 == name && row.1 == 1);
        row.map(|row| row.2.p50_us.clone())
    }
}

/// Measures and prints.
pub(crate) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let stage = Stage::chosen(args.placement);
    let before = line_round_trip_ns();
    let mut table = Table { rows: Vec::new(), read: Figure::default() };
    for _ in 0..args.round.rounds {
        round(stage, args, &mut table)?;
    }
    let after = line_round_trip_ns();
    let claims = claims(&table, stage);
    if args.round.json {
        let rows = table.rows.iter().map(|(name, clients, figures)| {
            json!({
                "name": name,
                "p50_us": contract::us(figures.p50_us.median()),
                "p99_us": contract::us(figures.p99_us.median()),
                "per_s": figures.per_s.median().round(),
                "clients": clients,
            })
        });
        println!(
            "{}",
            json!({
                "bench": "connect",
                "placement": stage.name(),
                "read_8b_us": {"p50": contract::us(table.read.median())},
                "rows": rows.collect::<Vec<_>>(),
                "rounds": args.round.rounds,
                "line_round_trip_ns": contract::machine_as_json(before, after),
                "claims": contract::claims_as_json(&claims),
            })
        );
        return Ok(());
    }
    contract::print_machine(args.round.rounds, stage, before, after);
    println!("{:<24} {:>30} µs", "8 B READ, meta server", table.read.text());
    println!(
        "\n{:<24} {:>8} {:>30} {:>12} {:>12}",
        "connect", "clients", "p50 µs [min … max]", "p99 µs", "a second"
    );
    for (name, clients, figures) in &table.rows {
        println!(
            "{name:<24} {clients:>8} {:>30} {:>12.3} {:>12.0}",
            figures.p50_us.text(),
            figures.p99_us.median(),
            figures.per_s.median()
        );
    }
    contract::print_claims(&claims);
    Ok(())
}

/// Every row once.
fn round(stage: Stage, args: &ConnectArgs, table: &mut Table) -> Result<(), Failure> {
    let duration = Duration::from_secs_f64(args.round.duration);
    for &clients in args.clients.iter().filter(|_| args.wants("tcp")) {
        table.push("tcp", clients, &tcp::connects(stage.pair(), clients, duration)?);
    }
    match stage {
        Stage::Host => {
            let host = Host::start(true)?;
            let (read, samples) = host
                .client
                .run(|session, known| through_a_daemon(session, known, args, duration))?;
            table.read.push(read.us(50.0));
            for (name, clients, sample) in samples {
                table.push(name, clients, &sample);
            }
        }
        Stage::Netns | Stage::Loopback => {
            let read = between_nodes(stage, |node, far| read_8b(node, far, duration))?;
            table.read.push(read.us(50.0));
            // Nodes of its own for each: QPs that one way leaves behind do not slow another.
            for way in WAYS.iter().filter(|way| args.wants(way.name)) {
                for &clients in &args.clients {
                    let measure =
                        |node: &mut Node, far: &Far| connects(node, far, way, clients, duration);
                    table.push(way.name, clients, &between_nodes(stage, measure)?);
                }
            }
        }
    }
    // Processes have a daemon, wherever else the ends stand.
    for (name, spins) in [("first-connect", true), ("first-connect-asleep", false)] {
        if args.wants(name) {
            table.push(name, 1, &Host::start(spins)?.firsts(FIRSTS)?);
        }
    }
    Ok(())
}

type Samples = (Sample, Vec<(&'static str, u32, Sample)>);

fn between_nodes(
    stage: Stage,
    measure: impl FnOnce(&mut Node, &Far) -> Result<Sample> + Send,
) -> Result<Sample, Failure> {
    node::run(stage.pair(), &Config::default(), |_| Ok(()), |_, ()| Ok(()), measure)
}

/// The same by a process of one daemon: what needs an answer is asked of the daemon's own node.
fn through_a_daemon(
    session: &Session,
    known: &Client,
    args: &ConnectArgs,
    duration: Duration,
) -> Result<Samples> {
    let (vqp, near, _) = host::ready(session, &known.to, 8, 1)?;
    let op = SendOp::Read(known.to.remote(0));
    let read = host::post_and_poll(&vqp, &near, op, 8, (1, 1), duration)?;
    let mut samples = Vec::new();
    for way in WAYS.iter().filter(|way| args.wants(way.name)) {
        // The idle node, as every node, has an RC QP to the meta server, which is this one: what
        // wants one finds it there, and its own node is known without one.
        let gid = match way.name {
            "vqp-uncached" | "vqp-rc" => known.idle,
            _ => known.to.gid(),
        };
        let options = way.options_of_a_process();
        let check = |via| way.check(via);
        if way.is_cached() {
            session.create_vqp(VqpOptions::default())?.qconnect(gid, PORT)?;
        }
        for &clients in &args.clients {
            let sample = host::connects(session, gid, PORT, options, clients, duration, check)
                .with_context(|| way.name)?;
            samples.push((way.name, clients, sample));
        }
    }
    Ok((read, samples))
}

/// READs of 8 bytes through a VQP to the meta server, one at a time.
fn read_8b(node: &mut Node, far: &Far, duration: Duration) -> Result<Sample> {
    let vqp = node.vqp(VqpInit::default())?;
    node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
    let near = node.region(64)?;
    let sges = [near.sge(8)];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Read(far.remote),
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sges),
        dest: None,
    };
    let mut sample = Sample::new()?;
    let mut completions = node::blank::<4>();
    let mut clock = Clock::new(duration);
    while clock.goes_on(&mut sample) {
        let since = Instant::now();
        node.post(vqp, &[wr])?;
        while node.take(&mut completions) == 0 {
            ensure!(since.elapsed() < STALL, "a READ did not end within {} s", STALL.as_secs());
        }
        node::succeeded(&completions[0])?;
        sample.record(since.elapsed());
    }
    clock.finish(&mut sample);
    node.destroy(vqp)?;
    Ok(sample)
}

/// Connects of new VQPs, `clients` of them under way at any time.
fn connects(
    node: &mut Node,
    far: &Far,
    way: &Way,
    clients: u32,
    duration: Duration,
) -> Result<Sample> {
    let gid = if way.to == To::Meta { far.meta } else { far.idle };
    warm_up(node, gid, way)?;
    let mut sample = Sample::new()?;
    let mut under_way: HashMap<VqpId, Instant> = HashMap::new();
    let mut clock = Clock::new(duration);
    let mut last = Instant::now();
    let mut polls = 0u32;
    while clock.goes_on(&mut sample) {
        while under_way.len() < clients as usize {
            let vqp = node.vqp(VqpInit::default())?;
            let since = Instant::now();
            let begun = node.begin_connect(vqp, gid, PORT, way.options)?;
            let Some(via) = begun else {
                under_way.insert(vqp, since);
                continue;
            };
            last = Instant::now();
            sample.record(last - since);
            finish(node, way, vqp, via)?;
            break;
        }
        if !under_way.is_empty() {
            node.poll();
        }
        while let Some((vqp, result)) = node.next_connected() {
            // First of all, as a READ's end is: the book-keeping is the benchmark's.
            let ended = Instant::now();
            let Some(since) = under_way.remove(&vqp) else { continue };
            last = ended;
            sample.record(ended - since);
            finish(node, way, vqp, result?)?;
        }
        // Not each time: the clock is a good part of a poll that finds nothing.
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS_PER_LOOK) && last.elapsed() > STALL {
            bail!("{}: no connect ended within {} s", way.name, STALL.as_secs());
        }
    }
    clock.finish(&mut sample);
    while !under_way.is_empty() {
        node.poll();
        while let Some((vqp, _)) = node.next_connected() {
            if under_way.remove(&vqp).is_some() {
                node.destroy(vqp)?;
            }
        }
        ensure!(last.elapsed() < STALL, "{}: a connect was lost", way.name);
    }
    Ok(sample)
}

/// What the way supposes: metadata in the cache, or an RC QP.
fn warm_up(node: &mut Node, gid: Gid, way: &Way) -> Result<()> {
    if !way.is_cached() {
        return Ok(());
    }
    let start = Instant::now();
    loop {
        let vqp = node.vqp(VqpInit::default())?;
        let via = node.connect(vqp, gid, PORT, way.options)?;
        node.destroy(vqp)?;
        if way.via.contains(&via) {
            return Ok(());
        }
        ensure!(start.elapsed() < STALL, "{}: connects come by {via:?}", way.name);
        node.poll();
    }
}

/// A connect has ended: by what it should, and its VQP goes.
fn finish(node: &mut Node, way: &Way, vqp: VqpId, via: Via) -> Result<()> {
    way.check(via)?;
    node.destroy(vqp)
}

fn claims(table: &Table, stage: Stage) -> Vec<Row> {
    let (mut bounds, mut claims) = (Vec::new(), Vec::new());
    let mut claim = |name: &str, over: (&'static str, Option<Figure>), target| {
        let (Some(ours), (under, Some(baseline))) = (table.p50(name), over) else { return };
        let name = format!("{name} / {under}");
        claims.push(Row { name, unit: "µs", ours, baseline: Some((under, baseline)), target });
    };
    let read = || ("8 B READ", Some(table.read.clone()));
    let mut within = |name: &str, most| {
        let Some(ours) = table.p50(name) else { return };
        let (name, target) = (format!("{name} p50"), Target::AtMost(most));
        bounds.push(Row { name, unit: "µs", ours, baseline: None, target });
    };
    within("first-connect", 60.0);
    within("first-connect-asleep", 250.0);
    if stage == Stage::Host {
        within("vqp-dccache", 1.0);
        within("vqp-rc", 1.0);
        bounds.push(Row {
            name: "8 B READ p50".into(),
            unit: "µs",
            ours: table.read.clone(),
            baseline: None,
            target: Target::AtMost(1.5),
        });
    }
    claim("vqp-uncached", read(), Target::AtMost(1.6));
    if stage == Stage::Netns {
        claim("vqp-dccache", read(), Target::AtMost(0.1));
        claim("vqp-rc", read(), Target::AtMost(0.1));
    }
    for rival in ["verbs", "lite"] {
        claim(rival, ("vqp-dccache", table.p50("vqp-dccache")), Target::AtLeast(20.0));
        claim(rival, ("vqp-rc", table.p50("vqp-rc")), Target::AtLeast(20.0));
        claim(rival, ("vqp-uncached", table.p50("vqp-uncached")), Target::AtLeast(2.0));
    }
    claim("rpc-meta", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("first-connect", table.p50("first-connect")), Target::None);
    bounds.extend(claims);
    bounds
}
