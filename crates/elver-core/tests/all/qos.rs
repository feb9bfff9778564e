//! What the high class, while it is loaded, asks of the low one beside its rate.

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_verbs::*;

/// The window in which the high class's load is counted, by default.
const WINDOW_NS: u64 = 1_000_000;
/// How often a completion is looked for.
const LOOK_NS: u64 = 1_000;

/// Two nodes beside the meta server, and on one a VQP of each class, connected to the other over DC.
struct Scene {
    nodes: Nodes,
    low: VqpId,
    high: VqpId,
    near: MrInfo,
    far: MrInfo,
}

impl Scene {
    fn new() -> Scene {
        let config = Config::default();
        assert_eq!(config.qos.load_window_ns, WINDOW_NS);
        let mut nodes = Nodes::new(3, &config, ClientLimits::default());
        let [near, far] = [1, 2].map(|n| nodes.region(n, 4096));
        let [low, high] = [Class::Low, Class::High].map(|class| {
            let vqp = nodes.vqp(1, VqpInit { class, ..VqpInit::default() });
            nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
            vqp
        });
        Scene { nodes, low, high, near, far }
    }

    /// Posts one WR of 8 bytes and waits for its completion.
    fn does(&mut self, vqp: VqpId, op: fn(RemoteAddr) -> SendOp) {
        let sges = [Sge { addr: self.near.addr, length: 8, lkey: self.near.lkey }];
        let op = op(RemoteAddr { addr: self.far.addr, rkey: self.far.rkey });
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&sges), dest: None };
        let (now, node) = (self.nodes.net.now(), &mut self.nodes.nodes[1]);
        node.core.post_send(node.client, vqp, &[wr], now).unwrap();
        let mut told = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }];
        let start = self.nodes.net.now();
        loop {
            let node = &mut self.nodes.nodes[1];
            if node.core.poll_completions(node.client, &mut told) == 1 {
                break;
            }
            // Not to the next event: nothing may be on its way until then.
            self.nodes.pause(LOOK_NS);
            assert!(self.nodes.net.now().ns_since(start) < 10 * WINDOW_NS, "no completion");
        }
        assert_eq!((told[0].vqp, told[0].wc.status), (vqp, WcStatus::Success));
    }

    /// What the device was told since the last look.
    fn told(&mut self) -> Vec<bool> {
        let told = std::mem::take(&mut self.nodes.nodes[1].core.device().short_turns);
        told.into_iter().map(|(_, short)| short).collect()
    }
}

#[test]
fn the_low_class_takes_short_turns_while_the_high_one_is_loaded() {
    let mut scene = Scene::new();
    scene.does(scene.low, SendOp::Write);
    assert_eq!(scene.told(), [], "nobody is there to give way to");

    let start = scene.nodes.net.now();
    while scene.nodes.net.now().ns_since(start) < 2 * WINDOW_NS {
        scene.does(scene.high, SendOp::Read);
    }
    assert_eq!(scene.told(), [], "the high class gives way to nobody");
    scene.does(scene.low, SendOp::Write);
    scene.does(scene.low, SendOp::Write);
    assert_eq!(scene.told(), [true]);

    scene.nodes.pause(3 * WINDOW_NS);
    scene.does(scene.low, SendOp::Write);
    assert_eq!(scene.told(), [false]);
}
