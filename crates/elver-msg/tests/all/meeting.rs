//! How ranks come together, and who is not let in.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PLACE, TOKEN, TestNode, WAIT, addresses, config, session_at};
use elver::Session;
use elver_msg::{Address, Error, Group, Launched, Options, Rendezvous, Unwanted, ops};
use elver_testkit::{Launch, Role, role, stay, wait_for};

/// A rendezvous on a thread, while `ranks` run; whether all came, and how many were refused.
fn at_rendezvous(node: &TestNode, size: u32, ranks: impl FnOnce(Launched) + Send) -> (bool, u64) {
    at_watched_rendezvous(node, size, |launched, _| ranks(launched))
}

/// As [`at_rendezvous`]; `ranks` are given where it is seen how many are missing.
fn at_watched_rendezvous(
    node: &TestNode,
    size: u32,
    ranks: impl FnOnce(Launched, &AtomicUsize) + Send,
) -> (bool, u64) {
    let (tell, told) = std::sync::mpsc::channel();
    let missing = &AtomicUsize::new(size as usize);
    std::thread::scope(|scope| {
        let ranks = scope.spawn(move || {
            let rendezvous = told.recv().unwrap();
            ranks(Launched { rank: 0, size, rendezvous, token: TOKEN }, missing);
        });
        let session = session_at(node);
        let mut place = Rendezvous::bind(&session, 0, size, TOKEN).unwrap();
        assert_eq!(place.missing().len(), size as usize);
        tell.send(place.address()).unwrap();
        let came = loop {
            if place.run(|| true).unwrap() {
                break true;
            }
            missing.store(place.missing().len(), Ordering::Relaxed);
            if ranks.is_finished() {
                break false;
            }
            std::thread::yield_now();
        };
        // Until they have read it.
        ranks.join().unwrap();
        (came, place.refused())
    })
}

#[test]
fn ranks_at_several_nodes_meet() {
    let (meta, other) = PLACE.cluster(50, |_| ());
    let (came, refused) = at_rendezvous(&meta, 5, |launched| {
        std::thread::scope(|scope| {
            for rank in 0..5 {
                let node = [&meta, &other][rank as usize % 2];
                scope.spawn(move || {
                    let session = session_at(node);
                    let launched = Launched { rank, ..launched };
                    let group = Group::meet(&session, &launched, Options::default()).unwrap();
                    let mut sum = [rank];
                    group.allreduce(&mut sum, ops::sum).unwrap();
                    assert_eq!(sum, [10]);
                    group.finish().unwrap();
                });
            }
        });
    });
    assert_eq!((came, refused), (true, 0));
}

#[test]
fn strangers_are_refused_at_the_rendezvous() {
    let node = TestNode::start(config(51, 1));
    let (came, refused) = at_watched_rendezvous(&node, 2, |launched, missing| {
        let session = session_at(&node);
        let refused =
            |launched: Launched| match Group::meet(&session, &launched, Options::default())
                .unwrap_err()
            {
                Error::Unwanted { who, why } if who.contains("rendezvous") => why,
                other => panic!("{other}"),
            };
        assert_eq!(refused(Launched { token: TOKEN + 1, ..launched }), Unwanted::Group);
        assert_eq!(refused(Launched { size: 3, ..launched }), Unwanted::Size);
        assert_eq!(refused(Launched { rank: 2, ..launched }), Unwanted::Rank);
        // Bytes that are nothing.
        let elver_msg::Address { gid, port } = launched.rendezvous;
        let options = elver_ring::Options {
            application: u64::from_le_bytes(*b"meet msg"),
            ..elver_ring::Options::default()
        };
        let mut ends = elver_ring::connect(&session, gid, port, options, WAIT).unwrap();
        ends.sender.send(b"nonsense", WAIT).unwrap();
        ends.sender.flush().unwrap();
        let answer = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
        assert_eq!(answer[6], Unwanted::Nonsense as u8);
        // Of two with one rank the second.
        std::thread::scope(|scope| {
            let node = &node;
            let first = scope.spawn(move || meets(node, launched));
            wait_for("the first to come", || (missing.load(Ordering::Relaxed) == 1).then_some(()));
            assert_eq!(refused(launched), Unwanted::Rank);
            meets(node, Launched { rank: 1, ..launched });
            first.join().unwrap();
        });
    });
    assert_eq!((came, refused), (true, 5));
}

/// A rank of a group that comes together.
fn meets(node: &TestNode, launched: Launched) {
    let session = session_at(node);
    let group = Group::meet(&session, &launched, Options::default()).unwrap();
    group.barrier().unwrap();
    group.finish().unwrap();
}

#[test]
fn who_waits_in_vain_says_where() {
    let node = TestNode::start(config(54, 1));
    let (came, refused) = at_rendezvous(&node, 2, |launched| {
        let session = session_at(&node);
        let options = Options { join: Duration::from_secs(1), ..Options::default() };
        let late = Group::meet(&session, &launched, options).unwrap_err().to_string();
        assert!(late.contains("rendezvous") && late.contains("come together"), "{late}");
    });
    assert_eq!((came, refused), (false, 0));
}

