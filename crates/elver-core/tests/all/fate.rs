//! An RC QP that breaks through its peer's fault flushes what stands on it, of which some was
//! executed and not yet acknowledged: nothing is executed twice for that, and nobody is told that
//! something was done which was not.

mod executed;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use elver_core::*;
use elver_sim::SimMemory;
use elver_verbs::*;
use elver_wire::UDP_PORT;

use crate::common::attacker::Attacker;
use crate::common::virtual_time::Nodes;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);
/// The RC QP breaks so often.
const BREAKS: u64 = 60;
/// WRs that a VQP keeps outstanding.
const WINDOW: u64 = 24;

/// A region of a client's.
struct Region {
    memory: SimMemory,
    info: MrInfo,
}

impl Region {
    fn new(nodes: &mut Nodes, n: usize, length: u64) -> Region {
        let node = &mut nodes.nodes[n];
        let memory = node.core.device().alloc_memory(length).unwrap();
        let info = node.core.reg_mr(node.client, memory.clone(), None, ALL).unwrap();
        Region { memory, info }
    }

    fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.info.addr + at, length, lkey: self.info.lkey }
    }

    fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.info.addr + at, rkey: self.info.rkey }
    }
}

/// Two nodes on one RC QP, beside the meta server.
struct Pair {
    nodes: Nodes,
    /// What completed at each node, by VQP: the WR and how it ended.
    told: [BTreeMap<u32, Vec<(u64, WcStatus)>>; 3],
    near: Region,
    /// Looks at memory after each step.
    reader: Option<executed::Reader>,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(&|_| true)
    }

    /// Some of the nodes have no DC.
    fn with(has_dc: &dyn Fn(usize) -> bool) -> Pair {
        Pair::leased(has_dc, 1_000_000_000)
    }

    /// The same, with leases of so many nanoseconds.
    fn leased(has_dc: &dyn Fn(usize) -> bool, mr_lease_ns: u64) -> Pair {
        Pair::configured(has_dc, &|config| Config { mr_lease_ns, ..config })
    }

    /// The same, configured otherwise.
    fn configured(has_dc: &dyn Fn(usize) -> bool, change: &dyn Fn(Config) -> Config) -> Pair {
        // Few, so that some of what is posted has not gone when the RC QP breaks.
        let device = elver_sim::Config { max_packets_in_flight: 8, ..elver_sim::Config::default() };
        Pair::on(&device, has_dc, change)
    }

    /// The same, on other devices.
    fn on(
        device: &elver_sim::Config,
        has_dc: &dyn Fn(usize) -> bool,
        change: &dyn Fn(Config) -> Config,
    ) -> Pair {
        let transfer = TransferConfig { idle_ns: 0, ..Config::default().transfer };
        let config = change(Config {
            dc_qps: 2,
            eager_bytes_max: 512,
            timeout: 9,
            retry_cnt: 3,
            recv_buffers: 256,
            transfer,
            ..Config::default()
        });
        let config = |n: usize| {
            let dc_qps = if has_dc(n) { config.dc_qps } else { 0 };
            Config { dc_qps, ..config.clone() }
        };
        let mut nodes = Nodes::with(3, &config, device, ClientLimits::default());
        let near = Region::new(&mut nodes, 1, 1 << 16);
        Pair { nodes, told: Default::default(), near, reader: None }
    }

    fn vqp(&mut self, n: usize, to: usize) -> VqpId {
        let vqp = self.nodes.vqp(n, VqpInit::default());
        assert_eq!(self.nodes.connect(n, vqp, to, Policy::Lite), Ok(Via::Rc));
        vqp
    }

    fn post(&mut self, n: usize, vqp: VqpId, wr_id: u64, op: SendOp, payload: Payload<'_>) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None };
        let now = self.nodes.net.now();
        let node = &mut self.nodes.nodes[n];
        node.core.post_send(node.client, vqp, &[wr], now).unwrap();
    }

    fn step(&mut self) {
        self.nodes.step();
        if let Some(reader) = &mut self.reader {
            reader.look_at_last();
        }
        self.poll();
    }

    fn poll(&mut self) {
        for (node, told) in self.nodes.nodes.iter_mut().zip(&mut self.told) {
            let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
            let mut into = [blank; 64];
            loop {
                let count = node.core.poll_completions(node.client, &mut into);
                for done in &into[..count] {
                    let of = told.entry(done.vqp.0).or_default();
                    of.push((done.wc.wr_id, done.wc.status));
                }
                if count < into.len() {
                    break;
                }
            }
            node.core.audit().unwrap();
        }
    }

    fn told(&self, n: usize, vqp: VqpId) -> &[(u64, WcStatus)] {
        self.told[n].get(&vqp.0).map_or(&[], Vec::as_slice)
    }

    /// The VQP has failed, and all that it had outstanding has ended.
    fn is_down(&self, n: usize, vqp: VqpId) -> bool {
        let node = &self.nodes.nodes[n];
        let info = node.core.vqp_info(node.client, vqp).unwrap();
        info.state == VqpState::Error && info.outstanding == 0
    }

    /// A region of node `n`'s that the device no longer has, though a peer holds a lease for it: a
    /// WRITE there over the peer's VQP breaks the RC QP at node `n`'s side.
    fn trap(&mut self, n: usize, (peer, vqp): (usize, VqpId), near: &Region) -> Region {
        let trap = Region::new(&mut self.nodes, n, 64);
        self.post(peer, vqp, 0, SendOp::Write(trap.remote(0)), Payload::Sges(&[near.sge(0, 8)]));
        while self.told(peer, vqp).is_empty() {
            self.step();
        }
        assert_eq!(self.told[peer].remove(&vqp.0), Some(vec![(0, WcStatus::Success)]));
        self.nodes.nodes[n].core.device().inner.dereg_mr(trap.info.mr).unwrap();
        trap
    }

    /// Breaks the RC QP again and again while a VQP of node 1's works, posting by `work` what comes
    /// next. Returns what each VQP that did was told.
    fn torment(
        &mut self,
        mut work: impl FnMut(&mut Pair, VqpId, u64),
    ) -> Vec<Vec<(u64, WcStatus)>> {
        let (mut workers, mut next) = (Vec::new(), 0);
        let far = Region::new(&mut self.nodes, 2, 64);
        let mut worker = self.vqp(1, 2);
        for round in 0..BREAKS {
            let breaker = self.vqp(2, 1);
            let trap = self.trap(1, (2, breaker), &far);
            let before = self.told(1, worker).len();
            let mut asked = false;
            // It goes on while the RC QP breaks, and for some time after.
            while !self.is_down(2, breaker) || self.told(1, worker).len() < before + 60 {
                if self.is_down(1, worker) {
                    // It is not the guilty one, but the result of an atomic may be lost.
                    workers.push(self.told(1, worker).to_vec());
                    worker = self.vqp(1, 2);
                    break;
                }
                let node = &self.nodes.nodes[1];
                let info = node.core.vqp_info(node.client, worker).unwrap();
                if info.state == VqpState::Connected && u64::from(info.outstanding) < WINDOW {
                    work(self, worker, next);
                    next += 1;
                } else {
                    self.step();
                }
                if !asked && self.told(1, worker).len() as u64 >= before as u64 + round % 20 {
                    let payload = [far.sge(0, 8)];
                    let op = SendOp::Write(trap.remote(0));
                    self.post(2, breaker, 1, op, Payload::Sges(&payload));
                    asked = true;
                }
            }
            while asked && !self.is_down(2, breaker) {
                self.step();
            }
            self.told[2].remove(&breaker.0);
            self.nodes.destroy(2, breaker);
        }
        while {
            let node = &self.nodes.nodes[1];
            node.core.vqp_info(node.client, worker).unwrap().outstanding > 0
        } {
            self.step();
        }
        workers.push(self.told(1, worker).to_vec());
        workers
    }

    /// Nothing is left undone.
    fn check(&mut self) {
        for node in &self.nodes.nodes {
            let stats = node.core.stats();
            assert_eq!((stats.completions_unknown, stats.device_refusals), (0, 0), "{stats:?}");
        }
    }
}

