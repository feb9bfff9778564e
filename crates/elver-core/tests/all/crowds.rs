//! Crowds of connects that need RC QPs: all end, in order, as soon as the work that they make is
//! done. In virtual time, so that a back-off that anybody waits for shows.

use std::collections::VecDeque;

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_verbs::{Gid, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Time, Wc};

/// A round trip of the simulated network, with what nodes need for the processing of packets.
const ROUND_TRIP_NS: u64 = 10_000;
/// The shortest timer of a handshake: what waited for one took at least so long.
const TIMER_NS: u64 = 750_000;

fn limits() -> ClientLimits {
    ClientLimits { vqps: 20_000, ..ClientLimits::default() }
}

/// Connects of node 1 to node 2, with `at_once` of them under way at any time, each VQP destroyed
/// when it is connected, as `elver bench connect` has it. Returns how long the slowest took, and
/// all.
fn churn(nodes: &mut Nodes, at_once: usize, count: usize, policy: Policy) -> (u64, u64) {
    let known = nodes.vqp(1, VqpInit::default());
    nodes.connect(1, known, 2, Policy::Shared).unwrap();
    let together = nodes.nodes[1].core.config().storm.handshakes_max as usize;
    let start = nodes.net.now();
    let mut under_way: VecDeque<(VqpId, Time)> = VecDeque::new();
    let (mut begun, mut ended, mut slowest) = (0, 0, 0);
    while ended < count {
        while begun < count && under_way.len() < at_once {
            let vqp = nodes.vqp(1, VqpInit::default());
            assert_eq!(nodes.begin_connect(1, vqp, 2, policy, true), None);
            under_way.push_back((vqp, nodes.net.now()));
            begun += 1;
        }
        nodes.step();
        while let Some((vqp, result)) = nodes.connected(1) {
            assert_eq!(result, Ok(Via::Leased), "after {ended} of them");
            let place = under_way.iter().position(|(other, _)| *other == vqp).unwrap();
            assert!(place < together, "one that began {place} before it still waits");
            let (_, since) = under_way.remove(place).unwrap();
            slowest = slowest.max(nodes.net.now().ns_since(since));
            nodes.destroy(1, vqp);
            ended += 1;
        }
    }
    (slowest, nodes.net.now().ns_since(start))
}

/// More handshakes than answers are kept for, in less time than they are kept.
#[test]
fn crowds_of_leases_wait_for_work_and_not_for_timers() {
    for (at_once, count) in [(1, 6_000), (240, 12_000)] {
        let mut nodes = Nodes::new(3, &Config::default(), limits());
        let (slowest, all) = churn(&mut nodes, at_once, count, Policy::Leased);
        // A connect waits for a slot while those before it connect and close.
        let handshakes = nodes.nodes[1].core.config().storm.handshakes_max as usize;
        let turns = 2 * at_once.div_ceil(handshakes) as u64 + 1;
        assert!(slowest < turns * ROUND_TRIP_NS, "{at_once} at once: one took {slowest} ns");
        assert!(slowest < TIMER_NS);
        assert!(all < count.div_ceil(handshakes.min(at_once)) as u64 * 4 * ROUND_TRIP_NS);
        for node in &nodes.nodes {
            let stats = node.core.stats();
            assert_eq!((stats.control_busy, stats.control_resent), (0, 0), "{stats:?}");
            assert_eq!((stats.connects_failed, stats.device_refusals), (0, 0), "{stats:?}");
        }
        nodes.until(|nodes| [1, 2].iter().all(|n| nodes.nodes[*n].core.stats().rc_qps <= 2));
    }
}

/// LITE's connects on a miss go with their VQP too.
#[test]
fn crowds_of_lite_wait_for_work_and_not_for_timers() {
    let mut nodes = Nodes::new(3, &Config::default(), limits());
    let (slowest, _) = churn(&mut nodes, 240, 6_000, Policy::Lite);
    assert!(slowest < TIMER_NS, "one took {slowest} ns");
}

