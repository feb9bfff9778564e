//! Random work by many VQPs, some of it refused, some of it destroyed: each WR has one outcome, in
//! order, at its owner, and nothing is left in the end.

use std::collections::{HashMap, VecDeque};

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

const PORT: u16 = 9;
const REGION: u64 = 1 << 18;
/// The longest message, far above what is copied.
const LONG: u64 = 20_000;

/// What a VQP was given and has not told.
#[derive(Default)]
struct Model {
    sends: VecDeque<(u64, bool)>,
    recvs: VecDeque<u64>,
    failed: bool,
    flushed: bool,
}

struct World {
    cluster: Cluster,
    regions: Vec<Region>,
    /// Regions that the tables list and the devices refuse.
    gone: Vec<Region>,
    servers: Vec<VqpId>,
    models: HashMap<(usize, VqpId), Model>,
    live: Vec<(usize, VqpId)>,
    next_id: u64,
    rng: u64,
}

impl World {
    fn new(seed: u8, config: &Config) -> World {
        let mut cluster = Cluster::new(3, config);
        let regions = (0..3).map(|n| cluster.region(n, REGION, ALL)).collect();
        let gone: Vec<Region> = (0..3).map(|n| cluster.region(n, REGION, ALL)).collect();
        for (node, region) in cluster.nodes.iter_mut().zip(&gone) {
            node.core.device().dereg_mr(region.info.mr).unwrap();
        }
        let servers: Vec<VqpId> = (0..3).map(|n| cluster.bound(n, PORT)).collect();
        let models = servers.iter().enumerate().map(|(n, vqp)| ((n, *vqp), Model::default()));
        let models = models.collect();
        let rng = u64::from(seed);
        World { cluster, regions, gone, servers, models, live: Vec::new(), next_id: 1, rng }
    }

