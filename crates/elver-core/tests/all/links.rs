//! RC QPs between nodes: made for the hot, for whoever asks for one, and closed; VQPs that move.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// What makes peers hot soon, and reclaims at once.
fn eager(rc_qps_max: u32) -> Config {
    let transfer = TransferConfig {
        rc_qps_max,
        hot_ops: 40,
        window_ns: 5_000_000,
        idle_ns: 0,
        ..config().transfer
    };
    Config { transfer, ..config() }
}

fn connect_with(
    cluster: &mut Cluster,
    n: usize,
    vqp: VqpId,
    to: usize,
    policy: Policy,
    uncached: bool,
) -> Option<Via> {
    let (gid, now) = (cluster.nodes[to].core.gid(), cluster.now());
    let node = &mut cluster.nodes[n];
    let options = ConnectOptions { policy, uncached };
    node.core.qconnect(node.client, vqp, gid, 7, options, u64::from(vqp.0), now).unwrap()
}

fn rc_qps(cluster: &Cluster, n: usize, to: usize) -> u32 {
    let gid = cluster.nodes[to].core.gid();
    let peer = cluster.nodes[n].core.peers().find(|peer| peer.gid == gid);
    peer.map_or(0, |peer| peer.rc_qps)
}

fn info(cluster: &Cluster, n: usize, vqp: VqpId) -> VqpInfo {
    cluster.nodes[n].core.vqp_info(cluster.nodes[n].client, vqp).unwrap()
}

/// A VQP that adds 1 to a peer's counter as often as it can, so that what comes back tells the order
/// in which its WRs were executed, and that each was executed once.
struct Load {
    n: usize,
    vqp: VqpId,
    near: Region,
    far: Region,
    posted: u64,
    done: u64,
    next: Time,
}

/// Whether the first of two is the heavier one now: they take turns.
fn is_firsts_turn(cluster: &Cluster) -> bool {
    (cluster.now().0 / TURN_NS).is_multiple_of(2)
}

const WINDOW: u64 = 24;
/// For so long one of two loads is the heavier one: longer than a link that was lost is not asked for.
const TURN_NS: u64 = 100_000_000;
/// The heavier one fills its window so often, which makes its peer hot, and the lighter one so often.
const HEAVY_NS: u64 = 500_000;
const LIGHT_NS: u64 = 5_000_000;

impl Load {
    fn new(cluster: &mut Cluster, n: usize, to: usize) -> Load {
        let near = cluster.region(n, WINDOW * 8, AccessFlags::LOCAL_WRITE);
        let far = cluster.region(to, 64, ALL);
        let vqp = cluster.vqp(n);
        cluster.connect(n, vqp, to, 7);
        Load { n, vqp, near, far, posted: 0, done: 0, next: Time::ZERO }
    }

    /// Fills the window, every third WR unsignalled.
    fn post(&mut self, cluster: &mut Cluster) {
        while self.posted < self.done + WINDOW {
            self.post_one(cluster);
        }
    }

    fn post_one(&mut self, cluster: &mut Cluster) {
        let sges = [self.near.sge(self.posted % WINDOW * 8, 8)];
        let op = SendOp::FetchAdd { remote: self.far.remote(0), add: 1 };
        let make = if self.posted.is_multiple_of(3) { quiet } else { wr };
        cluster.post(self.n, self.vqp, &[make(self.posted, op, &sges)]);
        self.posted += 1;
    }

    /// Takes what completed, in order, and checks what was fetched.
    fn take(&mut self, cluster: &mut Cluster) {
        let all = std::mem::take(&mut cluster.nodes[self.n].completions);
        for completion in all {
            if completion.vqp != self.vqp {
                cluster.nodes[self.n].completions.push(completion);
                continue;
            }
            assert_eq!(completion.wc.status, WcStatus::Success);
            let expected = self.done + u64::from(self.done.is_multiple_of(3));
            assert_eq!(completion.wc.wr_id, expected, "completions are in order");
            while self.done <= expected {
                let fetched = self.near.word(self.done % WINDOW * 8);
                assert_eq!(fetched, self.done, "executed in order, and once");
                self.done += 1;
            }
        }
    }

    fn step(&mut self, cluster: &mut Cluster) {
        self.post(cluster);
        self.take(cluster);
    }

    /// The same, but it posts no more often than so.
    fn step_each(&mut self, ns: u64, cluster: &mut Cluster) {
        if cluster.now() >= self.next {
            self.next = cluster.now().saturating_add_ns(ns);
            self.post(cluster);
        }
        self.take(cluster);
    }