/// There is room for four leased QPs alone: connects wait until those that are being closed are
/// gone, and none fails, however many wait.
#[test]
fn leases_wait_for_those_that_are_being_closed() {
    // What a VQP may have outstanding, and what the node keeps on a queue for itself.
    let depth = VqpInit::default().max_send_wr + 16;
    let transfer = TransferConfig { leased_wrs_max: 4 * depth, ..Config::default().transfer };
    let mut nodes = Nodes::new(3, &Config { transfer, ..Config::default() }, limits());
    let (slowest, _) = churn(&mut nodes, 4, 1_000, Policy::Leased);
    assert!(slowest < TIMER_NS, "one took {slowest} ns");

    // All are in use, and then all go: those that ask meanwhile get theirs.
    let first: Vec<VqpId> = (0..4).map(|_| nodes.vqp(1, VqpInit::default())).collect();
    for vqp in &first {
        assert_eq!(nodes.connect(1, *vqp, 2, Policy::Leased), Ok(Via::Leased));
    }
    let gid = nodes.net.gid(2);
    let late = nodes.vqp(1, VqpInit::default());
    let (of, used, limit) = (Shortage::Leased, 4 * depth, 4 * depth);
    let none_left = Err(ConnectError::NoRcQp { gid, here: true, of, used, limit });
    assert_eq!(nodes.connect(1, late, 2, Policy::Leased), none_left, "nothing is on its way out");
    for vqp in first {
        nodes.destroy(1, vqp);
    }
    let second: Vec<VqpId> = (0..4).map(|_| nodes.vqp(1, VqpInit::default())).collect();
    for vqp in &second {
        assert_eq!(nodes.begin_connect(1, *vqp, 2, Policy::Leased, false), None);
    }
    let start = nodes.net.now();
    let mut order = Vec::new();
    nodes.until(|nodes| {
        while let Some((vqp, result)) = nodes.connected(1) {
            assert_eq!(result, Ok(Via::Leased));
            order.push(vqp);
        }
        order.len() == second.len()
    });
    assert_eq!(order, second, "in the order in which they asked");
    assert!(nodes.net.now().ns_since(start) < TIMER_NS);
}

/// Those that are in use go, with work in flight: who asks meanwhile waits for them, too.
#[test]
fn leases_wait_for_those_that_go_with_work_in_flight() {
    let depth = VqpInit::default().max_send_wr + 16;
    let transfer = TransferConfig { leased_wrs_max: depth, ..Config::default().transfer };
    let mut nodes = Nodes::new(3, &Config { transfer, ..Config::default() }, limits());
    let (near, far) = (nodes.region(1, 64), nodes.region(2, 64));
    let [first, second] = [(); 2].map(|()| nodes.vqp(1, VqpInit::default()));
    assert_eq!(nodes.connect(1, first, 2, Policy::Leased), Ok(Via::Leased));
    let sges = [Sge { addr: near.addr, length: 8, lkey: near.lkey }];
    let op = SendOp::Read(RemoteAddr { addr: far.addr, rkey: far.rkey });
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
    let client = nodes.nodes[1].client;
    let read = |nodes: &mut Nodes| {
        let wr = SendWr { wr_id: 1, op, flags, payload, dest: None };
        let now = nodes.net.now();
        nodes.nodes[1].core.post_send(client, first, &[wr], now).unwrap();
    };
    read(&mut nodes);
    let mut done = [Completion { vqp: first, source: None, wc: Wc::default() }];
    nodes.until(|nodes| nodes.nodes[1].core.poll_completions(client, &mut done) == 1);
    // Its region is known by now: this one is on its way at once, and answered late.
    nodes.hold(2, 1_000_000);
    read(&mut nodes);
    nodes.destroy(1, first);
    assert_eq!(nodes.connect(1, second, 2, Policy::Leased), Ok(Via::Leased));
}

/// What a peer has no room for waits there while it makes some, and is refused with true numbers
/// when it makes none.
#[test]
fn a_full_peer_makes_room_for_who_asks() {
    let transfer = TransferConfig { rc_qps_max: 1, idle_ns: 0, ..Config::default().transfer };
    let mut nodes = Nodes::new(5, &Config { transfer, ..Config::default() }, limits());
    let [a, b, c] = [1, 3, 4].map(|n| nodes.vqp(n, VqpInit::default()));
    assert_eq!(nodes.connect(1, a, 2, Policy::Lite), Ok(Via::Rc));
    assert_eq!(nodes.connect(3, b, 2, Policy::Shared), Ok(Via::DcLookup));
    let start = nodes.net.now();
    assert_eq!(nodes.connect(3, b, 2, Policy::Lite), Ok(Via::Rc), "the idle one goes");
    assert!(nodes.net.now().ns_since(start) < TIMER_NS);
    assert_eq!(nodes.connect(4, c, 2, Policy::Lite), Ok(Via::Rc), "and the next");
    assert_eq!(nodes.nodes[2].core.stats().links_reclaimed, 2);
}

