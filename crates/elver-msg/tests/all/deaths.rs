//! Ranks that are killed, at any time: all others hear of it, and nobody hangs.

use std::time::{Duration, Instant};

use crate::common::{PLACE, TOKEN, TestNode, config, join, session_at, together};
use elver::Session;
use elver_msg::{
    Address, Error, Group, Launched, Loss, Options, Rendezvous, Request, Source, Tag, ops,
};
use elver_random::Rng;
use elver_testkit::{Launch, Process, Role, patient, role, stay, watchful};

/// How long a rank may take to hear of a death on a busy machine: long against the second that it takes on others.
const HEARD: Duration = Duration::from_secs(60);

/// Tag of a message that nobody sends.
const NEVER: u32 = 99;

/// Not a test of its own: a rank, which does what its last word says until it is killed, or hears of a death.
#[test]
fn process_that_is_a_rank() {
    let Some(Role { socket, knows }) = role() else { return };
    let (launched, does) = launched(&knows);
    let session = Session::connect(socket).unwrap();
    let group = Group::meet(&session, &launched, Options::default()).unwrap();
    eprintln!("ready");
    let told = until_a_death(&group, &does);
    eprintln!("{told}");
    stay();
}

/// Who a process is, and what it does.
fn launched(knows: &str) -> (Launched, String) {
    let words: Vec<_> = knows.split(' ').collect();
    let [rank, size, rendezvous, token, does] = words[..] else { panic!("{knows}") };
    let token = u128::from_str_radix(token, 16).unwrap();
    let (rank, size) = (rank.parse().unwrap(), size.parse().unwrap());
    let rendezvous = rendezvous.parse().unwrap();
    (Launched { rank, size, rendezvous, token }, does.into())
}

/// Works until it fails.
fn until_a_death(group: &Group, does: &str) -> Error {
    let (next, before) = {
        let (rank, size) = (group.rank(), group.size());
        ((rank + 1) % size, (rank + size - 1) % size)
    };
    let work = || -> Result<(), Error> {
        match does {
            "barriers" => group.barrier(),
            "sums" => group.allreduce(&mut [1_u32; 3], ops::sum),
            "long-sums" => group.allreduce(&mut vec![1_u64; 30_000], ops::max),
            // Nothing comes.
            "sleeps" => group.recv(Source::Any, NEVER, &mut []).map(drop),
            "rings" => {
                let came = group.irecv(before, 1, 1 << 20)?;
                both(group, [group.isend(next, 1, vec![7; 50_000])?, came])
            }
            "regions" => {
                let (out, into) = (group.alloc(200_000)?, group.alloc(200_000)?);
                let came = group.irecv_region(before, 1, &into)?;
                both(group, [group.isend(next, 1, &out)?, came])
            }
            other => panic!("{other}"),
        }
    };
    loop {
        if let Err(error) = work() {
            return error;
        }
    }
}

/// Waits for both, whichever is over first: one may wait for somebody who has heard already.
fn both(group: &Group, requests: [Request; 2]) -> Result<(), Error> {
    let mut left = Vec::from(requests);
    while !left.is_empty() {
        let over = group.wait_any(&left)?;
        left.swap_remove(over).wait()?;
    }
    Ok(())
}

/// So many ranks, as processes at these nodes in turn.
fn start(nodes: &[&TestNode], size: u32, does: &str) -> Vec<Process> {
    let session = session_at(nodes[0]);
    let mut place = Rendezvous::bind(&session, 0, size, TOKEN).unwrap();
    let address: Address = place.address();
    let mut ranks: Vec<_> = (0..size)
        .map(|rank| {
            let knows = format!("{rank} {size} {address} {TOKEN:032x} {does}");
            let path = &nodes[rank as usize % nodes.len()].path;
            Launch::new("deaths::process_that_is_a_rank", path).knows(knows).start()
        })
        .collect();
    let began = Instant::now();
    assert!(place.run(|| began.elapsed() > HEARD).unwrap(), "{:?} did not come", place.missing());
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.says(), "ready"));
    ranks
}

