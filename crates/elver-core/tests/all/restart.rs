//! A node that starts anew: nothing that others know of the one before is taken for its.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// Room for one RC QP, which may be reclaimed at once.
fn one_link() -> Config {
    let transfer = TransferConfig { rc_qps_max: 1, idle_ns: 0, ..config().transfer };
    Config { transfer, ..config() }
}

fn connect_lite(cluster: &mut Cluster, n: usize, vqp: VqpId, to: usize) {
    let (gid, now) = (cluster.nodes[to].core.gid(), cluster.now());
    let node = &mut cluster.nodes[n];
    let options = ConnectOptions { policy: Policy::Lite, uncached: false };
    let via = node.core.qconnect(node.client, vqp, gid, 7, options, u64::from(vqp.0), now);
    assert_eq!(via, Ok(None), "no RC QP is there yet");
}

#[test]
fn regions_of_a_peer_that_starts_anew_are_not_taken_for_valid() {
    let config = Config { mr_lease_ns: 60_000_000_000, ..config() };
    let mut cluster = Cluster::new(3, &config);
    let [old, anew] = [1, 1].map(|n| cluster.vqp(n));
    cluster.connect(1, old, 2, 7);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    let read = [near.sge(0, 64)];
    cluster.post(1, old, &[wr(1, SendOp::Read(far.remote(0)), &read)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    drop(cluster.nodes.remove(2));
    cluster.add(3, config);
    cluster.register(2);
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    cluster.connect(1, anew, 2, 7);
    cluster.post(1, anew, &[wr(2, SendOp::Read(far.remote(0)), &read)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RemAccessErr);
    let refused = cluster.nodes[2].core.device().counters().nak_fatal_sent;
    assert_eq!(refused, 0, "the lease was the old node's, and the WR went out");
    cluster.check();
}

/// A region was looked up at what a node was. Who asked for the same key at what it is waited for that look-up, and
/// ended with it, though its owner is there.
#[test]
fn a_region_that_is_looked_up_at_what_a_node_was_is_looked_up_at_what_it_is() {
    let config = Config { timeout: 14, ..config() };
    let mut cluster = Cluster::new(3, &config);
    let [old, anew] = [1, 1].map(|n| cluster.vqp(n));
    cluster.connect(1, old, 2, 7);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    drop(cluster.nodes.remove(2));
    cluster.add(3, config);
    cluster.register(2);
    let far = cluster.region(2, 64, ALL);
    let read = [near.sge(0, 64)];
    cluster.post(1, old, &[wr(1, SendOp::Read(far.remote(0)), &read)]);
    cluster.drive(1_000_000);
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    cluster.connect(1, anew, 2, 7);
    cluster.post(1, anew, &[wr(2, SendOp::Read(far.remote(0)), &read)]);
    let ended: Vec<_> = cluster.take(1, 2).iter().map(|done| (done.vqp, done.wc.status)).collect();
    assert!(ended.contains(&(anew, WcStatus::Success)), "{ended:?}");
    assert!(ended.iter().any(|(vqp, status)| *vqp == old && *status != WcStatus::Success));
    cluster.check();
}

#[test]
fn what_a_peer_asked_for_before_it_started_anew_is_not_served() {
    let mut cluster = Cluster::new(4, &one_link());
    let [linked, anew] = [1, 1].map(|n| cluster.vqp(n));
    connect_lite(&mut cluster, 1, linked, 2);
    assert_eq!(cluster.connected(1, linked), Ok(Via::Rc));
    // Node 1 makes room for what node 3 asks, but node 2 does not let go of its end.
    let asking = cluster.vqp(3);
    connect_lite(&mut cluster, 3, asking, 1);
    let end = cluster.now().saturating_add_ns(WAIT_NS);
    while cluster.nodes[1].core.audit().unwrap().requests < 2 {
        assert!(cluster.now() < end, "the request was not held");
        cluster.round_without(2);
    }
    drop(cluster.nodes.remove(3));
    cluster.add(4, one_link());
    cluster.register(3);
    let (gid, record) = (cluster.nodes[3].core.gid(), cluster.nodes[3].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    cluster.until("there is room", |cluster| {
        cluster.nodes[1].core.audit().unwrap().rc_qps_changing == 0
    });
    cluster.connect(1, anew, 3, 7);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(3, 64, ALL);
    cluster.post(1, anew, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.check();
}

/// Three nodes of which the last has started anew, and its record before; the second one was
/// connected to it.
fn with_an_heir() -> (Cluster, NodeRecord) {
    let mut cluster = Cluster::new(3, &config());
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    let before = cluster.nodes.remove(2).core.record();
    cluster.add(3, config());
    (cluster, before)
}

/// Node 1 reads from node 2 over a new connection.
fn reach(cluster: &mut Cluster) {
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.check();
}

#[test]
fn a_meta_server_that_does_not_know_yet_that_a_node_started_anew_is_not_believed() {
    // The heir is not registered: the meta server's table still has the record before.
    let (mut cluster, _) = with_an_heir();
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, None, now);
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    reach(&mut cluster);
}

/// Node 1 had no reason to know node 2 when the registry told of its heir. The meta server's table had what it was
/// before for a moment longer, and once that was believed until somebody used it.
#[test]
fn a_table_that_is_behind_the_news_is_not_believed_for_long() {
    let mut cluster = Cluster::new(3, &config());
    drop(cluster.nodes.remove(2));
    cluster.add(3, config());
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, None, now);
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    let client = cluster.nodes[1].client;
    let warm = |cluster: &mut Cluster, token| {
        let now = cluster.now();
        cluster.nodes[1].core.warm(client, &[gid], token, now).unwrap();
        let is_warmed = |event: &Event| matches!(event, Event::Warmed { token: of, ready: 1, .. } if *of == token);
        cluster.until("it is warmed", |cluster| cluster.nodes[1].events.iter().any(is_warmed));
    };
    for token in 1..3 {
        warm(&mut cluster, token);
        assert_eq!(cluster.nodes[1].core.stats().lookups, token, "the answer may be late");
    }
    // The table has it.
    cluster.register(2);
    reach(&mut cluster);
    let lookups = cluster.nodes[1].core.stats().lookups;
    reach(&mut cluster);
    warm(&mut cluster, 3);
    assert_eq!(cluster.nodes[1].core.stats().lookups, lookups, "that is what was told");
}

/// The heir serves as a meta server for a while. Its peers once forgot with that what it had been before, and took a late
/// answer of the other server's for news.
#[test]
fn what_a_meta_server_was_before_it_started_anew_is_not_believed() {
    let (mut cluster, _) = with_an_heir();
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let servers = [0, 2].map(|n| cluster.nodes[n].core.serve_meta(100).unwrap());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    cluster.nodes[1].core.set_meta_servers(&servers, now);
    // It serves no more, and is looked up again at a table that does not have the heir yet.
    cluster.nodes[1].core.set_meta_servers(&servers[..1], now);
    reach(&mut cluster);
}

/// A node is looked up where it is not known yet that it started anew, and turns out to be a meta server before the
/// answer is there.
#[test]
fn an_answer_about_a_node_that_has_become_a_meta_server_comes_too_late() {
    let mut cluster = Cluster::new(3, &config());
    drop(cluster.nodes.remove(2));
    cluster.add(3, config());
    let servers = [0, 2].map(|n| cluster.nodes[n].core.serve_meta(100).unwrap());
    let vqp = cluster.vqp(1);
    assert_eq!(cluster.start_connect(1, vqp, 2, 7), None, "nothing is known of it");
    let now = cluster.now();
    cluster.nodes[1].core.set_meta_servers(&servers, now);
    assert_eq!(cluster.connected(1, vqp), Ok(Via::DcLookup));
    reach(&mut cluster);
}

#[test]
fn late_news_does_not_end_the_links_to_a_node_that_started_anew() {
    let (mut cluster, before) = with_an_heir();
    let vqp = cluster.vqp(2);
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    let now = cluster.now();
    cluster.nodes[2].core.set_meta_servers(&[server], now);
    assert_eq!(cluster.connect(2, vqp, 1, 7), Via::DcLookup);
    // The news come before the table has it, and it is answered.
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    let lite = cluster.vqp(2);
    connect_lite(&mut cluster, 2, lite, 1);
    assert_eq!(cluster.connected(2, lite), Ok(Via::Rc));
    let changing = |cluster: &Cluster| cluster.nodes[1].core.audit().unwrap().rc_qps_changing;
    cluster.until("both ends work", |cluster| changing(cluster) == 0);
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(before), now);
    assert_eq!(changing(&cluster), 0, "the link is left");
    reach(&mut cluster);
}

/// Node 1 looks an heir up, and is told only then what it was before: the registry tells in order, but
/// the table was ahead of it. Node 1 once took that for good, and denied all that the heir asked of it.
#[test]
fn a_node_that_was_looked_up_before_the_registry_told_of_what_it_had_been_is_believed() {
    let mut cluster = Cluster::new(2, &config());
    cluster.add(3, config());
    cluster.register(2);
    let past = cluster.nodes.remove(2).core.record();
    cluster.add(3, config());
    cluster.register(2);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(past), now);
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    cluster.nodes[2].core.set_meta_servers(&[server], now);
    let lite = cluster.vqp(2);
    connect_lite(&mut cluster, 2, lite, 1);
    assert_eq!(cluster.connected(2, lite), Ok(Via::Rc));
    assert_eq!(cluster.nodes[1].core.stats().peers_past_again, 1);
    cluster.check();
}

/// Node 1 knows only what node 2 was when a message of what it is comes. The VQP that the message makes once
/// sent to what was there before, and who waited for the answer waited for ever.
#[test]
fn who_answers_a_node_that_started_anew_answers_what_it_is_now() {
    let (mut cluster, _) = with_an_heir();
    is_answered(&mut cluster);
}

/// Something is under way to what node 2 was. It fails, and once took the answer with it, which had waited
/// behind it for another target: as if it might have been executed.
#[test]
fn what_fails_at_what_a_node_was_takes_nothing_with_it_that_goes_to_what_it_is() {
    let mut cluster = Cluster::new(3, &config());
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    let own = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    drop(cluster.nodes.remove(2));
    cluster.post(1, vqp, &[wr(5, SendOp::Send, &[own.sge(0, 8)])]);
    cluster.add(3, config());
    is_answered(&mut cluster);
    let failed = cluster.take_one(1).wc;
    assert_eq!((failed.wr_id, failed.status), (5, WcStatus::RetryExcErr));
}

/// Node 2, which has started anew, sends to a port of node 1's, and is answered.
fn is_answered(cluster: &mut Cluster) {
    cluster.register(2);
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    let now = cluster.now();
    cluster.nodes[2].core.set_meta_servers(&[server], now);
    let listener = cluster.bound(1, 9);
    let regions = [1, 2].map(|n| cluster.region(n, 64, AccessFlags::LOCAL_WRITE));
    cluster.recv(1, listener, 1, &[regions[0].sge(0, 64)]);
    let vqp = cluster.vqp(2);
    cluster.recv(2, vqp, 2, &[regions[1].sge(0, 64)]);
    cluster.connect(2, vqp, 1, 9);
    cluster.post(2, vqp, &[quiet(3, SendOp::Send, &[regions[1].sge(0, 8)])]);
    let source = cluster.take_one(1).source.unwrap();
    cluster.post(1, source, &[quiet(4, SendOp::Send, &[regions[0].sge(0, 8)])]);
    let answer = cluster.take_one(2).wc;
    assert_eq!((answer.wr_id, answer.status), (2, WcStatus::Success));
    cluster.check();
}