/// More nodes than a meta server has places for RC QPs, by far, look each other up at once: over DC,
/// in a few round trips, without an RC QP and without asking another time. The 33rd and those behind
/// it took each other's places, over and over. Also at the limit, where the meta server's DCT serves
/// as many initiators as there are.
#[test]
fn any_number_of_nodes_look_up_at_once() {
    const NODES: usize = 100;
    for max_dc_contexts in [NODES as u32, elver_sim::Config::default().max_dc_contexts] {
        let device = elver_sim::Config { max_dc_contexts, ..elver_sim::Config::default() };
        let mut nodes = Nodes::with(NODES as u8, &|_| Config::default(), &device, limits());
        let start = nodes.net.now();
        for n in 1..NODES {
            let vqp = nodes.vqp(n, VqpInit::default());
            let to = 1 + n % (NODES - 1);
            assert_eq!(nodes.begin_connect(n, vqp, to, Policy::Shared, false), None);
        }
        let mut left = NODES - 1;
        nodes.until(|nodes| {
            for n in 1..NODES {
                while let Some((_, result)) = nodes.connected(n) {
                    assert_eq!(result, Ok(Via::DcLookup));
                    left -= 1;
                }
            }
            left == 0
        });
        let took = nodes.net.now().ns_since(start);
        assert!(took < TIMER_NS, "{took} ns");
        for node in &nodes.nodes {
            let stats = node.core.stats();
            assert_eq!((stats.lookups_failed_over, stats.lanes_reset), (0, 0), "{stats:?}");
            assert_eq!((stats.links_made, stats.links_reclaimed), (0, 0), "{stats:?}");
        }
    }
}

/// Without DC each node that looks up has an end of an RC QP at its meta server. They are none of its pool's,
/// however small that is: all find what they look for at once, no link is reclaimed, and the meta server's own VQPs
/// have links of the pool. The 33rd and those behind it took each other's places.
#[test]
fn nodes_without_dc_take_no_places_in_the_pool_of_a_meta_server() {
    const READERS: usize = 40;
    for rc_qps_max in [1, 32] {
        let transfer = TransferConfig { rc_qps_max, ..Config::default().transfer };
        let config = Config { dc_qps: 0, transfer, ..Config::default() };
        let mut nodes = Nodes::new(1 + READERS as u8, &config, limits());
        // Each looks for what is not there, which takes no RC QP but that to the meta server.
        for turn in 0..3 {
            for n in 1..=READERS {
                let vqp = nodes.vqp(n, VqpInit::default());
                let nobody = Gid::from(std::net::IpAddr::from([10, 9, turn, n as u8]));
                assert_eq!(nodes.begin_connect_to(n, vqp, nobody, ConnectOptions::default()), None);
            }
            let mut left = READERS;
            nodes.until(|nodes| {
                for n in 1..=READERS {
                    while let Some((_, result)) = nodes.connected(n) {
                        assert!(
                            matches!(result, Err(ConnectError::NoSuchNode { .. })),
                            "{result:?}"
                        );
                        left -= 1;
                    }
                }
                left == 0
            });
            nodes.pause(config.transfer.idle_ns);
        }
        // Its own way is another one.
        let own = nodes.vqp(0, VqpInit::default());
        assert_eq!(nodes.connect(0, own, 1, Policy::Shared), Ok(Via::Rc));
        let links = |nodes: &Nodes, n: usize| nodes.nodes[n].core.stats().rc_qps as usize;
        // Both ends of that to itself, and that of its VQP.
        assert_eq!(links(&nodes, 0), READERS + 2 + 1);
        for n in 0..=READERS {
            let stats = nodes.nodes[n].core.stats();
            let refused = (stats.links_reclaimed, stats.links_failed, stats.lookups_failed_over);
            assert_eq!(refused, (0, 0, 0), "node {n}: {stats:?}");
            nodes.nodes[n].core.audit().unwrap();
        }
        // Their nodes gone, nothing of them is left.
        for n in 2..=READERS {
            let (gone, now) = (nodes.net.gid(n), nodes.net.now());
            nodes.nodes[0].core.node_changed(gone, None, now);
        }
        nodes.until(|nodes| links(nodes, 0) == 1 + 2 + 1);
    }
}