/// One of them is killed at a time that a generator says; all others tell who it was.
#[test]
fn a_rank_that_is_killed_is_missed_by_all() {
    let (meta, other) = PLACE.cluster(60, patient);
    let seed = std::env::var("SEED").map_or(0x5eed, |seed| seed.parse().unwrap());
    println!("replay with SEED={seed}");
    let mut rng = Rng::new(seed);
    for does in ["barriers", "sums", "long-sums", "sleeps", "rings", "regions"] {
        // In a ring of more there are some who have nothing to do with the victim.
        let most = if ["rings", "regions"].contains(&does) { 3 } else { 5 };
        let size = 2 + rng.next_u32() % (most - 1);
        let victim = rng.next_u32() % size;
        let mut ranks = start(&[&meta, &other], size, does);
        // Work goes on meanwhile; how much of it differs from run to run.
        let spins = rng.next_u32() % 200_000;
        (0..spins).for_each(|_| std::hint::spin_loop());
        ranks.remove(victim as usize).kill();
        let killed = Instant::now();
        for rank in &mut ranks {
            let told = rank.says();
            assert!(told.starts_with(&format!("rank {victim} is gone")), "{does}: {told:?}");
        }
        println!("{does}: {size} ranks, {victim} killed, all heard after {:?}", killed.elapsed());
        ranks.into_iter().for_each(Process::ends);
    }
}

/// Of the cluster of which a host dies.
const GROUP: u8 = 61;

/// Not a test of its own: a rank whose node dies with it, as a host does.
#[test]
fn process_that_is_a_host() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = PLACE.member(GROUP, 3, watchful);
    let session = session_at(&node);
    // Nobody does it when this is killed.
    std::fs::remove_file(&node.path).unwrap();
    let launched = launched(&knows).0;
    let group = Group::meet(&session, &launched, Options::default()).unwrap();
    group.barrier().unwrap();
    eprintln!("ready");
    stay();
}

/// A rank that hears of a death, and goes on with the other one.
fn outlives_rank_2(rank: u32, node: &TestNode, launched: Launched) {
    let session = session_at(node);
    let group = Group::meet(&session, &Launched { rank, ..launched }, Options::default()).unwrap();
    // Rank 2 may be killed before all have left it.
    let met = group.barrier();
    let does = if rank == 0 { "sleeps" } else { "barriers" };
    let told = met.err().unwrap_or_else(|| until_a_death(&group, does));
    assert!(matches!(told, Error::Lost { rank: 2, loss: Loss::Gone(_) }), "{told}");
    let peer = 1 - rank;
    let theirs = group.irecv(peer, 5, 10).unwrap();
    group.send(peer, 5, b"still here").unwrap();
    assert_eq!(theirs.wait().unwrap().bytes, b"still here");
    // The other one has this rank's too.
    let theirs = group.irecv(peer, 6, 0).unwrap();
    group.send(peer, 6, b"").unwrap();
    theirs.wait().unwrap();
}

/// Nobody is there to tell of it: who waits finds out by asking now and then.
#[test]
fn a_host_that_dies_is_missed() {
    let (meta, other) = PLACE.cluster(GROUP, watchful);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let (meta, other) = (&meta, &other);
        scope.spawn(move || {
            let session = session_at(meta);
            let mut place = Rendezvous::bind(&session, 0, 3, TOKEN).unwrap();
            let rendezvous = place.address();
            let all = Launched { rank: 0, size: 3, rendezvous, token: TOKEN };
            scope.spawn(move || outlives_rank_2(0, meta, all));
            scope.spawn(move || outlives_rank_2(1, other, all));
            tell.send(rendezvous).unwrap();
            assert!(place.run(|| false).unwrap());
        });
        let rendezvous = told.recv().unwrap();
        let knows = format!("2 3 {rendezvous} {TOKEN:032x} dies");
        let process = Launch::new("deaths::process_that_is_a_host", &meta.path).knows(knows);
        let mut process = process.start();
        assert_eq!(process.says(), "ready");
        process.kill();
    });
}

