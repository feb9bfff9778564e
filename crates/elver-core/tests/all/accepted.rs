//! What peers can make a whole node hold by sending messages to its clients.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

const ACCEPTED_MAX: u32 = 8;
/// Three quarters of these.
const OF_PEER: usize = 6;

/// Two clients of node 1, each with a bound VQP; messages come from nodes 0 and 2.
struct Scene {
    cluster: Cluster,
    /// Client and port.
    doors: [(ClientId, VqpId, u16); 2],
    there: [MrInfo; 2],
    own: [Region; 2],
}

impl Scene {
    fn new(config: &Config) -> Scene {
        let mut cluster = Cluster::new(3, config);
        let own = [0, 2].map(|from| cluster.region(from, 64, ALL));
        let core = &mut cluster.nodes[1].core;
        let made = [7, 8].map(|port| {
            let client = core.client_open(ClientLimits::default()).unwrap();
            let vqp = core.vqp_create(client, VqpInit::default()).unwrap();
            core.qbind(client, vqp, port).unwrap();
            let memory = core.device().alloc_memory(64).unwrap();
            ((client, vqp, port), core.reg_mr(client, memory, None, ALL).unwrap())
        });
        let (doors, there) = (made.map(|(door, _)| door), made.map(|(_, region)| region));
        Scene { cluster, doors, there, own }
    }

    /// A message from a new VQP of a node's (0 or 2) to a client. Returns the VQP that it makes
    /// there, which has answered if it is to be `used`; none if the message is refused.
    fn send(&mut self, from: usize, to: usize, used: bool) -> Option<VqpId> {
        let cluster = &mut self.cluster;
        let (client, server, port) = self.doors[to];
        let (own, there) = (&self.own[from / 2], self.there[to]);
        let sges = [Sge { addr: there.addr, length: 64, lkey: there.lkey }];
        let vqp = cluster.vqp(from);
        cluster.connect(from, vqp, 1, port);
        cluster.recv(from, vqp, 2, &[own.sge(0, 64)]);
        let now = cluster.now();
        let core = &mut cluster.nodes[1].core;
        core.post_recv(client, server, &[RecvWr { wr_id: 1, sges: &sges }], now).unwrap();
        cluster.post(from, vqp, &[wr(1, SendOp::Send, &[own.sge(0, 8)])]);
        let mut into = [Completion { vqp, source: None, wc: Wc::default() }];
        let mut source = None;
        cluster.until("it arrives, or is refused", |cluster| {
            let got = cluster.nodes[1].core.poll_completions(client, &mut into) == 1;
            source = into[0].source.filter(|_| got);
            let failed = |event: &Event| {
                let crowded = ConnectError::Crowded { gid: cluster.nodes[1].core.gid() };
                matches!(event, Event::Failed { vqp: failed, cause, .. }
                    if *failed == vqp && *cause == crowded)
            };
            got || cluster.nodes[from].events.iter().any(failed)
        });
        if let Some(source) = source.filter(|_| used) {
            let now = cluster.now();
            let core = &mut cluster.nodes[1].core;
            core.post_send(client, source, &[wr(1, SendOp::Send, &sges)], now).unwrap();
            cluster.until("the answer", |cluster| {
                let core = &mut cluster.nodes[1].core;
                core.poll_completions(client, &mut into) == 1
                    && cluster.nodes[from].completions.iter().any(|done| done.wc.wr_id == 2)
            });
        }
        cluster.nodes[from].completions.clear();
        assert!(self.stats().accepted <= u64::from(ACCEPTED_MAX));
        source
    }

    fn stats(&self) -> Stats {
        self.cluster.nodes[1].core.stats()
    }
}

fn small() -> Config {
    Config { max_accepted: ACCEPTED_MAX, ..config() }
}

#[test]
fn peers_make_a_node_hold_so_many_vqps_whoever_they_are_for() {
    let mut scene = Scene::new(&small());
    // In use, they do not give way: the greedy node gets its share of both clients together.
    let greedy: Vec<Option<VqpId>> = (0..10).map(|n| scene.send(0, n % 2, true)).collect();
    assert!(greedy[..OF_PEER].iter().all(Option::is_some), "{greedy:?}");
    assert_eq!(greedy.iter().flatten().count(), OF_PEER, "{greedy:?}");
    assert_eq!(scene.stats().accepts_refused, 10 - OF_PEER as u64);
    let other: Vec<Option<VqpId>> = (0..4).map(|n| scene.send(2, n % 2, true)).collect();
    assert_eq!(other.iter().flatten().count(), ACCEPTED_MAX as usize - OF_PEER, "what is left");
    // One that goes makes room for whoever comes.
    let now = scene.cluster.now();
    let core = &mut scene.cluster.nodes[1].core;
    core.vqp_destroy(scene.doors[0].0, greedy[0].unwrap(), now).unwrap();
    assert!(scene.send(2, 1, true).is_some() && scene.send(2, 1, true).is_none());
    assert_eq!(scene.stats().accepted, u64::from(ACCEPTED_MAX));
    scene.cluster.check();
}