/// A FETCH_ADD whose answer was under way when the RC QP broke was posted again over DC, and the
/// word counted it twice.
#[test]
fn an_addition_is_executed_once_though_the_rc_qp_breaks() {
    let mut pair = Pair::new();
    let word = Region::new(&mut pair.nodes, 2, 64);
    let near = pair.near.sge(0, 8);
    let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
    let workers = pair.torment(|pair, vqp, n| pair.post(1, vqp, n, add, Payload::Sges(&[near])));
    let all: Vec<(u64, WcStatus)> = workers.into_iter().flatten().collect();
    let succeeded = all.iter().filter(|(_, status)| *status == WcStatus::Success).count() as u64;
    let lost = all.iter().filter(|(_, status)| *status != WcStatus::Success).count() as u64;
    let mut bytes = [0; 8];
    word.memory.read(0, &mut bytes).unwrap();
    let counted = u64::from_ne_bytes(bytes);
    assert!(
        (succeeded..=succeeded + lost).contains(&counted),
        "{succeeded} additions succeeded and {lost} did not, the word counts {counted}"
    );
    let stats = pair.nodes.nodes[1].core.stats();
    assert!(stats.fates_asked > 0 && stats.wrs_unsure > 0, "{stats:?}");
    pair.check();
}

/// Messages of node 1's, so long each, arrive at node 2 while the RC QP between them breaks again and
/// again: each once, in order, and nobody but the guilty one fails. Returns what both counted.
fn messages_arrive_once(mut pair: Pair, length: u32) -> [Stats; 2] {
    let inbox = pair.nodes.vqp(2, VqpInit::default());
    let node = &mut pair.nodes.nodes[2];
    assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
    let room = Region::new(&mut pair.nodes, 2, 128 * u64::from(length));
    let place = |wr_id: u64, places: u64| wr_id % places * u64::from(length);
    let mut came = Vec::new();
    let supply = |pair: &mut Pair, came: &mut Vec<u64>| {
        let done = pair.told[2].remove(&inbox.0).unwrap_or_default();
        for (wr_id, status) in done {
            assert_eq!(status, WcStatus::Success);
            let mut bytes = [0; 8];
            room.memory.read(place(wr_id, 128), &mut bytes).unwrap();
            came.push(u64::from_ne_bytes(bytes));
        }
        let node = &pair.nodes.nodes[2];
        let info = node.core.vqp_info(node.client, inbox).unwrap();
        assert_ne!(info.state, VqpState::Error);
    };
    let mut posted = 0;
    let receive = |pair: &mut Pair, posted: &mut u64| {
        let now = pair.nodes.net.now();
        let node = &mut pair.nodes.nodes[2];
        let sges = [room.sge(place(*posted, 128), length)];
        node.core
            .post_recv(node.client, inbox, &[RecvWr { wr_id: *posted, sges: &sges }], now)
            .unwrap();
        *posted += 1;
    };
    for _ in 0..64 {
        receive(&mut pair, &mut posted);
    }
    let workers = pair.torment(|pair, vqp, n| {
        let before = came.len();
        supply(pair, &mut came);
        for _ in before..came.len() {
            receive(pair, &mut posted);
        }
        // What is outstanding is not overwritten.
        let at = place(n, WINDOW);
        pair.near.memory.write(at, &n.to_ne_bytes()).unwrap();
        let sges = [pair.near.sge(at, length)];
        pair.post(1, vqp, n, SendOp::Send, Payload::Sges(&sges));
    });
    assert_eq!(workers.len(), 1, "no VQP of node 1's failed: it did nothing wrong");
    let told = &workers[0];
    assert!(told.iter().all(|(_, status)| *status == WcStatus::Success));
    while came.len() < told.len() {
        pair.step();
        let before = came.len();
        supply(&mut pair, &mut came);
        for _ in before..came.len() {
            receive(&mut pair, &mut posted);
        }
    }
    assert_eq!(came, (0..told.len() as u64).collect::<Vec<_>>(), "each once, and in order");
    pair.check();
    [1, 2].map(|n| pair.nodes.nodes[n].core.stats())
}

