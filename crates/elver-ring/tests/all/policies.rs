//! What carries rings: the node's shared queue pairs, or one of their own, at either end.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{
    NodeConfig, PLACE, TestNode, WAIT, both_ways_at, config, content, pair_of, session_at,
};
use elver::tokio::AsyncSession;
use elver::{Policy, Session, Via};
use elver_ring::{Ends, Error, Listener, ListenerOptions, Options, Refusal, connect};
use elver_testkit::PATIENCE;

const POLICIES: [Policy; 4] = [Policy::Shared, Policy::Lite, Policy::RpcMeta, Policy::Leased];
const ROUNDS: u64 = 200;
/// Messages in each of them: more than a ring has room for in all.
const BURST: u64 = 20;

fn send(ends: &mut Ends, round: u64) {
    for number in 0..BURST {
        let id = round * BURST + number;
        ends.sender.send(&content(id, (id % 90) as usize), WAIT).unwrap();
    }
    ends.sender.flush().unwrap();
}

fn receive(ends: &mut Ends, round: u64) {
    for number in 0..BURST {
        let id = round * BURST + number;
        let message = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
        assert_eq!(message, content(id, (id % 90) as usize), "message {id}");
    }
}

/// Bursts there and back, until an end is backed as is wanted, and then to the end; how it is backed.
fn turns(ends: &mut Ends, asks: bool) -> Option<Via> {
    for round in 0..ROUNDS {
        if asks {
            send(ends, round);
        }
        receive(ends, round);
        if !asks {
            send(ends, round);
        }
    }
    // Each waits until the other has looked.
    let via = ends.sender.carrier().vqp().info().unwrap().via;
    let counters = ends.sender.carrier().counters();
    assert!(counters.peer_naps == 0 || counters.wakings > 0, "{counters:?}");
    ends.sender.finish(WAIT).unwrap();
    assert!(ends.receiver.recv(WAIT).unwrap().is_none());
    via
}

/// What backs the ends of who connects and of who listens, of each by its policy.
fn backed(nodes: (&TestNode, &TestNode), policies: (Policy, Policy)) -> [Option<Via>; 2] {
    // They sleep at once, so that they are woken by whatever wakes them.
    let spin = Duration::ZERO;
    let here = Options { policy: policies.0, spin, ..Options::default() };
    let there = ListenerOptions { policy: policies.1, spin, ..ListenerOptions::default() };
    let (tell, told) = mpsc::channel();
    let mut via = None;
    let connects = |_: Session, mut ends: Ends| via = turns(&mut ends, true);
    pair_of(
        nodes,
        (there, here),
        move |_, mut ends| tell.send(turns(&mut ends, false)).unwrap(),
        connects,
    );
    [via, told.recv().unwrap()]
}

/// Whether a policy leads to what it is for.
fn fits(policy: Policy, via: Option<Via>) -> bool {
    match policy {
        Policy::Leased => via == Some(Via::Leased),
        Policy::Lite => via == Some(Via::Rc),
        Policy::RpcMeta | Policy::Shared => {
            matches!(via, Some(Via::Rc | Via::DcCached | Via::DcLookup))
        }
    }
}

#[test]
fn rings_go_by_each_policy_at_each_end_between_two_nodes() {
    let (one, other) = PLACE.cluster(70, |_| ());
    for here in POLICIES {
        for there in [Policy::Shared, here] {
            let via = backed((&one, &other), (here, there));
            assert!(fits(here, via[0]) && fits(there, via[1]), "{here:?} {there:?}: {via:?}");
        }
    }
    let via = backed((&one, &other), (Policy::Shared, Policy::Leased));
    assert!(fits(Policy::Shared, via[0]) && fits(Policy::Leased, via[1]), "{via:?}");
}

#[test]
fn rings_go_by_each_policy_at_both_ends_on_one_host() {
    both_ways_at(71, true, |node| {
        for policy in POLICIES {
            let via = backed((node, node), (policy, policy));
            assert!(via.iter().all(|via| fits(policy, *via)), "{policy:?}: {via:?}");
        }
    });
}

