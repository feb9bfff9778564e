//! Senders that are faster than their receivers.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

const PORT: u16 = 700;
/// Messages that each sender sends.
const EACH: u64 = 100;

/// A receiver at node 2 that holds 64 messages, and senders at node 1 that are connected to it.
struct Crowd {
    cluster: Cluster,
    senders: Vec<VqpId>,
    receiver: VqpId,
    near: Region,
    far: Region,
}

impl Crowd {
    fn new(senders: usize) -> Crowd {
        Crowd::of(&Config { backlog: 64, ..config() }, senders)
    }

    /// The same of nodes that are configured so.
    fn of(config: &Config, senders: usize) -> Crowd {
        let mut cluster = Cluster::new(3, config);
        let (near, far) = (cluster.region(1, 1 << 16, ALL), cluster.region(2, 1 << 16, ALL));
        let receiver = cluster.bound(2, PORT);
        let crowd = Crowd { cluster, senders: Vec::new(), receiver, near, far };
        crowd.connected(senders)
    }

    /// With so many new senders instead of those that it had.
    fn connected(mut self, senders: usize) -> Crowd {
        let init = VqpInit { max_send_wr: EACH as u32, ..VqpInit::default() };
        self.senders.clear();
        for _ in 0..senders {
            let node = &mut self.cluster.nodes[1];
            let sender = node.core.vqp_create(node.client, init).unwrap();
            self.cluster.connect(1, sender, 2, PORT);
            self.senders.push(sender);
        }
        self
    }

    /// Every sender posts its message of this number.
    fn send(&mut self, n: u64) {
        for (at, &sender) in self.senders.iter().enumerate() {
            let place = 8 * (EACH * at as u64 + n);
            self.near.fill(place, &(at as u64 * 1_000 + n).to_le_bytes());
            self.cluster.post(1, sender, &[wr(n, SendOp::Send, &[self.near.sge(place, 8)])]);
        }
    }

    /// Sends one message after the other until all senders wait; how many each has sent.
    fn until_halted(&mut self) -> u64 {
        let count = self.senders.len() as u64;
        for n in 0..EACH {
            self.send(n);
            // Longer than a message and its answer take.
            self.cluster.drive(10_000);
            if self.cluster.nodes[1].core.stats().halts == count {
                return n + 1;
            }
        }
        panic!("nobody waits: {:?}", self.cluster.nodes[1].core.stats());
    }

    fn failures(&mut self, count: usize) -> Vec<ConnectError> {
        let (mut causes, senders) = (Vec::new(), self.senders.clone());
        self.cluster.until("failures", |cluster| {
            causes.extend(cluster.nodes[1].events.drain(..).map(|event| match event {
                Event::Failed { vqp, cause, .. } if senders.contains(&vqp) => cause,
                other => panic!("{other:?}"),
            }));
            causes.len() >= count
        });
        causes
    }
}

#[test]
fn senders_wait_for_their_receiver_and_lose_nothing() {
    let of_messages = Config { backlog: 64, ..config() };
    // What each counts for beside its bytes is most of what a short one does.
    let of_bytes = Config { eager_bytes_max: 16, backlog_bytes: 64 << 10, ..config() };
    let short = (64 << 10) / (Config::HELD_MESSAGE_BYTES + 8);
    for (senders, config, most) in
        [(1, &of_messages, 64), (3, &of_messages, 64), (8, &of_bytes, short)]
    {
        let mut crowd = Crowd::of(config, senders);
        for n in crowd.until_halted()..EACH {
            crowd.send(n);
            crowd.cluster.round();
        }
        let held = crowd.cluster.nodes[2].core.stats().messages_held;
        assert!(held <= most, "{held} are held");
        // One receive after the other, in the order of each sender's messages.
        let total = EACH * senders as u64;
        let mut next = vec![0; senders];
        for n in 0..total {
            crowd.cluster.recv(2, crowd.receiver, n, &[crowd.far.sge(8 * n, 8)]);
            let done = crowd.cluster.take_one(2);
            // All that senders have credit for comes.
            crowd.cluster.drive(20_000);
            assert_eq!((done.wc.wr_id, done.wc.status), (n, WcStatus::Success));
            let value = crowd.far.word(8 * n);
            let sender = (value / 1_000) as usize;
            assert_eq!(value % 1_000, next[sender], "of sender {sender}");
            next[sender] += 1;
        }
        assert_eq!(next, vec![EACH; senders]);
        let sent = crowd.cluster.take(1, total as usize);
        assert!(sent.iter().all(|done| done.wc.status == WcStatus::Success));
        assert_eq!(crowd.cluster.nodes[2].core.stats().messages_refused, 0);
        assert_eq!(crowd.cluster.nodes[1].events, []);
        crowd.cluster.check();
    }
}

