//! `elver bench connect`: the ways to have a connection (KRCORE, figures 3, 8a and 9a).

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use elver_core::{ConnectOptions, VqpInit};
use elver_node::config::Config;
use elver_verbs::{Gid, Payload, SendFlags, SendOp, SendWr};
use serde_json::{Value, json};

use crate::bench::abroad::{self, Abroad};
use crate::bench::args::{CONNECT_ROWS, ConnectArgs, Stage};
use crate::bench::contract::{self, Figures};
use crate::bench::counted::Counted;
use crate::bench::crowd::Crowd;
use crate::bench::frame::Frame;
use crate::bench::full_verbs::{self, Parts};
use crate::bench::host::{self, Host};
use crate::bench::hosts::HOSTS_MAX;
use crate::bench::node::{self, Far, Node};
use crate::bench::notes;
use crate::bench::rows::{Figure, Row, Target};
use crate::bench::sample::{Clock, Sample};
use crate::bench::tcp;
use crate::bench::waves::{self, Shape};
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
/// A READ that takes longer has failed.
const STALL: Duration = Duration::from_secs(10);

/// What the rounds gave: a row for each name, number of clients and number of peers.
struct Table {
    rows: Vec<TableRow>,
    read: Figure,
    parts: Parts,
}

struct TableRow {
    name: &'static str,
    clients: u32,
    peers: u32,
    figures: Figures,
    counted: Counted,
}

/// One measurement of a row.
struct Measured {
    sample: Sample,
    counted: Counted,
    peers: u32,
}

impl Measured {
    /// Of what no node has a part in.
    fn without_node(sample: Sample) -> Measured {
        Measured { sample, counted: Counted::default(), peers: 1 }
    }
}

impl Table {
    fn push(&mut self, name: &'static str, clients: u32, measured: &Measured) {
        let Measured { sample, counted, peers } = measured;
        let key = |row: &TableRow| (row.name, row.clients, row.peers) == (name, clients, *peers);
        let at = self.rows.iter().position(key).unwrap_or_else(|| {
            let (figures, counted) = (Figures::default(), Counted::default());
            self.rows.push(TableRow { name, clients, peers: *peers, figures, counted });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.figures.push(sample);
        row.counted = row.counted.and(*counted);
    }

    fn p50(&self, name: &str) -> Option<Figure> {
        let row = self.rows.iter().find(|row| row.name == name && row.clients == 1);
        row.map(|row| row.figures.p50_us.clone())
    }

    fn as_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let mut told = json!({
                "name": row.name,
                "p50_us": contract::us(row.figures.p50_us.median()),
                "p99_us": contract::us(row.figures.p99_us.median()),
                "per_s": row.figures.per_s.median().round(),
                "clients": row.clients,
                "peers": row.peers,
            });
            row.counted.tell(&mut told);
            told
        });
        let read = contract::us(self.read.median());
        json!({
            "read_8b_us": {"p50": read},
            "rows": rows.collect::<Vec<_>>(),
            "verbs_parts_us": self.parts.as_json(),
            "notes": notes::of(self.rows.iter().map(|row| row.name)),
        })
    }

    fn print(&self) {
        say!("8 B READ from the meta server's host: {} µs", self.read.text());
        let rows = self.rows.iter().map(|row| {
            let [p50, p99, per_s] = row.figures.texts();
            let [reads, rpcs, rc, packets] = row.counted.texts();
            let (clients, peers) = (row.clients.to_string(), row.peers.to_string());
            [row.name.to_string(), clients, peers, p50, p99, per_s, reads, rpcs, rc, packets]
        });
        let heads = [
            "connect",
            "clients",
            "peers",
            "p50 µs [min … max]",
            "p99 µs",
            "connects/s",
            "READs",
            "RPCs",
            "RC QPs",
            "packets",
        ];
        table::print(heads, &rows.collect::<Vec<_>>(), 1);
        say!("\nREADs of meta servers, RPCs, RC QPs made and packets sent: of one connect.");
        notes::print(self.rows.iter().map(|row| row.name));
    }
}

/// Measures and prints.
pub(crate) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let (read, parts) = (Figure::default(), Parts::default());
    let mut table = Table { rows: Vec::new(), read, parts };
    let ended = Frame::begin("connect", &args.run)
        .run(|stage, doing| round(stage, args, &mut table, doing))?;
    ended.tell(Some(&claims(&table, ended.stage())), || table.as_json(), || table.print());
    Ok(())
}

