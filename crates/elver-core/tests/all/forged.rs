//! Packets of somebody who is no node, or not the one that he says.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::common::attacker::{self, Attacker};
use crate::common::*;
use elver_core::*;
use elver_sim::SimDevice;
use elver_verbs::*;
use elver_wire::UDP_PORT;

/// Where no node is.
const STRANGER: u8 = 99;

/// An attacker with a host's address, and the node that it is after. Of a host that has the port of
/// devices for itself it gets another one.
fn attacker(cluster: &Cluster, host: u8, has_port: bool, target: u8) -> Attacker {
    cluster.net.overhear();
    let port = if has_port { UDP_PORT } else { 1_024 };
    Attacker::new(&cluster.net, SocketAddr::new(address(host), port), address(target))
}

/// Datagrams that were sent to a host.
fn told(cluster: &Cluster, host: u8) -> usize {
    let sent = cluster.net.take_heard().into_iter().chain(cluster.net.take_strays());
    sent.filter(|datagram| datagram.flow.dst.ip() == address(host)).count()
}

fn stat(cluster: &Cluster, n: usize, name: &str) -> u64 {
    cluster.nodes[n].core.stats().iter().find(|(found, _)| *found == name).unwrap().1
}

fn device_counter(cluster: &mut Cluster, n: usize, name: &str) -> u64 {
    let counters: BTreeMap<_, _> = cluster.nodes[n].core.device().counters().iter().collect();
    counters[name]
}

fn wrong_qkeys(cluster: &mut Cluster, n: usize) -> u64 {
    device_counter(cluster, n, "drop_qkey")
}

fn meta() -> ControlBody {
    ControlBody::Request(Request::Meta)
}

fn connect() -> ControlBody {
    let end = RcEnd { qpn: attacker::QPN, psn: 1, mtu: Mtu::Mtu1024, rd_atomic: 16 };
    ControlBody::Request(Request::RcConnect { end, class: Class::Low, leased: false })
}

/// A node told its record, with its DC key and the key of its table of regions, to whoever asked,
/// and the Q_Key was the same constant everywhere.
#[test]
fn who_does_not_know_a_nodes_qkey_is_not_heard() {
    let mut cluster = Cluster::new(2, &config());
    let record = cluster.nodes[1].core.record();
    let stranger = attacker(&cluster, STRANGER, true, 2);
    let guesses = [0, 0x0e1e_4e12, record.control_qkey() ^ 1, record.control_qkey() | 1 << 31];
    for (id, qkey) in guesses.into_iter().enumerate() {
        stranger.control(record.control_qpn, qkey, attacker::QPN, id as u64, meta());
    }
    cluster.until("the Q_Keys to be counted", |cluster| wrong_qkeys(cluster, 1) >= 4);
    assert_eq!(stat(&cluster, 1, "control_strangers"), 0);
    assert_eq!(told(&cluster, STRANGER), 0);
}