/// Who connects and says nothing takes nobody's place, however many they are.
#[test]
fn silent_strangers_keep_nobody_out() {
    let node = TestNode::start(config(57, 1));
    let (came, _) = at_rendezvous(&node, 2, |launched| {
        let session = session_at(&node);
        let elver_msg::Address { gid, port } = launched.rendezvous;
        let options = elver_ring::Options {
            application: u64::from_le_bytes(*b"meet msg"),
            ..elver_ring::Options::default()
        };
        let silent: Vec<_> = (0..40)
            .map(|_| elver_ring::connect(&session, gid, port, options, WAIT).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let node = &node;
                scope.spawn(move || meets(node, Launched { rank, ..launched }));
            }
        });
        drop(silent);
    });
    assert!(came);
}

#[test]
fn who_does_not_come_is_named() {
    let node = TestNode::start(config(52, 1));
    let session = session_at(&node);
    let options = Options { join: Duration::from_secs(3), ..Options::default() };
    let addresses = addresses(&[&node], 4);
    let told = Group::join(&session, 1, &addresses, TOKEN, options).unwrap_err();
    let text = told.to_string();
    assert!(text.contains("3 ranks are missing: 0, 2, 3") && text.contains("rank 0 at"), "{text}");
    assert!(matches!(told, Error::Join { .. }));
    let told = Group::join(&session, 4, &addresses, TOKEN, options).unwrap_err();
    assert!(matches!(told, Error::Rank { rank: 4, size: 4 }), "{told}");
}

/// A rank of another group, and one that counts otherwise: each is told, and the group comes together all the same.
#[test]
fn ranks_of_other_groups_are_refused() {
    let node = TestNode::start(config(53, 1));
    let ranks = addresses(&[&node], 2);
    std::thread::scope(|scope| {
        let lower = scope.spawn(|| {
            let session = session_at(&node);
            Group::join(&session, 0, &ranks, TOKEN, Options::default()).unwrap().finish().unwrap();
        });
        let session = session_at(&node);
        let mut elsewhere = ranks.clone();
        elsewhere[1].port = 0;
        let refused = |addresses: &[_], token| match Group::join(
            &session,
            1,
            addresses,
            token,
            Options::default(),
        )
        .unwrap_err()
        {
            Error::Unwanted { who, why } if who == "rank 0" => why,
            other => panic!("{other}"),
        };
        assert_eq!(refused(&elsewhere, TOKEN + 1), Unwanted::Group);
        let more = [ranks[0], elsewhere[1], ranks[1]];
        let other = Group::join(&session, 1, &more, TOKEN, Options::default()).unwrap_err();
        assert!(matches!(other, Error::Unwanted { why: Unwanted::Size, .. }), "{other}");
        Group::join(&session, 1, &ranks, TOKEN, Options::default()).unwrap().finish().unwrap();
        lower.join().unwrap();
    });
}

#[test]
fn a_process_that_nobody_launched_is_told() {
    let told = Group::from_env().unwrap_err();
    assert!(matches!(told, Error::NotLaunched { .. }), "{told}");
}

/// Strangers of the next test.
const SILENT: u32 = 40;
/// The cluster of that.
const HALTING: u8 = 201;

/// Not a test of its own: strangers at a node that halts with them, so that nothing of theirs is acknowledged.
#[test]
fn process_that_is_silent() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = PLACE.member(HALTING, 3, |_| ());
    let session = Session::connect(&node.path).unwrap();
    // Nobody does it when this is killed.
    std::fs::remove_file(&node.path).unwrap();
    let Address { gid, port } = knows.parse().unwrap();
    let options = elver_ring::Options {
        application: u64::from_le_bytes(*b"meet msg"),
        ..elver_ring::Options::default()
    };
    let connect = |_| elver_ring::connect(&session, gid, port, options, WAIT).unwrap();
    let _silent: Vec<_> = (0..SILENT).map(connect).collect();
    eprintln!("ready");
    stay();
}

/// A rendezvous that is given up waits for none of those who let nothing through, of whom there may be many.
#[test]
fn who_lets_nothing_through_is_not_waited_for() {
    // It takes longer than the strangers together to take their node for dead.
    let (meta, _other) = PLACE.cluster(HALTING, |config| config.pool.timeout = 19);
    let session = session_at(&meta);
    let mut place = Rendezvous::bind(&session, 0, 2, TOKEN).unwrap();
    let launch = Launch::new("meeting::process_that_is_silent", &meta.path);
    let mut process = launch.knows(place.address()).start();
    let is_ready = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        let said = scope.spawn(|| {
            let said = process.says();
            is_ready.store(true, Ordering::Relaxed);
            said
        });
        assert!(!place.run(|| is_ready.load(Ordering::Relaxed)).unwrap());
        said.join().unwrap()
    });
    assert_eq!(said, "ready");
    process.stop();
    let began = Instant::now();
    drop(place);
    let took = began.elapsed();
    // It took a second for each, until their node counted as dead.
    assert!(took < Duration::from_secs(30), "{took:?}");
}
