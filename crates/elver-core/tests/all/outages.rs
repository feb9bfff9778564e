//! A DCI that the device does not set going again: nobody's work is lost, and it is tried again.

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_verbs::*;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);
/// WRs of each innocent VQP.
const WRS: u64 = 40;
/// A DCI that is down is tried again at least so often.
const RETRY_NS_MAX: u64 = 100_000_000;
/// What waits for a DCI that is down for this long ends.
const PATIENCE_NS: u64 = 4_000_000_000;

/// Three nodes. On the second, VQPs to the third that share one lane; one of them is guilty.
struct Scene {
    nodes: Nodes,
    near: MrInfo,
    far: MrInfo,
    words: <crate::common::stubborn::Stubborn as Device>::Memory,
    gone: MrInfo,
    guilty: VqpId,
    innocent: Vec<VqpId>,
    told: Vec<Completion>,
}

impl Scene {
    /// All streams of a DCI fail at once, since it has one.
    fn new(dc_qps: u32) -> Scene {
        let qos = QosConfig { high_dc_qps: 0, ..Config::default().qos };
        let config = Config { dc_qps, log_dc_streams: 0, sq_depth: 256, qos, ..Config::default() };
        let mut nodes = Nodes::new(3, &config, ClientLimits::default());
        let (near, _) = region(&mut nodes, 1);
        let (far, words) = region(&mut nodes, 2);
        let (gone, _) = region(&mut nodes, 2);
        let vqps: Vec<VqpId> = (0..4).map(|_| nodes.vqp(1, VqpInit::default())).collect();
        let (guilty, innocent) = (vqps[0], vqps[1..].to_vec());
        let told = Vec::new();
        let mut scene = Scene { nodes, near, far, words, gone, guilty, innocent, told };
        for vqp in vqps {
            scene.nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
            // What they know of both regions is good for a lease.
            for region in [scene.far, scene.gone] {
                scene.post(vqp, 0, SendOp::Read(remote(region, 0)), 0);
            }
        }
        scene.until("the first READs", |scene| scene.told.len() == 8);
        scene.told.clear();
        scene.nodes.nodes[2].core.device().dereg_mr(scene.gone.mr).unwrap();
        scene
    }

    fn post(&mut self, vqp: VqpId, wr_id: u64, op: SendOp, at: u64) {
        let sges = [Sge { addr: self.near.addr + at, length: 8, lkey: self.near.lkey }];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        let wr = SendWr { wr_id, op, flags, payload, dest: None };
        let now = self.nodes.net.now();
        let node = &mut self.nodes.nodes[1];
        node.core.post_send(node.client, vqp, &[wr], now).unwrap();
    }

    /// Has the guilty VQP end the DCI, with WRs of the others behind it: each adds to a word of its
    /// own, so that one that is lost or done twice shows.
    fn fail_dci(&mut self) {
        self.post(self.guilty, 0, SendOp::Read(remote(self.gone, 0)), 0);
        for (at, vqp) in self.innocent.clone().into_iter().enumerate() {
            for n in 0..WRS {
                let word = 8 * (at as u64 * WRS + n);
                let op = SendOp::FetchAdd { remote: remote(self.far, word), add: n + 1 };
                self.post(vqp, n, op, word);
            }
        }
    }

    fn take(&mut self) {
        let node = &mut self.nodes.nodes[1];
        node.core.audit().unwrap();
        let mut into = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; 16];
        loop {
            let count = node.core.poll_completions(node.client, &mut into);
            self.told.extend_from_slice(&into[..count]);
            if count == 0 {
                return;
            }
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Scene) -> bool) {
        for _ in 0..100_000 {
            self.take();
            if done(self) {
                return;
            }
            self.nodes.step();
        }
        panic!("never: {what}");
    }

    /// Every WR of an innocent VQP was done once, in order.
    fn innocents_are_done(&mut self) {
        let all = 1 + self.innocent.len() * WRS as usize;
        self.until("all told", |scene| scene.told.len() >= all);
        for (at, vqp) in self.innocent.iter().enumerate() {
            let own = self.told.iter().filter(|done| done.vqp == *vqp);
            let own: Vec<_> = own.map(|done| (done.wc.wr_id, done.wc.status)).collect();
            assert_eq!(own, (0..WRS).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
            for n in 0..WRS {
                let mut word = [0; 8];
                self.words.read(8 * (at as u64 * WRS + n), &mut word).unwrap();
                assert_eq!(u64::from_le_bytes(word), n + 1, "once each: VQP {at}, WR {n}");
            }
        }
        let guilty = self.told.iter().find(|done| done.vqp == self.guilty).unwrap();
        assert_eq!(guilty.wc.status, WcStatus::RemAccessErr);
        let stats = self.stats();
        assert_eq!((stats.vqp_errors, stats.device_refusals), (1, 0), "{stats:?}");
    }

    fn stats(&self) -> Stats {
        self.nodes.nodes[1].core.stats()
    }

    fn device(&mut self) -> &mut crate::common::stubborn::Stubborn {
        self.nodes.nodes[1].core.device()
    }
}

fn region(
    nodes: &mut Nodes,
    n: usize,
) -> (MrInfo, <crate::common::stubborn::Stubborn as Device>::Memory) {
    let node = &mut nodes.nodes[n];
    let memory = node.core.device().alloc_memory(4096).unwrap();
    (node.core.reg_mr(node.client, memory.clone(), None, ALL).unwrap(), memory)
}

