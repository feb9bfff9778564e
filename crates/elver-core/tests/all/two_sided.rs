//! Messages: ports, accepting, replies, backlog, refusals.

use crate::common::*;
use elver_core::*;
use elver_sim::Rng;
use elver_verbs::*;

const PORT: u16 = 700;

/// A cluster in which node 2 has a VQP bound to [`PORT`] and node 1 one that is connected to it,
/// with a region for each.
struct Pair {
    cluster: Cluster,
    client: VqpId,
    server: VqpId,
    near: Region,
    far: Region,
}

impl Pair {
    fn new(config: &Config) -> Pair {
        let mut cluster = Cluster::new(3, config);
        let (near, far) = (cluster.region(1, 1 << 20, ALL), cluster.region(2, 1 << 20, ALL));
        let (client, server) = (cluster.vqp(1), cluster.bound(2, PORT));
        cluster.connect(1, client, 2, PORT);
        Pair { cluster, client, server, near, far }
    }

    fn failure(&mut self) -> ConnectError {
        self.cluster.until("a failure", |cluster| !cluster.nodes[1].events.is_empty());
        let event = self.cluster.nodes[1].events.remove(0);
        let Event::Failed { vqp, cause, .. } = event else { panic!("{event:?}") };
        assert_eq!(vqp, self.client);
        cause
    }
}

#[test]
fn a_message_makes_a_connection_back() {
    let mut pair = Pair::new(&config());
    let (near, far, cluster) = (&pair.near, &pair.far, &mut pair.cluster);
    cluster.recv(2, pair.server, 50, &[far.sge(0, 30), far.sge(100, 200)]);
    cluster.recv(2, pair.server, 51, &[far.sge(500, 200)]);
    near.fill(0, &[5; 90]);
    let looked_up = cluster.nodes[2].core.stats().lookups;
    let sges = [near.sge(0, 20), near.sge(20, 70)];
    let inline = SendWr { payload: Payload::Inline(b"inline"), ..wr(2, SendOp::Send, &[]) };
    cluster.post(1, pair.client, &[wr(1, SendOp::SendWithImm(77), &sges), inline]);
    let got = cluster.take(2, 2);
    let first = got[0];
    assert_eq!((first.vqp, first.wc.wr_id, first.wc.opcode), (pair.server, 50, WcOpcode::Recv));
    assert_eq!((first.wc.byte_len, first.wc.imm_data, first.wc.flags), (90, 77, WcFlags::WITH_IMM));
    assert_eq!((far.bytes(0, 30), far.bytes(100, 60)), (vec![5; 30], vec![5; 60]));
    assert_eq!((got[1].wc.byte_len, got[1].wc.flags), (6, WcFlags::empty()));
    assert_eq!(far.bytes(500, 6), b"inline");
    assert_eq!(got[0].source, got[1].source, "one sender, one VQP");
    let source = first.source.unwrap();
    let sent: Vec<_> =
        cluster.take(1, 2).iter().map(|done| (done.wc.wr_id, done.wc.opcode)).collect();
    assert_eq!(sent, [(1, WcOpcode::Send), (2, WcOpcode::Send)]);

    // The reply needs no port and no connect. Who the sender is was looked up for it, and not before:
    // a message tells nothing that is believed.
    assert_eq!(cluster.nodes[2].core.stats().lookups, looked_up);
    cluster.recv(1, pair.client, 60, &[near.sge(4096, 100)]);
    far.fill(1000, b"reply");
    let sges = [far.sge(1000, 5)];
    cluster.post(2, source, &[quiet(1, SendOp::Send, &sges)]);
    let reply = cluster.take_one(1);
    assert_eq!((reply.vqp, reply.wc.wr_id, reply.source), (pair.client, 60, None));
    assert_eq!(near.bytes(4096, 5), b"reply");
    assert_eq!(cluster.nodes[2].core.stats().lookups, looked_up + 1);
    // And one-sided operations go back too.
    let sges = [far.sge(0, 8)];
    cluster.post(2, source, &[wr(3, SendOp::Read(near.remote(4096)), &sges)]);
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success);
    cluster.check();
}