    /// A number below `n` (SplitMix64).
    fn below(&mut self, n: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=2 if self.live.len() < 12 => self.add(),
            3 => self.remove(),
            4..=11 => self.post(),
            12..=14 => self.receive(),
            _ => self.cluster.round(),
        }
        self.check();
    }

    fn add(&mut self) {
        let (n, to) = (self.below(3) as usize, self.below(3) as usize);
        let vqp = self.cluster.vqp(n);
        self.cluster.start_connect(n, vqp, to, PORT);
        self.models.insert((n, vqp), Model::default());
        self.live.push((n, vqp));
    }

    fn remove(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len() as u64) as usize;
        let (n, vqp) = self.live.swap_remove(at);
        let now = self.cluster.now();
        let node = &mut self.cluster.nodes[n];
        node.core.vqp_destroy(node.client, vqp, now).unwrap();
        // What it told before is with the client already.
        self.cluster.nodes[n].completions.retain(|done| done.vqp != vqp);
        let mut into = vec![Completion { vqp, source: None, wc: Wc::default() }; 4096];
        let node = &mut self.cluster.nodes[n];
        let count = node.core.poll_completions(node.client, &mut into);
        let others = into[..count].iter().filter(|done| done.vqp != vqp);
        self.cluster.nodes[n].completions.extend(others);
        self.models.remove(&(n, vqp));
    }

    fn post(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len() as u64) as usize;
        let (n, vqp) = self.live[at];
        let node = &self.cluster.nodes[n];
        let info = node.core.vqp_info(node.client, vqp).unwrap();
        let Some((peer, _)) = info.peer else { return };
        let to = self.cluster.nodes.iter().position(|node| node.core.gid() == peer).unwrap();
        for _ in 0..=self.below(6) {
            let (id, signaled) = (self.next_id, self.below(3) > 0);
            self.next_id += 1;
            let len = if self.below(8) == 0 { self.below(LONG) } else { self.below(200) } as u32;
            let at = self.below(REGION - LONG) & !7;
            // Some are refused here, some fail at the peer.
            let remote = match self.below(100) {
                0 => self.regions[to].remote(REGION - 4),
                1 => self.gone[to].remote(at),
                _ => self.regions[to].remote(at),
            };
            let word = [self.regions[n].sge(at, 8)];
            let bytes = [self.regions[n].sge(at, len)];
            let (op, sges) = match self.below(7) {
                0 => (SendOp::Read(remote), &bytes),
                1 => (SendOp::Write(remote), &bytes),
                2 => (
                    SendOp::FetchAdd {
                        remote: RemoteAddr { addr: remote.addr & !7, ..remote },
                        add: 1,
                    },
                    &word,
                ),
                3 => (SendOp::WriteWithImm(remote, 3), &bytes),
                4 => (SendOp::SendWithImm(4), &bytes),
                _ => (SendOp::Send, &bytes),
            };
            let wr = if signaled { wr(id, op, sges) } else { quiet(id, op, sges) };
            match self.cluster.try_post(n, vqp, &[wr]) {
                Ok(()) => {
                    let model = self.models.get_mut(&(n, vqp)).unwrap();
                    model.sends.push_back((id, signaled));
                }
                Err((0, PostError::QueueFull { .. } | PostError::State { .. })) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn receive(&mut self) {
        let n = self.below(3) as usize;
        for _ in 0..self.below(12) {
            let len = if self.below(10) == 0 { self.below(LONG) } else { LONG } as u32;
            let (vqp, id) = (self.servers[n], self.next_id);
            self.next_id += 1;
            let (now, sges) = (self.cluster.now(), [self.regions[n].sge(0, len)]);
            let node = &mut self.cluster.nodes[n];
            let posted =
                node.core.post_recv(node.client, vqp, &[RecvWr { wr_id: id, sges: &sges }], now);
            if posted.is_ok() {
                self.models.get_mut(&(n, vqp)).unwrap().recvs.push_back(id);
            }
        }
    }

    /// Holds what was told against what was given.
    fn check(&mut self) {
        for n in 0..3 {
            for done in std::mem::take(&mut self.cluster.nodes[n].completions) {
                let wc = done.wc;
                let model = self.models.get_mut(&(n, done.vqp));
                let model = model.unwrap_or_else(|| panic!("nobody's: {done:?}"));
                assert_eq!(wc.qp_num, done.vqp.0);
                if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
                    assert_eq!(model.recvs.pop_front(), Some(wc.wr_id), "{done:?}");
                    continue;
                }
                loop {
                    let (id, signaled) = model.sends.pop_front().expect("one that was posted");
                    if id == wc.wr_id {
                        assert!(signaled || wc.status != WcStatus::Success);
                        break;
                    }
                    assert!(!signaled, "{id} is missing before {done:?}");
                    assert!(!model.failed, "{id} was not flushed before {done:?}");
                }
                assert!(!model.failed || wc.status == WcStatus::WrFlushErr, "{done:?}");
                assert!(!model.flushed || wc.status != WcStatus::Success, "{done:?}");
                // A long message that a failed VQP takes back is flushed before the WR that failed.
                model.flushed |= wc.status != WcStatus::Success;
                model.failed |= !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr);
            }
        }
    }

    fn finish(mut self) {
        // Whoever waits for receives gets them.
        let end = self.cluster.now().saturating_add_ns(WAIT_NS);
        loop {
            self.cluster.round();
            self.check();
            for n in 0..3 {
                let sges = [self.regions[n].sge(0, LONG as u32)];
                let (id, now, vqp) = (self.next_id, self.cluster.now(), self.servers[n]);
                self.next_id += 1;
                let node = &mut self.cluster.nodes[n];
                let wr = RecvWr { wr_id: id, sges: &sges };
                if node.core.post_recv(node.client, vqp, &[wr], now).is_ok() {
                    self.models.get_mut(&(n, vqp)).unwrap().recvs.push_back(id);
                }
            }
            let mut vqps = self.cluster.nodes.iter().flat_map(|node| node.core.vqps());
            if vqps.all(|vqp| vqp.outstanding == 0) {
                break;
            }
            assert!(self.cluster.now() < end, "something never ends");
        }
        for (key, model) in &self.models {
            let untold = model.sends.iter().filter(|(_, signaled)| *signaled).count();
            assert_eq!(untold, 0, "of {key:?}");
        }
        for n in 0..3 {
            let now = self.cluster.now();
            let node = &mut self.cluster.nodes[n];
            node.core.client_close(node.client, now);
        }
        self.cluster.until("all gone", |cluster| {
            cluster.nodes.iter().all(|node| node.core.client_is_gone(node.client))
        });
        for node in &self.cluster.nodes {
            let stats = node.core.stats();
            assert_eq!((stats.vqps, stats.mrs, stats.clients), (0, 0, 0), "{stats:?}");
            assert!(node.core.peers().all(|peer| peer.vqps == 0));
        }
        self.cluster.check();
    }
}

fn run(config: &Config) {
    for seed in 0..20 {
        let mut world = World::new(seed, config);
        for _ in 0..600 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn on_streams() {
    run(&Config { mr_lease_ns: 2_000_000, ..config() });
}

#[test]
fn on_one_narrow_lane() {
    let narrow = Config { dc_qps: 1, log_dc_streams: 0, sq_depth: 32, backlog: 16, ..config() };
    run(&narrow);
}

#[test]
fn with_rc_qps_for_all() {
    let mut config = config();
    config.transfer.hot_ops = 20;
    config.transfer.idle_ns = 1_000_000;
    run(&config);
}
