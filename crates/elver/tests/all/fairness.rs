//! Sessions that share a DC queue pair: how much of another's work one waits for.

use std::time::Instant;

use elver::node::Node;
use elver::{EmbeddedNode, SendOp, Session, SessionOptions, Via, Vqp, VqpOptions, Wc, WcStatus};

use crate::common::{ALL, WAIT, cluster, config, session_at, succeeds, wr};

/// Bytes of a WRITE of the flood: its number and what follows.
const FLOOD: u32 = 4096;
/// WRITEs that the flood has outstanding.
const WINDOW: u64 = 2_048;
/// Synchronous READs beside it.
const READS: u64 = 100;
/// WRs of VQPs that a shared queue pair holds; a lane of it gets half of these.
const SQ_DEPTH: u32 = 32;
/// Bytes that a VQP posts in a turn while others wait, and what a WR counts besides its own.
const TURN: u64 = 64 << 10;
const WR_BYTES: u64 = 256;

/// WRITEs that each put their number into the first word of the target.
struct Flood {
    vqp: Vqp,
    /// The word of the n-th WRITE stands at n modulo the window.
    numbers: elver::Mr,
    filler: elver::Mr,
    posted: u64,
    done: u64,
}

impl Flood {
    fn new(session: &Session, gid: elver::Gid) -> Flood {
        let options = VqpOptions { max_send_wr: WINDOW as u32, ..VqpOptions::default() };
        let vqp = session.create_vqp(options).unwrap();
        vqp.qconnect(gid, 0).unwrap();
        let numbers = session.alloc(8 * WINDOW, ALL).unwrap();
        let filler = session.alloc(FLOOD.into(), ALL).unwrap();
        Flood { vqp, numbers, filler, posted: 0, done: 0 }
    }

    /// Posts as many as may be outstanding. The node executes some of them meanwhile, of which more are posted until most of
    /// them wait.
    fn fill(&mut self, target: elver::RemoteAddr) {
        let begun = Instant::now();
        self.take_completions();
        while self.posted - self.done < WINDOW / 2 {
            self.post_all(target, begun);
            self.take_completions();
        }
    }

    fn take_completions(&mut self) {
        let mut wcs = [Wc::default(); 64];
        loop {
            let done = self.vqp.poll_cq(&mut wcs).unwrap();
            assert!(wcs[..done].iter().all(|wc| wc.status == WcStatus::Success));
            self.done += done as u64;
            if done < wcs.len() {
                break;
            }
        }
    }

    fn post_all(&mut self, target: elver::RemoteAddr, begun: Instant) {
        while self.posted < self.done + WINDOW {
            assert!(begun.elapsed() < WAIT.unwrap(), "the flood is stuck");
            let place = 8 * (self.posted % WINDOW);
            self.numbers.write_u64(place, self.posted + 1).unwrap();
            let sges = [self.numbers.sge(place, 8), self.filler.sge(0, FLOOD - 8)];
            match self.vqp.post_send(&[wr(self.posted, SendOp::Write(target), &sges)]) {
                Ok(()) => self.posted += 1,
                // The ring is full: the node takes what is in it.
                Err(_) => {
                    self.vqp.session().poll().unwrap();
                }
            }
        }
    }
}

/// One thread drives the node and both sessions, so that between two calls nothing is taken from
/// anybody: what the READ brings tells exactly how many WRITEs were executed before it.
#[test]
fn a_flood_on_a_shared_dc_qp_lets_others_reads_pass() {
    let edit = |config: &mut elver::node::config::Config| {
        config.pool.dc_qps = 1;
        config.pool.sq_depth = SQ_DEPTH;
        config.qos.high_dc_qps = 0;
        config.transfer.rc_qps_max = 0;
    };
    let (meta, far) = cluster(199, edit);
    let mut own = config(199, 3);
    own.meta.servers = vec![meta.thread.registry_address().unwrap().to_string()];
    edit(&mut own);
    let node = EmbeddedNode::new(Node::embedded(own).unwrap());
    let begun = Instant::now();
    while node.with(|node| node.status().registered) == 0 {
        assert!(begun.elapsed() < WAIT.unwrap(), "it is not registered");
        node.poll();
    }
    let there = session_at(&far);
    let target = there.alloc(FLOOD.into(), ALL).unwrap();
    target.write_u64(0, 0).unwrap();
    let sessions = [0, 1].map(|_| node.session(SessionOptions::default()).unwrap());

    let mut flood = Flood::new(&sessions[0], far.gid);
    let reader = sessions[1].create_vqp(VqpOptions::default()).unwrap();
    reader.qconnect(far.gid, 0).unwrap();
    let into = sessions[1].alloc(8, ALL).unwrap();
    // Its region is looked up once.
    succeeds(&reader, wr(0, SendOp::Read(target.remote(0)), &[into.sge(0, 8)]));

    // What a round of the node's lets pass before it takes the READ, and what is on the lane then;
    // and two turns of the flood's, of which one has begun.
    let turn = TURN / (u64::from(FLOOD) + WR_BYTES) + 1;
    let bound = u64::from(SQ_DEPTH) + 2 * turn;
    let mut most = 0;
    for n in 1..=READS {
        flood.fill(target.remote(0));
        let before = target.read_u64(0).unwrap();
        succeeds(&reader, wr(n, SendOp::Read(target.remote(0)), &[into.sge(0, 8)]));
        let passed = into.read_u64(0).unwrap() - before;
        assert!(passed <= bound, "READ {n}: {passed} WRITEs went before it, {bound} may");
        // As many as that would have gone if it had to wait for what was posted before it.
        assert!(flood.posted - before > 4 * bound, "READ {n}: the flood has run dry");
        most = most.max(passed);
    }
    assert!(most > 0, "the flood and the READs share nothing");
    for vqp in [&flood.vqp, &reader] {
        let info = vqp.info().unwrap();
        let dc = matches!(info.via, Some(Via::DcCached | Via::DcLookup));
        assert!(dc && info.transfers == 0, "{info:?}");
    }
}
