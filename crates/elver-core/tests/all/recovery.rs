//! What fails on a shared lane ends for the guilty alone; what goes leaves nothing behind.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// All peers share one lane.
fn one_lane() -> Config {
    Config { dc_qps: 1, log_dc_streams: 0, ..config() }
}

/// The ids and outcomes of a VQP's completions.
fn of(done: &[Completion], vqp: VqpId) -> Vec<(u64, WcStatus)> {
    let own = done.iter().filter(|done| done.vqp == vqp);
    own.map(|done| (done.wc.wr_id, done.wc.status)).collect()
}

/// Deregisters a region behind the core's back, so that peers hold leases for what is gone.
fn pull_away(cluster: &mut Cluster, n: usize, region: &Region) {
    cluster.nodes[n].core.device().dereg_mr(region.info.mr).unwrap();
}

fn one_guilty(config: &Config) {
    let mut cluster = Cluster::new(3, config);
    let near = cluster.region(1, 1 << 16, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 1 << 16, ALL);
    let gone = cluster.region(2, 64, ALL);
    let vqps: Vec<VqpId> = (0..6).map(|_| cluster.vqp(1)).collect();
    for &vqp in &vqps {
        cluster.connect(1, vqp, 2, 0);
        for region in [&far, &gone] {
            let sges = [near.sge(0, 8)];
            cluster.post(1, vqp, &[wr(0, SendOp::Read(region.remote(0)), &sges)]);
            cluster.take(1, 1);
        }
    }
    pull_away(&mut cluster, 2, &gone);
    let bad = vqps[2];
    // Every WR has a word of its own, so that one that is lost or done twice shows.
    for (at, &vqp) in vqps.iter().enumerate() {
        for n in 0..40u64 {
            let word = 8 * (at as u64 * 40 + n);
            let sges = [near.sge(word, 8)];
            let remote = if vqp == bad && n == 17 { gone.remote(0) } else { far.remote(word) };
            let op = SendOp::FetchAdd { remote, add: n + 1 };
            let one = if n % 4 == 0 { wr(n, op, &sges) } else { quiet(n, op, &sges) };
            cluster.post(1, vqp, &[one]);
        }
    }
    cluster.until("all told", |cluster| {
        let told = &cluster.nodes[1].completions;
        of(told, bad).len() == 28 && told.len() == 28 + 5 * 10
    });
    let told = std::mem::take(&mut cluster.nodes[1].completions);
    let signaled = (0..17).step_by(4).map(|n| (n, WcStatus::Success));
    let flushed = (18..40).map(|n| (n, WcStatus::WrFlushErr));
    let expected: Vec<_> = signaled.chain([(17, WcStatus::RemAccessErr)]).chain(flushed).collect();
    assert_eq!(of(&told, bad), expected);
    cluster
        .until("all done", |cluster| cluster.nodes[1].core.vqps().all(|vqp| vqp.outstanding == 0));
    for (at, &vqp) in vqps.iter().enumerate().filter(|(_, vqp)| **vqp != bad) {
        let expected: Vec<_> = (0..40).step_by(4).map(|n| (n, WcStatus::Success)).collect();
        assert_eq!(of(&told, vqp), expected);
        for n in 0..40u64 {
            let word = far.word(8 * (at as u64 * 40 + n));
            assert_eq!(word, n + 1, "once each: VQP {at}, WR {n}");
        }
    }
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.vqp_errors, stats.lanes_reset), (1, 1), "{stats:?}");
    // The guilty one connects anew and goes on.
    cluster.connect(1, bad, 2, 0);
    cluster.post(1, bad, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.check();
}

#[test]
fn one_guilty_vqp_on_a_stream() {
    one_guilty(&config());
}

#[test]
fn one_guilty_vqp_on_a_dci_that_bears_no_fault() {
    one_guilty(&one_lane());
}

