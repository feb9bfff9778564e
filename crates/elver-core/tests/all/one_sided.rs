//! Connecting, and READs, WRITEs and atomics through VQPs, between nodes on loopback addresses.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

#[test]
fn a_first_contact_asks_the_meta_server_and_the_next_finds_the_cache() {
    let mut cluster = Cluster::new(3, &config());
    let [a, b, c] = [1, 1, 2].map(|n| cluster.vqp(n));
    assert_eq!(cluster.connect(1, a, 2, 7), Via::DcLookup);
    assert_eq!(cluster.connect(1, b, 2, 7), Via::DcCached);
    assert_eq!(cluster.connect(2, c, 2, 7), Via::DcCached, "a node knows itself");
    let client = cluster.nodes[1].client;
    let info = cluster.nodes[1].core.vqp_info(client, a).unwrap();
    assert_eq!((info.state, info.via), (VqpState::Connected, Some(Via::DcLookup)));
    assert_eq!(info.peer, Some((cluster.nodes[2].core.gid(), 7)));
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.lookups, stats.connects_looked_up, stats.connects_cached), (1, 1, 1));
    cluster.check();
}

#[test]
fn reads_writes_and_atomics_do_what_they_say() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 8192, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 8192, ALL);
    far.fill(0, &[7; 64]);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);

    let sges = [near.sge(0, 40), near.sge(100, 24)];
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &sges)]);
    let done = cluster.take_one(1);
    assert_eq!((done.vqp, done.wc.wr_id, done.wc.status), (vqp, 1, WcStatus::Success));
    assert_eq!((done.wc.opcode, done.wc.byte_len, done.wc.qp_num), (WcOpcode::RdmaRead, 64, vqp.0));
    assert_eq!((near.bytes(0, 40), near.bytes(100, 24)), (vec![7; 40], vec![7; 24]));

    near.fill(200, &[9; 100]);
    let sges = [near.sge(200, 100)];
    let inline =
        SendWr { payload: Payload::Inline(&[3; 5]), ..wr(3, SendOp::Write(far.remote(300)), &[]) };
    cluster.post(1, vqp, &[quiet(2, SendOp::Write(far.remote(200)), &sges), inline]);
    let done = cluster.take_one(1);
    assert_eq!((done.wc.wr_id, done.wc.opcode), (3, WcOpcode::RdmaWrite));
    assert_eq!((far.bytes(200, 100), far.bytes(300, 5)), (vec![9; 100], vec![3; 5]));

    far.fill(1024, &40_u64.to_ne_bytes());
    let sges = [near.sge(400, 8)];
    cluster.post(1, vqp, &[wr(4, SendOp::FetchAdd { remote: far.remote(1024), add: 2 }, &sges)]);
    assert_eq!(cluster.take_one(1).wc.opcode, WcOpcode::FetchAdd);
    let swap = SendOp::CompareSwap { remote: far.remote(1024), compare: 42, swap: 5 };
    cluster.post(1, vqp, &[wr(5, swap, &sges)]);
    assert_eq!(cluster.take_one(1).wc.opcode, WcOpcode::CompSwap);
    assert_eq!((near.word(400), far.word(1024)), (42, 5));
    let stats = cluster.nodes[1].core.stats();
    assert_eq!(stats.mr_lookups, 1, "one look-up serves them all");
    cluster.check();
}

#[test]
fn what_is_posted_before_the_connection_stands_waits_for_it() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    let vqp = cluster.vqp(1);
    assert_eq!(cluster.start_connect(1, vqp, 2, 0), None);
    let sges = [near.sge(0, 8)];
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &sges)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    assert_eq!(cluster.connected(1, vqp), Ok(Via::DcLookup));
}

#[test]
fn many_vqps_with_more_wrs_than_the_queues_hold_complete_in_order() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 4096, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 4096, ALL);
    let vqps: Vec<VqpId> = (0..40).map(|_| cluster.vqp(1)).collect();
    for &vqp in &vqps {
        cluster.connect(1, vqp, 2, 0);
    }
    let sges = [near.sge(0, 8)];
    for &vqp in &vqps {
        let wrs: Vec<SendWr<'_>> = (0..100)
            .map(|n| match n % 3 {
                0 => wr(n, SendOp::Read(far.remote(8 * n)), &sges),
                _ => quiet(n, SendOp::Write(far.remote(8 * n)), &sges),
            })
            .collect();
        cluster.post(1, vqp, &wrs);
    }
    let done = cluster.take(1, 40 * 34);
    assert_eq!(done.len(), 40 * 34);
    for &vqp in &vqps {
        let own = done.iter().filter(|done| done.vqp == vqp);
        let ids: Vec<u64> = own.map(|done| done.wc.wr_id).collect();
        assert_eq!(ids, (0..100).step_by(3).collect::<Vec<u64>>());
    }
    for vqp in cluster.nodes[1].core.vqps() {
        assert_eq!(vqp.outstanding, 0, "the unsignalled ones behind are done too: {vqp:?}");
    }
    cluster.check();
}