#[test]
fn many_senders_come_to_one_port() {
    let mut cluster = Cluster::new(4, &config());
    let server = cluster.bound(3, PORT);
    let far = cluster.region(3, 1 << 16, ALL);
    for n in 0..100 {
        cluster.recv(3, server, n, &[far.sge(8 * n, 8)]);
    }
    let mut vqps = Vec::new();
    for n in [0, 1, 2] {
        let near = cluster.region(n, 64, ALL);
        for _ in 0..5 {
            let vqp = cluster.vqp(n);
            cluster.connect(n, vqp, 3, PORT);
            near.fill(0, &u64::from(vqp.0).to_le_bytes());
            vqps.push((n, vqp, near.sge(0, 8)));
        }
    }
    for round in 0..6 {
        for (n, vqp, sge) in &vqps {
            cluster.post(*n, *vqp, &[quiet(round, SendOp::Send, &[*sge])]);
        }
    }
    let got = cluster.take(3, 90);
    assert_eq!(got.len(), 90);
    let ids: Vec<u64> = got.iter().map(|done| done.wc.wr_id).collect();
    assert_eq!(ids, (0..90).collect::<Vec<u64>>());
    let mut sources: Vec<VqpId> = got.iter().filter_map(|done| done.source).collect();
    sources.sort();
    sources.dedup();
    assert_eq!((sources.len(), cluster.nodes[3].core.stats().accepts), (15, 15));
    cluster.check();
}

#[test]
fn messages_wait_for_receives_and_too_many_are_refused() {
    let limits = Config { backlog: 8, ..config() };
    let mut pair = Pair::new(&limits);
    let (near, cluster) = (&pair.near, &mut pair.cluster);
    for n in 0..20u64 {
        near.fill(8 * n, &n.to_le_bytes());
    }
    // At once, before the sender can hear that it should wait.
    let sges: Vec<_> = (0..20).map(|n| [near.sge(8 * n, 8)]).collect();
    let wrs: Vec<_> = (0..20).map(|n| quiet(n, SendOp::Send, &sges[n as usize])).collect();
    cluster.post(1, pair.client, &wrs);
    cluster.until("held", |cluster| cluster.nodes[2].core.stats().messages_held == 8);
    let gid = pair.cluster.nodes[2].core.gid();
    assert_eq!(pair.failure(), ConnectError::Overrun { gid });
    let cluster = &mut pair.cluster;
    let node = &cluster.nodes[1];
    let info = node.core.vqp_info(node.client, pair.client).unwrap();
    assert_eq!(info.state, VqpState::Error);
    let refused = cluster.try_post(1, pair.client, &wrs[..1]);
    assert!(matches!(refused, Err((0, PostError::State { .. }))), "{refused:?}");
    // What was held is there, in its order.
    for n in 0..8 {
        cluster.recv(2, pair.server, n, &[pair.far.sge(8 * n, 8)]);
    }
    cluster.take(2, 8);
    assert!((0..8).all(|n| pair.far.word(8 * n) == n));
    cluster.check();
}

#[test]
fn ports_that_nobody_has_and_vqps_that_are_gone_refuse() {
    let mut pair = Pair::new(&config());
    let gid = pair.cluster.nodes[2].core.gid();
    let sges = [pair.near.sge(0, 8)];
    // A VQP that is gone: the client's, as the server learns.
    pair.cluster.recv(2, pair.server, 1, &[pair.far.sge(0, 8)]);
    pair.cluster.post(1, pair.client, &[quiet(1, SendOp::Send, &sges)]);
    let source = pair.cluster.take_one(2).source.unwrap();
    let now = pair.cluster.now();
    let node = &mut pair.cluster.nodes[1];
    node.core.vqp_destroy(node.client, pair.client, now).unwrap();
    let back = [pair.far.sge(0, 8)];
    pair.cluster.post(2, source, &[quiet(1, SendOp::Send, &back)]);
    pair.cluster.until("gone", |cluster| !cluster.nodes[2].events.is_empty());
    let from = pair.cluster.nodes[1].core.gid();
    let (client, cause) = (pair.cluster.nodes[2].client, ConnectError::PeerGone { gid: from });
    assert_eq!(
        pair.cluster.nodes[2].events.remove(0),
        Event::Failed { client, vqp: source, cause }
    );
    // What it sent was told as done, or came back with it.
    pair.cluster.nodes[2].completions.retain(|done| done.vqp != source);

    pair.client = pair.cluster.vqp(1);
    pair.cluster.connect(1, pair.client, 2, PORT + 1);
    pair.cluster.recv(1, pair.client, 9, &[pair.near.sge(0, 8)]);
    pair.cluster.post(1, pair.client, &[quiet(1, SendOp::Send, &sges)]);
    assert_eq!(pair.failure(), ConnectError::NoSuchPort { gid, port: PORT + 1 });
    let flushed = pair.cluster.take_one(1).wc;
    assert_eq!((flushed.wr_id, flushed.status), (9, WcStatus::WrFlushErr));

    // Connected anew it goes on.
    pair.cluster.connect(1, pair.client, 2, PORT);
    pair.cluster.recv(2, pair.server, 2, &[pair.far.sge(0, 8)]);
    pair.cluster.post(1, pair.client, &[quiet(1, SendOp::Send, &sges)]);
    assert_eq!(pair.cluster.take_one(2).wc.status, WcStatus::Success);
    pair.cluster.check();
}