/// A request that waits for room while its node starts anew is not taken up afterwards: who
/// asked is no more.
#[test]
fn what_a_node_asked_before_it_started_anew_is_forgotten() {
    let transfer = TransferConfig { rc_qps_max: 1, idle_ns: 0, ..Config::default().transfer };
    let mut nodes = Nodes::new(4, &Config { transfer, ..Config::default() }, limits());
    let [a, b, c] = [1, 3, 2].map(|n| nodes.vqp(n, VqpInit::default()));
    assert_eq!(nodes.connect(1, a, 2, Policy::Lite), Ok(Via::Rc));
    assert_eq!(nodes.connect(3, b, 2, Policy::Shared), Ok(Via::DcLookup));
    // The one place is taken, and who has it does not hear that it is to leave.
    let far = Time(u64::MAX);
    nodes.net.partition(1, 2, far);
    nodes.net.partition(2, 1, far);
    assert_eq!(nodes.begin_connect(3, b, 2, Policy::Lite, false), None);
    nodes.until(|nodes| nodes.nodes[2].core.stats().links_reclaimed == 1);
    let record = NodeRecord { control_qpn: 77, ..nodes.nodes[3].core.record() };
    let (gid, now) = (nodes.net.gid(3), nodes.net.now());
    nodes.nodes[2].core.node_changed(gid, Some(record), now);
    let mut ended = None;
    nodes.until(|nodes| {
        ended = nodes.connected(3);
        ended.is_some()
    });
    assert!(matches!(ended, Some((vqp, Err(_))) if vqp == b), "{ended:?}");
    let via = nodes.connect(2, c, 3, Policy::Shared);
    assert_eq!(via, Ok(Via::DcCached), "it is what the news said");
}

/// VQPs that were connected to a node which is gone, and that nobody uses, have no links asked for.
#[test]
fn who_rests_asks_nobody_for_a_link() {
    let mut nodes = Nodes::new(4, &Config::default(), limits());
    let vqp = nodes.vqp(1, VqpInit::default());
    assert_eq!(nodes.connect(1, vqp, 3, Policy::Lite), Ok(Via::Rc));
    let (gone, far) = (nodes.net.gid(3), Time(u64::MAX));
    nodes.net.partition(1, 3, far);
    nodes.net.partition(3, 1, far);
    nodes.nodes[0].core.meta_remove(gone);
    let now = nodes.net.now();
    nodes.nodes[1].core.node_changed(gone, None, now);
    let asked = nodes.nodes[1].core.stats().links_asked;
    // Those to whom the link is closed do not answer, and are told again and again.
    nodes.until(|nodes| nodes.net.now().ns_since(now) >= 20_000_000_000);
    assert_eq!(nodes.nodes[1].core.stats().links_asked, asked);
}

/// A node that is dead takes nobody else's turn, however many connects to it wait.
#[test]
fn connects_to_a_dead_node_hold_nobody_up() {
    let mut nodes = Nodes::new(4, &Config::default(), limits());
    for (n, to) in [(1, 2), (1, 3)] {
        let vqp = nodes.vqp(n, VqpInit::default());
        nodes.connect(n, vqp, to, Policy::Shared).unwrap();
    }
    let far = Time(u64::MAX);
    nodes.net.partition(1, 3, far);
    nodes.net.partition(3, 1, far);
    let dead: Vec<VqpId> = (0..200).map(|_| nodes.vqp(1, VqpInit::default())).collect();
    for vqp in &dead {
        assert_eq!(nodes.begin_connect(1, *vqp, 3, Policy::Leased, false), None);
    }
    let start = nodes.net.now();
    let (slowest, _) = churn(&mut nodes, 1, 10, Policy::Leased);
    assert!(slowest < 4 * TIMER_NS, "one took {slowest} ns");
    let unreachable = Err(ConnectError::Unreachable { gid: nodes.net.gid(3) });
    let mut failed = 0;
    nodes.until(|nodes| {
        while let Some((vqp, result)) = nodes.connected(1) {
            assert!(dead.contains(&vqp));
            assert_eq!(result, unreachable);
            failed += 1;
        }
        failed == dead.len()
    });
    assert!(nodes.net.now().ns_since(start) < 1_500_000_000, "all end when it is given up");
}

