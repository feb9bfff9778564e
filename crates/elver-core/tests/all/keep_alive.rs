//! A VQP whose peer has gone tells, also one that only waits; and none tells whose peer is there.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// Within this a VQP must fail whose peer has gone.
const TELL_NS: u64 = 32_000_000;
/// A look comes late by one round of a test, and what was asked of the dead holds the device up for one.
const SLACK_NS: u64 = 1_000_000;

fn keep_alive() -> Config {
    Config { keep_alive_ns: TELL_NS, ..config() }
}

/// What failed at a node, and why.
fn failures(cluster: &mut Cluster, n: usize) -> Vec<(VqpId, ConnectError)> {
    let events = std::mem::take(&mut cluster.nodes[n].events);
    let failed = |event| match event {
        Event::Failed { vqp, cause, .. } => Some((vqp, cause)),
        _ => None,
    };
    events.into_iter().filter_map(failed).collect()
}

/// Drives all but one node for so long.
fn drive_without(cluster: &mut Cluster, still: usize, ns: u64) {
    let end = cluster.now().saturating_add_ns(ns);
    while cluster.now() < end {
        cluster.round_without(still);
    }
}

/// A VQP of node 1's that waits for a message of node 2's, with one receive.
fn waiting(cluster: &mut Cluster, port: u16) -> VqpId {
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, port);
    let region = cluster.region(1, 64, ALL);
    cluster.recv(1, vqp, 40, &[region.sge(0, 64)]);
    // Until it is looked after, and the peer has answered.
    cluster.drive(TELL_NS / 2);
    vqp
}

fn silent(cluster: &Cluster, n: usize) -> ConnectError {
    let gid = cluster.nodes[n].core.gid();
    ConnectError::Silent { gid, for_ns: TELL_NS }
}

#[test]
fn a_vqp_that_only_waits_is_told_that_its_node_has_gone() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let vqp = waiting(&mut cluster, 0);
    assert_eq!(failures(&mut cluster, 1), []);
    drive_without(&mut cluster, 2, TELL_NS + SLACK_NS);
    let cause = silent(&cluster, 2);
    assert!(cause.to_string().contains("10.0.0.3 has gone"), "{cause}");
    assert_eq!(failures(&mut cluster, 1), [(vqp, cause)]);
    // Its receive is the user's again.
    let flushed = cluster.take_one(1);
    assert_eq!((flushed.wc.wr_id, flushed.wc.status), (40, WcStatus::WrFlushErr));
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.peers_given_up, stats.vqps_forsaken), (1, 1));
    // It is told once, and asked no more.
    let asked = stats.peers_asked;
    drive_without(&mut cluster, 2, 2 * TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    assert_eq!(cluster.nodes[1].core.stats().peers_asked, asked);
    // Connected again it is told again.
    cluster.connect(1, vqp, 2, 0);
    cluster.drive(TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    drive_without(&mut cluster, 2, TELL_NS + SLACK_NS);
    assert_eq!(failures(&mut cluster, 1).len(), 1);
}

#[test]
fn all_vqps_of_a_node_that_has_gone_fail_and_one_question_serves_all() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let vqps: Vec<VqpId> = (0..1_200).map(|_| cluster.vqp(1)).collect();
    for vqp in &vqps {
        cluster.connect(1, *vqp, 2, 0);
    }
    let alive = cluster.vqp(1);
    cluster.connect(1, alive, 0, 0);
    cluster.drive(4 * TELL_NS);
    let asked = cluster.nodes[1].core.stats().peers_asked;
    // Every quarter of the time, of each of two nodes.
    assert!((20..50).contains(&asked), "{asked}");
    assert_eq!(cluster.nodes[1].core.stats().peers_answered, asked);
    drive_without(&mut cluster, 2, TELL_NS + SLACK_NS);
    let mut failed: Vec<VqpId> =
        failures(&mut cluster, 1).into_iter().map(|(vqp, _)| vqp).collect();
    failed.sort_by_key(|vqp| vqp.0);
    let mut all = vqps.clone();
    all.sort_by_key(|vqp| vqp.0);
    assert_eq!(failed, all);
}

#[test]
fn a_peer_that_is_slow_but_there_is_not_given_up() {
    let mut cluster = Cluster::new(3, &keep_alive());
    waiting(&mut cluster, 0);
    for _ in 0..40 {
        // It looks at the network now and then alone.
        drive_without(&mut cluster, 2, TELL_NS / 2);
        for _ in 0..3 {
            cluster.round();
        }
    }
    assert_eq!(failures(&mut cluster, 1), []);
    assert_eq!(cluster.nodes[1].core.stats().peers_given_up, 0);
}

