//! Nodes inside of the process: driven by the calls themselves, or by a thread of their own.

use elver::node::Node;
use elver::{EmbeddedNode, Error, SendOp, Session, SessionOptions, VqpOptions, Wc};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::common::{ALL, config, succeeds, wr};

#[test]
fn one_thread_drives_the_node_and_uses_it() {
    let node = EmbeddedNode::new(Node::embedded(config(170, 1)).unwrap());
    let here = node.session(SessionOptions::default()).unwrap();
    let there = node.session(SessionOptions::default()).unwrap();
    let (local, remote) = (here.alloc(4096, ALL).unwrap(), there.alloc(4096, ALL).unwrap());
    remote.write(0, b"in the same process").unwrap();
    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(here.gid(), 0).unwrap();
    for id in 0..1000 {
        succeeds(&vqp, wr(id, SendOp::Read(remote.remote(0)), &[local.sge(0, 19)]));
    }
    let mut bytes = [0; 19];
    local.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in the same process");
    assert_eq!(node.with(|node| node.status().sessions.len()), 2);
    drop((remote, there));
    while node.with(|node| node.status().sessions.len()) > 1 {
        node.poll();
    }
}

#[test]
fn a_wait_that_nothing_ends_times_out() {
    let session = Session::embedded(config(171, 1)).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let at_most = std::time::Duration::from_millis(5);
    let waited = vqp.wait_cq(&mut [Wc::default()], Some(at_most));
    assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
}

/// The processor's time that this thread has had, in nanoseconds.
fn own_time() -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    tv_sec * 1_000_000_000 + tv_nsec
}

/// What a round of the node costs does not grow with VQPs, nor with sessions that do nothing.
#[test]
fn idle_vqps_and_sessions_cost_a_round_nothing() {
    let mut config = config(177, 1);
    config.engine.session_idle_us = 1;
    let node = EmbeddedNode::new(Node::embedded(config).unwrap());
    let session = node.session(SessionOptions::default()).unwrap();
    let mr = session.alloc(64, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(session.gid(), 0).unwrap();
    // By the processor's time of this thread, which drives the node, too; the best of some.
    let cost = || {
        let round = || {
            let begun = own_time();
            for id in 0..500 {
                succeeds(&vqp, wr(id, SendOp::Read(mr.remote(0)), &[mr.sge(8, 8)]));
            }
            own_time() - begun
        };
        (0..20).map(|_| round()).min().unwrap()
    };
    let alone = cost();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        let session = node.session(SessionOptions::default()).unwrap();
        let vqps: Vec<_> = (0..40)
            .map(|_| {
                let vqp = session.create_vqp(VqpOptions::default()).unwrap();
                vqp.qconnect(session.gid(), 0).unwrap();
                vqp
            })
            .collect();
        crowd.push((session, vqps));
    }
    let active = || {
        let sessions = node.with(|node| node.status().sessions);
        sessions.iter().filter(|session| session.active).count()
    };
    let begun = std::time::Instant::now();
    while active() > 1 {
        node.poll();
        assert!(begun.elapsed().as_secs() < 30, "{} sessions do not rest", active());
    }
    // A thousandfold of VQPs, a hundredfold of sessions.
    let among = cost();
    assert!(among < 8 * alone, "{alone} ns alone, and {among} among 4,000 VQPs");
}

#[test]
fn a_node_on_a_thread_serves_its_process() {
    let thread = Node::embedded(config(172, 1)).unwrap().spawn().unwrap();
    let open = || Session::over(thread.connect().unwrap(), SessionOptions::default()).unwrap();
    let session = open();
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(session.gid(), 0).unwrap();
    succeeds(&vqp, wr(1, SendOp::Write(mr.remote(100)), &[mr.sge(0, 50)]));
    thread.stop().unwrap();
    let gone = vqp.wait_cq(&mut [Wc::default()], None);
    assert!(matches!(gone, Err(Error::NodeGone)), "{gone:?}");
}
