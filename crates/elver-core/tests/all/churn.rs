//! VQPs of every policy that come, work and go at random, on so few RC QPs that they move all the
//! time: each WR is executed once, completes once and in order, and nothing is left.

use std::collections::BTreeMap;

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

const NODES: usize = 4;
const STEPS: u32 = 3_000;
const VQPS: usize = 24;

/// SplitMix64 (Steele, Lea, Flood, 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

/// A VQP and what it must still complete.
struct Worker {
    n: usize,
    to: usize,
    next: u64,
    done: u64,
    /// How its WRs end.
    status: WcStatus,
}

struct Churn {
    cluster: Cluster,
    rng: Rng,
    near: Vec<Region>,
    far: Vec<Region>,
    workers: BTreeMap<(usize, u32), Worker>,
    /// WRs of VQPs that live, or went with nothing outstanding, by the node that they went to.
    executed: [u64; NODES],
}

impl Churn {
    fn new(seed: u64, config: &Config, loss: u32) -> Churn {
        let mut cluster = Cluster::on(network(loss, seed), NODES as u8, config, |_, _| {});
        let near = (0..NODES).map(|n| cluster.region(n, 8, AccessFlags::LOCAL_WRITE)).collect();
        let far = (0..NODES).map(|n| cluster.region(n, 8, ALL)).collect();
        let (rng, executed) = (Rng(seed), [0; NODES]);
        Churn { cluster, rng, near, far, workers: BTreeMap::new(), executed }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0 if self.workers.len() < VQPS => self.open(),
            1 if self.workers.len() > VQPS / 2 => self.close(),
            _ => self.post(),
        }
        if self.rng.below(3) == 0 {
            self.cluster.round();
            self.take();
        }
    }

    fn open(&mut self) {
        let (n, to) =
            (self.rng.below(NODES as u64) as usize, self.rng.below(NODES as u64) as usize);
        let policies = [Policy::Shared, Policy::Lite, Policy::RpcMeta, Policy::Leased];
        let policy = policies[self.rng.below(4) as usize];
        let uncached = self.rng.below(2) == 0;
        let class = if self.rng.below(4) == 0 { Class::High } else { Class::Low };
        let (gid, now) = (self.cluster.nodes[to].core.gid(), self.cluster.now());
        let node = &mut self.cluster.nodes[n];
        let init = VqpInit { class, ..VqpInit::default() };
        let vqp = node.core.vqp_create(node.client, init).unwrap();
        let options = ConnectOptions { policy, uncached };
        node.core.qconnect(node.client, vqp, gid, 7, options, vqp.0.into(), now).unwrap();
        self.workers
            .insert((n, vqp.0), Worker { n, to, next: 0, done: 0, status: WcStatus::Success });
    }

    fn pick(&mut self) -> Option<(usize, u32)> {
        let at = self.rng.below(self.workers.len().max(1) as u64) as usize;
        self.workers.keys().nth(at).copied()
    }

    fn close(&mut self) {
        let Some(key) = self.pick() else { return };
        if self.workers[&key].next > self.workers[&key].done {
            return;
        }
        self.workers.remove(&key);
        let now = self.cluster.now();
        let node = &mut self.cluster.nodes[key.0];
        node.core.vqp_destroy(node.client, VqpId(key.1), now).unwrap();
    }

    fn post(&mut self) {
        let Some(key) = self.pick() else { return };
        let info = {
            let node = &self.cluster.nodes[key.0];
            node.core.vqp_info(node.client, VqpId(key.1)).unwrap()
        };
        let Some(worker) = self.workers.get_mut(&key) else { return };
        if info.state == VqpState::Error || info.state == VqpState::Idle {
            return;
        }
        let sges = [self.near[worker.n].sge(0, 8)];
        for _ in 0..=self.rng.below(40) {
            if worker.next - worker.done >= 100 {
                break;
            }
            let op = SendOp::FetchAdd { remote: self.far[worker.to].remote(0), add: 1 };
            self.cluster.post(key.0, VqpId(key.1), &[wr(worker.next, op, &sges)]);
            worker.next += 1;
            self.executed[worker.to] += 1;
        }
    }

    fn take(&mut self) {
        for n in 0..NODES {
            for event in std::mem::take(&mut self.cluster.nodes[n].events) {
                let Event::Connected { token, result, .. } = event else { panic!("{event:?}") };
                match (result, self.workers.get_mut(&(n, token as u32))) {
                    (Ok(_), _) | (Err(ConnectError::Cancelled), None) => {}
                    // Lite and leased connects may find no RC QP left.
                    (Err(ConnectError::NoRcQp { .. }), Some(worker)) => {
                        worker.status = WcStatus::WrFlushErr;
                        self.executed[worker.to] -= worker.next - worker.done;
                    }
                    (result, _) => panic!("{result:?}"),
                }
            }
            for done in std::mem::take(&mut self.cluster.nodes[n].completions) {
                let worker = self.workers.get_mut(&(n, done.vqp.0)).expect("a VQP that lives");
                assert_eq!((done.wc.wr_id, done.wc.status), (worker.done, worker.status));
                worker.done += 1;
            }
        }
    }

    fn finish(mut self) {
        let mut left = u64::MAX;
        self.drive("all done", |churn| {
            left = churn.workers.values().map(|worker| worker.next - worker.done).sum();
            left == 0
        });
        for n in 0..NODES {
            assert_eq!(self.far[n].word(0), self.executed[n], "at node {n}");
        }
        while let Some(key) = self.pick() {
            self.workers.remove(&key);
            let now = self.cluster.now();
            let node = &mut self.cluster.nodes[key.0];
            node.core.vqp_destroy(node.client, VqpId(key.1), now).unwrap();
        }
        self.drive("all VQPs gone", |churn| {
            churn.cluster.nodes.iter().all(|node| node.core.stats().vqps == 0)
        });
        self.cluster.check();
        for node in &self.cluster.nodes {
            let stats = node.core.stats();
            assert_eq!(stats.lanes_reset, 0, "{stats:?}");
        }
        let stats = self.cluster.nodes.iter().map(|node| node.core.stats());
        let moved: u64 = stats.map(|stats| stats.transfers_to_rc + stats.transfers_to_dc).sum();
        assert!(moved > 0, "no VQP moved");
    }

    fn drive(&mut self, what: &str, mut done: impl FnMut(&mut Churn) -> bool) {
        let end = self.cluster.now().saturating_add_ns(WAIT_NS);
        while !done(self) {
            assert!(self.cluster.now() < end, "never: {what}");
            self.cluster.round();
            self.take();
        }
    }
}

fn run(seed: u64, dc_qps: u32, loss: u32) {
    println!("seed {seed}");
    let transfer = TransferConfig {
        rc_qps_max: if dc_qps == 0 { 32 } else { 3 },
        hot_ops: 100,
        window_ns: 2_000_000,
        idle_ns: 0,
        ..config().transfer
    };
    let mut churn = Churn::new(seed, &Config { dc_qps, transfer, retry_cnt: 7, ..config() }, loss);
    for _ in 0..STEPS {
        churn.step();
    }
    churn.finish();
}

#[test]
fn vqps_come_work_move_and_go() {
    for seed in 1..=6 {
        run(seed, 4, 0);
    }
}

#[test]
fn vqps_come_work_and_go_without_dc() {
    for seed in 41..=43 {
        run(seed, 0, 0);
    }
}

#[test]
fn vqps_come_work_move_and_go_under_loss() {
    for seed in 61..=66 {
        run(seed, 4, 20_000);
    }
}
