//! What VQPs share: priorities, and queue pairs that they move between while they are used.

use std::time::{Duration, Instant};

use elver::{Class, PostFailed, SendOp, Via, VqpOptions, Wc, WcStatus};

use crate::common::{ALL, TestNode, WAIT, cluster, session_at, succeeds, wr};

/// Bytes of a WR of the flood.
const FLOOD: u32 = 64 << 10;

#[test]
fn low_priority_keeps_to_its_rate_while_high_priority_is_used() {
    let (meta, node) = cluster(178, |config| {
        // A WR in minutes.
        config.qos.low_bytes_per_s = 1_000;
        // Longer than any pause of this test's own, and loaded however little it reads in it.
        config.qos.load_window_us = 1_000_000;
        config.qos.load_percent = 0;
    });
    let (here, there) = (session_at(&node), session_at(&meta));
    let (source, target) = (here.alloc(1 << 20, ALL).unwrap(), there.alloc(1 << 20, ALL).unwrap());
    let vqp = |class| {
        let vqp =
            here.create_vqp(VqpOptions { class: Some(class), ..VqpOptions::default() }).unwrap();
        vqp.qconnect(meta.gid, 0).unwrap();
        vqp
    };
    let (high, low) = (vqp(Class::High), vqp(Class::Low));
    let sges = [source.sge(0, FLOOD)];
    let mut outstanding = 0u32;
    let mut flood = || {
        while outstanding < 8 {
            let write = wr(1, SendOp::Write(target.remote(0)), &sges);
            low.post_send(&[write]).unwrap();
            outstanding += 1;
        }
        let mut wcs = [Wc::default(); 8];
        let done = low.poll_cq(&mut wcs).unwrap();
        assert!(wcs[..done].iter().all(|wc| wc.status == WcStatus::Success));
        outstanding -= done as u32;
        done as u64 * u64::from(FLOOD)
    };
    // Alone it is not held.
    let begun = Instant::now();
    let mut alone = 0;
    while alone < 64 << 20 {
        alone += flood();
        assert!(begun.elapsed() < WAIT.unwrap(), "{alone} bytes");
    }
    // Where this thread had no core for that long between two READs, the high class was not used meanwhile.
    let begun = Instant::now();
    let beside = loop {
        assert!(begun.elapsed() < WAIT.unwrap(), "never 1,000 READs without a pause");
        let (mut beside, mut last, mut pause) = (0, Instant::now(), Duration::ZERO);
        for id in 0..1_000 {
            beside += flood();
            let read = SendOp::Read(target.remote(0));
            succeeds(&high, wr(id, read, &[source.sge(FLOOD.into(), 8)]));
            pause = pause.max(last.elapsed());
            last = Instant::now();
        }
        if pause < Duration::from_millis(400) {
            break beside;
        }
    };
    // What was on its way when the first READ was posted, what was posted before that, and one in debt.
    assert!(beside <= 17 * u64::from(FLOOD), "{beside} bytes beside 1,000 READs");
    assert!(node.thread.status().unwrap().core["low_held"] > 0);
    // Once the high class is silent, the low one goes on.
    let begun = Instant::now();
    let mut after = 0;
    while after < 64 << 20 {
        after += flood();
        assert!(begun.elapsed() < WAIT.unwrap(), "{after} bytes");
    }
}