#[test]
fn a_silent_peer_ends_its_vqps_and_no_other() {
    let mut cluster = Cluster::new(4, &one_lane());
    let near = cluster.region(1, 4096, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 4096, ALL);
    let lost = cluster.region(3, 4096, ALL);
    let (good, other) = (cluster.vqp(1), cluster.vqp(1));
    let dead = [cluster.vqp(1), cluster.vqp(1)];
    let sges = [near.sge(0, 8)];
    for vqp in [good, other] {
        cluster.connect(1, vqp, 2, 0);
    }
    for vqp in dead {
        cluster.connect(1, vqp, 3, 0);
        cluster.post(1, vqp, &[wr(0, SendOp::Read(lost.remote(0)), &sges)]);
        cluster.take(1, 1);
    }
    let gone = cluster.nodes.remove(3).core.gid();
    for n in 0..10 {
        for vqp in dead {
            cluster.post(1, vqp, &[wr(n, SendOp::Write(lost.remote(8 * n)), &sges)]);
        }
        let add = SendOp::FetchAdd { remote: far.remote(8 * n), add: 1 };
        for vqp in [good, other] {
            cluster.post(1, vqp, &[wr(n, add, &sges)]);
        }
    }
    let told = cluster.take(1, 40);
    for vqp in [good, other] {
        assert_eq!(of(&told, vqp), (0..10).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
    }
    assert!((0..10).all(|n| far.word(8 * n) == 2), "once each");
    for vqp in dead {
        let own = of(&told, vqp);
        assert_eq!(own[0], (0, WcStatus::RetryExcErr));
        assert!(own[1..].iter().all(|(_, status)| *status == WcStatus::WrFlushErr), "{own:?}");
        assert_eq!(own.len(), 10);
    }
    assert_eq!(cluster.nodes[1].core.stats().lanes_reset, 1, "both wait for the peer once");
    // The peer's record was forgotten: a connect asks the meta server, who still lists it.
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    let options = ConnectOptions::default();
    let via = node.core.qconnect(node.client, dead[0], gone, 0, options, u64::from(dead[0].0), now);
    assert_eq!(via, Ok(None));
    assert!(cluster.nodes[0].core.meta_remove(gone));
    cluster.check();
}

#[test]
fn a_client_that_goes_in_the_middle_leaves_nothing() {
    let mut cluster = Cluster::new(3, &config());
    let far = cluster.region(2, 1 << 16, ALL);
    let stayer = cluster.vqp(1);
    let mine = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    cluster.connect(1, stayer, 2, 0);
    for round in 0..20u64 {
        let now = cluster.now();
        let core = &mut cluster.nodes[1].core;
        let client = core.client_open(ClientLimits::default()).unwrap();
        let memory = core.device().alloc_memory(1 << 16).unwrap();
        let info = core.reg_mr(client, memory, None, ALL).unwrap();
        let gid = cluster.nodes[2].core.gid();
        let core = &mut cluster.nodes[1].core;
        for n in 0..5u64 {
            let vqp = core.vqp_create(client, VqpInit::default()).unwrap();
            let port = if n == 0 { core.qbind(client, vqp, 0).unwrap() } else { 0 };
            let options = ConnectOptions { uncached: n == 1, ..ConnectOptions::default() };
            core.qconnect(client, vqp, gid, port, options, n, now).unwrap();
            let sges = [Sge { addr: info.addr, length: 4096, lkey: info.lkey }];
            for wr_id in 0..50 {
                let op = SendOp::Read(far.remote(8 * wr_id));
                core.post_send(client, vqp, &[wr(wr_id, op, &sges)], now).unwrap();
            }
        }
        for _ in 0..round {
            cluster.round();
        }
        let now = cluster.now();
        let sges = [mine.sge(0, 8)];
        cluster.post(1, stayer, &[wr(round, SendOp::Read(far.remote(0)), &sges)]);
        let core = &mut cluster.nodes[1].core;
        core.client_close(client, now);
        assert!(core.vqp_create(client, VqpInit::default()).is_err());
        cluster.until("gone", |cluster| cluster.nodes[1].core.client_is_gone(client));
        let done = cluster.take_one(1);
        assert_eq!((done.vqp, done.wc.status), (stayer, WcStatus::Success));
    }
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.clients, stats.vqps, stats.mrs), (1, 1, 1), "{stats:?}");
    cluster.check();
}