#[test]
fn what_is_on_its_way_to_a_full_receiver_is_refused() {
    let mut crowd = Crowd::new(1);
    let sges = [crowd.near.sge(0, 8)];
    let wrs = [wr(1, SendOp::Send, &sges); EACH as usize];
    crowd.cluster.post(1, crowd.senders[0], &wrs);
    let gid = crowd.cluster.nodes[2].core.gid();
    assert_eq!(crowd.failures(1), [ConnectError::Overrun { gid }]);
    // Another one waits, and goes on when there is room again.
    let mut crowd = crowd.connected(1);
    crowd.send(0);
    crowd.cluster.take(1, EACH as usize);
    crowd.send(1);
    for n in 0..66 {
        crowd.cluster.recv(2, crowd.receiver, n, &[crowd.far.sge(8 * n, 8)]);
    }
    crowd.cluster.until("all taken", |cluster| cluster.nodes[2].completions.len() == 65);
}

/// The same of their bytes.
#[test]
fn bytes_on_their_way_to_a_full_receiver_are_refused() {
    let config = Config { backlog_bytes: 64 * 1_024, ..config() };
    let mut crowd = Crowd::of(&config, 1);
    let sges = [crowd.near.sge(0, 1_024)];
    let wrs = [wr(1, SendOp::Send, &sges); EACH as usize];
    crowd.cluster.post(1, crowd.senders[0], &wrs);
    let gid = crowd.cluster.nodes[2].core.gid();
    assert_eq!(crowd.failures(1), [ConnectError::Overrun { gid }]);
    let held = crowd.cluster.nodes[2].core.stats().messages_held;
    assert!((32..=64).contains(&held), "{held} are held");
}

/// Who had been told to wait, and then connected anew, was taken for one that knows, and sent on until it was refused.
#[test]
fn who_connects_anew_is_told_again_to_wait() {
    let mut crowd = Crowd::new(1);
    let sent = crowd.until_halted();
    crowd.cluster.take(1, sent as usize);
    crowd.cluster.connect(1, crowd.senders[0], 2, PORT);
    for n in 0..EACH {
        crowd.send(n);
        crowd.cluster.drive(10_000);
    }
    let [sender, receiver] = [1, 2].map(|n| crowd.cluster.nodes[n].core.stats());
    assert_eq!((sender.halts, receiver.messages_refused), (2, 0), "{receiver:?}");
    for n in 0..sent + EACH {
        crowd.cluster.recv(2, crowd.receiver, n, &[crowd.far.sge(0, 8)]);
        assert_eq!(crowd.cluster.take_one(2).wc.status, WcStatus::Success);
    }
    let ended = crowd.cluster.take(1, EACH as usize);
    assert!(ended.iter().all(|done| done.wc.status == WcStatus::Success));
    assert_eq!(crowd.cluster.nodes[1].events, []);
    crowd.cluster.check();
}

/// What one user did not take had everybody's unexpected messages refused, for as long as he liked. Messages of no
/// bytes cost the node memory as well, and were not counted: one user's could take gigabytes of it.
#[test]
fn what_one_account_does_not_take_leaves_room_for_anothers() {
    const PORTS: u16 = 20;
    for (backlog_bytes, length) in [(16 << 10, 1_024), (4 << 10, 0)] {
        let config = Config { backlog_bytes, ..config() };
        let mut cluster = Cluster::new(3, &config);
        let near = cluster.region(1, 1 << 16, ALL);
        for (account, ports) in [(1, PORT..PORT + PORTS), (2, 900..901)] {
            let limits = ClientLimits { account, ..ClientLimits::default() };
            let node = &mut cluster.nodes[2];
            node.client = node.core.client_open(limits).unwrap();
            for port in ports {
                cluster.bound(2, port);
            }
        }
        let sges = [near.sge(0, length)];
        let ended = |cluster: &Cluster| ended_of(&cluster.nodes[2].core.stats());
        for port in PORT..PORT + PORTS {
            let vqp = cluster.vqp(1);
            cluster.connect(1, vqp, 2, port);
            let before = ended(&cluster);
            cluster.post(1, vqp, &[wr(1, SendOp::Send, &sges); 15]);
            cluster.until("all to be held or refused", |cluster| ended(cluster) >= before + 15);
        }
        let before = cluster.nodes[2].core.stats();
        assert!(before.messages_refused > 0, "all of it was held");
        let vqp = cluster.vqp(1);
        cluster.connect(1, vqp, 2, 900);
        cluster.post(1, vqp, &[wr(2, SendOp::Send, &sges)]);
        cluster.until("another's message to come", |cluster| ended(cluster) > ended_of(&before));
        assert_eq!(cluster.nodes[2].core.stats().messages_held, before.messages_held + 1);
        cluster.check();
    }
}