/// Every row once.
fn round(
    stage: Stage,
    args: &ConnectArgs,
    table: &mut Table,
    doing: &dyn Fn(&str),
) -> Result<(), Failure> {
    let duration = Duration::from_secs_f64(args.time.duration);
    doing("8 B READ");
    table.read.push(read(stage, duration)?.us(50.0));
    for name in CONNECT_ROWS.into_iter().filter(|name| args.wants(name)) {
        for &clients in &args.clients {
            doing(&format!("{name}, {clients} at once"));
            let measured = match Way::named(name) {
                Some(way) if stage == Stage::Host => of_processes(way, clients, args)?,
                Some(way) => between_two(stage, way, clients, args, duration)?,
                None => without_way(stage, name, clients, args, &mut table.parts)?,
            };
            for measured in &measured {
                table.push(name, clients, measured);
            }
        }
    }
    Ok(())
}

/// Between two nodes: to one of them, and, where that is another thing, to many.
fn between_two(
    stage: Stage,
    way: &Way,
    clients: u32,
    args: &ConnectArgs,
    duration: Duration,
) -> Result<Vec<Measured>, Failure> {
    let many = if way.meets_strangers() { args.hosts } else { args.hosts.min(clients) };
    let hosts = match () {
        () if way.meets_strangers() => vec![many],
        () if clients > 1 && way.leads_to_many() => vec![0, many],
        () => vec![0],
    };
    let measure = |hosts| {
        let waves = waves::measure(stage.pair(), way, Shape { clients, hosts, duration })?;
        Ok(Measured { sample: waves.sample, counted: waves.counted, peers: waves.peers })
    };
    hosts.into_iter().map(measure).collect()
}

/// Rows that are no way of a node's to connect.
fn without_way(
    stage: Stage,
    name: &str,
    clients: u32,
    args: &ConnectArgs,
    parts: &mut Parts,
) -> Result<Vec<Measured>, Failure> {
    let seconds = args.time.duration;
    let duration = Duration::from_secs_f64(seconds);
    let measured = match name {
        "tcp" if stage == Stage::Host => {
            Measured::without_node(tcp_of_processes(clients, seconds)?)
        }
        "tcp" => Measured::without_node(tcp::connects(stage.pair(), clients, duration)?),
        "first-connect" => first(stage, true, clients)?,
        "first-connect-asleep" => first(stage, false, clients)?,
        "first-connect-host" => first_on_host(clients)?,
        // The rest is done one after the other.
        _ if clients > 1 => return Ok(Vec::new()),
        "exec-to-read" => {
            let (sample, counted) = Abroad::start(stage, true, FIRSTS)?.programs()?;
            Measured { sample, counted, peers: FIRSTS }
        }
        "exec-to-tcp" => Measured::without_node(abroad::tcp_programs(stage, FIRSTS)?),
        _ => {
            let Some(verbs) = Way::named("verbs") else { return Ok(Vec::new()) };
            let waves = full_verbs::measure(stage.pair(), verbs, duration, parts)?;
            Measured { sample: waves.sample, counted: waves.counted, peers: waves.peers }
        }
    };
    Ok(vec![measured])
}

/// New processes, one after the other or all at once, each to a host of its own that nobody knows.
fn first(stage: Stage, awake: bool, clients: u32) -> Result<Measured, Failure> {
    let peers = if clients == 1 { FIRSTS } else { clients.min(HOSTS_MAX) };
    let abroad = Abroad::start(stage, awake, peers)?;
    let (sample, counted) = match clients {
        1 => abroad.firsts()?,
        _ => abroad.firsts_at_once(clients)?,
    };
    Ok(Measured { sample, counted, peers })
}

/// New processes that READ from another process of their own host.
fn first_on_host(clients: u32) -> Result<Measured, Failure> {
    let host = Host::start(true)?;
    let before = host.counted()?;
    let sample = match clients {
        1 => host.firsts(FIRSTS)?,
        _ => host.firsts_at_once(clients)?.0,
    };
    Ok(Measured { sample, counted: host.counted()?.since(before), peers: 1 })
}