    /// Waits until all that was posted is done.
    fn finish(&mut self, cluster: &mut Cluster) {
        cluster.until("room", |cluster| {
            self.take(cluster);
            self.posted + 2 <= self.done + WINDOW
        });
        // The last one must tell of itself.
        let quiet_first = self.posted.is_multiple_of(3);
        for _ in 0..=u64::from(quiet_first) {
            self.post_one(cluster);
        }
        cluster.until("all done", |cluster| {
            self.take(cluster);
            self.done == self.posted
        });
        assert_eq!(self.far.word(0), self.posted);
    }
}

#[test]
fn a_loaded_vqp_moves_to_rc_and_back_with_its_order_kept() {
    let mut cluster = Cluster::new(4, &eager(1));
    let mut a = Load::new(&mut cluster, 1, 2);
    let mut b = Load::new(&mut cluster, 1, 3);
    assert_eq!(info(&cluster, 1, a.vqp).via, Some(Via::DcLookup));
    cluster.until("on RC", |cluster| {
        a.step(cluster);
        info(cluster, 1, a.vqp).via == Some(Via::Rc)
    });
    assert_eq!((rc_qps(&cluster, 1, 2), rc_qps(&cluster, 1, 3)), (1, 0));
    // The other peer gets hotter; there is room for one RC QP alone.
    cluster.until("back on DC, still loaded", |cluster| {
        a.step_each(LIGHT_NS, cluster);
        b.step_each(HEAVY_NS, cluster);
        info(cluster, 1, a.vqp).via == Some(Via::DcCached)
    });
    cluster.until("both moved several times", |cluster| {
        let [heavy, light] =
            if is_firsts_turn(cluster) { [&mut a, &mut b] } else { [&mut b, &mut a] };
        heavy.step_each(HEAVY_NS, cluster);
        light.step_each(LIGHT_NS, cluster);
        let moved = [a.vqp, b.vqp].map(|vqp| info(cluster, 1, vqp).transfers);
        moved[0] >= 6 && moved[1] >= 6
    });
    a.finish(&mut cluster);
    b.finish(&mut cluster);
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((stats.vqp_errors, stats.lanes_reset, stats.wrs_reposted), (0, 0, 0));
    let moved = [a.vqp, b.vqp].map(|vqp| info(&cluster, 1, vqp).transfers);
    let told = stats.transfers_to_rc + stats.transfers_to_dc;
    assert_eq!(told, moved.into_iter().map(u64::from).sum::<u64>());
    assert!(stats.transfers_to_dc >= 6 && stats.transfers_to_rc >= 6, "{stats:?}");
    assert!(stats.links_reclaimed >= 3, "{stats:?}");
    cluster.check();
}

#[test]
fn the_link_that_was_used_longest_ago_makes_room() {
    let mut cluster = Cluster::new(5, &eager(2));
    let mut loads: Vec<Load> = (2..5).map(|to| Load::new(&mut cluster, 1, to)).collect();
    for (which, load) in loads.iter_mut().enumerate() {
        let to = which + 2;
        cluster.until("hot", |cluster| {
            load.step(cluster);
            rc_qps(cluster, 1, to) == 1
        });
    }
    let kept = [2, 3, 4].map(|to| rc_qps(&cluster, 1, to));
    assert_eq!(kept, [0, 1, 1], "the first one was used longest ago");
    for load in &mut loads {
        load.finish(&mut cluster);
    }
    // The peer's end goes too.
    cluster.until("the peer's end is gone", |cluster| rc_qps(cluster, 2, 1) == 0);
    cluster.check();
}