#[test]
fn a_vqp_moves_to_rc_and_back_under_load_and_the_status_shows_it() {
    let (meta, node) = cluster(179, |config| {
        config.transfer.rc_qps_max = 1;
        config.transfer.hot_ops = 200;
        config.transfer.window_ms = 5;
        config.transfer.idle_ms = 1;
    });
    // Two more, of which neither is the meta server: to that one there are RC QPs for look-ups. For
    // the second the one RC QP is taken back from the first.
    let others = [3, 4].map(|host| {
        let mut other = crate::common::config(179, host);
        other.meta.servers = vec![meta.thread.registry_address().unwrap().to_string()];
        let other = TestNode::start(other);
        let begun = Instant::now();
        while other.thread.status().unwrap().registered == 0 {
            assert!(begun.elapsed() < WAIT.unwrap(), "it is not registered");
            std::thread::yield_now();
        }
        other
    });
    let sessions = [session_at(&others[0]), session_at(&others[1])];
    let here = session_at(&node);
    let local = here.alloc(1 << 16, ALL).unwrap();
    let load = |session: &elver::Session, gid, place| {
        let target = session.alloc(64, ALL).unwrap();
        target.write_u64(0, 0).unwrap();
        let vqp = here.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(gid, 0).unwrap();
        Load { vqp, target, place, posted: 0, done: 0 }
    };
    let mut first = load(&sessions[0], others[0].gid, 0);
    first.until(&local, &node, |via| via == "rc");
    assert_eq!(first.vqp.info().unwrap().via, Some(Via::Rc));
    // Another becomes hot, and the first is not used meanwhile.
    let mut second = load(&sessions[1], others[1].gid, 1 << 15);
    second.until(&local, &node, |via| via == "rc");
    let begun = Instant::now();
    while first.via(&node) == "rc" {
        assert!(begun.elapsed() < WAIT.unwrap(), "it is not moved back");
        second.step(&local);
    }
    for _ in 0..100 {
        first.step(&local);
    }
    first.finish(&local);
    second.finish(&local);
    let moves = |load: &Load| load.vqp.info().unwrap().transfers;
    assert!(
        moves(&first) >= 2 && moves(&second) >= 1,
        "{:?} and {:?}",
        first.vqp.info(),
        second.vqp.info()
    );
    let status = node.thread.status().unwrap();
    let shown: u32 = status.vqps.iter().map(|vqp| vqp.transfers).sum();
    let counted = ["transfers_to_rc", "transfers_to_dc"].map(|name| status.core[name]);
    assert!(shown >= 3 && counted.iter().all(|count| *count > 0), "{status:?}");
}

/// A VQP that fetches and adds without end, each WR from what the one before left.
struct Load {
    vqp: elver::Vqp,
    target: elver::Mr,
    place: u64,
    posted: u64,
    done: u64,
}

impl Load {
    /// Where a WR fetches to: many more than can be outstanding.
    fn at(&self, wr_id: u64) -> u64 {
        self.place + wr_id % 4_096 * 8
    }

    fn step(&mut self, local: &elver::Mr) {
        let at = self.at(self.posted);
        let sges = [local.sge(at, 8)];
        let add = SendOp::FetchAdd { remote: self.target.remote(0), add: 1 };
        match self.vqp.post_send(&[wr(self.posted, add, &sges)]) {
            Ok(()) => self.posted += 1,
            Err(PostFailed { posted: 0, error: elver::Error::QueueFull { .. } }) => {}
            Err(failed) => panic!("{failed}"),
        }
        let mut wcs = [Wc::default(); 32];
        let count = self.vqp.poll_cq(&mut wcs).unwrap();
        self.take(&wcs[..count], local);
    }

    fn take(&mut self, wcs: &[Wc], local: &elver::Mr) {
        for wc in wcs {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, self.done));
            // Each saw what all before it did, and nothing else.
            assert_eq!(local.read_u64(self.at(self.done)).unwrap(), self.done);
            self.done += 1;
        }
    }

    fn via(&self, node: &TestNode) -> String {
        let status = node.thread.status().unwrap();
        let own = status.vqps.iter().find(|vqp| vqp.vqp == self.vqp.id()).unwrap();
        own.via.clone().unwrap()
    }

    /// Goes on until the status shows that.
    fn until(&mut self, local: &elver::Mr, node: &TestNode, done: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !done(&self.via(node)) {
            assert!(begun.elapsed() < WAIT.unwrap(), "{:?}", self.vqp.info());
            for _ in 0..200 {
                self.step(local);
            }
        }
        self.finish(local);
    }

    fn finish(&mut self, local: &elver::Mr) {
        let mut wcs = [Wc::default(); 32];
        while self.done < self.posted {
            let count = self.vqp.wait_cq(&mut wcs, WAIT).unwrap();
            self.take(&wcs[..count], local);
        }
        assert_eq!(self.target.read_u64(0).unwrap(), self.posted);
    }
}