/// Answers wait for a node that stood still, and so do completions: these were once taken for a sign that nothing else
/// waits.
#[test]
fn a_node_that_stood_still_takes_what_waits_before_it_gives_anybody_up() {
    for sixteenths in 8..15 {
        let mut cluster = Cluster::new(3, &keep_alive());
        waiting(&mut cluster, 0);
        let own = cluster.vqp(1);
        cluster.connect(1, own, 1, 0);
        let region = cluster.region(1, 64, ALL);
        drive_without(&mut cluster, 2, sixteenths * TELL_NS / 16);
        if cluster.nodes[1].core.stats().peers_given_up > 0 {
            assert!(sixteenths > 9, "it had {sixteenths} sixteenths of the time");
            return;
        }
        drive_without(&mut cluster, 1, TELL_NS / 4);
        let read = [region.sge(0, 8)];
        cluster.post(1, own, &[wr(1, SendOp::Read(region.remote(32)), &read)]);
        cluster.round();
        cluster.drive(TELL_NS / 4);
        assert_eq!(failures(&mut cluster, 1), [], "after {sixteenths} sixteenths of the time");
    }
    panic!("it was never given up");
}

#[test]
fn a_partition_that_is_short_ends_nothing_and_a_long_one_does() {
    for (ns, ends) in [(TELL_NS / 2, false), (TELL_NS + SLACK_NS, true)] {
        let mut cluster = Cluster::new(3, &keep_alive());
        let vqp = waiting(&mut cluster, 0);
        for _ in 0..4 {
            let until = cluster.now().saturating_add_ns(ns);
            cluster.net.partition(2, 1, until);
            cluster.drive(ns);
            cluster.drive(TELL_NS / 3);
        }
        let failed = failures(&mut cluster, 1);
        assert_eq!(failed, if ends { vec![(vqp, silent(&cluster, 2))] } else { vec![] });
        // Who is there again serves new connections.
        let again = cluster.vqp(1);
        cluster.connect(1, again, 2, 0);
        cluster.drive(2 * TELL_NS);
        assert_eq!(failures(&mut cluster, 1), []);
    }
}

#[test]
fn who_stood_still_does_not_take_others_for_dead() {
    let mut cluster = Cluster::new(3, &keep_alive());
    waiting(&mut cluster, 0);
    for still in [1, 20, 300] {
        // Nobody looks at anything, or the others do.
        cluster.skip(still * TELL_NS);
        cluster.drive(TELL_NS / 3);
        drive_without(&mut cluster, 1, still.min(20) * TELL_NS);
        cluster.drive(TELL_NS / 3);
    }
    assert_eq!(failures(&mut cluster, 1), []);
}