fn remote(region: MrInfo, at: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr + at, rkey: region.rkey }
}

#[test]
fn a_dci_that_cannot_be_reset_is_made_anew_at_once() {
    let mut scene = Scene::new(1);
    let before = scene.device().qps_of(QpType::Dci);
    scene.device().no_modify_of = before.clone();
    scene.fail_dci();
    scene.innocents_are_done();
    let stats = scene.stats();
    assert_eq!((stats.dcis_remade, stats.dci_restarts_refused, stats.dcis_down), (1, 0, 0));
    let after = scene.device().qps_of(QpType::Dci);
    assert!(after.len() == 1 && after != before, "the old one is gone: {after:?}");
}

#[test]
fn work_waits_for_the_only_dci_until_the_device_makes_one_again() {
    let mut scene = Scene::new(1);
    scene.device().no_modify = true;
    scene.device().no_create = true;
    scene.fail_dci();
    scene.until("the DCI is down", |scene| scene.stats().dcis_down == 1);
    let start = scene.nodes.net.now();
    scene.until("some tries", |scene| scene.nodes.net.now().ns_since(start) > PATIENCE_NS / 2);
    let (stats, tried) = (scene.stats(), scene.nodes.net.now());
    let least = PATIENCE_NS / 2 / RETRY_NS_MAX;
    assert!((least..2 * least).contains(&stats.dci_restarts_refused), "with back-off: {stats:?}");
    assert_eq!(scene.told.len(), 1, "of the innocents' WRs none has ended: {:?}", scene.told);

    scene.device().no_modify = false;
    scene.device().no_create = false;
    scene.innocents_are_done();
    let took = scene.nodes.net.now().ns_since(tried);
    assert!(took <= 2 * RETRY_NS_MAX, "{took} ns");
    let stats = scene.stats();
    assert_eq!((stats.dcis_remade, stats.dcis_down), (1, 0), "{stats:?}");
}

#[test]
fn another_dci_does_the_work_of_one_that_is_down() {
    let mut scene = Scene::new(2);
    let before = scene.device().qps_of(QpType::Dci).len();
    scene.device().no_modify = true;
    scene.device().no_create = true;
    let asks = scene.nodes.vqp(1, VqpInit::default());
    assert_eq!(scene.nodes.connect(1, asks, 2, Policy::Shared), Ok(Via::DcCached));
    let (new, _) = region(&mut scene.nodes, 2);
    scene.fail_dci();
    // The core's own READ, which looks this region up, is on the DCI too.
    scene.post(asks, 5, SendOp::Read(remote(new, 0)), 0);
    let start = scene.nodes.net.now();
    scene.innocents_are_done();
    let read = |done: &Completion| done.vqp == asks && done.wc.status == WcStatus::Success;
    scene.until("the new region's READ", |scene| scene.told.iter().any(read));
    let took = scene.nodes.net.now().ns_since(start);
    assert!(took < RETRY_NS_MAX, "nobody waits for the one that is down: {took} ns");
    assert_eq!((before, scene.stats().dcis_down), (2, 1));
    assert_eq!(scene.nodes.nodes[1].core.audit().unwrap().dcis, 1);
    // So do connects, and what they post.
    let (late, far) = (scene.nodes.vqp(1, VqpInit::default()), scene.far);
    assert_eq!(scene.nodes.connect(1, late, 2, Policy::Shared), Ok(Via::DcCached));
    scene.told.clear();
    scene.post(late, 9, SendOp::Read(remote(far, 0)), 0);
    scene.until("its READ", |scene| scene.told.len() == 1);
    assert_eq!(scene.told[0].wc.status, WcStatus::Success);
    assert_eq!(scene.stats().dcis_down, 1);

    scene.device().no_modify = false;
    scene.device().no_create = false;
    scene.until("both work", |scene| scene.stats().dcis_down == 0);
    assert_eq!(scene.device().qps_of(QpType::Dci).len(), 2);
}

#[test]
fn what_waits_for_a_dci_that_does_not_come_ends() {
    let mut scene = Scene::new(1);
    scene.device().no_modify = true;
    scene.device().no_create = true;
    scene.fail_dci();
    scene.until("the DCI is down", |scene| scene.stats().dcis_down == 1);
    let start = scene.nodes.net.now();
    let all = 1 + scene.innocent.len() * WRS as usize;
    scene.until("all told", |scene| scene.told.len() == all);
    let took = scene.nodes.net.now().ns_since(start);
    assert!((PATIENCE_NS..PATIENCE_NS + 2 * RETRY_NS_MAX).contains(&took), "{took} ns");
    for vqp in &scene.innocent {
        let own: Vec<_> = scene.told.iter().filter(|done| done.vqp == *vqp).collect();
        assert_eq!(own[0].wc.status, WcStatus::LocQpOpErr);
        assert!(own[1..].iter().all(|done| done.wc.status == WcStatus::WrFlushErr));
        assert_eq!(own.len(), WRS as usize);
    }
    // When the device is well again everybody connects anew and goes on.
    scene.device().no_modify = false;
    scene.device().no_create = false;
    scene.until("it works", |scene| scene.stats().dcis_down == 0);
    scene.told.clear();
    for vqp in scene.innocent.clone() {
        scene.nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
        scene.post(vqp, 1, SendOp::Read(remote(scene.far, 0)), 0);
    }
    scene.until("all read", |scene| scene.told.len() == 3);
    assert!(scene.told.iter().all(|done| done.wc.status == WcStatus::Success));
}