/// READs of 8 bytes through a VQP, which the claims are compared with.
fn read(stage: Stage, duration: Duration) -> Result<Sample, Failure> {
    if stage != Stage::Host {
        let run = |node: &mut Node, far: &Far| read_8b(node, far, duration);
        return node::run(stage.pair(), &Config::default(), |_| Ok(()), |_, ()| Ok(()), run);
    }
    let host = Host::start(true)?;
    Ok(host.client.run(|session, client| {
        let (vqp, near, _) = host::ready(session, &client.to, 8, 1, elver::Policy::Shared)?;
        let window = Window { depth: 1, batch: 1, duration };
        host::post_and_poll(&vqp, &near, SendOp::Read(client.to.remote(0)), 8, window)
    })?)
}

/// Connects of processes of one daemon. What asks goes to the cluster beyond, what is at hand to a
/// node that the daemon knows already. What needs nodes that nobody has met is of two nodes alone.
fn of_processes(way: &Way, clients: u32, args: &ConnectArgs) -> Result<Vec<Measured>, Failure> {
    if way.meets_strangers() {
        return Ok(Vec::new());
    }
    if way.is_at_hand() {
        return Ok(vec![at_hand(way, clients, args.time.duration)?]);
    }
    let mut measured = vec![beyond(way, clients, 1, args)?];
    if clients > 1 {
        measured.push(beyond(way, clients, clients.min(args.hosts), args)?);
    }
    Ok(measured)
}

/// To the node's own host, or one that it knows: nothing needs to be asked.
fn at_hand(way: &Way, clients: u32, seconds: f64) -> Result<Measured, Failure> {
    let host = Host::start(true)?;
    // What wants an RC QP finds one to the idle node; its own node is known without one.
    let gid = match way.to {
        To::Meta => {
            host.client.link_to(host.client.idle)?;
            host.client.idle
        }
        To::Idle => host.client.to.gid(),
    };
    let crowd = Crowd::start(clients, || host.member(clients == 1))?;
    let orders = [order(way, gid, seconds)];
    let (sample, before) = crowd.connect_to(&orders, || host.counted()).context(way.name)?;
    Ok(Measured { sample, counted: host.counted()?.since(before), peers: 1 })
}

/// Over the network, to one node or to many.
fn beyond(way: &Way, clients: u32, peers: u32, args: &ConnectArgs) -> Result<Measured, Failure> {
    let abroad = Abroad::start(Stage::Loopback, true, peers)?;
    let gids = match way.to {
        To::Meta if peers == 1 => vec![abroad.meta()],
        _ => abroad.host_gids(),
    };
    let orders: Vec<_> = gids.iter().map(|gid| order(way, *gid, args.time.duration)).collect();
    let crowd = Crowd::start(clients, || abroad.member())?;
    let (sample, before) = crowd.connect_to(&orders, || abroad.counted()).context(way.name)?;
    let counted = abroad.counted()?.since(before);
    if counted.packets == 0 {
        return Err(anyhow::anyhow!("{}: no packet left the host", way.name).into());
    }
    Ok(Measured { sample, counted, peers })
}

fn order(way: &Way, gid: Gid, seconds: f64) -> member::Order {
    member::Order { to: member::To::Node { way: way.name.into(), gid: gid.0 }, seconds }
}

/// The same over TCP. The daemon sleeps, and the server has its core.
fn tcp_of_processes(clients: u32, seconds: f64) -> Result<Sample, Failure> {
    let host = Host::start(false)?;
    let crowd = Crowd::start(clients, || host.member(clients == 1))?;
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
    within("first-connect", 100.0);
    within("first-connect-host", 60.0);
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
    for rival in ["verbs", "lite-miss"] {
        let least =
            [("vqp-cold", 2.0), ("vqp-uncached", 2.0), ("vqp-dccache", 20.0), ("vqp-rc", 20.0)];
        for (ours, least) in least {
            claim(rival, (ours, table.p50(ours)), between(Target::AtLeast(least)));
        }
    }
    // What LITE has at hand is as fast as what we have at hand.
    claim("lite-hit", ("vqp-rc", table.p50("vqp-rc")), Target::None);
    claim("rpc-meta", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("first-connect", table.p50("first-connect")), Target::None);
    claim("exec-to-read", ("exec-to-tcp", table.p50("exec-to-tcp")), Target::None);
    bounds.extend(claims);
    bounds
}