/// Messages and WRITEs that had arrived are told to have succeeded, and do not come twice; what had
/// not arrived is sent again, and nobody but the guilty one fails.
#[test]
fn a_message_arrives_once_though_the_rc_qp_breaks() {
    let [sender, _] = messages_arrive_once(Pair::new(), 8);
    let counts = (sender.fates_asked, sender.wrs_executed_unseen, sender.wrs_reposted);
    assert!(counts.0 > 0 && counts.1 > 0 && counts.2 > 0, "{sender:?}");
}

/// What stood behind a WR that the peer refused went over DC from then on, to a peer that has none,
/// and ended when its retries did.
#[test]
fn what_stands_behind_a_refused_wr_waits_for_the_next_rc_qp_to_a_peer_without_dc() {
    let mut pair = Pair::with(&|n| n != 2);
    let word = Region::new(&mut pair.nodes, 2, 64);
    let (breaker, worker) = (pair.vqp(1, 2), pair.vqp(1, 2));
    let near = Region::new(&mut pair.nodes, 1, 64);
    let trap = pair.trap(2, (1, breaker), &near);
    let payload = [near.sge(0, 8)];
    let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
    pair.post(1, worker, 0, add, Payload::Sges(&payload));
    pair.post(1, breaker, 1, SendOp::Write(trap.remote(0)), Payload::Sges(&payload));
    for n in 1..9 {
        pair.post(1, worker, n, add, Payload::Sges(&payload));
    }
    while pair.told(1, worker).len() < 9 {
        pair.step();
    }
    assert_eq!(pair.told(1, breaker), [(1, WcStatus::RemAccessErr)]);
    assert!(pair.told(1, worker).iter().all(|(_, status)| *status == WcStatus::Success));
    let mut bytes = [0; 8];
    word.memory.read(0, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 9);
    let node = &pair.nodes.nodes[1];
    assert_eq!(node.core.vqp_info(node.client, worker).unwrap().via, Some(Via::Rc));
    pair.check();
}

/// The READs of long messages had nowhere to go when the RC QP broke, and the receives failed.
#[test]
fn a_long_message_is_read_though_the_rc_qp_breaks_and_there_is_no_dc() {
    let [_, receiver] = messages_arrive_once(Pair::with(&|_| false), 2_600);
    assert!(receiver.ops_waited > 0, "{receiver:?}");
}

/// A READ whose memory is gone is refused when it is answered, and what came behind it was executed by
/// then. It was posted again, since a peer that refuses executes nothing more.
#[test]
fn what_stands_behind_a_read_of_memory_that_is_gone_is_executed_once() {
    for policy in [Policy::Lite, Policy::Shared] {
        let mut pair = Pair::with(&|_| true);
        let word = Region::new(&mut pair.nodes, 2, 64);
        let gone = Region::new(&mut pair.nodes, 2, 64);
        let near = Region::new(&mut pair.nodes, 1, 64);
        let payload = [near.sge(0, 8)];
        let [reader, worker] = [0, 1].map(|_| {
            let vqp = pair.nodes.vqp(1, VqpInit::default());
            pair.nodes.connect(1, vqp, 2, policy).unwrap();
            // So that their regions are known.
            for region in [&word, &gone] {
                let read = SendOp::Read(region.remote(0));
                pair.post(1, vqp, 0, read, Payload::Sges(&payload));
            }
            while pair.told(1, vqp).len() < 2 {
                pair.step();
            }
            pair.told[1].remove(&vqp.0);
            vqp
        });
        gone.memory.set_gone(true);
        pair.post(1, reader, 1, SendOp::Read(gone.remote(0)), Payload::Sges(&payload));
        let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
        for n in 0..8 {
            pair.post(1, worker, n, add, Payload::Sges(&payload));
        }
        // Node 2 comes to run when much of it is there, and executes what it finds before it answers.
        pair.nodes.net.advance(pair.nodes.net.now().saturating_add_ns(50_000));
        while pair.told(1, worker).len() < 8 || pair.told(1, reader).is_empty() {
            pair.step();
        }
        assert_eq!(pair.told(1, reader), [(1, WcStatus::RemOpErr)], "{policy:?}");
        let told = pair.told(1, worker);
        let done = told.iter().filter(|(_, status)| *status == WcStatus::Success).count() as u64;
        let mut bytes = [0; 8];
        word.memory.read(0, &mut bytes).unwrap();
        let counted = u64::from_ne_bytes(bytes);
        assert!((done..=8).contains(&counted), "{policy:?}: {counted} of {told:?}");
        pair.check();
    }
}