#[test]
fn what_a_wr_may_not_do_is_refused_when_it_is_posted() {
    let mut cluster = Cluster::new(2, &config());
    let near = cluster.region(1, 64, AccessFlags::empty());
    let vqp = cluster.vqp(1);
    let remote = RemoteAddr { addr: 0, rkey: 1 };
    let sges = [near.sge(0, 8)];
    let refused =
        |cluster: &mut Cluster, wr: SendWr<'_>| cluster.try_post(1, vqp, &[wr]).unwrap_err().1;
    let write = SendOp::Write(remote);
    assert!(matches!(refused(&mut cluster, wr(1, write, &sges)), PostError::State { .. }));
    cluster.connect(1, vqp, 1, 0);
    let read = refused(&mut cluster, wr(1, SendOp::Read(remote), &sges));
    assert!(matches!(read, PostError::LocalAccess { .. }), "the region is read-only: {read:?}");
    for sge in [near.sge(60, 8), Sge { lkey: 1, ..sges[0] }, Sge { addr: u64::MAX - 3, ..sges[0] }]
    {
        let error = refused(&mut cluster, wr(1, write, &[sge]));
        assert_eq!(error, PostError::LocalAccess { addr: sge.addr, length: 8, lkey: sge.lkey });
    }
    let window = refused(&mut cluster, wr(1, SendOp::LocalInv(3), &[]));
    assert!(matches!(window, PostError::Opcode { .. }));
    let many = refused(&mut cluster, wr(1, write, &[sges[0]; 5]));
    assert_eq!(many, PostError::TooManySges { given: 5, max: 4 });
    let inline = SendWr { payload: Payload::Inline(&[0; 221]), ..wr(1, write, &[]) };
    assert_eq!(refused(&mut cluster, inline), PostError::InlineTooLong { given: 221, max: 220 });
    let own = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let add = |addr| SendOp::FetchAdd { remote: RemoteAddr { addr, rkey: 1 }, add: 1 };
    let odd = refused(&mut cluster, wr(1, add(4), &[own.sge(0, 8)]));
    assert_eq!(odd, PostError::AtomicAlignment { addr: 4 });
    let long = refused(&mut cluster, wr(1, add(8), &[own.sge(0, 16)]));
    assert_eq!(long, PostError::AtomicLength { given: 16 });
    let client = cluster.nodes[1].client;
    assert_eq!(cluster.nodes[1].core.vqp_info(client, vqp).unwrap().outstanding, 0);
}

#[test]
fn a_region_that_does_not_permit_it_ends_the_vqp_alone() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
    let (bad, good) = (cluster.vqp(1), cluster.vqp(1));
    let sges = [near.sge(0, 8)];
    let outside = SendOp::Read(far.remote(60));
    let unknown = SendOp::Read(RemoteAddr { addr: 0, rkey: 77 });
    cluster.connect(1, good, 2, 0);
    for op in [outside, unknown, SendOp::Write(far.remote(0))] {
        cluster.connect(1, bad, 2, 0);
        let read = SendOp::Read(far.remote(0));
        let wrs = [quiet(1, read, &sges), quiet(2, op, &sges), quiet(3, read, &sges)];
        cluster.post(1, bad, &wrs);
        cluster.post(1, good, &[wr(4, read, &sges)]);
        let done = cluster.take(1, 3);
        let of = |vqp| -> Vec<_> {
            let own = done.iter().filter(|done| done.vqp == vqp);
            own.map(|done| (done.wc.wr_id, done.wc.status)).collect()
        };
        assert_eq!(of(bad), [(2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)]);
        assert_eq!(of(good), [(4, WcStatus::Success)]);
        let client = cluster.nodes[1].client;
        let info = cluster.nodes[1].core.vqp_info(client, bad).unwrap();
        assert_eq!(info.state, VqpState::Error);
    }
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.mr_refusals, stats.lanes_reset), (2, 0), "no QP has seen it: {stats:?}");
    cluster.check();
}