/// Also who has the Q_Key, and the address of a node that lives, is told nothing and changes nothing.
/// A connect was taken for its sender's record: one forged packet, and a meta server could not be
/// asked any more.
#[test]
fn a_request_that_no_known_node_sends_changes_nothing() {
    let mut cluster = Cluster::new(4, &config());
    let record = cluster.nodes[1].core.record();
    let before: Vec<PeerInfo> = cluster.nodes[1].core.peers().collect();
    // The address of this one is free.
    drop(cluster.nodes.remove(3));
    // As somebody new, as a node that has not been heard of here, and as the meta server, whose port
    // the attacker has not.
    for (host, denied) in [(STRANGER, 2), (4, 4), (1, 4)] {
        let forger = attacker(&cluster, host, host != 1, 2);
        told(&cluster, host);
        for (id, body) in [meta(), connect()].into_iter().enumerate() {
            let id = u64::from(host) << 8 | id as u64;
            forger.control(record.control_qpn, record.control_qkey(), attacker::QPN, id, body);
        }
        let port = if host == 1 { 2 } else { 0 };
        cluster.until("both to be denied", |cluster| {
            let others = device_counter(cluster, 1, "drop_source_port");
            (stat(cluster, 1, "control_denied"), others) == (denied, port)
        });
        assert!(host == 1 || told(&cluster, host) == 0, "an answer to {host}");
    }
    assert_eq!(stat(&cluster, 1, "control_strangers"), 4);
    let known = |peers: Vec<PeerInfo>| peers.iter().map(|peer| peer.gid).collect::<Vec<_>>();
    let fourth = Gid::from(address(4));
    let mut after = known(cluster.nodes[1].core.peers().collect());
    after.retain(|gid| *gid != fourth);
    assert_eq!(after, known(before), "of who is nobody nothing stays");

    // The meta server can be asked, and others can be connected to.
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    let region = cluster.region(2, 64, ALL);
    let local = cluster.region(1, 64, ALL);
    cluster.post(1, vqp, &[wr(7, SendOp::Read(region.remote(0)), &[local.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.check();
}

/// 65,600 datagrams from new addresses left a node without a path for any other.
#[test]
fn strangers_use_up_nothing_that_an_honest_node_needs() {
    let mut cluster = Cluster::new(2, &config());
    let record = cluster.nodes[1].core.record();
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 0, 0);
    let (ahs, peers) = {
        let holdings = cluster.nodes[1].core.audit().unwrap();
        (holdings.ahs, stat(&cluster, 1, "peers"))
    };
    for n in 0..70_000u32 {
        let [_, a, b, c] = (n + 0x0080_0001).to_be_bytes();
        let from = SocketAddr::new(IpAddr::from([11, a, b, c]), UDP_PORT);
        let stranger = Attacker::new(&cluster.net, from, address(2));
        // Half of them know the Q_Key.
        let qkey = record.control_qkey() ^ (n & 1);
        let body = if n & 2 == 0 { meta() } else { connect() };
        stranger.control(record.control_qpn, qkey, attacker::QPN, n.into(), body);
        if n % 100 == 99 {
            cluster.until("all to be looked at", |cluster| {
                let denied = stat(cluster, 1, "control_denied");
                wrong_qkeys(cluster, 1) + denied == u64::from(n) + 1
            });
        }
    }
    let holdings = cluster.nodes[1].core.audit().unwrap();
    assert_eq!((holdings.ahs, stat(&cluster, 1, "peers")), (ahs, peers));

    // One that is registered is served, and asks for an RC QP as well.
    cluster.add(3, config());
    cluster.register(2);
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    let now = cluster.now();
    cluster.nodes[2].core.set_meta_servers(&[server], now);
    let vqp = cluster.vqp(2);
    cluster.connect_by(Policy::Lite, 2, vqp, 1);
    cluster.check();
}

/// A member gone bad: a device of its own with a DC initiator, and the records of others, which all
/// members can read.
struct Member {
    device: SimDevice,
    cq: Cq,
    qp: Qp,
    pd: Pd,
}

impl Member {
    fn new(cluster: &Cluster, host: u8) -> Member {
        let config = elver_sim::Config::default();
        let mut device = cluster.net.device(usize::from(host) - 1, config).unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(CqInit { cqe: 64 }).unwrap());
        let qp = Member::initiator(&mut device, pd, cq);
        Member { device, cq, qp, pd }
    }

    fn initiator(device: &mut SimDevice, pd: Pd, cq: Cq) -> Qp {
        let cap = QpCap { max_send_wr: 64, max_inline_data: 220, ..QpCap::default() };
        let qp = device.create_qp(QpInit { cap, ..QpInit::new(QpType::Dci, pd, cq) }).unwrap();
        let mut attr = QpAttr { path_mtu: Mtu::Mtu1024, timeout: 9, ..QpAttr::default() };
        (attr.retry_cnt, attr.rnr_retry) = (3, 7);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            device.advance_qp(qp, &attr).unwrap();
        }
        qp
    }

    /// Sends bytes to the DC target of a node's.
    fn send(&mut self, gid: Gid, record: NodeRecord, bytes: &[u8]) {
        self.post(gid, record, SendOp::Send, bytes);
    }

    /// Does anything at the DC target of a node's.
    fn post(&mut self, gid: Gid, record: NodeRecord, op: SendOp, bytes: &[u8]) {
        let av = AddressVector { dgid: gid, ..AddressVector::default() };
        let ah = self.device.create_ah(self.pd, av).unwrap();
        let (remote_dctn, dc_access_key) = (record.dctn, record.dc_key);
        let dest = Dest::Dc { ah, remote_dctn, dc_access_key, stream_id: 0 };
        let payload = Payload::Inline(bytes);
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 1, op, flags, payload, dest: Some(dest) };
        self.device.post_send(self.qp, &[wr]).unwrap();
    }

    /// Drives the device until what it sent has arrived.
    fn sent(&mut self, cluster: &mut Cluster) {
        assert_eq!(self.ended(cluster), WcStatus::Success);
    }

    /// Drives the device until what it posted has ended; then it has a new initiator, if that one failed.
    fn ended(&mut self, cluster: &mut Cluster) -> WcStatus {
        let mut wc = [Wc::default()];
        let Member { device, cq, .. } = self;
        cluster.until("it ends", |_| device.poll_cq(*cq, &mut wc).unwrap() == 1);
        if wc[0].status != WcStatus::Success {
            self.device.destroy_qp(self.qp).unwrap();
            self.qp = Member::initiator(&mut self.device, self.pd, self.cq);
        }
        wc[0].status
    }
}