/// A node without RC QPs has rings on DC alone, and one whose peers are hot at once moves them to RC.
#[test]
fn shared_rings_go_over_dc_and_move_to_rc_where_their_peer_is_hot() {
    let cluster = |group, edit: fn(&mut NodeConfig)| PLACE.cluster(group, edit);
    let shared = (Policy::Shared, Policy::Shared);
    let (one, other) = cluster(72, |config| config.transfer.rc_qps_max = 0);
    for via in backed((&one, &other), shared) {
        assert!(matches!(via, Some(Via::DcCached | Via::DcLookup)), "{via:?}");
    }
    for node in [&one, &other] {
        let core = node.thread.status().unwrap().core;
        assert_eq!((core["links_made"], core["transfers_to_rc"]), (0, 0));
    }
    let (one, other) = cluster(73, |config| config.transfer.hot_ops = 16);
    assert_eq!(backed((&one, &other), shared), [Some(Via::Rc); 2]);
    let moved = |node: &TestNode| node.thread.status().unwrap().core["transfers_to_rc"];
    assert!(moved(&one) + moved(&other) > 0);
}

/// Only so many as one leased ring's end may have under way.
fn few_leases(config: &mut NodeConfig) {
    config.transfer.leased_wrs_max = 150;
}

fn connects(session: &Session, to: &TestNode, port: u16, policy: Policy) -> Result<Ends, Error> {
    connect(session, to.gid, port, Options { policy, ..Options::default() }, WAIT)
}

/// Accepts pairs until it is told to end, and tells what it has seen.
fn serves(node: &TestNode, policy: Policy, calls: impl FnOnce(&TestNode, u16)) -> [u64; 2] {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let session = session_at(node);
            let options = ListenerOptions { policy, ..ListenerOptions::default() };
            let listener = Listener::bind(&session, 0, options).unwrap();
            tell.send(listener.port()).unwrap();
            let mut pairs = Vec::new();
            while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                match listener.accept(Some(Duration::from_millis(5))) {
                    Ok(ends) => pairs.push(ends),
                    Err(Error::TimedOut) => {}
                    Err(error) => panic!("{error}"),
                }
                // Who has gone leaves its lease.
                pairs.retain_mut(|ends: &mut Ends| {
                    while let Ok(Some(_)) = ends.receiver.try_recv() {}
                    !ends.receiver.is_ended() && ends.sender.poll().is_ok()
                });
            }
            let counters = listener.counters();
            [counters.accepted, counters.refused]
        });
        calls(node, told.recv().unwrap());
        drop(end);
        server.join().unwrap()
    })
}

