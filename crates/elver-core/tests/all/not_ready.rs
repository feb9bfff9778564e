//! A member gone bad that is always there and never ready: it answers whatever comes over DC by an RNR NAK,
//! which asks for more patience and ends nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use elver_core::*;
use elver_sim::Datagram;
use elver_verbs::*;
use elver_wire::{
    Aeth, DcEth, DcExtra, Flow, Headers, Message, Msn, PacketView, Qpn, RnrTimer, Route, Syndrome,
    UDP_PORT,
};

use crate::common::*;

/// Where it is: no host of the simulation's has this address.
const MEMBER: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 1));
const DCTN: u32 = 0x778;
/// What it is given up in, with all that belongs to that.
const GIVEN_UP_NS: u64 = 12_000_000_000;

fn gid() -> Gid {
    Gid::from(MEMBER)
}

/// Its record, of a node whose control messages it does not answer.
fn record() -> NodeRecord {
    NodeRecord {
        dctn: DCTN,
        dc_key: 1,
        control_qpn: 0x777,
        mrs_rkey: 1,
        log_mrs_max: 7,
        terms: Terms::new(1_000_000_000, 1_000_000, 1_024),
    }
}

/// What it answers to a request: that it is not ready, and will not be for 0.65 s.
fn answer(asked: &Datagram) -> Option<Datagram> {
    let view = PacketView::parse(&asked.bytes).ok()?;
    let Route::Dc { eth, .. } = view.headers().route() else { return None };
    let own = DcEth { src_qpn: Qpn::from_wrapping(DCTN), fill: 0, ..eth };
    let syndrome = Syndrome::RnrNak(RnrTimer::new(0)?);
    let message = Message::Ack(Aeth { syndrome, msn: Msn::default() });
    let route = Route::Dc { eth: own, extra: DcExtra::None };
    let headers = Headers::new(route, message, eth.src_qpn, view.headers().psn).ok()?;
    let flow = Flow {
        src: SocketAddr::new(MEMBER, UDP_PORT),
        dst: SocketAddr::new(asked.flow.src.ip(), UDP_PORT),
    };
    Some(Datagram::sealed(flow, &headers, &[]))
}

/// A cluster that it is a member of. It has so much time to answer.
fn cluster(count: u8, config: Config) -> Cluster {
    let mut cluster = Cluster::new(count, &Config { timeout: 14, ..config });
    cluster.net.overhear();
    cluster.nodes[0].core.meta_put(gid(), record()).unwrap();
    cluster
}

/// A round in which it answers what it was sent. Returns whether there was anything.
fn round(cluster: &mut Cluster) -> bool {
    let strays = cluster.net.take_strays();
    for answer in strays.iter().filter_map(answer) {
        cluster.net.inject(cluster.net.now().saturating_add_ns(1_000), answer);
    }
    cluster.round();
    !strays.is_empty()
}

/// Lets so much time pass, in large steps where nothing is said.
fn pass(cluster: &mut Cluster, ns: u64) {
    let end = cluster.now().saturating_add_ns(ns);
    while cluster.now() < end {
        if !(0..4).any(|_| round(cluster)) {
            cluster.skip(2_000_000);
        }
    }
}

fn connect(cluster: &mut Cluster, n: usize, client: ClientId, vqp: VqpId, to: Gid, port: u16) {
    let now = cluster.now();
    let node = &mut cluster.nodes[n].core;
    node.qconnect(client, vqp, to, port, ConnectOptions::default(), 1, now).unwrap();
    cluster.until("it is connected", |cluster| {
        let info = cluster.nodes[n].core.vqp_info(client, vqp).unwrap();
        info.state == VqpState::Connected
    });
}