#[test]
fn a_receive_that_is_too_short_ends_with_its_sender() {
    let mut pair = Pair::new(&config());
    let gid = pair.cluster.nodes[2].core.gid();
    pair.cluster.recv(2, pair.server, 1, &[pair.far.sge(0, 4)]);
    pair.cluster.recv(2, pair.server, 2, &[pair.far.sge(0, 8)]);
    let sges = [pair.near.sge(0, 8)];
    pair.cluster.post(1, pair.client, &[quiet(1, SendOp::Send, &sges)]);
    let short = pair.cluster.take_one(2).wc;
    assert_eq!((short.wr_id, short.status), (1, WcStatus::LocLenErr));
    assert_eq!(pair.failure(), ConnectError::ReceiveUnfit { gid });
    // The port goes on for others.
    let other = pair.cluster.vqp(1);
    pair.cluster.connect(1, other, 2, PORT);
    pair.cluster.post(1, other, &[quiet(1, SendOp::Send, &sges)]);
    assert_eq!(pair.cluster.take_one(2).wc.status, WcStatus::Success);
    pair.cluster.check();
}

#[test]
fn a_write_with_immediate_data_takes_a_receive() {
    let mut pair = Pair::new(&config());
    let (near, far, cluster) = (&pair.near, &pair.far, &mut pair.cluster);
    cluster.recv(2, pair.server, 1, &[]);
    cluster.recv(2, pair.server, 2, &[]);
    near.fill(0, &[4; 5000]);
    let sges = [near.sge(0, 5000)];
    let op = SendOp::WriteWithImm(far.remote(100), 99);
    let write = quiet(0, SendOp::Write(far.remote(0)), &sges[..0]);
    cluster.post(1, pair.client, &[write, wr(1, op, &sges), write, wr(2, op, &sges[..0])]);
    let got = cluster.take(2, 2);
    let seen: Vec<_> =
        got.iter().map(|done| (done.wc.opcode, done.wc.imm_data, done.wc.byte_len)).collect();
    assert_eq!(seen, [(WcOpcode::RecvRdmaWithImm, 99, 5000), (WcOpcode::RecvRdmaWithImm, 99, 0)]);
    assert_eq!(far.bytes(100, 5000), vec![4; 5000]);
    let sent = cluster.take(1, 2);
    assert!(sent.iter().all(|done| done.wc.opcode == WcOpcode::RdmaWrite));
    // Without the right to write nothing is told to the peer.
    let closed = cluster.region(2, 64, AccessFlags::LOCAL_WRITE);
    cluster.recv(2, pair.server, 3, &[]);
    let op = SendOp::WriteWithImm(closed.remote(0), 1);
    cluster.post(1, pair.client, &[wr(3, op, &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RemAccessErr);
    assert!(cluster.nodes[2].completions.is_empty());
    cluster.check();
}

/// A pattern that tells every byte's place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn long_messages_are_read_into_the_receive_in_order_with_short_ones() {
    let mut pair = Pair::new(&config());
    let closed = pair.cluster.region(1, 1 << 20, AccessFlags::LOCAL_WRITE);
    let (near, far, cluster) = (&closed, &pair.far, &mut pair.cluster);
    near.fill(0, &pattern(700_000));
    // One waits for its receive, one finds it.
    let long = [near.sge(0, 100_000), near.sge(100_000, 1), near.sge(100_001, 199_999)];
    let short = [near.sge(500_000, 10)];
    cluster.post(
        1,
        pair.client,
        &[wr(1, SendOp::SendWithImm(5), &long), wr(2, SendOp::Send, &short)],
    );
    cluster.until("held", |cluster| cluster.nodes[2].core.stats().messages_held == 2);
    assert!(cluster.nodes[1].completions.is_empty(), "nobody has read it");
    cluster.recv(2, pair.server, 10, &[far.sge(0, 250_000), far.sge(300_000, 60_000)]);
    cluster.recv(2, pair.server, 11, &[far.sge(400_000, 10)]);
    cluster.recv(2, pair.server, 12, &[far.sge(500_000, 300_000)]);
    let got = cluster.take(2, 2);
    let seen: Vec<_> =
        got.iter().map(|done| (done.wc.wr_id, done.wc.status, done.wc.byte_len)).collect();
    assert_eq!(seen, [(10, WcStatus::Success, 300_000), (11, WcStatus::Success, 10)]);
    assert_eq!((got[0].wc.imm_data, got[0].source), (5, got[1].source));
    let whole = pattern(300_000);
    assert_eq!(far.bytes(0, 250_000), whole[..250_000]);
    assert_eq!(far.bytes(300_000, 50_000), whole[250_000..]);
    let sent: Vec<_> =
        cluster.take(1, 2).iter().map(|done| (done.wc.wr_id, done.wc.status)).collect();
    assert_eq!(sent, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    cluster.post(1, pair.client, &[wr(3, SendOp::Send, &[near.sge(1000, 300_000)])]);
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success);
    assert_eq!(cluster.take_one(1).wc.wr_id, 3);
    assert_eq!(far.bytes(500_000, 300_000), pattern(301_000)[1000..]);
    // One too long for its receive is not read.
    cluster.recv(2, pair.server, 13, &[far.sge(0, 19_999)]);
    cluster.post(1, pair.client, &[wr(4, SendOp::Send, &[near.sge(0, 20_000)])]);
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::LocLenErr);
    let gid = pair.cluster.nodes[2].core.gid();
    assert_eq!(pair.failure(), ConnectError::ReceiveUnfit { gid });
    assert_eq!(pair.cluster.take_one(1).wc.status, WcStatus::WrFlushErr);
    pair.cluster.check();
}