#[test]
fn what_no_client_used_gives_way_in_the_whole_node() {
    let mut scene = Scene::new(&small());
    for n in 0..OF_PEER {
        assert!(scene.send(0, 0, false).is_some(), "{n}");
    }
    // The other client has none that could give way.
    for n in 0..OF_PEER {
        assert!(scene.send(2, 1, true).is_some(), "{n}");
    }
    let stats = scene.stats();
    let evicted = 2 * OF_PEER as u64 - u64::from(ACCEPTED_MAX);
    assert_eq!((stats.accepted_evicted, stats.accepts_refused), (evicted, 0), "{stats:?}");
    // The client may count them among its own: it hears which are gone.
    let (client, ..) = scene.doors[0];
    let gave_way =
        |event: &&Event| matches!(event, Event::GaveWay { client: of, .. } if *of == client);
    let told = scene.cluster.nodes[1].events.iter().filter(gave_way).count();
    assert_eq!(told as u64, evicted);
    scene.cluster.check();
}

#[test]
fn clients_have_vqps_of_their_own_whatever_peers_send() {
    let mut scene = Scene::new(&Config { max_vqps: 10, ..config() });
    assert_eq!(scene.cluster.nodes[1].core.config().accepts(), 8, "three quarters");
    for n in 0..20 {
        assert!(scene.send(2 * (n % 2), 0, false).is_some(), "{n}");
    }
    // Two are bound: with eight accepted ones there are as many as there may be.
    assert_eq!(scene.stats().vqps, 10);
    let client = scene.doors[1].0;
    for n in 0..8 {
        let made = scene.cluster.nodes[1].core.vqp_create(client, VqpInit::default());
        assert!(made.is_ok(), "{n}: {made:?}");
    }
    assert_eq!(scene.stats().accepted, 0);
    let full = scene.cluster.nodes[1].core.vqp_create(client, VqpInit::default());
    assert!(matches!(full, Err(CoreError::Limit { setting: "max_vqps", .. })), "{full:?}");
    scene.cluster.check();
}

/// Four nodes, and a fifth that remembers itself, the meta server, and one more.
fn with_a_forgetful_node() -> Cluster {
    let mut cluster = Cluster::new(4, &config());
    let meta = cluster.nodes[0].core.serve_meta(100).unwrap();
    cluster.add(5, Config { max_peers: 3, ..config() });
    cluster.register(4);
    let now = cluster.now();
    cluster.nodes[4].core.set_meta_servers(&[meta], now);
    cluster
}

/// A node that remembered as many peers as may be in use dropped the message of one more, which had been acknowledged by
/// then: its sender was told success, and nothing else.
#[test]
fn who_finds_no_place_at_a_full_node_is_told() {
    let mut cluster = with_a_forgetful_node();
    let (server, own) = (cluster.bound(4, 7), cluster.vqp(4));
    cluster.connect(4, own, 1, 0);
    let (mut failed, mut refused) = (0, 0);
    for n in [2, 3] {
        let client = cluster.vqp(n);
        cluster.connect(n, client, 4, 7);
        let inline = Payload::Inline(b"hello");
        cluster.post(n, client, &[SendWr { payload: inline, ..wr(1, SendOp::Send, &[]) }]);
        assert_eq!(cluster.take_one(n).wc.status, WcStatus::Success);
        cluster.until("it is told", |cluster| {
            let node = &cluster.nodes[n];
            node.core.vqp_info(node.client, client).unwrap().state == VqpState::Error
        });
        let gid = cluster.nodes[4].core.gid();
        let crowded = |event: &Event| matches!(event, Event::Failed { cause: ConnectError::Crowded { gid: at }, .. } if *at == gid);
        failed += u32::from(cluster.nodes[n].events.iter().any(crowded));
        refused = cluster.nodes[4].core.stats().messages_refused;
    }
    assert_eq!((failed, refused), (2, 2));
    // Once there is a place its messages are taken.
    let now = cluster.now();
    let node = &mut cluster.nodes[4];
    node.core.vqp_destroy(node.client, own, now).unwrap();
    let region = cluster.region(4, 64, ALL);
    cluster.recv(4, server, 1, &[region.sge(0, 64)]);
    let client = cluster.vqp(2);
    cluster.connect(2, client, 4, 7);
    let inline = Payload::Inline(b"hello");
    cluster.post(2, client, &[SendWr { payload: inline, ..wr(1, SendOp::Send, &[]) }]);
    assert_eq!(cluster.take_one(4).wc.status, WcStatus::Success);
    cluster.check();
}