/// The node of a rank ends, and another one is there in its place: the rank hears that its session is over, the other one
/// that it is gone, and both meet anew.
#[test]
fn a_node_that_starts_anew_ends_its_ranks_and_takes_new_ones() {
    let (meta, other) = PLACE.cluster(64, patient);
    let (tell, is_told) = std::sync::mpsc::channel();
    let both = [&meta, &other].map(|node| node.gid);
    let (paths, ports) = ([meta.path.clone(), other.path.clone()], [100, 101]);
    let join = |rank: u32, token: u128| {
        let session = Session::connect(&paths[rank as usize]).unwrap();
        let addresses = [0, 1].map(|at| Address { gid: both[at], port: ports[at] });
        Group::join(&session, rank, &addresses, token, Options::default()).unwrap()
    };
    let join = &join;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let group = join(1, TOKEN);
            group.send(0, 1, b"told").unwrap();
            group.recv(0, 1, &mut []).unwrap();
            tell.send(()).unwrap();
            let told = group.recv(0, NEVER, &mut []).unwrap_err();
            assert!(
                matches!(&told, Error::Session(why) if matches!(**why, elver::Error::NodeGone)),
                "{told}"
            );
        });
        let group = join(0, TOKEN);
        assert_eq!(group.recv_vec(1, Tag::Is(1)).unwrap().1, b"told");
        group.send(1, 1, b"").unwrap();
        group.flush().unwrap();
        is_told.recv().unwrap();
        drop(other);
        let told = group.recv(1, NEVER, &mut []).unwrap_err();
        assert!(matches!(told, Error::Lost { rank: 1, loss: Loss::Gone(_) }), "{told}");
    });
    let _other = PLACE.member(64, 2, patient);
    std::thread::scope(|scope| {
        scope.spawn(move || join(1, TOKEN + 1).finish().unwrap());
        join(0, TOKEN + 1).finish().unwrap();
    });
}

/// What came before a rank left is received, and what is among the others goes on.
#[test]
fn who_leaves_fails_only_what_needs_him() {
    let node = TestNode::start(config(62, 1));
    together(&[&node], 3, Options::default(), |group| match group.rank() {
        2 => {
            group.send(0, 1, b"the last").unwrap();
            group.flush().unwrap();
            drop(group);
        }
        rank => {
            let other = 1 - rank;
            let gone = |told: Error| match told {
                Error::Lost { rank: 2, loss: Loss::Left } => {}
                other => panic!("{other}"),
            };
            gone(group.recv(2, 9, &mut []).unwrap_err());
            gone(group.send(2, 1, b"too late").unwrap_err());
            gone(group.recv(Source::Any, 9, &mut []).unwrap_err());
            gone(group.barrier().unwrap_err());
            assert!(matches!(group.loss(2), Some(Loss::Left)) && group.loss(other).is_none());
            if rank == 0 {
                assert_eq!(group.recv_vec(Source::Any, Tag::Is(1)).unwrap().1, b"the last");
            }
            both(
                &group,
                [
                    group.isend(other, 3, vec![5; 100_000]).unwrap(),
                    group.irecv(other, 3, 100_000).unwrap(),
                ],
            )
            .unwrap();
        }
    });
}

/// Requests that wait for a rank end when it goes.
#[test]
fn requests_end_with_their_rank() {
    let node = TestNode::start(config(63, 1));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(&[&node], 1, 2, Options::default()).barrier().unwrap());
        let group = join(&[&node], 0, 2, Options::default());
        let sends = [
            group.isend(1, 1, vec![1; 100_000]).unwrap(),
            group.isend(1, 1, &group.alloc(100_000).unwrap()).unwrap(),
        ];
        let receives = [group.irecv(1, 1, 10).unwrap(), group.irecv(Source::Any, 1, 10).unwrap()];
        group.barrier().unwrap();
        other.join().unwrap();
        for request in sends.into_iter().chain(receives) {
            let told = request.wait().unwrap_err();
            assert!(matches!(told, Error::Lost { rank: 1, .. }), "{told}");
        }
        assert_eq!(group.counters().requests, 0);
        assert!(matches!(group.finish(), Err(Error::Lost { rank: 1, .. })));
    });
}