/// A host polls each ten milliseconds, and its device takes a packet at a look and leaves others. For such a one no message
/// had leave to be read any longer after a second.
#[test]
fn who_looks_seldom_and_finds_something_each_time_reads_long_messages() {
    let mut pair = Pair::new(&Config { timeout: 16, ..config() });
    let near = pair.cluster.region(1, 1 << 19, AccessFlags::LOCAL_WRITE);
    let (far, cluster) = (&pair.far, &mut pair.cluster);
    let (other, into) = (cluster.vqp(0), cluster.region(0, 64, AccessFlags::LOCAL_WRITE));
    cluster.connect(0, other, 2, 0);
    cluster.recv(2, pair.server, 10, &[far.sge(0, 20_000)]);
    near.fill(0, &pattern(20_000));
    cluster.nodes[2].core.device().take_at_once(1);
    for look in 0..400 {
        // Each look finds more than one packet. If many wait already, they do.
        let read = [into.sge(0, 8)];
        let op = SendOp::Read(far.remote(400_000));
        let _ = cluster.try_post(0, other, &[wr(look, op, &read), wr(look, op, &read)]);
        if look == 200 {
            cluster.post(1, pair.client, &[wr(1, SendOp::Send, &[near.sge(0, 20_000)])]);
        }
        let until = cluster.now().saturating_add_ns(10_000_000);
        while cluster.now() < until {
            cluster.round_without(2);
        }
        let now = cluster.now();
        let node = &mut cluster.nodes[2];
        node.core.poll(now);
        let mut done = [Completion { vqp: pair.server, source: None, wc: Wc::default() }];
        if node.core.poll_completions(node.client, &mut done) > 0 {
            assert_eq!((done[0].wc.wr_id, done[0].wc.byte_len, look > 200), (10, 20_000, true));
            assert_eq!(far.bytes(0, 20_000), pattern(20_000));
            return;
        }
    }
    panic!("it was not read");
}