/// A node that accepted a VQP, destroyed it, and forgot the peer while a long message of that peer's waited at the port
/// looked for who had sent it before it would give any other message to a receive: nothing came to the port any more.
#[test]
fn a_long_message_of_a_forgotten_peer_holds_no_other_up() {
    let mut cluster = with_a_forgetful_node();
    let (server, room) = (cluster.bound(4, 7), cluster.region(4, 32 << 10, ALL));
    cluster.recv(4, server, 1, &[room.sge(0, 64)]);
    let (long, bytes) = (cluster.vqp(2), cluster.region(2, 32 << 10, ALL));
    cluster.connect(2, long, 4, 7);
    cluster.post(2, long, &[wr(1, SendOp::Send, &[bytes.sge(0, 8)])]);
    let source = cluster.take_one(4).source.unwrap();
    cluster.post(2, long, &[wr(2, SendOp::Send, &[bytes.sge(0, 32 << 10)])]);
    cluster.until("it waits", |cluster| cluster.nodes[4].core.stats().messages_held == 1);
    let (now, node) = (cluster.now(), &mut cluster.nodes[4]);
    node.core.vqp_destroy(node.client, source, now).unwrap();
    let short = cluster.vqp(3);
    cluster.connect(3, short, 4, 7);
    let inline = Payload::Inline(b"hello");
    cluster.post(3, short, &[SendWr { payload: inline, ..wr(1, SendOp::Send, &[]) }]);
    cluster
        .until("the other one waits", |cluster| cluster.nodes[4].core.stats().messages_held == 2);
    let gid = cluster.nodes[2].core.gid();
    assert!(cluster.nodes[4].core.peers().all(|peer| peer.gid != gid), "it is forgotten");
    cluster.recv(4, server, 2, &[room.sge(0, 32 << 10)]);
    assert_eq!(cluster.take_one(4).wc.byte_len, 5);
    assert_eq!(cluster.nodes[4].core.stats().messages_refused, 1);
    // Its sender hears that it was not read.
    cluster.until("it is told", |cluster| {
        cluster.nodes[2].completions.iter().any(|done| done.wc.wr_id == 2)
    });
    let told = cluster.nodes[2].completions.iter().find(|done| done.wc.wr_id == 2);
    assert_eq!(told.unwrap().wc.status, WcStatus::WrFlushErr);
    cluster.check();
}

/// Who connects anew to the same port may be ahead of its own farewell, which waits behind other bytes. What its message
/// was said to come from ended with the earlier connection, or, had the farewell been lost, with none.
#[test]
fn who_connects_anew_may_be_ahead_of_its_farewell() {
    let few_packets = |_, device: &mut elver_sim::Config| device.max_packets_in_flight = 8;
    let mut cluster = Cluster::on(network(0, 1), 3, &config(), few_packets);
    let (server, room) = (cluster.bound(2, 7), cluster.region(2, 1 << 20, ALL));
    let own = cluster.region(1, 1 << 20, ALL);
    let node = &mut cluster.nodes[1];
    let init = VqpInit { class: Class::High, ..VqpInit::default() };
    let sender = node.core.vqp_create(node.client, init).unwrap();
    let bulk = cluster.vqp(1);
    cluster.connect(1, bulk, 2, 0);
    let (remote, length) = (room.remote(0), 1 << 20);
    // What is known by then needs no look-up.
    cluster.post(1, bulk, &[wr(0, SendOp::Write(remote), &[own.sge(0, 8)])]);
    cluster.take_one(1);
    let mut sources = [None; 2];
    for (n, source) in sources.iter_mut().enumerate() {
        if n == 1 {
            cluster.post(1, bulk, &[wr(0, SendOp::Write(remote), &[own.sge(0, length)])]);
        }
        cluster.connect(1, sender, 2, 7);
        cluster.recv(1, sender, 2, &[own.sge(0, 8)]);
        cluster.recv(2, server, 1, &[room.sge(0, 8)]);
        cluster.post(1, sender, &[wr(1, SendOp::Send, &[own.sge(0, 8)])]);
        *source = cluster.take_one(2).source;
        let count = 1 + n;
        assert!(cluster.take(1, count).iter().all(|done| done.wc.status == WcStatus::Success));
    }
    assert_eq!(sources[0], sources[1], "its farewell was ahead");
    cluster.drive(10_000_000);
    assert_eq!(cluster.nodes[2].events, []);
    let source = sources[1].unwrap();
    cluster.post(2, source, &[wr(3, SendOp::Send, &[room.sge(0, 8)])]);
    let answered = cluster.take_one(1);
    assert_eq!((answered.vqp, answered.wc.opcode), (sender, WcOpcode::Recv));
    // The end of this connection is its end.
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    node.core.vqp_destroy(node.client, sender, now).unwrap();
    cluster.until("it is told", |cluster| {
        let failed = |event: &Event| matches!(event, Event::Failed { vqp, .. } if *vqp == source);
        cluster.nodes[2].events.iter().any(failed)
    });
    cluster.check();
}