/// That a long message was read is told by a message of the core's own. It was given up when it was
/// flushed behind what another VQP had done wrong, so that the sender asked, heard that nobody had
/// its message, and failed though it had arrived.
#[test]
fn that_a_long_message_was_read_is_told_though_others_break_the_way() {
    const LENGTH: u32 = 2_000;
    for policy in [Policy::Lite, Policy::Shared] {
        let mut pair = Pair::new();
        let (gone, near) = (Region::new(&mut pair.nodes, 2, 64), pair.near.sge(0, 8));
        let inbox = pair.nodes.vqp(1, VqpInit::default());
        let node = &mut pair.nodes.nodes[1];
        assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
        let room = Region::new(&mut pair.nodes, 1, LENGTH.into());
        let message = Region::new(&mut pair.nodes, 2, LENGTH.into());
        let sender = pair.nodes.vqp(2, VqpInit::default());
        pair.nodes.connect(2, sender, 1, policy).unwrap();
        for n in 0..BREAKS {
            let reader = pair.nodes.vqp(1, VqpInit::default());
            pair.nodes.connect(1, reader, 2, policy).unwrap();
            gone.memory.set_gone(false);
            let read = SendOp::Read(gone.remote(0));
            pair.post(1, reader, 0, read, Payload::Sges(&[near]));
            while pair.told(1, reader).is_empty() {
                pair.step();
            }
            gone.memory.set_gone(true);
            let now = pair.nodes.net.now();
            let node = &mut pair.nodes.nodes[1];
            let sges = [room.sge(0, LENGTH)];
            node.core
                .post_recv(node.client, inbox, &[RecvWr { wr_id: n, sges: &sges }], now)
                .unwrap();
            pair.post(2, sender, n, SendOp::Send, Payload::Sges(&[message.sge(0, LENGTH)]));
            // At another moment of the message's way each time.
            for _ in 0..n % 12 {
                if pair.told(2, sender).len() as u64 <= n {
                    pair.step();
                }
            }
            pair.post(1, reader, 1, read, Payload::Sges(&[near]));
            while pair.told(2, sender).len() as u64 <= n || pair.told(1, reader).len() < 2 {
                pair.step();
            }
            assert_eq!(pair.told(2, sender)[n as usize], (n, WcStatus::Success), "{policy:?}");
            pair.nodes.destroy(1, reader);
        }
        pair.check();
    }
}

/// A message that a node refuses before it knows any meta server: who sent it hears of it when there
/// is one. It was told to nobody, since nobody could be asked where the sender is.
#[test]
fn a_message_was_refused_is_told_once_there_is_a_meta_server_to_ask() {
    let mut pair = Pair::new();
    let now = pair.nodes.net.now();
    pair.nodes.nodes[2].core.set_meta_servers(&[], now);
    let sender = pair.nodes.vqp(1, VqpInit::default());
    pair.nodes.connect(1, sender, 2, Policy::Shared).unwrap();
    let near = pair.near.sge(0, 8);
    pair.post(1, sender, 0, SendOp::Send, Payload::Sges(&[near]));
    let until = pair.nodes.net.now().saturating_add_ns(1_000_000_000);
    pair.nodes.until(|nodes| nodes.net.now() >= until);
    let state = |pair: &Pair| {
        let node = &pair.nodes.nodes[1];
        node.core.vqp_info(node.client, sender).unwrap().state
    };
    assert_eq!(state(&pair), VqpState::Connected, "nobody can have told it");
    let meta = pair.nodes.nodes[0].core.serve_meta(3).unwrap();
    let now = pair.nodes.net.now();
    pair.nodes.nodes[2].core.set_meta_servers(&[meta], now);
    while state(&pair) != VqpState::Error {
        pair.step();
    }
}

/// A WR that cannot be done, of a process that is told by a completion alone: it ends in its turn, and
/// what was posted behind it is not done. It was told ahead of the others, and those behind it were done:
/// the data was refused, and the flag written.
#[test]
fn what_stands_behind_a_refused_wr_is_not_done() {
    for policy in [Policy::Shared, Policy::Lite, Policy::Leased] {
        for before in [0, 1, 5, 100] {
            let mut pair = Pair::new();
            let far = Region::new(&mut pair.nodes, 2, 64);
            let near = pair.near.sge(0, 8);
            pair.near.memory.write(0, &[9; 8]).unwrap();
            let vqp = pair.nodes.vqp(1, VqpInit::default());
            pair.nodes.connect(1, vqp, 2, policy).unwrap();
            for n in 0..before {
                pair.post(1, vqp, n, SendOp::Write(far.remote(0)), Payload::Sges(&[near]));
            }
            let now = pair.nodes.net.now();
            let node = &mut pair.nodes.nodes[1];
            for (wr_id, status) in
                [(before, WcStatus::LocProtErr), (before + 1, WcStatus::LocQpOpErr)]
            {
                let named = (wr_id, SendOpcode::Write);
                assert_eq!(node.core.refuse_send(node.client, vqp, named, status, now), Ok(()));
            }
            let flag = SendWr {
                wr_id: before + 2,
                op: SendOp::Write(far.remote(8)),
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&[near]),
                dest: None,
            };
            // A VQP without anything before it has failed by now.
            let posted = node.core.post_send(node.client, vqp, &[flag], now);
            if posted.is_err() {
                let named = (before + 2, SendOpcode::Write);
                let flushed = WcStatus::WrFlushErr;
                assert_eq!(node.core.refuse_send(node.client, vqp, named, flushed, now), Ok(()));
            }
            while (pair.told(1, vqp).len() as u64) < before + 3 {
                pair.step();
            }
            let mut expected: Vec<_> = (0..before).map(|n| (n, WcStatus::Success)).collect();
            expected.push((before, WcStatus::LocProtErr));
            expected.extend([before + 1, before + 2].map(|n| (n, WcStatus::WrFlushErr)));
            assert_eq!(pair.told(1, vqp), expected, "{policy:?}");
            let mut bytes = [0; 16];
            far.memory.read(0, &mut bytes).unwrap();
            let data = if before > 0 { 9 } else { 0 };
            assert_eq!((bytes[0], bytes[8]), (data, 0), "{policy:?}: the flag was written");
            assert!(pair.is_down(1, vqp));
            // It is as good as new.
            pair.nodes.connect(1, vqp, 2, policy).unwrap();
            pair.post(1, vqp, 7, SendOp::Write(far.remote(8)), Payload::Sges(&[near]));
            while pair.told(1, vqp).last() != Some(&(7, WcStatus::Success)) {
                pair.step();
            }
            pair.check();
        }
    }
}