/// Look-ups of regions at it took all buffers for look-ups, and kept them for ever: nobody connected to
/// anybody, and nobody reached a region that was not known.
#[test]
fn region_look_ups_at_a_member_gone_bad_leave_others_theirs() {
    const VQPS: usize = 250;
    let mut cluster = cluster(3, Config { sq_depth: 1_024, ..config() });
    let limits = ClientLimits { account: 7, ..ClientLimits::default() };
    let node = &mut cluster.nodes[1].core;
    let user = node.client_open(limits).unwrap();
    let memory = node.device().alloc_memory(64).unwrap();
    let own = node.reg_mr(user, memory, None, ALL).unwrap();
    for n in 0..VQPS {
        let vqp = cluster.nodes[1].core.vqp_create(user, VqpInit::default()).unwrap();
        connect(&mut cluster, 1, user, vqp, gid(), 0);
        let (op, now) =
            (SendOp::Read(RemoteAddr { addr: 0, rkey: 1 << 8 | n as u32 }), cluster.now());
        let sge = [Sge { addr: own.addr, length: 8, lkey: own.lkey }];
        cluster.nodes[1].core.post_send(user, vqp, &[wr(n as u64, op, &sge)], now).unwrap();
    }
    pass(&mut cluster, 5_000_000);

    // Others of another account: a node that is not known, and a region that is not.
    let vqp = cluster.vqp(1);
    let region = cluster.region(2, 64, ALL);
    let local = cluster.region(1, 64, ALL);
    let (options, there) =
        (ConnectOptions { uncached: true, ..Default::default() }, cluster.nodes[2].core.gid());
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.qconnect(node.client, vqp, there, 0, options, 1, now).unwrap();
    pass(&mut cluster, 5_000_000);
    let node = &cluster.nodes[1];
    let state = node.core.vqp_info(node.client, vqp).unwrap().state;
    assert_eq!(state, VqpState::Connected, "though the other waits");
    cluster.post(1, vqp, &[wr(7, SendOp::Read(region.remote(0)), &[local.sge(0, 8)])]);
    pass(&mut cluster, 5_000_000);
    let ended: Vec<_> = cluster.nodes[1].completions.drain(..).map(|done| done.wc.status).collect();
    assert_eq!(ended, [WcStatus::Success]);

    // What was asked of it ends, with an error, and nothing of it stays.
    pass(&mut cluster, GIVEN_UP_NS);
    let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
    let mut into = vec![blank; VQPS + 1];
    let count = cluster.nodes[1].core.poll_completions(user, &mut into);
    let failed = into[..count].iter().map(|done| done.wc.status).collect::<BTreeSet<_>>();
    assert_eq!((count, failed), (VQPS, BTreeSet::from([WcStatus::RetryExcErr])));
    cluster.nodes[1].core.client_close(user, cluster.net.now());
    cluster.check();
}

/// What a node was to tell it kept its send slots and its lane for ever, and whoever shared that lane waited.
#[test]
fn what_is_told_to_a_member_gone_bad_is_given_up_and_others_go_on() {
    let one_lane = Config { dc_qps: 1, log_dc_streams: 0, ..config() };
    let mut cluster = cluster(3, Config { keep_alive_ns: 0, ..one_lane });
    let server = cluster.bound(2, 7);
    let far = cluster.region(2, 4_096, ALL);
    cluster.recv(2, server, 1, &[far.sge(0, 4_096)]);
    let (client, to_it) = (cluster.vqp(1), cluster.vqp(1));
    cluster.connect(1, client, 2, 7);
    let own = cluster.nodes[1].client;
    connect(&mut cluster, 1, own, to_it, gid(), 9);
    // It is asked for a region, and then the other is sent a message.
    let local = cluster.region(1, 4_096, ALL);
    let read = SendOp::Read(RemoteAddr { addr: 0, rkey: 0x101 });
    cluster.post(1, to_it, &[wr(2, read, &[local.sge(0, 8)])]);
    pass(&mut cluster, 2_000_000);
    cluster.post(1, client, &[wr(3, SendOp::Send, &[local.sge(0, 64)])]);
    pass(&mut cluster, 1_000_000_000);
    assert!(cluster.nodes[1].completions.is_empty(), "it may be ready in a moment");
    pass(&mut cluster, GIVEN_UP_NS);
    let ended = cluster.nodes[1].completions.drain(..).map(|done| (done.wc.wr_id, done.wc.status));
    let ended = ended.collect::<BTreeSet<_>>();
    assert_eq!(ended, BTreeSet::from([(2, WcStatus::RetryExcErr), (3, WcStatus::Success)]));
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success);
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.lanes_reset, stats.vqp_errors), (1, 1));
    cluster.check();
}
