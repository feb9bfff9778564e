//! `elver bench connect`: the ways to have a connection (KRCORE, figures 8a and 9a).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_core::{ConnectOptions, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_verbs::{Gid, Payload, SendFlags, SendOp, SendWr};
use serde_json::json;

use crate::bench::args::{CONNECT_ROWS, ConnectArgs, Stage};
use crate::bench::contract::{self, Figures};
use crate::bench::crowd::Crowd;
use crate::bench::frame::Frame;
use crate::bench::host::{self, Host};
use crate::bench::node::{self, Far, Node};
use crate::bench::rows::{Figure, Row, Target};
use crate::bench::sample::{Clock, Sample};
use crate::bench::tcp;
use crate::bench::ways::{To, Way};
use crate::bench::window::Window;
use crate::exit::Failure;
use crate::out::say;
use crate::table;
use crate::worker::member;

/// Any port: no message is sent.
const PORT: u16 = 7;
/// Fresh processes for each round of a first connect.
const FIRSTS: u32 = 20;
/// A connect, or a READ, that takes longer has failed.
const STALL: Duration = Duration::from_secs(10);
/// Polls between two looks at whether connects have stalled.
const POLLS_PER_LOOK: u32 = 1024;

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
    let mut table = Table { rows: Vec::new(), read: Figure::default() };
    let ended = Frame::begin("connect", &args.run)
        .run(|stage, doing| round(stage, args, &mut table, doing))?;
    ended.tell(
        Some(&claims(&table, ended.stage())),
        || {
            let rows = table.rows.iter().map(|(name, clients, figures)| {
                json!({
                    "name": name,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                    "per_s": figures.per_s.median().round(),
                    "clients": clients,
                })
            });
            let read = contract::us(table.read.median());
            json!({"read_8b_us": {"p50": read}, "rows": rows.collect::<Vec<_>>()})
        },
        || {
            say!("8 B READ from the meta server's host: {} µs", table.read.text());
            let rows = table.rows.iter().map(|(name, clients, figures)| {
                let [p50, p99, per_s] = figures.texts();
                [name.to_string(), clients.to_string(), p50, p99, per_s]
            });
            let heads = ["connect", "clients", "p50 µs [min … max]", "p99 µs", "connects/s"];
            table::print(heads, &rows.collect::<Vec<_>>(), 1);
        },
    );
    Ok(())
}

/// Every row once.
fn round(
    stage: Stage,
    args: &ConnectArgs,
    table: &mut Table,
    doing: &dyn Fn(&str),
) -> Result<(), Failure> {
    let seconds = args.time.duration;
    let duration = Duration::from_secs_f64(seconds);
    doing("8 B READ");
    table.read.push(read(stage, duration)?.us(50.0));
    for name in CONNECT_ROWS.into_iter().filter(|name| args.wants(name)) {
        for &clients in &args.clients {
            doing(&format!("{name}, {clients} at once"));
            let sample = match (name, Way::named(name)) {
                // Processes have a daemon, wherever else the ends stand.
                ("first-connect", _) => firsts(true, clients)?,
                ("first-connect-asleep", _) => firsts(false, clients)?,
                (_, None) if stage == Stage::Host => tcp_of_processes(clients, seconds)?,
                (_, Some(way)) if stage == Stage::Host => of_processes(way, clients, seconds)?,
                (_, None) => tcp::connects(stage.pair(), clients, duration)?,
                // Nodes of its own for each: QPs that one way leaves behind do not slow another.
                (_, Some(way)) => {
                    between_nodes(stage, |node, far| connects(node, far, way, clients, duration))?
                }
            };
            table.push(name, clients, &sample);
        }
    }
    Ok(())
}

fn between_nodes(
    stage: Stage,
    measure: impl FnOnce(&mut Node, &Far) -> Result<Sample> + Send,
) -> Result<Sample, Failure> {
    node::run(stage.pair(), &Config::default(), |_| Ok(()), |_, ()| Ok(()), measure)
}

/// READs of 8 bytes through a VQP, which the claims are compared with.
fn read(stage: Stage, duration: Duration) -> Result<Sample, Failure> {
    if stage != Stage::Host {
        return between_nodes(stage, |node, far| read_8b(node, far, duration));
    }
    let host = Host::start(true)?;
    Ok(host.client.run(|session, client| {
        let (vqp, near, _) = host::ready(session, &client.to, 8, 1, elver::Policy::Shared)?;
        let window = Window { depth: 1, batch: 1, duration };
        host::post_and_poll(&vqp, &near, SendOp::Read(client.to.remote(0)), 8, window)
    })?)
}

/// New processes: one after the other, or all at once.
fn firsts(spins: bool, clients: u32) -> Result<Sample, Failure> {
    let host = Host::start(spins)?;
    Ok(match clients {
        1 => host.firsts(FIRSTS)?,
        _ => host.firsts_at_once(clients)?.0,
    })
}

/// Connects of processes of one daemon: what needs an answer is asked of the daemon's own node.
fn of_processes(way: &Way, clients: u32, seconds: f64) -> Result<Sample, Failure> {
    let host = Host::start(true)?;
    // The idle node, as every node, has an RC QP to the meta server, which is this one: what wants
    // one finds it there, and its own node is known without one.
    let gid = match way.name {
        "vqp-uncached" | "vqp-rc" => host.client.idle,
        _ => host.client.to.gid(),
    };
    let to = member::To::Node { way: way.name.into(), gid: gid.0 };
    let crowd = Crowd::start(&host, clients)?;
    Ok(crowd.connect(&member::Order { to, seconds }).context(way.name)?)
}

/// The same over TCP. The daemon sleeps, and the server has its core.
fn tcp_of_processes(clients: u32, seconds: f64) -> Result<Sample, Failure> {
    let host = Host::start(false)?;
    let crowd = Crowd::start(&host, clients)?;
    let server = (Ipv4Addr::LOCALHOST, tcp::PORT).into();
    let listener = tcp::listen(server)?;
    let order = member::Order { to: member::To::Tcp(server), seconds };
    Ok(tcp::while_serving(&listener, || crowd.connect(&order).context("tcp"))?)
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
    // What is promised is promised between hosts: on one, rivals have no network to cross either.
    let between = |target| if stage == Stage::Host { Target::None } else { target };
    for rival in ["verbs", "lite"] {
        for (ours, least) in [("vqp-dccache", 20.0), ("vqp-rc", 20.0), ("vqp-uncached", 2.0)] {
            claim(rival, (ours, table.p50(ours)), between(Target::AtLeast(least)));
        }
    }
    claim("rpc-meta", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("first-connect", table.p50("first-connect")), Target::None);
    bounds.extend(claims);
    bounds
}