/// A member asked over and over how far an end got that waited for a copy, each time as if anew: its questions took the
/// places of all others', who were then told that nobody knows.
#[test]
fn who_asks_over_and_over_how_far_an_end_got_has_one_place() {
    let mut pair = Pair::new();
    pair.vqp(1, 2);
    pair.nodes.pause(1_000_000);
    let [own, there] = [1, 2].map(|n| pair.nodes.nodes[n].core.record());
    let device = pair.nodes.nodes[2].core.device();
    device.copies = true;
    let [qp] = device.qps_of(QpType::Rc)[..] else { panic!("there is one RC QP") };
    let qpn = device.inner.qp_num(qp).unwrap();
    let peer_qpn = device.inner.query_qp(qp).unwrap().0.dest_qp_num;
    let request = Request::RcFate { qpn, peer_qpn, psn: 1 };
    let [from, to] = [2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
    let voice = Attacker::new(&pair.nodes.net, SocketAddr::new(from, UDP_PORT), to);
    let (control, qkey) = (there.control_qpn, there.control_qkey());
    for id in 0..300 {
        voice.control(control, qkey, own.control_qpn, id, ControlBody::Request(request));
        pair.nodes.pause(10_000);
    }
    let held = |pair: &Pair| pair.nodes.nodes[2].core.audit().unwrap();
    let waits = held(&pair);
    assert!((1..=3).contains(&waits.rc_qps_changing), "{waits:?}");
    assert!(waits.requests <= 3, "{waits:?}");
    pair.nodes.nodes[2].core.device().copies = false;
    pair.nodes.until(|nodes| nodes.nodes[2].core.audit().unwrap().requests == 0);
    pair.check();
}

/// How a VQP parts from the one that it has exchanged messages with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parting {
    SenderGoes,
    SenderConnectsElsewhere,
    /// To the same port, and goes before it has sent anything over that connection.
    SenderConnectsAnewAndGoes,
    ReceiverGoes,
}

/// Who has exchanged messages with a VQP hears of its end, also while it only waits: the receiver, whose
/// VQP back to the sender stood as connected for ever, and the sender. A VQP that is connected anew has
/// ended for who knew it: that was told to nobody, or by a name that only the new connection had.
#[test]
fn the_end_of_a_vqp_is_told_to_who_has_exchanged_messages_with_it() {
    use Parting::*;
    let failed = |pair: &mut Pair, n: usize| loop {
        match pair.nodes.nodes[n].core.poll_event() {
            Some(Event::Failed { vqp, cause: ConnectError::PeerGone { .. }, .. }) => break vqp,
            Some(_) => {}
            None => pair.step(),
        }
    };
    for parting in [SenderGoes, SenderConnectsElsewhere, SenderConnectsAnewAndGoes, ReceiverGoes] {
        let mut pair = Pair::new();
        let bound = pair.nodes.vqp(2, VqpInit::default());
        let node = &mut pair.nodes.nodes[2];
        node.core.qbind(node.client, bound, 7).unwrap();
        let room = Region::new(&mut pair.nodes, 2, 64).sge(0, 64);
        let now = pair.nodes.net.now();
        let node = &mut pair.nodes.nodes[2];
        let receive = RecvWr { wr_id: 1, sges: &[room] };
        node.core.post_recv(node.client, bound, &[receive], now).unwrap();
        let sender = pair.nodes.vqp(1, VqpInit::default());
        pair.nodes.connect(1, sender, 2, Policy::Shared).unwrap();
        let near = pair.near.sge(0, 8);
        pair.post(1, sender, 0, SendOp::Send, Payload::Sges(&[near]));
        while pair.told(2, bound).is_empty() || pair.told(1, sender).is_empty() {
            pair.step();
        }
        match parting {
            SenderGoes => pair.nodes.destroy(1, sender),
            SenderConnectsElsewhere => {
                pair.nodes.connect(1, sender, 0, Policy::Shared).unwrap();
            }
            SenderConnectsAnewAndGoes => {
                pair.nodes.connect(1, sender, 2, Policy::Shared).unwrap();
                pair.nodes.destroy(1, sender);
            }
            ReceiverGoes => {
                let now = pair.nodes.net.now();
                let node = &mut pair.nodes.nodes[2];
                node.core.client_close(node.client, now);
                assert_eq!(failed(&mut pair, 1), sender);
                assert!(pair.is_down(1, sender));
                continue;
            }
        }
        let accepted = failed(&mut pair, 2);
        assert!(accepted != bound && pair.is_down(2, accepted), "{parting:?}");
        let node = &pair.nodes.nodes[2];
        let info = node.core.vqp_info(node.client, bound).unwrap();
        assert_ne!(info.state, VqpState::Error, "others may send to it");
    }
}

/// Each node's VQP aims at memory that is gone at the other, and both WRs meet on their way: each end
/// refuses what the other sent, and has failed before it hears that its own was refused. Neither was
/// executed, so both were posted again, over the next RC QP, where they met again, for ever. Who has
/// had RC QPs fail at his WR eight times in a row ends with it, and the other then hears of his.
#[test]
fn what_each_end_refuses_is_not_posted_again_for_ever() {
    const IN_A_ROW: u64 = 8;
    // Without leases each try begins with a look-up, so that both come to post at one time.
    let mut pair = Pair::leased(&|_| false, 1);
    let [one, other] = [(1, 2), (2, 1)].map(|(n, to)| pair.vqp(n, to));
    let [near, far] = [1, 2].map(|n| Region::new(&mut pair.nodes, n, 64));
    let there = pair.trap(2, (1, one), &near);
    let here = pair.trap(1, (2, other), &far);
    // The way is so long that no lease is good on the next RC QP, nor now.
    pair.nodes.net.set_distance(1, 2, 20_000);
    pair.nodes.pause(1_000_000);
    let asked = |pair: &Pair, n: usize| pair.nodes.nodes[n].core.stats().fates_asked;
    for (n, vqp, trap, own) in [(1, one, &there, &near), (2, other, &here, &far)] {
        let op = SendOp::Write(trap.remote(0));
        pair.post(n, vqp, 1, op, Payload::Sges(&[own.sge(0, 8)]));
    }
    while pair.told(1, one).is_empty() || pair.told(2, other).is_empty() {
        pair.step();
        assert!(asked(&pair, 1) + asked(&pair, 2) <= 4 * IN_A_ROW, "it goes on for ever");
    }
    let ended = [pair.told(1, one)[0], pair.told(2, other)[0]].map(|(_, status)| status);
    let right = [WcStatus::RespTimeoutErr, WcStatus::RemAccessErr];
    assert!(ended.iter().all(|status| right.contains(status)), "{ended:?}");
    assert!(ended.contains(&WcStatus::RespTimeoutErr), "{ended:?}: they met {IN_A_ROW} times");
    assert!(asked(&pair, 1).max(asked(&pair, 2)) >= IN_A_ROW, "they did not meet");
    // They alone have failed.
    let [word, payload] = [2, 1].map(|n| Region::new(&mut pair.nodes, n, 64));
    let vqp = pair.vqp(1, 2);
    let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
    pair.post(1, vqp, 1, add, Payload::Sges(&[payload.sge(0, 8)]));
    while pair.told(1, vqp).is_empty() {
        pair.step();
    }
    assert_eq!(pair.told(1, vqp), [(1, WcStatus::Success)]);
    pair.check();
}