#[test]
fn a_long_message_whose_sender_or_receiver_goes_ends() {
    let mut pair = Pair::new(&config());
    let cluster = &mut pair.cluster;
    // The receiver goes before it has read.
    let long = [pair.near.sge(0, 1 << 19)];
    cluster.post(1, pair.client, &[wr(1, SendOp::Send, &long)]);
    cluster.until("held", |cluster| cluster.nodes[2].core.stats().messages_held == 1);
    let now = cluster.now();
    let node = &mut cluster.nodes[2];
    node.core.vqp_destroy(node.client, pair.server, now).unwrap();
    let gid = cluster.nodes[2].core.gid();
    assert_eq!(pair.failure(), ConnectError::PeerGone { gid });
    let cluster = &mut pair.cluster;
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::WrFlushErr);
    // The receiver goes while it reads: nothing of its is left when that has ended.
    let server = cluster.bound(2, PORT);
    cluster.connect(1, pair.client, 2, PORT);
    cluster.recv(2, server, 1, &[pair.far.sge(0, 1 << 19)]);
    cluster.post(1, pair.client, &[wr(2, SendOp::Send, &long)]);
    cluster.until("begun", |cluster| cluster.nodes[2].core.stats().messages_received == 2);
    let now = cluster.now();
    let node = &mut cluster.nodes[2];
    node.core.vqp_destroy(node.client, server, now).unwrap();
    assert_eq!(cluster.take_one(1).wc.wr_id, 2);
    // Only those that were accepted are left.
    cluster.until("gone", |cluster| cluster.nodes[2].core.stats().vqps == 2);
    // The sender goes: the receive ends with an error or with the message, and once.
    let server = cluster.bound(2, PORT);
    cluster.connect(1, pair.client, 2, PORT);
    cluster.post(1, pair.client, &[wr(3, SendOp::Send, &long)]);
    cluster.until("held", |cluster| cluster.nodes[2].core.stats().messages_held == 2);
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.vqp_destroy(node.client, pair.client, now).unwrap();
    cluster.recv(2, server, 3, &[pair.far.sge(0, 1 << 19)]);
    let got = cluster.take_one(2).wc;
    assert_eq!((got.wr_id, got.status), (3, WcStatus::Success));
    let node = &mut cluster.nodes[1];
    node.core.dereg_mr(node.client, pair.near.info.lkey, 1, now).unwrap();
    cluster.until("deregistered", |cluster| !cluster.nodes[1].events.is_empty());
    cluster.check();
}

#[test]
fn a_long_message_to_a_node_that_vanishes_ends() {
    let mut pair = Pair::new(&config());
    let (near, cluster) = (&pair.near, &mut pair.cluster);
    cluster.post(1, pair.client, &[wr(1, SendOp::Send, &[near.sge(0, 1 << 19)])]);
    cluster.until("held", |cluster| cluster.nodes[2].core.stats().messages_held == 1);
    let gid = cluster.nodes.remove(2).core.gid();
    assert_eq!(pair.failure(), ConnectError::Unreachable { gid });
    assert_eq!(pair.cluster.take_one(1).wc.status, WcStatus::WrFlushErr);
    pair.cluster.check();
}