/// A peer that was cut off when a link to it was closed does not keep its end for good.
#[test]
fn an_end_goes_also_if_its_peer_was_cut_off() {
    let mut nodes = Nodes::new(3, &Config::default(), limits());
    let leased = nodes.vqp(1, VqpInit::default());
    assert_eq!(nodes.connect(1, leased, 2, Policy::Leased), Ok(Via::Leased));
    nodes.until(|nodes| nodes.nodes[2].core.stats().rc_qps == 1);
    let back = Time(nodes.net.now().0 + 5_000_000_000);
    nodes.net.partition(1, 2, back);
    nodes.net.partition(2, 1, back);
    nodes.destroy(1, leased);
    nodes.until(|nodes| nodes.net.now() >= back);
    nodes.until(|nodes| [1, 2].iter().all(|n| nodes.nodes[*n].core.stats().rc_qps == 0));
    assert!(nodes.net.now().ns_since(back) < 2_500_000_000);
}

#[test]
fn a_look_up_without_dc_asks_for_the_link_that_it_needs() {
    let config = Config { dc_qps: 0, ..Config::default() };
    let mut nodes = Nodes::new(3, &config, ClientLimits::default());
    nodes.net.partition(1, 0, Time(u64::MAX));
    nodes.until(|nodes| nodes.nodes[1].core.stats().links_failed > 0);
    nodes.net.heal();
    let vqp = nodes.vqp(1, VqpInit::default());
    assert_eq!(nodes.connect(1, vqp, 2, Policy::Shared), Ok(Via::Rc));
}

/// The engine went round and round: a meta server that had no link could not be measured, and was the
/// next to be measured.
#[test]
fn a_meta_server_that_cannot_be_asked_is_not_measured_for_ever() {
    let config = Config { dc_qps: 0, ..Config::default() };
    for lost in [2, 3] {
        let mut nodes = Nodes::new(4, &config, ClientLimits::default());
        let all: Vec<_> =
            nodes.nodes.iter().map(|node| (node.core.gid(), node.core.record())).collect();
        let servers = [2, 3].map(|n: usize| {
            let server = nodes.nodes[n].core.serve_meta(4).unwrap();
            for (gid, record) in &all {
                nodes.nodes[n].core.meta_put(*gid, *record).unwrap();
            }
            server
        });
        nodes.net.partition(1, lost, Time(u64::MAX));
        let now = nodes.net.now();
        nodes.nodes[1].core.set_meta_servers(&servers, now);
        nodes.until(|nodes| nodes.nodes[1].core.stats().links_failed > 0);
        let vqp = nodes.vqp(1, VqpInit::default());
        assert_eq!(nodes.connect(1, vqp, 0, Policy::Shared), Ok(Via::Rc));
    }
}

/// Two nodes that have forgotten each other's records, and ask each other for them at once: neither answers
/// who is unknown, and each knows the other from a meta server before it has an answer.
#[test]
fn two_that_ask_each_other_for_their_records_wait_for_neither() {
    let mut nodes = Nodes::new(3, &Config::default(), limits());
    let pair = [(1, 2), (2, 1)];
    let near = [1, 2].map(|n| nodes.region(n, 8));
    let vqps = pair.map(|(n, to)| {
        let vqp = nodes.vqp(n, VqpInit::default());
        nodes.connect(n, vqp, to, Policy::Shared).unwrap();
        vqp
    });
    for (n, to) in pair {
        nodes.net.partition(n, to, Time(u64::MAX));
    }
    for ((n, _), (vqp, near)) in pair.into_iter().zip(vqps.into_iter().zip(near)) {
        let sges = [Sge { addr: near.addr, length: 8, lkey: near.lkey }];
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        let now = nodes.net.now();
        let node = &mut nodes.nodes[n];
        node.core.post_send(node.client, vqp, &[wr], now).unwrap();
    }
    nodes.until(|nodes| [1, 2].iter().all(|n| nodes.nodes[*n].core.stats().lanes_reset > 0));
    nodes.net.heal();
    let asked = pair.map(|(n, to)| {
        let vqp = nodes.vqp(n, VqpInit::default());
        assert_eq!(nodes.begin_connect(n, vqp, to, Policy::RpcMeta, false), None, "known still");
        assert_eq!(nodes.nodes[n].core.stats().meta_calls, 1);
        vqp
    });
    let begun = nodes.net.now();
    for ((n, _), vqp) in pair.into_iter().zip(asked) {
        let mut ended = None;
        nodes.until(|nodes| {
            ended = ended.take().or_else(|| nodes.connected(n));
            ended.is_some()
        });
        assert_eq!(ended, Some((vqp, Ok(Via::DcLookup))));
    }
    let took = nodes.net.now().ns_since(begun);
    assert!(took < TIMER_NS, "they waited for {took} ns");
    for node in &nodes.nodes {
        node.core.audit().unwrap();
    }
}