#[test]
fn lite_shares_an_rc_qp_that_the_first_connect_makes() {
    let mut cluster = Cluster::new(3, &config());
    let [a, b] = [1, 1].map(|n| cluster.vqp(n));
    assert_eq!(connect_with(&mut cluster, 1, a, 2, Policy::Lite, false), None);
    assert_eq!(cluster.connected(1, a), Ok(Via::Rc));
    assert_eq!(connect_with(&mut cluster, 1, b, 2, Policy::Lite, false), Some(Via::Rc));
    // The peer uses its end too, for VQPs that connect the usual way.
    cluster.until("the peer's end is ready", |cluster| rc_qps(cluster, 2, 1) == 1);
    let back = cluster.vqp(2);
    assert_eq!(cluster.connect(2, back, 1, 7), Via::Rc);
    let near = cluster.region(2, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(1, 64, ALL);
    far.fill(0, &[5; 64]);
    cluster.post(2, back, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success);
    assert_eq!(near.bytes(0, 64), [5; 64]);
    cluster.check();
}

/// The salts of a slot's ids come again: what a VQP that is gone had waited for was taken for what its
/// successor with the same id waits for, which was connected to another node so.
#[test]
fn a_link_that_comes_late_is_not_for_a_vqp_that_has_the_id_of_one_that_is_gone() {
    let mut cluster = Cluster::new(4, &config());
    // They are known, so that the requests leave at once.
    for to in [2, 3] {
        let vqp = cluster.vqp(1);
        cluster.connect(1, vqp, to, 7);
    }
    let gone = cluster.vqp(1);
    assert_eq!(connect_with(&mut cluster, 1, gone, 2, Policy::Lite, false), None);
    let (client, now) = (cluster.nodes[1].client, cluster.now());
    let mut vqp = gone;
    for made in 1.. {
        cluster.nodes[1].core.vqp_destroy(client, vqp, now).unwrap();
        vqp = cluster.vqp(1);
        if vqp == gone {
            break;
        }
        assert!(made < 1 << 12, "the id does not come again");
    }
    assert_eq!(connect_with(&mut cluster, 1, vqp, 3, Policy::Lite, false), None);
    let result = loop {
        // Its first connect was told to be cancelled when it was destroyed.
        match cluster.connected(1, vqp) {
            Err(ConnectError::Cancelled) => {}
            result => break result,
        }
    };
    assert_eq!(result, Ok(Via::Rc));
    let (near, far) = (cluster.region(1, 64, AccessFlags::LOCAL_WRITE), cluster.region(3, 64, ALL));
    far.fill(0, &[5; 64]);
    cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    assert_eq!(near.bytes(0, 64), [5; 64]);
    cluster.check();
}

/// The RC QP is gone with the guilty one; the others, whose WRs stood behind, go on over DC.
#[test]
fn who_leaves_a_broken_link_is_counted() {
    let mut cluster = Cluster::new(3, &config());
    let vqps = [1, 1, 1].map(|n| cluster.vqp(n));
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let [far, gone] = [2, 2].map(|n| cluster.region(n, 64, ALL));
    let read = |region: &Region| SendOp::Read(region.remote(0));
    for vqp in vqps {
        connect_with(&mut cluster, 1, vqp, 2, Policy::Lite, false);
        cluster.until("connected", |cluster| info(cluster, 1, vqp).via == Some(Via::Rc));
        for region in [&far, &gone] {
            cluster.post(1, vqp, &[wr(0, read(region), &[near.sge(0, 8)])]);
            assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
        }
    }
    cluster.nodes[2].core.device().dereg_mr(gone.info.mr).unwrap();
    for (vqp, region) in vqps.into_iter().zip([&gone, &far, &far]) {
        cluster.post(1, vqp, &[wr(1, read(region), &[near.sge(0, 8)])]);
    }
    let mut told: Vec<_> =
        cluster.take(1, 3).iter().map(|done| (done.vqp, done.wc.status)).collect();
    told.sort_by_key(|(vqp, _)| vqps.iter().position(|other| other == vqp));
    let statuses = [WcStatus::RemAccessErr, WcStatus::Success, WcStatus::Success];
    assert_eq!(told, vqps.into_iter().zip(statuses).collect::<Vec<_>>());
    let moved = vqps.map(|vqp| info(&cluster, 1, vqp).transfers);
    let stats = cluster.nodes[1].core.stats();
    assert_eq!((moved, stats.transfers_to_dc, stats.transfers_to_rc), ([0, 1, 1], 2, 0));
    cluster.check();
}

#[test]
fn both_sides_that_ask_at_once_share_one_link() {
    let mut cluster = Cluster::new(3, &config());
    // Both know each other, so that the requests leave at once.
    for (n, to) in [(1, 2), (2, 1)] {
        let vqp = cluster.vqp(n);
        cluster.connect(n, vqp, to, 7);
    }
    let [a, b] = [1, 2].map(|n| cluster.vqp(n));
    assert_eq!(connect_with(&mut cluster, 1, a, 2, Policy::Lite, false), None);
    assert_eq!(connect_with(&mut cluster, 2, b, 1, Policy::Lite, false), None);
    assert_eq!(cluster.connected(1, a), Ok(Via::Rc));
    assert_eq!(cluster.connected(2, b), Ok(Via::Rc));
    for n in [1, 2] {
        let stats = cluster.nodes[n].core.stats();
        assert_eq!((stats.rc_qps, rc_qps(&cluster, n, 3 - n)), (1, 1), "{stats:?}");
    }
    cluster.check();
}

#[test]
fn a_leased_qp_lives_as_long_as_its_vqp() {
    let mut cluster = Cluster::new(3, &config());
    let before = cluster.nodes[2].core.stats().rc_qps;
    let vqp = cluster.vqp(1);
    assert_eq!(connect_with(&mut cluster, 1, vqp, 2, Policy::Leased, false), None);
    assert_eq!(cluster.connected(1, vqp), Ok(Via::Leased));
    assert_eq!(cluster.nodes[2].core.stats().rc_qps, before + 1);
    assert_eq!((rc_qps(&cluster, 1, 2), rc_qps(&cluster, 2, 1)), (0, 0), "nobody shares it");
    let near = cluster.region(1, 4096, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 4096, ALL);
    far.fill(0, &[5; 4096]);
    for n in 0..200 {
        cluster.post(1, vqp, &[wr(n, SendOp::Read(far.remote(0)), &[near.sge(0, 4096)])]);
        assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    }
    let client = cluster.nodes[1].client;
    let now = cluster.now();
    cluster.nodes[1].core.vqp_destroy(client, vqp, now).unwrap();
    cluster.until("both ends are gone", |cluster| {
        cluster.nodes[2].core.stats().rc_qps == before && cluster.nodes[1].core.stats().rc_qps == 0
    });
    cluster.check();
}

#[test]
fn metadata_can_be_asked_of_the_peer_itself() {
    let mut cluster = Cluster::new(3, &config());
    let [a, b] = [1, 1].map(|n| cluster.vqp(n));
    // Where the peer takes such requests is not known yet.
    assert_eq!(connect_with(&mut cluster, 1, a, 2, Policy::RpcMeta, false), None);
    assert_eq!(cluster.connected(1, a), Ok(Via::DcLookup));
    let lookups = cluster.nodes[1].core.stats().lookups;
    assert_eq!(connect_with(&mut cluster, 1, b, 2, Policy::RpcMeta, true), None);
    assert_eq!(cluster.connected(1, b), Ok(Via::DcLookup));
    assert_eq!(cluster.nodes[1].core.stats().lookups, lookups, "no meta server was asked");
    cluster.check();
}

#[test]
fn without_dc_rc_qps_do_it_all() {
    let mut cluster = Cluster::new(3, &Config { dc_qps: 0, ..config() });
    let mut loads: Vec<Load> = [(1, 2), (2, 1), (1, 0), (0, 1), (1, 1), (0, 0)]
        .map(|(n, to)| Load::new(&mut cluster, n, to))
        .into();
    for _ in 0..300 {
        for load in &mut loads {
            load.step(&mut cluster);
        }
        cluster.round();
    }
    for load in &mut loads {
        load.finish(&mut cluster);
        assert_eq!(info(&cluster, load.n, load.vqp).via, Some(Via::Rc));
    }
    let leased = cluster.vqp(1);
    connect_with(&mut cluster, 1, leased, 2, Policy::Leased, false);
    assert_eq!(cluster.connected(1, leased), Ok(Via::Leased));
    cluster.check();
}

#[test]
fn messages_keep_their_order_while_the_vqp_moves() {
    let mut cluster = Cluster::new(4, &eager(1));
    let mut other = Load::new(&mut cluster, 1, 3);
    let sender = cluster.vqp(1);
    let bound = cluster.bound(2, 7);
    cluster.connect(1, sender, 2, 7);
    let inbox = cluster.region(2, 64 * 8, AccessFlags::LOCAL_WRITE);
    for n in 0..64 {
        cluster.recv(2, bound, n, &[inbox.sge(n * 8, 8)]);
    }
    let (mut sent, mut told, mut received, mut next) = (0u64, 0u64, 0u64, Time::ZERO);
    cluster.until("moved several times", |cluster| {
        let heavy = is_firsts_turn(cluster);
        other.step_each(if heavy { HEAVY_NS } else { LIGHT_NS }, cluster);
        while !heavy && cluster.now() >= next && sent < told + 16 && sent < received + 32 {
            let bytes = sent.to_le_bytes();
            let inline = SendWr { payload: Payload::Inline(&bytes), ..wr(sent, SendOp::Send, &[]) };
            cluster.post(1, sender, &[inline]);
            sent += 1;
            if sent.is_multiple_of(16) {
                next = cluster.now().saturating_add_ns(HEAVY_NS);
            }
        }
        for done in std::mem::take(&mut cluster.nodes[1].completions) {
            if done.vqp == sender {
                assert_eq!((done.wc.wr_id, done.wc.status), (told, WcStatus::Success));
                told += 1;
            } else {
                cluster.nodes[1].completions.push(done);
            }
        }
        other.take(cluster);
        for done in std::mem::take(&mut cluster.nodes[2].completions) {
            assert_eq!((done.wc.wr_id, done.wc.status), (received % 64, WcStatus::Success));
            let at = received % 64 * 8;
            assert_eq!(inbox.word(at), received, "in order, each once");
            cluster.recv(2, bound, received % 64, &[inbox.sge(at, 8)]);
            received += 1;
        }
        info(cluster, 1, sender).transfers >= 6
    });
    other.finish(&mut cluster);
    cluster.check();
}

#[test]
fn handshakes_and_moves_bear_loss() {
    let mut cluster = Cluster::on(network(30_000, 5), 4, &eager(1), |_, _| {});
    let mut a = Load::new(&mut cluster, 1, 2);
    let mut b = Load::new(&mut cluster, 1, 3);
    cluster.until("both moved", |cluster| {
        a.step(cluster);
        b.step(cluster);
        [a.vqp, b.vqp].iter().all(|vqp| info(cluster, 1, *vqp).transfers >= 2)
    });
    a.finish(&mut cluster);
    b.finish(&mut cluster);
    assert_eq!(cluster.nodes[1].core.stats().vqp_errors, 0);
    cluster.check();
}

#[test]
fn a_peer_that_starts_anew_is_reached_anew() {
    let mut cluster = Cluster::new(3, &config());
    let [a, b] = [1, 1].map(|n| cluster.vqp(n));
    connect_with(&mut cluster, 1, a, 2, Policy::Lite, false);
    assert_eq!(cluster.connected(1, a), Ok(Via::Rc));
    drop(cluster.nodes.remove(2));
    cluster.add(3, config());
    cluster.register(2);
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    assert_eq!(cluster.connect(1, b, 2, 7), Via::DcCached, "the old link is not taken");
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    far.fill(0, &[5; 64]);
    cluster.post(1, b, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    cluster.until("the old link is gone", |cluster| cluster.nodes[1].core.stats().rc_qps == 0);
    cluster.check();
}

#[test]
fn who_has_no_room_says_so_and_dc_goes_on() {
    let transfer = TransferConfig { rc_qps_max: 1, leased_wrs_max: 150, ..config().transfer };
    let mut cluster = Cluster::new(4, &Config { transfer, ..config() });
    let gid = cluster.nodes[2].core.gid();
    let [a, b] = [1, 3].map(|n| cluster.vqp(n));
    connect_with(&mut cluster, 1, a, 2, Policy::Lite, false);
    assert_eq!(cluster.connected(1, a), Ok(Via::Rc));
    connect_with(&mut cluster, 3, b, 2, Policy::Lite, false);
    let (of, used, limit) = (Shortage::Pool, 1, 1);
    let none_there = Err(ConnectError::NoRcQp { gid, here: false, of, used, limit });
    assert_eq!(cluster.connected(3, b), none_there, "the peer has none left");
    assert_eq!(cluster.connect(3, b, 2, 7), Via::DcCached);

    let leases = [1, 1].map(|n| cluster.vqp(n));
    connect_with(&mut cluster, 1, leases[0], 2, Policy::Leased, false);
    assert_eq!(cluster.connected(1, leases[0]), Ok(Via::Leased));
    connect_with(&mut cluster, 1, leases[1], 2, Policy::Leased, false);
    // A queue pair is as deep as the shared ones at most: 128 WRs of VQPs, and 16 of the core's.
    let (of, used, limit) = (Shortage::Leased, 144, 150);
    let none_here = Err(ConnectError::NoRcQp { gid, here: true, of, used, limit });
    assert_eq!(cluster.connected(1, leases[1]), none_here, "this node has none left");
    cluster.check();
}

#[test]
fn a_link_that_nobody_waits_for_any_longer_goes_at_both_ends() {
    let mut cluster = Cluster::new(3, &config());
    let known = cluster.vqp(1);
    cluster.connect(1, known, 2, 7);
    let vqp = cluster.vqp(1);
    connect_with(&mut cluster, 1, vqp, 2, Policy::Leased, false);
    let (client, now) = (cluster.nodes[1].client, cluster.now());
    cluster.nodes[1].core.vqp_destroy(client, vqp, now).unwrap();
    assert_eq!(cluster.connected(1, vqp), Err(ConnectError::Cancelled));
    cluster.until("the peer makes its end", |cluster| cluster.nodes[2].core.stats().rc_qps == 1);
    cluster.until("it goes again", |cluster| cluster.nodes[2].core.stats().rc_qps == 0);
    cluster.check();
}

#[test]
fn an_end_whose_other_is_never_heard_of_is_closed() {
    let mut cluster = Cluster::new(3, &config());
    let known = cluster.vqp(1);
    cluster.connect(1, known, 2, 7);
    let vqp = cluster.vqp(1);
    connect_with(&mut cluster, 1, vqp, 2, Policy::Lite, false);
    // It dies before it learns that its request was granted.
    drop(cluster.nodes.remove(1));
    cluster.until("its end is made", |cluster| cluster.nodes[1].core.stats().rc_qps == 1);
    let now = cluster.now();
    assert!(cluster.nodes[1].core.poll_timeout().is_some_and(|due| due.ns_since(now) < 1 << 30));
    cluster.skip(5_000_000_000);
    cluster.round();
    // Nobody answers when it asks to close it.
    for _ in 0..200 {
        cluster.skip(10_000_000);
        cluster.round();
    }
    assert_eq!(cluster.nodes[1].core.stats().rc_qps, 0);
    cluster.check();
}

/// Node 2 waits for a link that node 1 has asked for, and has given up since, when its clock jumped: once until it had no
/// time left to ask itself.
#[test]
fn who_waits_for_a_link_that_does_not_come_asks_for_one() {
    let mut cluster = Cluster::new(3, &config());
    for (n, to) in [(1, 2), (2, 1)] {
        let known = cluster.vqp(n);
        cluster.connect(n, known, to, 7);
    }
    let [asks, waits] = [1, 2].map(|n| cluster.vqp(n));
    let heals = cluster.now().saturating_add_ns(1_000_000);
    cluster.net.partition(2, 1, heals);
    connect_with(&mut cluster, 1, asks, 2, Policy::Lite, false);
    cluster.until("its end is made", |cluster| cluster.nodes[2].core.stats().rc_qps == 1);
    cluster.net.partition(1, 2, heals);
    let jumped = cluster.now().saturating_add_ns(6_000_000_000);
    while cluster.nodes[1].core.poll(jumped) {}
    assert!(matches!(cluster.connected(1, asks), Err(ConnectError::Unreachable { .. })));
    connect_with(&mut cluster, 2, waits, 1, Policy::Lite, false);
    assert_eq!(cluster.connected(2, waits), Ok(Via::Rc));
    cluster.check();
}

#[test]
fn a_dead_peer_fails_its_vqps_alone() {
    let mut cluster = Cluster::new(4, &config());
    let [dying, other, connecting] = [1, 1, 1].map(|n| cluster.vqp(n));
    connect_with(&mut cluster, 1, dying, 3, Policy::Lite, false);
    assert_eq!(cluster.connected(1, dying), Ok(Via::Rc));
    connect_with(&mut cluster, 1, other, 2, Policy::Lite, false);
    assert_eq!(cluster.connected(1, other), Ok(Via::Rc));
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let [kept, gone] = [2, 3].map(|n| cluster.region(n, 64, ALL));
    for (vqp, far) in [(dying, &gone), (other, &kept)] {
        cluster.post(1, vqp, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 8)])]);
        assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    }
    let dead = cluster.nodes.remove(3).core.gid();
    cluster.post(1, dying, &[wr(2, SendOp::Read(gone.remote(0)), &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RetryExcErr);
    assert_eq!(info(&cluster, 1, dying).state, VqpState::Error);
    cluster.post(1, other, &[wr(3, SendOp::Read(kept.remote(0)), &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    // A handshake with it ends too.
    let now = cluster.now();
    let node = &mut cluster.nodes[1];
    let options = ConnectOptions { policy: Policy::Lite, uncached: false };
    let token = u64::from(connecting.0);
    let via = node.core.qconnect(node.client, connecting, dead, 7, options, token, now).unwrap();
    assert_eq!(via, None);
    assert_eq!(cluster.connected(1, connecting), Err(ConnectError::Unreachable { gid: dead }));
    cluster.until("its link is gone", |cluster| cluster.nodes[1].core.stats().rc_qps == 1);
    cluster.check();
}

#[test]
fn a_peer_that_starts_anew_is_not_asked_where_it_was() {
    let mut cluster = Cluster::new(3, &config());
    let [known, anew] = [1, 1].map(|n| cluster.vqp(n));
    assert_eq!(cluster.connect(1, known, 2, 7), Via::DcLookup);
    let gid = cluster.nodes.remove(2).core.gid();
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, None, now);
    cluster.add(3, config());
    cluster.register(2);
    let record = cluster.nodes[2].core.record();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    // It answers who is known to a meta server.
    let server = cluster.nodes[0].core.serve_meta(100).unwrap();
    cluster.nodes[2].core.set_meta_servers(&[server], now);
    connect_with(&mut cluster, 1, anew, 2, Policy::Lite, false);
    assert_eq!(cluster.connected(1, anew), Ok(Via::Rc));
    assert_eq!(cluster.nodes[1].core.stats().links_failed, 0);
    cluster.check();
}

#[test]
fn one_place_for_a_link_is_enough_for_both_who_ask_at_once() {
    let transfer = TransferConfig { rc_qps_max: 1, ..config().transfer };
    let mut cluster = Cluster::new(3, &Config { transfer, ..config() });
    for (n, to) in [(1, 2), (2, 1)] {
        let vqp = cluster.vqp(n);
        cluster.connect(n, vqp, to, 7);
    }
    let [a, b] = [1, 2].map(|n| cluster.vqp(n));
    assert_eq!(connect_with(&mut cluster, 1, a, 2, Policy::Lite, false), None);
    assert_eq!(connect_with(&mut cluster, 2, b, 1, Policy::Lite, false), None);
    assert_eq!(cluster.connected(1, a), Ok(Via::Rc));
    assert_eq!(cluster.connected(2, b), Ok(Via::Rc));
    cluster.check();
}

#[test]
fn who_has_lost_its_link_asks_who_the_peer_is_now() {
    let mut cluster = Cluster::new(3, &config());
    let [posts, rests] = [1, 1].map(|n| cluster.vqp(n));
    for vqp in [posts, rests] {
        connect_with(&mut cluster, 1, vqp, 2, Policy::Lite, false);
        cluster.until("connected", |cluster| info(cluster, 1, vqp).via == Some(Via::Rc));
    }
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let gid = cluster.nodes.remove(2).core.gid();
    cluster.nodes[0].core.meta_remove(gid);
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, None, now);
    let asked = cluster.nodes[1].core.stats().links_asked;
    cluster.post(1, posts, &[wr(1, SendOp::Send, &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RetryExcErr);
    assert_eq!(cluster.nodes[1].core.stats().links_asked, asked, "nobody is there to be asked");

    cluster.add(3, config());
    cluster.register(2);
    let far = cluster.region(2, 64, ALL);
    far.fill(0, &[5; 64]);
    let read = |cluster: &mut Cluster, vqp| {
        cluster.post(1, vqp, &[wr(2, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
        cluster.take_one(1).wc.status
    };
    // What it had sent before was another's to have: it fails, and is not handed on.
    assert_eq!(read(&mut cluster, rests), WcStatus::WrFlushErr);
    assert_eq!(cluster.nodes[1].core.stats().vqps_forsaken, 1);
    let anew = cluster.vqp(1);
    cluster.connect(1, anew, 2, 7);
    assert_eq!(read(&mut cluster, anew), WcStatus::Success);
    cluster.check();
}

#[test]
fn links_to_a_peer_that_went_are_left_also_if_its_record_is_forgotten() {
    let mut cluster = Cluster::new(3, &config());
    let high = VqpInit { class: Class::High, ..VqpInit::default() };
    let client = cluster.nodes[1].client;
    let [linked, anew] = [0, 0].map(|_| cluster.nodes[1].core.vqp_create(client, high).unwrap());
    connect_with(&mut cluster, 1, linked, 2, Policy::Lite, false);
    assert_eq!(cluster.connected(1, linked), Ok(Via::Rc));
    let over_dc = cluster.vqp(1);
    assert_eq!(cluster.connect(1, over_dc, 2, 7), Via::DcCached);
    let near = cluster.region(1, 64, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64, ALL);
    cluster.post(1, linked, &[wr(1, SendOp::Read(far.remote(0)), &[near.sge(0, 64)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success);
    drop(cluster.nodes.remove(2));
    cluster.post(1, over_dc, &[wr(1, SendOp::Send, &[near.sge(0, 8)])]);
    assert_eq!(cluster.take_one(1).wc.status, WcStatus::RetryExcErr);

    cluster.add(3, config());
    cluster.register(2);
    let (gid, record) = (cluster.nodes[2].core.gid(), cluster.nodes[2].core.record());
    let now = cluster.now();
    cluster.nodes[1].core.node_changed(gid, Some(record), now);
    assert_eq!(cluster.connect(1, anew, 2, 7), Via::DcLookup, "the old link is not taken");
    cluster.check();
}

#[test]
fn many_handshakes_at_once_all_end() {
    let storm = StormConfig { handshakes_max: 2, ..config().storm };
    let mut cluster = Cluster::new(4, &Config { storm, ..config() });
    let mut vqps = Vec::new();
    for n in [1, 2, 3] {
        for _ in 0..40 {
            let vqp = cluster.vqp(n);
            connect_with(&mut cluster, n, vqp, 0, Policy::Leased, true);
            vqps.push((n, vqp));
        }
    }
    for (n, vqp) in vqps {
        assert_eq!(cluster.connected(n, vqp), Ok(Via::Leased));
    }
    cluster.check();
}

#[test]
fn the_low_class_keeps_to_its_rate_while_the_high_one_is_loaded() {
    // Of WRs of 936 and 64 bytes of cost each: a thousand a second, and a burst of one.
    let qos = QosConfig {
        high_dc_qps: 1,
        // However long this test's own pauses are.
        load_window_ns: 500_000_000,
        load_percent: 0,
        low_bytes_per_s: 1_000_000,
    };
    let mut cluster = Cluster::new(4, &Config { qos, ..config() });
    let [low, high] = [Class::Low, Class::High].map(|class| {
        let node = &mut cluster.nodes[1];
        node.core.vqp_create(node.client, VqpInit { class, ..VqpInit::default() }).unwrap()
    });
    cluster.connect(1, low, 2, 7);
    cluster.connect(1, high, 3, 7);
    let near = cluster.region(1, 4096, AccessFlags::LOCAL_WRITE);
    let [far_low, far_high] = [2, 3].map(|n| cluster.region(n, 4096, ALL));
    let read = |far: &Region| SendOp::Read(far.remote(0));
    let (low_read, high_read) = (read(&far_low), read(&far_high));
    let sges = [near.sge(0, 936)];

    // The high class first: it is loaded before the low one posts.
    cluster.post(1, high, &[wr(0, high_read, &sges)]);
    cluster.take_one(1);
    let start = cluster.now();
    for n in 0..100 {
        cluster.post(1, low, &[wr(n, low_read, &sges)]);
    }
    let (mut low_done, mut high_done) = (0u64, 0u64);
    while high_done < 3_000 {
        cluster.post(1, high, &[wr(0, high_read, &sges)]);
        let before = high_done;
        cluster.until("the high one is served", |cluster| {
            for done in std::mem::take(&mut cluster.nodes[1].completions) {
                assert_eq!(done.wc.status, WcStatus::Success);
                low_done += u64::from(done.vqp == low);
                high_done += u64::from(done.vqp == high);
            }
            high_done > before
        });
        let allowed = cluster.now().ns_since(start) / 1_000_000 + 3;
        assert!(low_done <= allowed, "{low_done} WRs of the low class, {allowed} allowed");
    }
    assert!(cluster.nodes[1].core.stats().low_held > 0);
    // All of them come when their time is there.
    cluster.until("the rest", |cluster| {
        low_done += std::mem::take(&mut cluster.nodes[1].completions).len() as u64;
        low_done == 100
    });
    cluster.check();
}

/// VQPs to one peer move when its link comes and goes; those to others do not, and whoever leaves the
/// peer's list in whatever order takes nobody along.
#[test]
fn a_link_moves_the_vqps_of_its_peer_alone() {
    let mut cluster = Cluster::new(4, &eager(1));
    let vqps = [2, 3].map(|to| {
        let all: Vec<VqpId> = (0..50).map(|_| cluster.vqp(1)).collect();
        for vqp in &all {
            cluster.connect(1, *vqp, to, 7);
        }
        all
    });
    let vqps_to = |cluster: &Cluster, to: usize| {
        let gid = cluster.nodes[to].core.gid();
        cluster.nodes[1].core.peers().find(|peer| peer.gid == gid).map_or(0, |peer| peer.vqps)
    };
    // From the middle, the ends, and one that goes over to the other peer.
    let (client, now) = (cluster.nodes[1].client, cluster.now());
    for at in [25, 0, 49, 24, 26, 1] {
        cluster.nodes[1].core.vqp_destroy(client, vqps[0][at], now).unwrap();
    }
    cluster.connect(1, vqps[0][10], 3, 7);
    assert_eq!((vqps_to(&cluster, 2), vqps_to(&cluster, 3)), (43, 51));
    let on_rc = |cluster: &Cluster, to: usize| {
        let (client, gid) = (cluster.nodes[1].client, cluster.nodes[to].core.gid());
        let of = |info: &VqpInfo| info.client == client && info.via == Some(Via::Rc);
        let all = cluster.nodes[1].core.vqps().filter(of);
        all.filter(|info| info.peer.is_some_and(|(peer, _)| peer == gid)).count()
    };
    for (to, other, all) in [(2, 3, 44), (3, 2, 52), (2, 3, 45)] {
        // One more, which makes the link that all of them move to; the last one is closed for it.
        let lite = cluster.vqp(1);
        connect_with(&mut cluster, 1, lite, to, Policy::Lite, false);
        assert_eq!(cluster.connected(1, lite), Ok(Via::Rc));
        assert_eq!((on_rc(&cluster, to), on_rc(&cluster, other)), (all, 0));
        assert_eq!(vqps_to(&cluster, to) as usize, all);
    }
    cluster.check();
}
