//! WRs that a process posts in one call go to the device in one call: a device sends at once what a call posts, so that
//! what comes in two costs two packets' system calls at either end.

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_verbs::*;

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
        let [near, far] = [1, 2].map(|n| nodes.region(n, 4096));
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
        let mut told =
            vec![Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; wrs.len()];
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

/// Messages that are short enough for their headers, before one that is not.
#[test]
fn short_messages_go_with_what_stands_behind() {
    let mut scene = Scene::new();
    let sges = [Sge { addr: scene.near.addr, length: 512, lkey: scene.near.lkey }];
    let send = |payload| {
        let flags = SendFlags::SIGNALED;
        SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None }
    };
    let (short, long) = (send(Payload::Inline(&[7; 8])), send(Payload::Sges(&sges)));
    let inbox = scene.nodes.vqp(2, VqpInit::default());
    let (now, node) = (scene.nodes.net.now(), &mut scene.nodes.nodes[2]);
    node.core.qbind(node.client, inbox, 7).unwrap();
    let room = [Sge { addr: scene.far.addr, length: 512, lkey: scene.far.lkey }];
    let receives = [RecvWr { wr_id: 1, sges: &room }; 16];
    node.core.post_recv(node.client, inbox, &receives, now).unwrap();
    scene.post(&[short]);
    for wrs in [&[short, short][..], &[short, long], &[long, short], &[short, short, long]] {
        assert_eq!(scene.post(wrs), [wrs.len()], "{wrs:?}");
    }
}

/// More than go at once leave in as few calls as they can.
#[test]
fn a_call_longer_than_a_burst_goes_in_bursts() {
    let mut scene = Scene::new();
    let sges = [Sge { addr: scene.near.addr, length: 64, lkey: scene.near.lkey }];
    let remote = RemoteAddr { addr: scene.far.addr, rkey: scene.far.rkey };
    let (op, flags) = (SendOp::Write(remote), SendFlags::SIGNALED);
    let write = SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&sges), dest: None };
    scene.post(&[write]);
    assert_eq!(scene.post(&[write; 100]), [64, 36]);
}