#[test]
fn a_deregistration_waits_for_leases_and_then_nothing_gets_in() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    let sges = [near.sge(0, 8)];
    let read = SendOp::Read(far.remote(0));
    cluster.post(1, vqp, &[wr(1, read, &sges)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);

    let (asked, node) = (cluster.now(), &mut cluster.nodes[2]);
    node.core.dereg_mr(node.client, far.info.lkey, 5, asked).unwrap();
    let again = node.core.dereg_mr(node.client, far.info.lkey, 5, asked);
    assert_eq!(again, Err(CoreError::NoSuchMr { lkey: far.info.lkey }));
    // The peer's lease runs: what it believes is still true.
    cluster.post(1, vqp, &[wr(2, read, &sges)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.until("deregistered", |cluster| !cluster.nodes[2].events.is_empty());
    let gone = Event::Deregistered { client: cluster.nodes[2].client, token: 5 };
    assert_eq!(cluster.nodes[2].events, [gone]);
    assert!(cluster.now().ns_since(asked) > cluster.nodes[2].core.config().mr_lease_ns);
    cluster.post(1, vqp, &[wr(3, read, &sges)]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RemAccessErr);
    assert_eq!(cluster.nodes[1].core.stats().lanes_reset, 0, "it was asked first");
    cluster.check();
}

#[test]
fn an_answer_that_is_too_old_is_asked_for_again() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 8)])]);
    // The owner answers, and takes the region back, while the asker stands still.
    let received = |cluster: &mut Cluster| cluster.nodes[2].core.device().counters().rx_packets;
    let before = received(&mut cluster);
    cluster.until("asked", |cluster| {
        let now = cluster.now();
        cluster.nodes[2].core.poll(now);
        received(cluster) > before
    });
    let (now, node) = (cluster.now(), &mut cluster.nodes[2]);
    node.core.dereg_mr(node.client, far.info.lkey, 5, now).unwrap();
    cluster.skip(2_000_000_000);
    let now = cluster.now();
    cluster.nodes[2].core.poll(now);
    let gone = Event::Deregistered { client: cluster.nodes[2].client, token: 5 };
    assert_eq!(cluster.nodes[2].core.poll_event(), Some(gone));

    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RemAccessErr);
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.lanes_reset, stats.mr_lookups), (0, 2), "no QP has seen it");
    cluster.check();
}

#[test]
fn connects_to_nobody_say_so() {
    let mut cluster = Cluster::new(2, &config());
    let vqp = cluster.vqp(1);
    let (gid, now) = (Gid([9; 16]), cluster.now());
    let node = &mut cluster.nodes[1];
    let token = u64::from(vqp.0);
    let options = ConnectOptions::default();
    assert_eq!(node.core.qconnect(node.client, vqp, gid, 1, options, token, now), Ok(None));
    assert_eq!(cluster.connected(1, vqp), Err(ConnectError::NoSuchNode { gid }));
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.set_meta_servers(&[], now);
    node.core.qconnect(node.client, vqp, gid, 1, options, token, now).unwrap();
    assert_eq!(cluster.connected(1, vqp), Err(ConnectError::NoMetaServer { tried: 0 }));
}

#[test]
fn a_node_that_is_not_registered_reaches_itself() {
    let mut cluster = Cluster::new(2, &config());
    let own = cluster.nodes[1].core.gid();
    assert!(cluster.nodes[0].core.meta_remove(own));
    let vqp = cluster.vqp(1);
    let (client, now) = (cluster.nodes[1].client, cluster.now());
    let uncached = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    let answer =
        cluster.nodes[1].core.qconnect(client, vqp, own, 7, uncached, u64::from(vqp.0), now);
    assert_eq!(answer, Ok(None));
    assert_eq!(cluster.connected(1, vqp), Err(ConnectError::NoSuchNode { gid: own }));
    // What the meta server says of the node does not count for the node itself.
    assert_eq!(cluster.connect(1, vqp, 1, 7), Via::DcCached);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(1, 64, ALL);
    far.fill(0, &[5; 64]);
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    assert_eq!(near.bytes(0, 64), [5; 64]);
    cluster.check();
}

/// Clients of node 1, each of an account, with memory and VQPs.
fn clients(
    cluster: &mut Cluster,
    accounts: &[(u64, usize)],
) -> Vec<(ClientId, Region, Vec<VqpId>)> {
    let open = |&(account, vqps): &(u64, usize)| {
        let limits = ClientLimits { account, ..ClientLimits::default() };
        let client = cluster.nodes[1].core.client_open(limits).unwrap();
        cluster.nodes[1].client = client;
        let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
        (client, near, (0..vqps).map(|_| cluster.vqp(1)).collect())
    };
    accounts.iter().map(open).collect()
}

/// A key that the region does not have.
fn guess(good: RemoteAddr, n: u64) -> RemoteAddr {
    RemoteAddr { rkey: good.rkey.wrapping_add(1 + n as u32), ..good }
}