/// A peer goes in the middle of a message. Its RC QP is taken to the error state, so that what it has
/// executed is final, which gives the receive back that the message had begun to fill, and is then
/// destroyed: the device forgot what had completed on it, and the node had one receive less for ever.
#[test]
fn the_receive_of_half_a_message_comes_back() {
    let config = Config {
        dc_qps: 2,
        eager_bytes_max: 3_000,
        timeout: 9,
        retry_cnt: 3,
        recv_buffers: 16,
        ..Config::default()
    };
    // Of a message's three packets two go before they are acknowledged.
    let (active_mtu, max_packets_in_flight) = (Mtu::Mtu1024, 2);
    let device = elver_sim::Config::default();
    let device = elver_sim::Config { active_mtu, max_packets_in_flight, ..device };
    let mut nodes = Nodes::with(3, &|_| config.clone(), &device, ClientLimits::default());
    let vqp = nodes.vqp(2, VqpInit::default());
    assert_eq!(nodes.connect(2, vqp, 1, Policy::Lite), Ok(Via::Rc));
    let receives = |nodes: &mut Nodes| nodes.nodes[1].core.device().inner.shared_receives();
    let all = nodes.nodes[1].core.audit().unwrap().receives;
    assert_eq!(receives(&mut nodes), all);
    let near = Region::new(&mut nodes, 2, 4_096);
    let now = nodes.net.now();
    let sges = [near.sge(0, 3_000)];
    let (op, payload) = (SendOp::Send, Payload::Sges(&sges));
    let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    let node = &mut nodes.nodes[2];
    node.core.post_send(node.client, vqp, &[wr], now).unwrap();
    nodes.until(|nodes| receives(nodes) < all);
    for (from, to) in [(1, 2), (2, 1)] {
        nodes.net.partition(from, to, Time(u64::MAX));
    }
    let (gone, now) = (nodes.net.gid(2), nodes.net.now());
    nodes.nodes[1].core.node_changed(gone, None, now);
    assert!(receives(&mut nodes) < all, "the message is not whole");
    nodes.until(|nodes| nodes.nodes[1].core.stats().rc_qps == 0);
    nodes.pause(1_000_000);
    assert_eq!(receives(&mut nodes), all);
    nodes.nodes[1].core.audit().unwrap();
}

/// A node sleeps when it has just done what it was asked, so that nobody hears of it, and wakes before its peer gives
/// it up, or long after: nothing is done again, over RC or DC, whether what is sent to it meanwhile waits or is lost.
/// Who is told of success is right, and who is not may be. It fails where a WR that nobody has answered is taken for
/// one that was not executed.
#[test]
fn what_was_done_right_before_a_sleep_is_not_done_again() {
    const POSTED: u64 = 4;
    let mut ends = BTreeMap::new();
    for policy in [Policy::Lite, Policy::Shared] {
        for slept in [300_000, 30_000_000, 12_000_000_000] {
            for lost in [false, true] {
                let mut pair = Pair::new();
                let (word, near) = (Region::new(&mut pair.nodes, 2, 64), pair.near.sge(0, 8));
                let vqp = pair.nodes.vqp(1, VqpInit::default());
                pair.nodes.connect(1, vqp, 2, policy).unwrap();
                let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
                let counted = || {
                    let mut bytes = [0; 8];
                    word.memory.read(0, &mut bytes).unwrap();
                    u64::from_ne_bytes(bytes)
                };
                // What is looked up first is known.
                pair.post(1, vqp, 0, add, Payload::Sges(&[near]));
                while pair.told(1, vqp).is_empty() {
                    pair.step();
                }
                let far = Time(u64::MAX);
                pair.nodes.net.withhold_answers(2, 1, far, true);
                for n in 1..=POSTED {
                    pair.post(1, vqp, n, add, Payload::Sges(&[near]));
                }
                while counted() <= POSTED {
                    pair.step();
                }
                let until = pair.nodes.net.now().saturating_add_ns(slept);
                pair.nodes.net.stall(2, until);
                pair.nodes.net.withhold_answers(2, 1, until, true);
                if lost {
                    pair.nodes.net.partition(1, 2, until);
                }
                while pair.told(1, vqp).len() as u64 <= POSTED {
                    pair.step();
                }
                pair.nodes.pause(slept + 10_000_000_000);
                pair.poll();
                let case = format!("{policy:?}, {slept} ns, lost: {lost}");
                assert_eq!(counted(), 1 + POSTED, "{case}: {:?}", pair.told(1, vqp));
                assert_eq!(pair.told(1, vqp).len() as u64, 1 + POSTED, "{case}");
                for (_, status) in &pair.told(1, vqp)[1..] {
                    *ends.entry(format!("{policy:?} {status:?}")).or_insert(0) += 1;
                }
                pair.check();
            }
        }
    }
    // Some sleep so long that they are given up, and some do not.
    for policy in [Policy::Lite, Policy::Shared] {
        let (good, all) = (ends.get(&format!("{policy:?} Success")), ends.keys());
        assert!(good.is_some(), "{ends:?}");
        assert!(all.filter(|end| end.starts_with(&format!("{policy:?}"))).count() > 1, "{ends:?}");
    }
}