#[test]
fn a_node_that_turns_only_when_its_owner_calls_is_not_given_up() {
    let mut cluster = Cluster::new(3, &keep_alive());
    cluster.nodes[2].core.turns_by_itself(false);
    waiting(&mut cluster, 0);
    drive_without(&mut cluster, 2, 4 * TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    // Unless others say that it has gone.
    let (gid, now) = (cluster.nodes[2].core.gid(), cluster.now());
    cluster.nodes[1].core.node_changed(gid, None, now);
    drive_without(&mut cluster, 2, TELL_NS);
    assert_eq!(failures(&mut cluster, 1).len(), 1);
}

#[test]
fn off_nothing_is_asked_or_told() {
    let mut cluster = Cluster::new(3, &Config { keep_alive_ns: 0, ..keep_alive() });
    waiting(&mut cluster, 0);
    drive_without(&mut cluster, 2, 4 * TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    assert_eq!(cluster.nodes[1].core.stats().peers_asked, 0);
    // Who has it on is answered all the same.
    cluster.add(4, keep_alive());
    cluster.register(3);
    let meta = cluster.nodes[0].core.serve_meta(100).unwrap();
    let now = cluster.now();
    cluster.nodes[3].core.set_meta_servers(&[meta], now);
    let vqp = cluster.vqp(3);
    cluster.connect(3, vqp, 1, 0);
    cluster.drive(4 * TELL_NS);
    assert_eq!(failures(&mut cluster, 3), []);
    assert!(cluster.nodes[1].core.stats().peers_assured > 4);
}

#[test]
fn a_busy_connection_is_not_asked_for() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let vqp = waiting(&mut cluster, 0);
    let (own, there) = (cluster.region(1, 64, ALL), cluster.region(2, 64, ALL));
    let before = cluster.nodes[1].core.stats().peers_asked;
    let end = cluster.now().saturating_add_ns(10 * TELL_NS);
    while cluster.now() < end {
        cluster.post(1, vqp, &[wr(1, SendOp::Write(there.remote(0)), &[own.sge(0, 64)])]);
        assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
        cluster.drive(TELL_NS / 20);
    }
    assert_eq!(cluster.nodes[1].core.stats().peers_asked, before);
}

/// The peer's node never heard of this VQP, so that nobody there could tell it.
#[test]
fn the_end_of_a_ports_owner_is_told_to_who_has_sent_him_nothing() {
    for rebinds in [false, true] {
        let mut cluster = Cluster::new(3, &keep_alive());
        let owner = cluster.bound(2, 7);
        let vqp = waiting(&mut cluster, 7);
        let early = cluster.vqp(1);
        cluster.connect(1, early, 2, 8);
        cluster.drive(TELL_NS);
        assert_eq!(failures(&mut cluster, 1), []);
        let now = cluster.now();
        let there = &mut cluster.nodes[2];
        there.core.vqp_destroy(there.client, owner, now).unwrap();
        if rebinds {
            cluster.bound(2, 7);
        }
        cluster.drive(TELL_NS);
        let gid = cluster.nodes[2].core.gid();
        assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
        // One may be connected to a port that nobody has yet, and wait for who takes it.
        let late = cluster.bound(2, 8);
        cluster.drive(TELL_NS);
        assert_eq!(failures(&mut cluster, 1), []);
        let now = cluster.now();
        let there = &mut cluster.nodes[2];
        there.core.vqp_destroy(there.client, late, now).unwrap();
        cluster.drive(TELL_NS);
        assert_eq!(failures(&mut cluster, 1), [(early, ConnectError::PeerGone { gid })]);
    }
}

/// What serves a sender outlives the VQP that took the first message, as a connection its listener.
#[test]
fn who_has_a_vqp_of_its_own_there_does_not_need_the_port() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let owner = cluster.bound(2, 7);
    let vqp = waiting(&mut cluster, 7);
    let (own, inbox) = (cluster.region(1, 64, ALL), cluster.region(2, 64, ALL));
    cluster.recv(2, owner, 1, &[inbox.sge(0, 64)]);
    cluster.post(1, vqp, &[wr(2, SendOp::Send, &[own.sge(0, 8)])]);
    let source = cluster.take_one(2).source.unwrap();
    assert_eq!(cluster.take_one(1).wc.wr_id, 2);
    let now = cluster.now();
    let there = &mut cluster.nodes[2];
    there.core.vqp_destroy(there.client, owner, now).unwrap();
    cluster.drive(2 * TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    cluster.post(2, source, &[wr(3, SendOp::Send, &[inbox.sge(0, 8)])]);
    let answer = cluster.take_one(1);
    assert_eq!((answer.wc.wr_id, answer.wc.status), (40, WcStatus::Success));
    // And of the end of that it is told.
    let now = cluster.now();
    let there = &mut cluster.nodes[2];
    there.core.vqp_destroy(there.client, source, now).unwrap();
    cluster.drive(TELL_NS);
    let gid = cluster.nodes[2].core.gid();
    assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
}

/// That it had sent messages to another before was taken for messages to this one: nobody told it.
#[test]
fn who_has_sent_messages_to_another_before_hears_of_a_ports_end_as_well() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let (first, second) = (cluster.bound(2, 7), cluster.bound(2, 8));
    let vqp = waiting(&mut cluster, 7);
    let (own, inbox) = (cluster.region(1, 64, ALL), cluster.region(2, 64, ALL));
    cluster.recv(2, first, 1, &[inbox.sge(0, 64)]);
    cluster.post(1, vqp, &[wr(2, SendOp::Send, &[own.sge(0, 8)])]);
    assert_eq!(cluster.take_one(2).wc.wr_id, 1);
    assert_eq!(cluster.take_one(1).wc.wr_id, 2);
    cluster.connect(1, vqp, 2, 8);
    cluster.drive(TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    let now = cluster.now();
    let there = &mut cluster.nodes[2];
    there.core.vqp_destroy(there.client, second, now).unwrap();
    cluster.drive(TELL_NS);
    let gid = cluster.nodes[2].core.gid();
    assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
}

/// A READ of several SGEs that waited for a connection, and was flushed when there was none, was taken for a message over
/// the next one.
#[test]
fn who_was_never_connected_before_hears_of_a_ports_end_as_well() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let owner = cluster.bound(2, 7);
    // Nobody knows of it.
    cluster.add(4, config());
    let (vqp, own) = (cluster.vqp(1), cluster.region(1, 64, ALL));
    assert_eq!(cluster.start_connect(1, vqp, 3, 7), None);
    let read = SendOp::Read(own.remote(0));
    cluster.post(1, vqp, &[wr(1, read, &[own.sge(0, 8), own.sge(8, 8)])]);
    assert!(cluster.connected(1, vqp).is_err());
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::WrFlushErr);
    cluster.connect(1, vqp, 2, 7);
    cluster.drive(TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    let now = cluster.now();
    let there = &mut cluster.nodes[2];
    there.core.vqp_destroy(there.client, owner, now).unwrap();
    cluster.drive(TELL_NS);
    let gid = cluster.nodes[2].core.gid();
    assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
}