fn ended_of(stats: &Stats) -> u64 {
    stats.messages_held + stats.messages_refused
}

#[test]
fn a_sender_that_waits_hears_that_its_receiver_is_gone() {
    let mut crowd = Crowd::new(2);
    let sent = crowd.until_halted();
    crowd.send(sent);
    let now = crowd.cluster.now();
    let node = &mut crowd.cluster.nodes[2];
    node.core.vqp_destroy(node.client, crowd.receiver, now).unwrap();
    let gid = node.core.gid();
    for cause in crowd.failures(2) {
        let gone = ConnectError::PeerGone { gid };
        assert!([gone, ConnectError::NoSuchPort { gid, port: PORT }].contains(&cause), "{cause}");
    }
    crowd.cluster.check();
}

#[test]
fn a_sender_that_waits_hears_that_its_receivers_node_is_gone() {
    let mut crowd = Crowd::new(1);
    let sent = crowd.until_halted();
    // Nothing of its is on the way: it is the question whether it must still wait that finds out.
    crowd.cluster.until("what was sent to arrive", |cluster| {
        cluster.nodes[1].completions.len() as u64 == sent
    });
    crowd.send(sent);
    let gid = crowd.cluster.nodes.remove(2).core.gid();
    assert_eq!(crowd.failures(1), [ConnectError::Unreachable { gid }]);
}

/// Behind a message that was refused shorter ones of the same sender found room: its receiver took a stream with a hole
/// for whole, and the sender of the one that was refused had been told that it had arrived.
#[test]
fn nothing_is_taken_that_stands_behind_a_refused_message() {
    let config = Config { backlog_bytes: 10_000, ..config() };
    let mut crowd = Crowd::of(&config, 1);
    for at in 0..5 {
        crowd.near.fill(at * 8, &at.to_le_bytes());
    }
    let (large, sender) = ([crowd.near.sge(0, 3_000)], crowd.senders[0]);
    let last = [crowd.near.sge(8, 8)];
    let mut wrs = [wr(1, SendOp::Send, &large); 5];
    wrs[4] = wr(2, SendOp::Send, &last);
    crowd.cluster.post(1, sender, &wrs);
    let gid = crowd.cluster.nodes[2].core.gid();
    assert_eq!(crowd.failures(1), [ConnectError::Overrun { gid }]);
    for n in 0..5 {
        crowd.cluster.recv(2, crowd.receiver, n, &[crowd.far.sge(0, 3_000)]);
    }
    crowd.cluster.drive(10_000_000);
    let taken: Vec<_> =
        crowd.cluster.nodes[2].completions.drain(..).map(|done| done.wc.byte_len).collect();
    assert_eq!(taken, [3_000; 3], "the fourth was refused");
    // On another connection it begins anew.
    crowd.cluster.take(1, 5);
    crowd.cluster.connect(1, sender, 2, PORT);
    crowd.cluster.post(1, sender, &[wr(3, SendOp::Send, &last)]);
    assert_eq!(crowd.cluster.take_one(2).wc.byte_len, 8);
    crowd.cluster.check();
}

/// What a receiver told of a refusal was lost, and the next message was taken as if nothing had been: its sender
/// had been told that both had arrived.
#[test]
fn a_sender_hears_of_a_refusal_though_what_told_him_was_lost() {
    let config = Config { keep_alive_ns: 0, ..config() };
    for sends_on in [false, true] {
        let mut crowd = Crowd::of(&config, 1);
        crowd.send(0);
        assert_eq!(crowd.cluster.take_one(1).wc.status, WcStatus::Success);
        // It is held, and its receiver goes, while nothing of its node's gets through.
        let heals = crowd.cluster.now().saturating_add_ns(60_000_000);
        crowd.cluster.net.partition(2, 1, heals);
        let now = crowd.cluster.now();
        let node = &mut crowd.cluster.nodes[2];
        node.core.vqp_destroy(node.client, crowd.receiver, now).unwrap();
        crowd.cluster.until("it to heal", |cluster| cluster.now() >= heals);
        crowd.receiver = crowd.cluster.bound(2, PORT);
        crowd.cluster.recv(2, crowd.receiver, 7, &[crowd.far.sge(0, 8)]);
        if sends_on {
            crowd.send(1);
        }
        let gid = crowd.cluster.nodes[2].core.gid();
        assert_eq!(crowd.failures(1), [ConnectError::PeerGone { gid }]);
        assert_eq!(crowd.cluster.nodes[2].completions, []);
        crowd.cluster.check();
    }
}