/// Two nodes lose each other for so long that one lets its end of an RC QP go, and the other, which posted nothing,
/// keeps its own: it is told when it is back, at once if it is heard of, however long that was, so that what it posted on
/// its end right before is done elsewhere, once.
#[test]
fn who_kept_an_end_is_told_that_the_other_has_gone() {
    const SECOND: u64 = 1_000_000_000;
    for (lost_ns, heard) in [(5 * SECOND, false), (200 * SECOND, true)] {
        let mut pair = Pair::configured(&|_| true, &|config| Config { keep_alive_ns: 0, ..config });
        let (word, own) =
            (Region::new(&mut pair.nodes, 1, 64), Region::new(&mut pair.nodes, 2, 64));
        let (near, there) = (pair.vqp(1, 2), pair.vqp(2, 1));
        let (far, posted) = (Region::new(&mut pair.nodes, 2, 64), pair.near.sge(0, 8));
        let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
        pair.post(2, there, 1, add, Payload::Sges(&[own.sge(0, 8)]));
        while pair.told(2, there).is_empty() {
            pair.step();
        }
        let until = pair.nodes.net.now().saturating_add_ns(lost_ns);
        for (from, to) in [(1, 2), (2, 1)] {
            pair.nodes.net.partition(from, to, until);
        }
        pair.post(1, near, 1, SendOp::Write(far.remote(0)), Payload::Sges(&[posted]));
        pair.nodes.pause(lost_ns);
        pair.poll();
        let ends = |pair: &Pair, n: usize| pair.nodes.nodes[n].core.audit().unwrap().rc_qps;
        assert_eq!([ends(&pair, 1), ends(&pair, 2)], [0, 1], "after {lost_ns} ns");
        let back = pair.nodes.net.now();
        if heard {
            pair.post(2, there, 2, add, Payload::Sges(&[own.sge(8, 8)]));
            // Which asks for another RC QP.
            let leased = pair.nodes.vqp(2, VqpInit::default());
            pair.nodes.connect(2, leased, 1, Policy::Leased).unwrap();
        } else {
            pair.nodes.until(|nodes| nodes.nodes[2].core.audit().unwrap().rc_qps == 0);
            pair.post(2, there, 2, add, Payload::Sges(&[own.sge(8, 8)]));
        }
        while pair.told(2, there).len() < 2 {
            pair.step();
        }
        let took = pair.nodes.net.now().ns_since(back);
        assert!(took < if heard { SECOND / 100 } else { 3 * SECOND }, "it took {took} ns");
        assert_eq!(pair.told(2, there)[1], (2, WcStatus::Success), "after {lost_ns} ns");
        let mut counted = [0; 8];
        word.memory.read(0, &mut counted).unwrap();
        assert_eq!(u64::from_ne_bytes(counted), 2, "after {lost_ns} ns");
        pair.nodes.pause(3 * SECOND);
        pair.poll();
        assert_eq!(ends(&pair, 1), ends(&pair, 2), "after {lost_ns} ns");
        pair.check();
    }
}

/// A host is held for so long, and its clock with it, while a long message waits there for a receive; its sender gives
/// the message up, and has other bytes in that memory. The host goes on as if no time had passed, and must not take
/// these for the message, though peers may READ that region. What another VQP sends elsewhere from the same region
/// arrives. Returns after how long the message was given up.
fn hold_with_a_message(policy: Policy, held_ns: u64) -> u64 {
    const LENGTH: u32 = 2_000;
    let mut pair = Pair::new();
    pair.near.memory.write(0, &[1; 2 * LENGTH as usize]).unwrap();
    let senders = [2, 0].map(|to| {
        let inbox = pair.nodes.vqp(to, VqpInit::default());
        let node = &mut pair.nodes.nodes[to];
        assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
        let room = Region::new(&mut pair.nodes, to, LENGTH.into());
        let vqp = pair.nodes.vqp(1, VqpInit::default());
        pair.nodes.connect(1, vqp, to, policy).unwrap();
        let message = pair.near.sge(if to == 2 { 0 } else { LENGTH.into() }, LENGTH);
        pair.post(1, vqp, 0, SendOp::Send, Payload::Sges(&[message]));
        (to, vqp, inbox, room)
    });
    let [(_, given_up, ..), (_, patient, ..)] = senders;
    pair.nodes.pause(10_000_000);
    let begun = pair.nodes.net.now();
    pair.nodes.hold(2, held_ns);
    let until = pair.nodes.net.stalled_until(2);
    // That it was given up does not wait for it there.
    pair.nodes.net.partition(1, 2, until);
    while pair.told(1, given_up).is_empty() {
        pair.step();
    }
    assert_eq!(pair.told(1, given_up), [(0, WcStatus::WrFlushErr)], "{policy:?}");
    let given_up = pair.nodes.net.now();
    assert!(given_up < until && pair.told(1, patient).is_empty(), "{policy:?}");
    pair.near.memory.write(0, &[2; LENGTH as usize]).unwrap();
    while pair.nodes.net.now() < until {
        pair.step();
    }
    let expected = [WcStatus::RemOpErr, WcStatus::Success];
    for ((to, _, inbox, room), expected) in senders.iter().zip(expected) {
        let (now, sges) = (pair.nodes.clock(*to), [room.sge(0, LENGTH)]);
        let node = &mut pair.nodes.nodes[*to];
        let wr = RecvWr { wr_id: 1, sges: &sges };
        node.core.post_recv(node.client, *inbox, &[wr], now).unwrap();
        while pair.told(*to, *inbox).is_empty() {
            pair.step();
        }
        let mut bytes = [0; LENGTH as usize];
        room.memory.read(0, &mut bytes).unwrap();
        assert!(!bytes.contains(&2), "{policy:?}: node {to} has what was never sent to it");
        assert_eq!(pair.told(*to, *inbox), [(1, expected)], "{policy:?}");
    }
    pair.check();
    given_up.0 - begun.0
}