/// A message of one byte to a VQP, or to a port, as `docs/wire.md` has it.
fn message(to_port: bool, to: u32, src_vqp: u32) -> Vec<u8> {
    let mut bytes = vec![b'E', b'M', 4 | u8::from(to_port) << 7, 1];
    bytes.extend([0; 4]);
    for word in [to, src_vqp, 0, 1, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.push(b'x');
    bytes
}

/// A header alone, to a port, of this kind and with this cookie.
fn note(kind: u8, port: u32, src_vqp: u32, cookie: u64) -> Vec<u8> {
    let mut bytes = message(true, port, src_vqp);
    bytes.pop();
    (bytes[3], bytes[20]) = (kind, 0);
    bytes[24..].copy_from_slice(&cookie.to_le_bytes());
    bytes
}

/// Each question for credit was noted, of whatever VQP it said that it was: 32 bytes of a member's took more of
/// the node's memory, for as long as a receiver was behind.
#[test]
fn who_asks_for_credit_is_noted_only_if_it_sends() {
    const PROBE: u8 = 12;
    let config = Config { backlog: 64, ..config() };
    let mut cluster = Cluster::new(3, &config);
    let server = cluster.bound(1, 7);
    let (gid, record) = (cluster.nodes[1].core.gid(), cluster.nodes[1].core.record());
    let mut member = Member::new(&cluster, 9);
    // Two VQPs of its send, and it holds an eighth of what it may.
    for n in 0..8 {
        member.send(gid, record, &message(true, 7, 1 + n % 2));
        member.sent(&mut cluster);
    }
    for vqp in 1..=100 {
        member.send(gid, record, &note(PROBE, 7, vqp, 1));
        member.sent(&mut cluster);
    }
    cluster.drive(1_000_000);
    let waiting = |cluster: &Cluster| cluster.nodes[1].core.audit().unwrap().senders_waiting;
    assert_eq!(waiting(&cluster), 2);
    // Once its messages are taken nobody waits.
    let region = cluster.region(1, 64, ALL);
    for n in 0..8 {
        cluster.recv(1, server, n, &[region.sge(0, 64)]);
    }
    cluster.take(1, 8);
    assert_eq!(waiting(&cluster), 0);
    cluster.check();
}

/// A member sent more messages to a port that nobody has than there are send slots, and answered nothing: the
/// refusals took all of them, and half of the nodes' queues more.
#[test]
fn a_member_takes_its_share_of_send_slots_and_others_go_on() {
    const SENT_MAX: u32 = 64;
    const MESSAGES: u32 = 5_000;
    let config = Config { timeout: 14, sq_depth: 1_024, ..config() };
    let mut cluster = Cluster::new(3, &config);
    let server = cluster.bound(1, 7);
    let region = cluster.region(1, 4_096, ALL);
    let (gid, record) = (cluster.nodes[1].core.gid(), cluster.nodes[1].core.record());
    let mut member = Member::new(&cluster, 9);
    // It is known, and there is nobody at its DC target.
    let own = NodeRecord { dctn: 0x77_7777, ..cluster.nodes[2].core.record() };
    cluster.nodes[0].core.meta_put(Gid::from(address(9)), own).unwrap();
    let client = cluster.vqp(2);
    cluster.connect(2, client, 1, 7);

    let (mut slots, mut waiting) = (0, 0);
    for n in 0..MESSAGES / 50 {
        for _ in 0..50 {
            member.send(gid, record, &message(true, 99, n));
        }
        for _ in 0..50 {
            member.sent(&mut cluster);
        }
        let holdings = cluster.nodes[1].core.audit().unwrap();
        (slots, waiting) = (holdings.send_slots.max(slots), holdings.pending_notes.max(waiting));
    }
    assert!(waiting > MESSAGES / 2, "{waiting} refusals wait");
    assert!((1..=SENT_MAX).contains(&slots), "and {slots} have send slots");
    // A long message of another's is read, and it hears of that at once.
    let far = cluster.region(2, 65_536, ALL);
    cluster.recv(1, server, 1, &[region.sge(0, 4_096)]);
    let begun = cluster.now();
    cluster.post(2, client, &[wr(2, SendOp::Send, &[far.sge(0, 4_096)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success);
    let took = cluster.now().ns_since(begun);
    assert!(took < 1_000_000, "{took} ns");
    cluster.check();
}

/// A node that started anew had its messages taken for those of what it had been, where its VQP had the same number: who
/// answered them answered nobody.
#[test]
fn a_sender_that_started_anew_is_another() {
    let mut cluster = Cluster::new(2, &config());
    let server = cluster.bound(1, 7);
    let region = cluster.region(1, 4_096, ALL);
    let (gid, record) = (cluster.nodes[1].core.gid(), cluster.nodes[1].core.record());
    let mut member = Member::new(&cluster, 9);
    let mut source_of = |tag: u16, nonce: u32| {
        cluster.recv(1, server, 1, &[region.sge(0, 64)]);
        let mut bytes = message(true, 7, 5);
        bytes[6..8].copy_from_slice(&tag.to_le_bytes());
        bytes[28..32].copy_from_slice(&nonce.to_le_bytes());
        member.send(gid, record, &bytes);
        member.sent(&mut cluster);
        cluster.take_one(1).source.unwrap()
    };
    let first = source_of(1, 1);
    assert_eq!(source_of(1, 1), first);
    assert_eq!(source_of(1, 2), first, "it has connected anew");
    let second = source_of(2, 3);
    assert_ne!(second, first);
    assert_eq!(source_of(2, 3), second);
    cluster.check();
}

/// A message said itself who had sent it, and arrived as that one's.
#[test]
fn a_message_is_from_where_its_packets_came_from() {
    let mut cluster = Cluster::new(3, &config());
    let server = cluster.bound(1, 7);
    let region = cluster.region(1, 4_096, ALL);
    for n in 0..3 {
        cluster.recv(1, server, n, &[region.sge(64 * n, 64)]);
    }
    // Somebody is connected to it, and has sent one.
    let client = cluster.vqp(2);
    cluster.connect(2, client, 1, 7);
    let inline = Payload::Inline(b"honest");
    cluster.post(2, client, &[SendWr { payload: inline, ..wr(1, SendOp::Send, &[]) }]);
    let honest = cluster.take_one(1).source.unwrap();
    cluster.take_one(2);

    // The member says that it is that VQP. Nothing that it can write makes it so.
    let (gid, record) = (cluster.nodes[1].core.gid(), cluster.nodes[1].core.record());
    let mut member = Member::new(&cluster, 9);
    member.send(gid, record, &message(true, 7, client.0));
    member.sent(&mut cluster);
    let forged = cluster.take_one(1).source.unwrap();
    assert_ne!(forged, honest);
    let node = &cluster.nodes[1];
    let peer = node.core.vqp_info(node.client, forged).unwrap().peer.unwrap().0;
    assert_eq!(peer, Gid::from(address(9)));

    // To the VQP of two others it gets nothing at all.
    cluster.recv(1, honest, 9, &[region.sge(1_024, 64)]);
    member.send(gid, record, &message(false, honest.0, client.0));
    member.sent(&mut cluster);
    cluster.until("it is counted", |cluster| stat(cluster, 1, "messages_strayed") == 1);
    // Nor has it read a message of that one's.
    let mut fin = message(false, honest.0, client.0);
    (fin[3], fin[20]) = (4, 0);
    fin.pop();
    member.send(gid, record, &fin);
    member.sent(&mut cluster);
    cluster.until("it is counted", |cluster| stat(cluster, 1, "notes_strayed") == 1);
    assert!(cluster.nodes[1].completions.is_empty());

    // Nobody knows the member, so that an answer to it ends in nothing; the honest one gets his.
    for vqp in [forged, honest] {
        let inline = Payload::Inline(b"reply");
        cluster.post(1, vqp, &[SendWr { payload: inline, ..wr(2, SendOp::Send, &[]) }]);
    }
    cluster.recv(2, client, 5, &[]);
    let ended: BTreeMap<_, _> =
        cluster.take(1, 2).iter().map(|done| (done.vqp, done.wc.status)).collect();
    assert_eq!((ended[&forged], ended[&honest]), (WcStatus::RetryExcErr, WcStatus::Success));
    cluster.check();
}

/// Who can send in the peer's name, but has not seen the question, ends nothing by an answer: neither that the
/// peer's port is another's, nor that it need not be asked. And who has the Q_Key is sent no more than he sent.
#[test]
fn answers_to_questions_that_were_not_asked_end_nothing() {
    const TELL_NS: u64 = 32_000_000;
    let config = Config { keep_alive_ns: TELL_NS, ..config() };
    let mut cluster = Cluster::new(3, &config);
    cluster.bound(2, 7);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 7);
    cluster.drive(TELL_NS);
    assert!(stat(&cluster, 1, "peers_answered") > 0);
    let (own, peer) = (cluster.nodes[1].core.record(), cluster.nodes[2].core.record());
    let forger = attacker(&cluster, 3, true, 2);
    const FORGED: u64 = 2_000;
    for id in 0..FORGED {
        let (turns, bound) = (id % 2 == 0, [NonZeroU16::new(id as u16); PORTS_ASKED]);
        let answer = ControlBody::Answer(Answer::Alive { turns, bound });
        forger.control(own.control_qpn, own.control_qkey(), peer.control_qpn, id, answer);
        if id % 16 == 0 {
            cluster.round();
        }
    }
    cluster.drive(2 * TELL_NS);
    assert_eq!(stat(&cluster, 1, "control_stray"), FORGED);
    assert_eq!(stat(&cluster, 1, "vqps_forsaken"), 0);
    // Questions, of nobody that is known.
    told(&cluster, STRANGER);
    let stranger = attacker(&cluster, STRANGER, true, 2);
    let before = stat(&cluster, 1, "peers_assured");
    for id in 0..FORGED {
        let question = Request::Alive { qkey: 1, ports: [NonZeroU16::new(7); PORTS_ASKED] };
        let body = ControlBody::Request(question);
        stranger.control(own.control_qpn, own.control_qkey(), attacker::QPN, id, body);
        if id % 16 == 0 {
            cluster.round();
        }
    }
    cluster.drive(TELL_NS);
    let assured = stat(&cluster, 1, "peers_assured") - before;
    assert!((1..=FORGED + 16).contains(&assured), "{assured}");
    assert!(told(&cluster, STRANGER) as u64 <= FORGED);
    assert_eq!(stat(&cluster, 1, "control_strangers"), 0, "and nobody is looked up");
    let stranger = Gid::from(address(STRANGER));
    assert!(cluster.nodes[1].core.peers().all(|peer| peer.gid != stranger));
    assert!(!cluster.nodes[1].events.iter().any(|event| matches!(event, Event::Failed { .. })));
    cluster.check();
}

/// While no meta server answers, requests of nodes that are not known wait: so many of one, and so many
/// in all. What comes beyond is denied at once, though look-ups are left.
#[test]
fn so_many_requests_of_strangers_wait_and_of_one_of_them() {
    const OF_ONE: usize = 32;
    const IN_ALL: usize = 1_024;
    const STRANGERS: usize = 40;
    let mut cluster = Cluster::new(3, &config());
    let record = cluster.nodes[1].core.record();
    cluster.net.partition(1, 0, Time(u64::MAX));
    let begun = cluster.now();
    for from in 0..STRANGERS {
        let address = SocketAddr::new(IpAddr::from([11, 0, 0, from as u8]), UDP_PORT);
        let stranger = Attacker::new(&cluster.net, address, crate::common::address(2));
        for id in 0..=OF_ONE as u64 {
            let (qpn, qkey) = (record.control_qpn, record.control_qkey());
            stranger.control(qpn, qkey, attacker::QPN, id, meta());
        }
        // As many as there are buffers for at once.
        let came = ((from + 1) * (OF_ONE + 1)) as u64;
        cluster.until("all to have come", |cluster| stat(cluster, 1, "control_strangers") == came);
    }
    let came = (STRANGERS * (OF_ONE + 1)) as u64;
    // No look-up has been given up yet.
    assert!(cluster.now().ns_since(begun) < 2_000_000);
    assert_eq!(came - stat(&cluster, 1, "control_denied"), IN_ALL as u64);
    cluster.until("all to be denied", |cluster| stat(cluster, 1, "control_denied") == came);
    // Then there is room for one that is known.
    cluster.net.heal();
    let vqp = cluster.vqp(2);
    assert_eq!(cluster.connect_by(Policy::Lite, 2, vqp, 1), Via::Rc);
    cluster.check();
}

/// A member has all that can be said to a node, and says it to one that looks up and to its meta server: requests,
/// answers to what was not asked, nonsense with the right keys, messages that are none, WRITEs into both tables. Others'
/// look-ups find what is there, and nothing else; each thing that it did is counted, and it holds its share at most.
#[test]
fn a_member_gone_bad_stops_nobodys_look_ups() {
    const ROUNDS: u64 = 60;
    const HOST: u8 = 9;
    // Shared RC QPs that one peer may have made: `PEER_LINKS_MAX`.
    const LINKS: u64 = 8;
    let mut cluster = Cluster::new(4, &config());
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    let mut member = Member::new(&cluster, HOST);
    let own = NodeRecord { control_qpn: attacker::QPN, ..cluster.nodes[3].core.record() };
    cluster.nodes[0].core.meta_put(Gid::from(address(HOST)), own).unwrap();
    let victims = [0, 1].map(|n| (n, cluster.nodes[n].core.gid(), cluster.nodes[n].core.record()));
    // The table of nodes, and that of regions.
    let nodes = RemoteAddr { addr: server.nodes.addr(), rkey: server.nodes.rkey() };
    let tables = [nodes, RemoteAddr { addr: 0, rkey: victims[1].2.mrs_rkey }];
    let of_others = [0, 1].map(|n| cluster.vqp(n));
    for (n, vqp) in of_others.into_iter().enumerate() {
        cluster.connect(n, vqp, 2, 0);
    }
    let looker = cluster.vqp(1);
    let region = cluster.region(2, 64, ALL);
    let local = cluster.region(1, 64, ALL);

    for round in 0..ROUNDS {
        let third = NodeRecord { dctn: round as u32, ..cluster.nodes[2].core.record() };
        let end = RcEnd { qpn: attacker::QPN, psn: 1, mtu: Mtu::Mtu1024, rd_atomic: 16 };
        let guess = (round as u32 * 0x1_1111) & 0xff_ffff;
        let leased = Request::RcConnect { end, class: Class::Low, leased: true };
        let requests = [
            meta(),
            connect(),
            ControlBody::Request(leased),
            ControlBody::Request(Request::RcClose { qpn: guess, peer_qpn: attacker::QPN }),
            ControlBody::Request(Request::RcFate { qpn: guess, peer_qpn: attacker::QPN, psn: 1 }),
        ];
        let answers = [
            Answer::Record(third),
            Answer::Accepted(end),
            Answer::Refused(Refusal::Crossed),
            Answer::Closed,
            Answer::Fate(Some(1)),
            Answer::Alive { turns: false, bound: [NonZeroU16::new(guess as u16); PORTS_ASKED] },
        ];
        for (n, gid, record) in victims {
            let voice = attacker(&cluster, HOST, true, n as u8 + 1);
            let (qpn, qkey) = (record.control_qpn, record.control_qkey());
            for (at, body) in requests.into_iter().enumerate() {
                voice.control(qpn, qkey, attacker::QPN, round << 8 | at as u64, body);
            }
            for (at, answer) in answers.into_iter().enumerate() {
                // Numbers that a node's own questions may have, and others.
                let id = if round % 2 == 0 { at as u64 + round } else { round << 40 | at as u64 };
                voice.control(qpn, qkey, attacker::QPN, id, ControlBody::Answer(answer));
            }
            voice.datagram(qpn, qkey, attacker::QPN, &[0xa5; 40]);
            member.send(gid, record, b"no message");
            member.sent(&mut cluster);
            // Each by another VQP: of one, of which a message was refused, all are.
            member.send(gid, record, &message(false, of_others[n].0, 7 + round as u32));
            member.sent(&mut cluster);
            member.post(gid, record, SendOp::Write(tables[n]), &[0xff; 128]);
            assert_eq!(member.ended(&mut cluster), WcStatus::RemAccessErr);
        }
        // What is there is found, by a READ of the table, and its memory too; what is not is not.
        let options = ConnectOptions { policy: Policy::Shared, uncached: true };
        let absent = Gid::from(IpAddr::from([10, 7, 7, round as u8]));
        let there = cluster.nodes[2].core.gid();
        for (gid, found) in [(there, true), (absent, false)] {
            let (now, token) = (cluster.now(), u64::from(looker.0));
            let node = &mut cluster.nodes[1];
            let via = node.core.qconnect(node.client, looker, gid, 0, options, token, now).unwrap();
            assert_eq!(via, None);
            match cluster.connected(1, looker) {
                Ok(Via::DcLookup) if found => {
                    let read = SendOp::Read(region.remote(0));
                    cluster.post(1, looker, &[wr(round, read, &[local.sge(0, 8)])]);
                    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
                }
                Err(ConnectError::NoSuchNode { .. }) if !found => {}
                other => panic!("round {round}, {gid}: {other:?}"),
            }
        }
    }
    for (n, ..) in victims {
        let counted = ["control_stray", "messages_malformed", "messages_strayed"];
        let counted = counted.map(|name| stat(&cluster, n, name));
        assert_eq!(counted, [7 * ROUNDS, ROUNDS, ROUNDS], "node {n}");
        assert_eq!(device_counter(&mut cluster, n, "nak_fatal_sent"), ROUNDS, "node {n}");
        assert_eq!(stat(&cluster, n, "rc_qps"), LINKS + ROUNDS, "node {n}");
        assert_eq!(stat(&cluster, n, "control_denied"), 0);
    }
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.lookups_failed_over, stats.lanes_reset, stats.vqps_forsaken), (0, 0, 0));
    assert_eq!(stats.vqp_errors, ROUNDS, "those of connects to nobody");
    assert!(stats.lookups >= 2 * ROUNDS);
    cluster.check();
}
