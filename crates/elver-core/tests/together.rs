//! WRs that a process posts in one call go to the device in one call: a device sends at once what a call posts, so that
//! what comes in two costs two packets' system calls at either end.

#[path = "common/virtual_time.rs"]
mod virtual_time;

use elver_core::*;
use elver_verbs::*;
use virtual_time::Nodes;

/// How often completions are looked for.
const LOOK_NS: u64 = 1_000;
/// The longest that they take.
const WAIT_NS: u64 = 10_000_000;

struct Scene {
    nodes: Nodes,
    vqp: VqpId,
    near: MrInfo,
    far: MrInfo,
}

impl Scene {
    fn new() -> Scene {
        let mut nodes = Nodes::new(3, &Config::default(), ClientLimits::default());
        let [near, far] = [1, 2].map(|n| {
            let node = &mut nodes.nodes[n];
            let memory = node.core.device().alloc_memory(4096).unwrap();
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
            let access = access | AccessFlags::REMOTE_WRITE;
            node.core.reg_mr(node.client, memory, None, access).unwrap()
        });
        let vqp = nodes.vqp(1, VqpInit::default());
        nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
        Scene { nodes, vqp, near, far }
    }

    /// How many WRs each call of the device's posted for one of the VQP's, whose WRs are all signalled and end well.
    fn post(&mut self, wrs: &[SendWr<'_>]) -> Vec<usize> {
        let (now, node) = (self.nodes.net.now(), &mut self.nodes.nodes[1]);
        node.core.device().posts.clear();
        node.core.post_send(node.client, self.vqp, wrs, now).unwrap();
        let posts = std::mem::take(&mut node.core.device().posts);
        let mut told = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; 8];
        let (mut count, start) = (0, self.nodes.net.now());
        while count < wrs.len() {
            let node = &mut self.nodes.nodes[1];
            let more = node.core.poll_completions(node.client, &mut told[count..]);
            self.nodes.pause(LOOK_NS);
            assert!(self.nodes.net.now().ns_since(start) < WAIT_NS, "{count} completions");
            count += more;
        }
        assert_eq!(count, wrs.len());
        assert!(told[..count].iter().all(|told| told.wc.status == WcStatus::Success));
        posts
    }
}

#[test]
fn a_word_from_the_call_goes_with_bytes_from_memory() {
    let mut scene = Scene::new();
    let sges = [Sge { addr: scene.near.addr, length: 64, lkey: scene.near.lkey }];
    let remote = RemoteAddr { addr: scene.far.addr, rkey: scene.far.rkey };
    let write = |payload| {
        let (op, flags) = (SendOp::Write(remote), SendFlags::SIGNALED);
        SendWr { wr_id: 1, op, flags, payload, dest: None }
    };
    let (bytes, word) = (write(Payload::Sges(&sges)), write(Payload::Inline(&[7; 8])));
    // Known from here on: what follows goes at once.
    scene.post(&[bytes]);
    for wrs in [[bytes, word], [word, bytes], [bytes, bytes], [word, word]] {
        assert_eq!(scene.post(&wrs), [2], "{wrs:?}");
    }
    assert_eq!(scene.post(&[bytes, bytes, word, bytes]), [4]);
}