#[test]
fn who_was_held_does_not_read_what_stands_where_a_message_stood() {
    for policy in [Policy::Lite, Policy::Shared] {
        let given_up = hold_with_a_message(policy, 20_000_000_000);
        hold_with_a_message(policy, given_up + 1_000);
    }
}

/// Who is sent a long message may READ its bytes while it is on its way, and nothing else of the region that they stand
/// in, whether that is open to peers or not. A node gone bad could read all of it.
#[test]
fn who_is_sent_a_long_message_is_let_at_its_bytes_alone() {
    const LENGTH: u32 = 2_000;
    for access in [AccessFlags::LOCAL_WRITE, ALL] {
        let mut pair = Pair::new();
        let inbox = pair.nodes.vqp(2, VqpInit::default());
        let node = &mut pair.nodes.nodes[2];
        assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
        let room = Region::new(&mut pair.nodes, 2, LENGTH.into());
        let node = &mut pair.nodes.nodes[1];
        let memory = node.core.device().alloc_memory(1 << 16).unwrap();
        let mr = node.core.reg_mr(node.client, memory, None, access).unwrap();
        let vqp = pair.nodes.vqp(1, VqpInit::default());
        pair.nodes.connect(1, vqp, 2, Policy::Lite).unwrap();
        let piece = |at: u64, length| Sge { addr: mr.addr + at, length, lkey: mr.lkey };
        let pieces = [piece(100, 1_200), piece(40_000, LENGTH - 1_200)];
        pair.post(1, vqp, 0, SendOp::Send, Payload::Sges(&pieces));
        pair.nodes.pause(10_000_000);
        assert!(pair.told(1, vqp).is_empty(), "nobody has posted a receive");
        let open = pair.nodes.nodes[1].core.device().parts.clone();
        let told = open.iter().map(|(mr, access)| (mr.addr, mr.length, *access));
        let expected = pieces.map(|sge| (sge.addr, sge.length.into(), AccessFlags::REMOTE_READ));
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(pair.nodes.nodes[1].core.audit().unwrap().mrs_shared, 2);
        let (now, sges) = (pair.nodes.net.now(), [room.sge(0, LENGTH)]);
        let node = &mut pair.nodes.nodes[2];
        let wr = RecvWr { wr_id: 1, sges: &sges };
        node.core.post_recv(node.client, inbox, &[wr], now).unwrap();
        while pair.told(1, vqp).is_empty() {
            pair.step();
        }
        assert_eq!(pair.told(1, vqp), [(0, WcStatus::Success)]);
        assert_eq!(pair.nodes.nodes[1].core.audit().unwrap().mrs_shared, 0);
        for (mr, _) in open {
            let gone = pair.nodes.nodes[1].core.device().inner.dereg_mr(mr.mr);
            assert!(matches!(gone, Err(VerbsError::InvalidHandle { .. })), "{gone:?}");
        }
        pair.check();
    }
}

/// Long messages that are open to their receivers are as many as there may be regions, and no user has more of them than
/// what it leaves to others, however many sessions it has: what is too much fails alone.
#[test]
fn no_user_has_more_long_messages_open_than_it_leaves_to_others() {
    const LENGTH: u32 = 2_000;
    let config = Config { max_mrs: 8, eager_bytes_max: 512, ..Config::default() };
    let mut nodes = Nodes::new(3, &config, ClientLimits::default());
    let inbox = nodes.vqp(2, VqpInit::default());
    let node = &mut nodes.nodes[2];
    assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
    let room = Region::new(&mut nodes, 2, LENGTH.into());
    let open = |nodes: &Nodes| nodes.nodes[1].core.audit().unwrap().mrs_shared;
    let core = &mut nodes.nodes[1].core;
    let clients = [1, 1, 2].map(|account| {
        let client = core.client_open(ClientLimits { account, ..ClientLimits::default() }).unwrap();
        let memory = core.device().alloc_memory(LENGTH.into()).unwrap();
        (client, core.reg_mr(client, memory, None, AccessFlags::LOCAL_WRITE).unwrap())
    });
    // Of the first user's two sessions, and of the second's; four are half of eight.
    let mut failed = Vec::new();
    for (nth, (of, is_opened)) in [0, 0, 0, 0, 0, 1, 2, 2]
        .into_iter()
        .zip([true, true, true, true, false, false, true, true])
        .enumerate()
    {
        let (client, mr) = clients[of];
        nodes.nodes[1].client = client;
        let vqp = nodes.vqp(1, VqpInit::default());
        nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
        let sges = [Sge { addr: mr.addr, length: LENGTH, lkey: mr.lkey }];
        let payload = Payload::Sges(&sges);
        let (wr_id, flags) = (nth as u64, SendFlags::SIGNALED);
        let wr = SendWr { wr_id, op: SendOp::Send, flags, payload, dest: None };
        let (before, now) = (open(&nodes), nodes.net.now());
        nodes.nodes[1].core.post_send(client, vqp, &[wr], now).unwrap();
        nodes.pause(1_000_000);
        assert_eq!(open(&nodes), before + u32::from(is_opened), "message {nth}");
        let mut told = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; 4];
        let count = nodes.nodes[1].core.poll_completions(client, &mut told);
        failed.extend(told[..count].iter().map(|done| (done.wc.wr_id, done.wc.status)));
    }
    assert_eq!(failed, [(4, WcStatus::LocQpOpErr), (5, WcStatus::LocQpOpErr)]);
    // What was opened arrives, and is closed.
    for wr_id in 0..6 {
        let (now, sges) = (nodes.net.now(), [room.sge(0, LENGTH)]);
        let node = &mut nodes.nodes[2];
        node.core.post_recv(node.client, inbox, &[RecvWr { wr_id, sges: &sges }], now).unwrap();
    }
    nodes.until(|nodes| open(nodes) == 0);
}