/// Who gets no lease at its own node is told what there is too little of, and what else it can do: a ring by another
/// policy, or one by the same when another has gone.
#[test]
fn a_lease_that_is_refused_is_told_to_who_connects() {
    let (one, other) = PLACE.cluster(74, |_| ());
    let third = PLACE.member(74, 3, few_leases);
    drop(other);
    let [accepted, refused] = serves(&one, Policy::Shared, |one, port| {
        let session = session_at(&third);
        let first = connects(&session, one, port, Policy::Leased).unwrap();
        let error = connects(&session, one, port, Policy::Leased).unwrap_err();
        assert!(matches!(error, Error::NoQueuePair { policy: Policy::Leased, .. }), "{error}");
        for part in ["send WRs here", "raise `transfer.leased_wrs_max`", "Policy::Shared"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let mut shared = connects(&session, one, port, Policy::Shared).unwrap();
        shared.sender.send(b"by a shared one", WAIT).unwrap();
        shared.sender.finish(WAIT).unwrap();
        drop(first);
        // What is being given back is waited for.
        let mut next = connects(&session, one, port, Policy::Leased).unwrap();
        assert_eq!(next.sender.carrier().vqp().info().unwrap().via, Some(Via::Leased));
        next.sender.send(b"by its own", WAIT).unwrap();
        next.sender.finish(WAIT).unwrap();
    });
    assert_eq!([accepted, refused], [3, 0]);
}

/// A listener that gets no lease says so to who connects, and takes others when it has one.
#[test]
fn a_lease_that_is_refused_to_the_listener_is_told_to_who_connects() {
    let (meta, _other) = PLACE.cluster(75, |_| ());
    let third = PLACE.member(75, 3, few_leases);
    let [accepted, refused] = serves(&third, Policy::Leased, |third, port| {
        let session = session_at(&meta);
        let mut first = connects(&session, third, port, Policy::Shared).unwrap();
        let error = connects(&session, third, port, Policy::Shared).unwrap_err();
        let reason = Refusal::Connection;
        assert!(matches!(error, Error::Refused { reason: why } if why == reason), "{error}");
        assert!(error.to_string().contains("`transfer.leased_wrs_max`"), "{error}");
        first.sender.send(b"the first", WAIT).unwrap();
        first.sender.finish(WAIT).unwrap();
        // The listener hears of the end, and gives the lease back.
        assert!(!matches!(first.receiver.recv(WAIT), Ok(Some(_))), "nothing was sent");
        drop(first);
        connects(&session, third, port, Policy::Shared).unwrap();
    });
    assert_eq!([accepted, refused], [2, 1]);
}

/// What the node tells of the VQP that wakes is taken with the rings': else no wait of its session would ever sleep.
#[test]
fn a_listener_s_end_takes_what_both_of_its_vqps_have() {
    let node = TestNode::start(config(76, 1));
    let taken = ListenerOptions { policy: Policy::Leased, ..ListenerOptions::default() };
    let (tell, told) = mpsc::channel();
    let listens = move |_, mut ends: Ends| {
        let session = ends.sender.carrier().vqp().session().clone();
        // The greeting's completion.
        assert_eq!(session.wait_ready(WAIT).unwrap().len(), 1);
        ends.sender.poll().unwrap();
        assert!(session.poll_ready().unwrap().is_empty());
        drop(tell);
    };
    pair_of((&node, &node), (taken, Options::default()), listens, move |_, _ends| {
        let _: Result<(), _> = told.recv();
    });
}

/// Two who connect are accepted in a task, each when its lease is there.
#[test]
fn leased_pairs_are_accepted_in_tasks() {
    let (one, other) = PLACE.cluster(77, |_| ());
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = session_at(&one);
                let options =
                    ListenerOptions { policy: Policy::Leased, ..ListenerOptions::default() };
                let listener = Listener::bind(&session, 0, options).unwrap();
                tell.send(listener.port()).unwrap();
                let session = AsyncSession::new(session).unwrap();
                for _ in 0..2 {
                    let accepted = tokio::time::timeout(PATIENCE, listener.accept_async(&session));
                    let mut ends = accepted.await.expect("a pair in time").unwrap();
                    let said = ends.recv_async(&session).await.unwrap().unwrap().to_vec();
                    ends.sender.send(&said, WAIT).unwrap();
                    ends.sender.flush().unwrap();
                    assert!(ends.recv_async(&session).await.unwrap().is_none());
                }
            });
        });
        let port = told.recv().unwrap();
        let session = session_at(&other);
        for policy in [Policy::Leased, Policy::Shared] {
            let mut ends = connects(&session, &one, port, policy).unwrap();
            ends.sender.send(b"said", WAIT).unwrap();
            ends.sender.flush().unwrap();
            assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"said");
            ends.sender.finish(WAIT).unwrap();
        }
    });
}

/// More pairs of one node than are answered at a time, and one of another: those that wait have their turn.
#[test]
fn a_crowd_of_one_node_is_accepted_in_turns() {
    const CROWD: usize = 30;
    let (one, other) = PLACE.cluster(78, |_| ());
    let third = PLACE.member(78, 3, |_| ());
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&one);
            let options = ListenerOptions { policy: Policy::Lite, ..ListenerOptions::default() };
            let listener = Listener::bind(&session, 0, options).unwrap();
            tell.send(listener.port()).unwrap();
            let mut pairs: Vec<Ends> =
                (0..=CROWD).map(|_| listener.accept(WAIT).unwrap()).collect();
            assert!(!listener.is_answering());
            for ends in &mut pairs {
                assert!(ends.receiver.recv(WAIT).unwrap().is_none());
            }
        });
        let port = told.recv().unwrap();
        let (crowd, alone) = (session_at(&other), session_at(&third));
        let start = |session: &Session| {
            elver_ring::Connecting::start(session, one.gid, port, Options::default()).unwrap()
        };
        let under_way: Vec<_> = (0..CROWD).map(|_| start(&crowd)).collect();
        let alone = start(&alone);
        for connecting in under_way.into_iter().chain([alone]) {
            connecting.wait(WAIT).unwrap().sender.finish(WAIT).unwrap();
        }
    });
}
