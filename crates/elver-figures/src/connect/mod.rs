//! `elver bench connect`: the ways to have a connection (KRCORE, figures 3, 8a and 9a).

mod abroad;
mod args;
mod crowd;
mod full_verbs;
mod notes;
mod table;
mod waves;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use elver_console::Failure;
use elver_core::{ConnectOptions, VqpInit};
use elver_node::config::Config;
use elver_testbed::hosts::HOSTS_MAX;
use elver_testbed::node::{self, Node};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::programs::Programs;
use elver_testbed::sample::{Clock, Sample};
use elver_testbed::tcp;
use elver_testbed::ways::{To, Way};
use elver_testbed::worker::member;
use elver_verbs::{Gid, Payload, SendFlags, SendOp, SendWr};

pub use args::ConnectArgs;

use crate::args::Stage;
use crate::connect::abroad::Abroad;
use crate::connect::args::CONNECT_ROWS;
use crate::connect::crowd::Crowd;
use crate::connect::full_verbs::Parts;
use crate::connect::table::{Measured, Table};
use crate::connect::waves::Shape;
use crate::host::{self, Host};
use crate::report::frame::Frame;
use crate::window::Window;

/// Any port: no message is sent.
const PORT: u16 = 7;
/// Fresh processes for each round of a first connect.
const FIRSTS: u32 = 20;
/// A READ that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);

/// Measures and prints.
pub(crate) fn run(args: &ConnectArgs, programs: &Programs) -> Result<(), Failure> {
    let mut table = Table::default();
    let ended = Frame::begin("connect", &args.run)
        .run(|stage, doing| round(programs, stage, args, &mut table, doing))?;
    ended.tell(Some(&table::claims(&table, ended.stage())), || table.as_json(), || table.print());
    Ok(())
}

/// Every row once.
fn round(
    programs: &Programs,
    stage: Stage,
    args: &ConnectArgs,
    table: &mut Table,
    doing: &dyn Fn(&str),
) -> Result<(), Failure> {
    let duration = Duration::from_secs_f64(args.time.duration);
    doing("8 B READ");
    table.read.push(read(programs, stage, duration)?.us(50.0));
    for name in CONNECT_ROWS.into_iter().filter(|name| args.wants(name)) {
        for &clients in &args.clients {
            doing(&format!("{name}, {clients} at once"));
            let measured = match Way::named(name) {
                Some(way) if stage == Stage::Host => of_processes(programs, way, clients, args)?,
                Some(way) => between_two(stage, way, clients, args, duration)?,
                None => without_way(programs, stage, name, clients, args, &mut table.parts)?,
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
    programs: &Programs,
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
            Measured::without_node(tcp_of_processes(programs, clients, seconds)?)
        }
        "tcp" => Measured::without_node(tcp::connects(stage.pair(), clients, duration)?),
        "first-connect" => first(programs, stage, true, clients)?,
        "first-connect-asleep" => first(programs, stage, false, clients)?,
        "first-connect-host" => first_on_host(programs, clients)?,
        // The rest is done one after the other.
        _ if clients > 1 => return Ok(Vec::new()),
        "exec-to-read" => {
            let (sample, counted) = Abroad::start(programs, stage, true, FIRSTS)?.programs()?;
            Measured { sample, counted, peers: FIRSTS }
        }
        "exec-to-tcp" => Measured::without_node(abroad::tcp_programs(programs, stage, FIRSTS)?),
        _ => {
            let Some(verbs) = Way::named("verbs") else { return Ok(Vec::new()) };
            let waves = full_verbs::measure(stage.pair(), verbs, duration, parts)?;
            Measured { sample: waves.sample, counted: waves.counted, peers: waves.peers }
        }
    };
    Ok(vec![measured])
}

/// New processes, one after the other or all at once, each to a host of its own that nobody knows.
fn first(
    programs: &Programs,
    stage: Stage,
    awake: bool,
    clients: u32,
) -> Result<Measured, Failure> {
    let peers = if clients == 1 { FIRSTS } else { clients.min(HOSTS_MAX) };
    let abroad = Abroad::start(programs, stage, awake, peers)?;
    let (sample, counted) = match clients {
        1 => abroad.firsts()?,
        _ => abroad.firsts_at_once(clients)?,
    };
    Ok(Measured { sample, counted, peers })
}

/// New processes that READ from another process of their own host.
fn first_on_host(programs: &Programs, clients: u32) -> Result<Measured, Failure> {
    let host = Host::start(programs, true)?;
    let before = host.counted()?;
    let sample = match clients {
        1 => host.firsts(FIRSTS)?,
        _ => host.firsts_at_once(clients)?.0,
    };
    Ok(Measured { sample, counted: host.counted()?.since(before), peers: 1 })
}

/// READs of 8 bytes through a VQP, which the claims are compared with.
fn read(programs: &Programs, stage: Stage, duration: Duration) -> Result<Sample, Failure> {
    if stage != Stage::Host {
        let run = |node: &mut Node, far: &Far| read_8b(node, far, duration);
        return node_pair::run(stage.pair(), &Config::default(), |_| Ok(()), |_, ()| Ok(()), run);
    }
    let host = Host::start(programs, true)?;
    Ok(host.client.run(|session, client| {
        let (vqp, near, _) = host::ready(session, &client.to, 8, 1, elver::Policy::Shared)?;
        let window = Window { depth: 1, batch: 1, duration };
        host::post_and_poll(&vqp, &near, SendOp::Read(client.to.remote(0)), 8, window)
    })?)
}

/// Connects of processes of one daemon. What asks goes to the cluster beyond, what is at hand to a
/// node that the daemon knows already. What needs nodes that nobody has met is of two nodes alone.
fn of_processes(
    programs: &Programs,
    way: &Way,
    clients: u32,
    args: &ConnectArgs,
) -> Result<Vec<Measured>, Failure> {
    if way.meets_strangers() {
        return Ok(Vec::new());
    }
    if way.is_at_hand() {
        return Ok(vec![at_hand(programs, way, clients, args.time.duration)?]);
    }
    let mut measured = vec![beyond(programs, way, clients, 1, args)?];
    if clients > 1 {
        measured.push(beyond(programs, way, clients, clients.min(args.hosts), args)?);
    }
    Ok(measured)
}

/// To the node's own host, or one that it knows: nothing needs to be asked.
fn at_hand(
    programs: &Programs,
    way: &Way,
    clients: u32,
    seconds: f64,
) -> Result<Measured, Failure> {
    let host = Host::start(programs, true)?;
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
fn beyond(
    programs: &Programs,
    way: &Way,
    clients: u32,
    peers: u32,
    args: &ConnectArgs,
) -> Result<Measured, Failure> {
    let abroad = Abroad::start(programs, Stage::Loopback, true, peers)?;
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
fn tcp_of_processes(programs: &Programs, clients: u32, seconds: f64) -> Result<Sample, Failure> {
    let host = Host::start(programs, false)?;
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