/// Wrong keys of an account that are looked up at once, as docs/node.md has it.
const GUESSES_AT_ONCE: u64 = 1_000;

/// A process that guesses keys had the node look each of them up, for as long as it liked.
#[test]
fn who_guesses_keys_is_not_told_for_a_while_and_others_are() {
    const GUESSES: u64 = 3_000;
    let mut cluster = Cluster::new(3, &config());
    let good = cluster.region(2, 64, ALL).remote(0);
    let clients = clients(&mut cluster, &[(2, 1), (1, 1), (1, 1)]);
    let [other, guesser, accomplice] = [0, 1, 2];
    // Posts a READ of a client's, and says how it ended.
    let read = |cluster: &mut Cluster, who: usize, remote: RemoteAddr| {
        let (client, near, vqps) = &clients[who];
        cluster.nodes[1].client = *client;
        cluster.connect(1, vqps[0], 2, 0);
        cluster.post(1, vqps[0], &[wr(1, SendOp::Read(remote), &[near.sge(0, 8)])]);
        let wc = cluster.take_one(1).wc;
        (wc.status, AccessFault::of(&wc))
    };
    let begun = cluster.now();
    for n in 0..GUESSES {
        let (status, fault) = read(&mut cluster, guesser, guess(good, n));
        assert_eq!(status, WcStatus::RemAccessErr);
        if n < GUESSES_AT_ONCE {
            assert_eq!(fault, Some(AccessFault::Key), "{n}");
        }
        if n % 500 == 0 {
            // Its lease has run out, so that it is looked up.
            cluster.skip(25_000_000);
            assert_eq!(read(&mut cluster, other, good), (WcStatus::Success, None));
        }
    }
    let stats = cluster.nodes[1].core.stats();
    let most = GUESSES_AT_ONCE + 10 * (1 + cluster.now().ns_since(begun) / 1_000_000_000);
    assert!((GUESSES_AT_ONCE..=most).contains(&stats.mr_keys_wrong), "{stats:?}");
    assert!(stats.mr_lookups <= most + GUESSES / 500, "{stats:?}");
    assert_eq!(stats.mr_keys_wrong + stats.mr_keys_refused, GUESSES);
    // Also what is right is not told, whichever of the account's clients asks.
    let untold = (WcStatus::RemAccessErr, Some(AccessFault::Distrusted));
    for who in [guesser, accomplice] {
        while read(&mut cluster, guesser, guess(good, GUESSES)) != untold {}
        assert_eq!(read(&mut cluster, who, good), untold);
    }
    cluster.drive(1_100_000_000);
    assert_eq!(read(&mut cluster, guesser, good), (WcStatus::Success, None), "it is forgiven");
    cluster.check();
}

/// Who guesses often does so at once, before one guess is answered; and somebody else may have used the
/// same key.
#[test]
fn guesses_that_wait_for_their_look_ups_are_counted_too() {
    const GUESSES: usize = 2_000;
    let mut cluster = Cluster::new(3, &config());
    let good = cluster.region(2, 64, ALL).remote(0);
    let clients = clients(&mut cluster, &[(2, 1), (1, GUESSES)]);
    for (client, _, vqps) in &clients {
        cluster.nodes[1].client = *client;
        for vqp in vqps {
            cluster.connect(1, *vqp, 2, 0);
        }
    }
    let read = |cluster: &mut Cluster, who: usize, vqp: usize, remote: RemoteAddr| {
        let (client, near, vqps) = &clients[who];
        cluster.nodes[1].client = *client;
        cluster.post(1, vqps[vqp], &[wr(1, SendOp::Read(remote), &[near.sge(0, 8)])]);
    };
    // The other one's region is asked for by who guesses, last, and then by itself, whose turn comes first: what is found
    // then is known to the node.
    for n in 1..GUESSES {
        read(&mut cluster, 1, n, guess(good, n as u64));
    }
    read(&mut cluster, 1, 0, good);
    read(&mut cluster, 0, 0, good);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.nodes[1].client = clients[1].0;
    let ended = cluster.take(1, GUESSES);
    let of = |fault| ended.iter().filter(|done| AccessFault::of(&done.wc) == Some(fault)).count();
    let (wrong, untold) = (of(AccessFault::Key), of(AccessFault::Distrusted));
    assert_eq!(wrong + untold, GUESSES - 1);
    // Those that were on their way when the last one counted.
    let most = GUESSES_AT_ONCE as usize + 100;
    assert!((GUESSES_AT_ONCE as usize..most).contains(&wrong), "{wrong}");
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.mr_keys_wrong, stats.mr_keys_refused), (wrong as u64, untold as u64));
    cluster.check();
}