#[test]
fn senders_do_not_use_up_what_a_client_may_have() {
    let mut cluster = Cluster::new(3, &config());
    let limits = ClientLimits { vqps: 8, ..ClientLimits::default() };
    cluster.nodes[1].client = cluster.nodes[1].core.client_open(limits).unwrap();
    let server = cluster.bound(1, 7);
    let region = cluster.region(1, 4096, ALL);
    // Two nodes in turn: no one alone may have as many made.
    let own = [0, 2].map(|from| (from, cluster.region(from, 4096, ALL)));
    let mut sources = Vec::new();
    for n in 0..20 {
        let (from, own) = &own[n as usize % 2];
        let vqp = cluster.vqp(*from);
        cluster.connect(*from, vqp, 1, 7);
        cluster.recv(1, server, n, &[region.sge(0, 64)]);
        cluster.post(*from, vqp, &[wr(n, SendOp::Send, &[own.sge(0, 8)])]);
        let done = cluster.take_one(1);
        assert_eq!(done.wc.status, WcStatus::Success);
        sources.push(done.source.unwrap());
        cluster.take_one(*from);
        if n == 0 {
            // It is used, and stays.
            let sge = [region.sge(0, 8)];
            cluster.recv(0, vqp, 100, &[own.sge(64, 64)]);
            cluster.post(1, sources[0], &[wr(100, SendOp::Send, &sge)]);
            cluster.take_one(0);
            cluster.take_one(1);
        }
    }
    let node = &cluster.nodes[1];
    let lives = |vqp: &&VqpId| node.core.vqp_info(node.client, **vqp).is_ok();
    assert_eq!(sources.iter().filter(lives).count(), 4, "half of what it may have");
    assert!(lives(&&sources[0]) && lives(&&sources[19]));
    for _ in 0..6 {
        cluster.vqp(1);
    }
    let node = &mut cluster.nodes[1];
    assert!(node.core.vqp_create(node.client, VqpInit::default()).is_err(), "all are its own");
    cluster.check();
}

#[test]
fn one_node_does_not_use_up_what_another_needs() {
    let mut cluster = Cluster::new(3, &config());
    let limits = ClientLimits { vqps: 16, accepts_per_peer: 3, ..ClientLimits::default() };
    cluster.nodes[1].client = cluster.nodes[1].core.client_open(limits).unwrap();
    let server = cluster.bound(1, 7);
    let there = cluster.region(1, 4096, ALL);
    let own = [0, 2].map(|from| (from, cluster.region(from, 4096, ALL)));
    // Returns the VQP that the message makes at the server, which answers over it, so that it is
    // used and does not give way; none if the message is refused.
    let send = |cluster: &mut Cluster, at: usize, n: u64| {
        let (from, own) = &own[at];
        let vqp = cluster.vqp(*from);
        cluster.connect(*from, vqp, 1, 7);
        cluster.recv(*from, vqp, 50, &[own.sge(64, 64)]);
        cluster.recv(1, server, n, &[there.sge(0, 64)]);
        cluster.post(*from, vqp, &[wr(n, SendOp::Send, &[own.sge(0, 8)])]);
        let failed = |cluster: &Cluster| {
            let events = cluster.nodes[*from].events.iter();
            events.filter(|event| matches!(event, Event::Failed { .. })).count()
        };
        let before = failed(cluster);
        cluster.until("it arrives, or is refused", |cluster| {
            !cluster.nodes[1].completions.is_empty() || failed(cluster) > before
        });
        let source = cluster.nodes[1].completions.pop().map(|done| done.source.unwrap());
        if let Some(source) = source {
            cluster.post(1, source, &[wr(51, SendOp::Send, &[there.sge(0, 8)])]);
            cluster.take(*from, 2);
            cluster.take_one(1);
        } else {
            cluster.nodes[*from].completions.clear();
        }
        source
    };
    let greedy: Vec<Option<VqpId>> = (0..5).map(|n| send(&mut cluster, 0, n)).collect();
    assert_eq!(greedy.iter().flatten().count(), 3, "its share");
    let gid = cluster.nodes[1].core.gid();
    let crowded = |event: &&Event| matches!(event, Event::Failed { cause, .. } if *cause == ConnectError::Crowded { gid });
    assert_eq!(cluster.nodes[0].events.iter().filter(crowded).count(), 2);
    assert_eq!(cluster.nodes[1].core.stats().accepts_refused, 2);
    for n in 10..13 {
        assert!(send(&mut cluster, 1, n).is_some(), "the other node has its own share");
    }
    // One that goes makes room.
    let (client, now) = (cluster.nodes[1].client, cluster.now());
    cluster.nodes[1].core.vqp_destroy(client, greedy[0].unwrap(), now).unwrap();
    assert!(send(&mut cluster, 0, 20).is_some() && send(&mut cluster, 0, 21).is_none());
    cluster.check();
}