#[test]
fn a_deregistration_waits_for_work_in_flight() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 1 << 20, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 1 << 20, ALL);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    let sges = [near.sge(0, 1 << 20)];
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &sges)]);
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.dereg_mr(node.client, near.info.lkey, 3, now).unwrap();
    assert_eq!(node.core.poll_event(), None, "a READ into it is under way");
    let refused = cluster.try_post(1, vqp, &[wr(2, SendOp::Read(far.remote(0)), &sges)]);
    assert!(matches!(refused, Err((0, PostError::LocalAccess { .. }))), "{refused:?}");
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    let gone = Event::Deregistered { client: cluster.nodes[1].client, token: 3 };
    assert_eq!(cluster.nodes[1].events, [gone], "with the completion, not after a lease");
    cluster.check();
}

#[test]
fn another_meta_server_takes_over() {
    let mut cluster = Cluster::new(4, &config());
    let second = cluster.nodes[1].core.serve_meta(10).unwrap();
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    cluster.nodes[1].core.meta_put(gid, record).unwrap();
    let first = cluster.nodes[0].core.serve_meta(10).unwrap();
    let now = cluster.now();
    cluster.nodes[3].core.set_meta_servers(&[first, second], now);
    // They are as near; which one a node asks follows from its GID.
    let asked = cluster.nodes[3].core.meta_server().unwrap();
    assert!([first.gid, second.gid].contains(&asked));
    let gone = cluster.nodes.iter().position(|node| node.core.gid() == asked).unwrap();
    cluster.nodes.remove(gone);
    let vqps = [cluster.vqp(2), cluster.vqp(2)];
    for vqp in vqps {
        assert_eq!(cluster.start_connect(2, vqp, 1, 0), None);
    }
    for vqp in vqps {
        assert_eq!(cluster.connected(2, vqp), Ok(Via::DcLookup));
    }
    let stats = cluster.nodes[2].core.stats();
    assert_eq!((stats.lookups, stats.lookups_failed_over), (1, 1), "one look-up for both");
    // From now on the other one is asked first.
    let third = cluster.vqp(2);
    let now = cluster.now();
    let node = &mut cluster.nodes[2];
    let options = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    let token = u64::from(third.0);
    assert_eq!(node.core.qconnect(node.client, third, gid, 0, options, token, now), Ok(None));
    assert_eq!(cluster.connected(2, third), Ok(Via::DcLookup));
    assert_eq!(cluster.nodes[2].core.stats().lookups_failed_over, 1);
    // When none is left, it is said.
    cluster.nodes.remove(0);
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    assert_eq!(node.core.qconnect(node.client, third, gid, 0, options, token, now), Ok(None));
    assert_eq!(cluster.connected(1, third), Err(ConnectError::NoMetaServer { tried: 2 }));
    cluster.check();
}

#[test]
fn a_warm_call_gets_all_that_there_are() {
    let mut cluster = Cluster::new(5, &config());
    let mut gids: Vec<Gid> = cluster.nodes.iter().map(|node| node.core.gid()).collect();
    gids.extend([Gid([3; 16]), gids[2]]);
    let now = cluster.now();
    let node = &mut cluster.nodes[4];
    node.core.warm(node.client, &gids, 8, now).unwrap();
    let client = node.client;
    cluster.until("warm", |cluster| !cluster.nodes[4].events.is_empty());
    let warmed = Event::Warmed { client, token: 8, ready: 6, failed: 1 };
    assert_eq!(cluster.nodes[4].events, [warmed]);
    let vqp = cluster.vqp(4);
    assert_eq!(cluster.connect(4, vqp, 2, 0), Via::DcCached);
}