#[test]
fn the_same_holds_within_one_node() {
    let mut cluster = Cluster::new(2, &keep_alive());
    let owner = cluster.bound(1, 7);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 1, 7);
    cluster.drive(TELL_NS);
    assert_eq!(failures(&mut cluster, 1), []);
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.vqp_destroy(node.client, owner, now).unwrap();
    cluster.drive(TELL_NS);
    let gid = cluster.nodes[1].core.gid();
    assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
    assert_eq!(cluster.nodes[1].core.stats().peers_asked, 0, "nobody is asked over the network");
}

/// A process connected its VQPs over and over, faster than they were looked at, and each connect stood in the queue
/// before others' VQPs: these were not looked after for as long as it liked.
#[test]
fn who_connects_over_and_over_keeps_nobody_from_being_looked_after() {
    // More than are looked at at once.
    const MANY: usize = 1_100;
    let tick = TELL_NS / 16;
    let mut cluster = Cluster::new(3, &keep_alive());
    let first = cluster.vqp(1);
    cluster.connect(1, first, 2, 0);
    let many: Vec<VqpId> = (0..MANY).map(|_| cluster.vqp(1)).collect();
    for _ in 0..16 {
        for vqp in many.iter().cycle().take(3 * MANY) {
            assert!(cluster.start_connect(1, *vqp, 2, 0).is_some());
        }
        cluster.drive(tick);
    }
    let node = &mut cluster.nodes[1];
    node.client = node.core.client_open(ClientLimits::default()).unwrap();
    let other = cluster.vqp(1);
    cluster.connect(1, other, 2, 0);
    drive_without(&mut cluster, 2, TELL_NS + 4 * tick);
    let cause = silent(&cluster, 2);
    assert!(failures(&mut cluster, 1).contains(&(other, cause)));
    assert_eq!(cluster.nodes[1].core.stats().vqps_forsaken, MANY as u64 + 2);
}

/// A node that has never replied to them does not even know who sent the messages.
#[test]
fn vqps_that_messages_made_go_with_the_node_that_sent_them() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let bound = cluster.bound(2, 7);
    let (inbox, own) = (cluster.region(2, 64, ALL), cluster.region(1, 64, ALL));
    cluster.recv(2, bound, 1, &[inbox.sge(0, 64)]);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    cluster.post(1, vqp, &[wr(2, SendOp::Send, &[own.sge(0, 8)])]);
    let source = cluster.take_one(2).source.unwrap();
    cluster.drive(4 * TELL_NS);
    assert_eq!(failures(&mut cluster, 2), []);
    drive_without(&mut cluster, 1, TELL_NS + SLACK_NS);
    assert_eq!(failures(&mut cluster, 2), [(source, silent(&cluster, 1))]);
}

#[test]
fn a_node_that_starts_anew_is_not_what_its_peers_were_connected_to() {
    let mut cluster = Cluster::new(3, &keep_alive());
    let vqp = waiting(&mut cluster, 0);
    cluster.net.crash(2);
    cluster.nodes.remove(2);
    cluster.add(3, keep_alive());
    cluster.register(2);
    let meta = cluster.nodes[0].core.serve_meta(100).unwrap();
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[2].core.set_meta_servers(&[meta], now);
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    let next = cluster.vqp(1);
    cluster.connect(1, next, 2, 0);
    cluster.drive(TELL_NS + SLACK_NS);
    assert_eq!(failures(&mut cluster, 1), [(vqp, ConnectError::PeerGone { gid })]);
    cluster.drive(4 * TELL_NS);
    assert_eq!(failures(&mut cluster, 1), [], "the new one is there");
}