/// Memory that is another process's as far as the device knows: it is never at hand.
fn slow_region(cluster: &mut Cluster, n: usize, len: u64) -> Region {
    let region = cluster.region(n, len, AccessFlags::LOCAL_WRITE);
    region.memory.recede(100, u64::MAX, Rng::new(1));
    region
}

/// The node's own thread waited for each receive in memory that is not at hand. Now the device writes
/// them, and what comes for the VQP meanwhile stands behind.
#[test]
fn receives_that_are_not_at_hand_are_written_by_and_by() {
    const COUNT: u64 = 40;
    let mut pair = Pair::new(&config());
    let (near, far, cluster) = (&pair.near, &pair.far, &mut pair.cluster);
    let slow = slow_region(cluster, 2, 1 << 20);
    let info = slow.info;
    for n in 0..COUNT {
        near.fill(n * 16_384, &vec![n as u8 + 1; 16_384]);
        // Some of one piece, some of several, some not in such memory at all; some are not posted
        // before there are messages for them.
        let sges = match n % 4 {
            0 => vec![slow.sge(n * 16_384, 16_384)],
            1 => vec![slow.sge(n * 16_384, 100), far.sge(n * 16_384 + 100, 16_284)],
            2 => vec![far.sge(n * 16_384, 9_000), slow.sge(n * 16_384 + 9_000, 7_384)],
            _ => vec![far.sge(n * 16_384, 16_384)],
        };
        if n < COUNT / 2 {
            cluster.recv(2, pair.server, n, &sges);
        }
        let sges = [near.sge(n * 16_384, 16_000)];
        cluster.post(1, pair.client, &[quiet(n, SendOp::Send, &sges)]);
        if n >= COUNT / 2 {
            cluster.round();
            let sges = [slow.sge(n * 16_384, 16_384)];
            cluster.recv(2, pair.server, n, &sges);
        }
    }
    let got = cluster.take(2, COUNT as usize);
    let told: Vec<_> = got.iter().map(|done| (done.wc.wr_id, done.wc.status)).collect();
    let expected: Vec<_> = (0..COUNT).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!(told, expected);
    let stats = cluster.nodes[2].core.stats();
    assert!(stats.messages_landed_late >= 3 * COUNT / 4, "{stats:?}");
    for n in 0..COUNT {
        let bytes = far.bytes(n * 16_384, 16_000);
        let there = slow.bytes(n * 16_384, 16_000);
        let whole = bytes.iter().zip(&there).all(|(a, b)| (a | b) == n as u8 + 1 && a & b == 0);
        assert!(whole, "message {n}");
    }

    // A receive whose memory its process has unmapped fails, and the messages behind it go on.
    let gone = slow.sge(1 << 19, 64);
    let now = cluster.now();
    cluster.recv(2, pair.server, 100, &[gone]);
    let sges = [near.sge(0, 64)];
    cluster.post(1, pair.client, &[quiet(100, SendOp::Send, &sges)]);
    let node = &mut cluster.nodes[2];
    node.core.dereg_mr(node.client, info.lkey, 7, now).unwrap();
    cluster.until("the region's end", |cluster| {
        cluster.nodes[2].events.iter().any(|event| matches!(event, Event::Deregistered { .. }))
    });
    cluster.check();
}

/// A VQP goes while its receive is being written: the memory is its client's again only after that.
#[test]
fn a_vqp_that_goes_while_its_receive_is_written_goes_after_that() {
    let mut pair = Pair::new(&config());
    let (near, cluster) = (&pair.near, &mut pair.cluster);
    let slow = slow_region(cluster, 2, 1 << 16);
    let info = slow.info;
    for n in 0..8_u64 {
        cluster.recv(2, pair.server, n, &[slow.sge(n * 64, 64)]);
        cluster.post(1, pair.client, &[quiet(n, SendOp::Send, &[near.sge(0, 64)])]);
    }
    cluster.until("one to be written", |cluster| {
        cluster.nodes[2].core.stats().messages_landed_late > 0
    });
    let now = cluster.now();
    let node = &mut cluster.nodes[2];
    node.core.vqp_destroy(node.client, pair.server, now).unwrap();
    node.core.dereg_mr(node.client, info.lkey, 7, now).unwrap();
    cluster.until("the region's end", |cluster| {
        cluster.nodes[2].events.iter().any(|event| matches!(event, Event::Deregistered { .. }))
    });
    cluster.check();
}

/// A client without regions was forgotten with the first of its VQPs: what the others had on their lanes kept
/// its send slots, and they stood for ever.
#[test]
fn a_client_that_goes_takes_all_of_its_vqps_along() {
    let mut cluster = Cluster::new(2, &config());
    cluster.bound(1, 7);
    let vqps: Vec<VqpId> = (0..3).map(|_| cluster.vqp(0)).collect();
    for vqp in &vqps[1..] {
        cluster.connect(0, *vqp, 1, 7);
        let inline = Payload::Inline(b"last words");
        cluster.post(0, *vqp, &[SendWr { payload: inline, ..wr(1, SendOp::Send, &[]) }]);
    }
    let (client, now) = (cluster.nodes[0].client, cluster.now());
    cluster.nodes[0].core.client_close(client, now);
    cluster.until("all of it to go", |cluster| {
        let core = &cluster.nodes[0].core;
        let slots = core.audit().unwrap().send_slots;
        core.client_is_gone(client) && (core.stats().vqps, slots) == (0, 0)
    });
}

/// More messages come at once than there are buffers: their senders are told to wait, and none is lost.
#[test]
fn messages_wait_for_receive_buffers() {
    const MESSAGES: u64 = 100;
    let config = Config { recv_buffers: 2, ..config() };
    let mut cluster = Cluster::new(3, &config);
    let receiver = cluster.bound(1, 7);
    let there = cluster.region(1, 4_096, ALL);
    for n in 0..MESSAGES {
        cluster.recv(1, receiver, n, &[there.sge(8 * n, 8)]);
    }
    let sender = cluster.vqp(2);
    cluster.connect(2, sender, 1, 7);
    for n in 0..MESSAGES {
        let inline = SendWr { payload: Payload::Inline(&[n as u8; 8]), ..wr(n, SendOp::Send, &[]) };
        cluster.post(2, sender, &[inline]);
    }
    // The receiver looks when much has come.
    for _ in 0..MESSAGES {
        cluster.round_without(1);
    }
    let arrived = cluster.take(1, MESSAGES as usize);
    assert!(arrived.iter().all(|done| done.wc.status == WcStatus::Success));
    for n in 0..MESSAGES {
        assert_eq!(there.bytes(8 * n, 8), [n as u8; 8]);
    }
    cluster.take(2, MESSAGES as usize);
    assert!(cluster.nodes[1].core.device().counters().rnr_nak_sent > 0, "it had enough of them");
    cluster.check();
}

/// So many WRs of a VQP may be outstanding in each direction, and a process is told what is too much.
#[test]
fn a_vqp_has_so_many_wrs_outstanding() {
    let mut cluster = Cluster::new(2, &Config { max_vqp_wr: 4, ..config() });
    let node = &mut cluster.nodes[1];
    let greedy = VqpInit { max_send_wr: 5, ..VqpInit::default() };
    let refused = node.core.vqp_create(node.client, greedy);
    let out_of = CoreError::OutOfRange { name: "max_send_wr", value: 5, min: 0, max: 4 };
    assert_eq!(refused, Err(out_of));
    let init = VqpInit { max_send_wr: 4, max_recv_wr: 4, ..VqpInit::default() };
    let vqp = node.core.vqp_create(node.client, init).unwrap();
    let near = cluster.region(1, 64, ALL);
    cluster.connect(1, vqp, 1, 0);
    let remote = near.remote(8);
    let sges = [near.sge(0, 8)];
    let wrs = [wr(1, SendOp::Read(remote), &sges); 5];
    let refused = cluster.try_post(1, vqp, &wrs);
    assert!(matches!(refused, Err((4, PostError::QueueFull { .. }))), "{refused:?}");
    assert_eq!(cluster.take(1, 4).len(), 4);
}
