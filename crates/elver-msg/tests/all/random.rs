//! Ranks that do as a generator says: each message is received by whom it was sent to, in order, by whatever way it
//! goes. A run prints its seed, and `SEED=…` replays what all ranks do (how they meet in time differs).

use std::collections::VecDeque;

use crate::common::{both_ways_at, cluster, content, together};
use elver_msg::{Group, Options, Region, Request, Source, Tag, ops};
use elver_random::Rng;

/// A message, as both ends know it.
#[derive(Clone, Copy, Debug)]
struct Planned {
    from: u32,
    to: u32,
    tag: u32,
    len: usize,
    id: u64,
    /// In registered memory, at its sender and at its receiver.
    from_region: bool,
    to_region: bool,
}

const LENGTHS: [usize; 8] = [0, 1, 40, 41, 4_000, 8_192, 8_193, 100_000];

/// What all ranks do between two barriers: nobody sends more to another than is held for him, so that nobody need
/// receive for others to go on.
fn plan(rng: &mut Rng, size: u32) -> Vec<Planned> {
    let messages = 1 + rng.next_u32() % 60;
    let message = |id: u32| Planned {
        from: rng.next_u32() % size,
        to: rng.next_u32() % size,
        tag: rng.next_u32() % 3,
        len: LENGTHS[rng.next_u32() as usize % LENGTHS.len()],
        id: id.into(),
        from_region: rng.next_u32().is_multiple_of(3),
        to_region: rng.next_u32().is_multiple_of(3),
    };
    (0..messages).map(message).collect()
}

fn region(group: &Group, len: usize) -> Region {
    group.alloc(len as u64).unwrap()
}

fn sends(group: &Group, message: &Planned) -> Request {
    let content = content(message.id, message.len);
    if !message.from_region {
        return group.isend(message.to, message.tag, content).unwrap();
    }
    let region = region(group, message.len);
    region.write(0, &content).unwrap();
    group.isend(message.to, message.tag, &region).unwrap()
}

fn receives(group: &Group, message: &Planned, source: Source, tag: Tag) {
    let expected = content(message.id, message.len);
    let (status, bytes) = if message.to_region {
        let into = region(group, message.len.max(1));
        let status = group.recv_region(source, tag, &into).unwrap();
        let mut bytes = vec![0; status.len as usize];
        into.read(0, &mut bytes).unwrap();
        (status, bytes)
    } else {
        group.recv_vec(source, tag).unwrap()
    };
    assert_eq!(
        (status.source, status.tag, status.len as usize),
        (message.from, message.tag, message.len)
    );
    assert!(bytes == expected, "{message:?}");
}

/// One round: all sends begin, some of them before receives and some behind; receives are by sender and tag, by
/// sender, or by tag where that is clear.
fn round(group: &Group, plan: &[Planned], rng: &mut Rng) {
    let own = group.rank();
    let mut requests: Vec<_> =
        plan.iter().filter(|message| message.from == own).map(|m| sends(group, m)).collect();
    let mut left: VecDeque<_> = plan.iter().filter(|message| message.to == own).collect();
    while !left.is_empty() {
        // Any that is left: of its sender and tag the first.
        let chosen = left[rng.next_u32() as usize % left.len()];
        let first_of = |fits: &dyn Fn(&Planned) -> bool| left.iter().position(|m| fits(m)).unwrap();
        let (at, tag) = match rng.next_u32() % 2 {
            0 => {
                let fits = |m: &Planned| m.from == chosen.from && m.tag == chosen.tag;
                (first_of(&fits), Tag::Is(chosen.tag))
            }
            _ => (first_of(&|m: &Planned| m.from == chosen.from), Tag::Any),
        };
        let message = left.remove(at).unwrap();
        receives(group, message, Source::Rank(message.from), tag);
    }
    while let Some(request) = requests.pop() {
        request.wait().unwrap();
    }
}

fn run(group: &Group, seed: u64, rounds: u32) {
    let mut rng = Rng::new(seed);
    // What only this rank decides.
    let mut own = Rng::new(seed ^ u64::from(group.rank() + 1) << 32);
    for number in 0..rounds {
        let plan = plan(&mut rng, group.size());
        round(group, &plan, &mut own);
        match rng.next_u32() % 4 {
            0 => group.barrier().unwrap(),
            1 => {
                let mut sum = vec![group.rank() + number; rng.next_u32() as usize % 40_000];
                group.allreduce(&mut sum, ops::max).unwrap();
                assert!(sum.iter().all(|one| *one == group.size() - 1 + number));
            }
            2 => {
                let root = rng.next_u32() % group.size();
                let mut told = [u64::from(group.rank() == root) * 77];
                group.broadcast(root, &mut told).unwrap();
                assert_eq!(told, [77]);
            }
            _ => {
                let all = group.allgather(&[group.rank()]).unwrap();
                assert_eq!(all, (0..group.size()).collect::<Vec<_>>());
            }
        }
    }
    assert_eq!(group.counters().requests, 0);
    // What waits may be of the others' last barrier.
    assert_eq!(group.try_probe(Source::Any, Tag::Any).unwrap(), None);
}

fn options(rng: &mut Rng) -> Options {
    let mut options = Options { ring_bytes: 4 << 10 << (rng.next_u32() % 7), ..Options::default() };
    options.limits.eager_bytes = [0, 64, 8_192][rng.next_u32() as usize % 3];
    options
}

fn seed() -> u64 {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(time, |seed| seed.parse().unwrap());
    println!("replay with SEED={seed}");
    seed
}

#[test]
fn whatever_ranks_do_messages_arrive() {
    both_ways_at(70, false, |node| {
        let seed = seed();
        let mut rng = Rng::new(seed);
        for _ in 0..6 {
            let (size, seed) = (1 + rng.next_u32() % 5, rng.next_u64());
            together(&[node], size, options(&mut rng), |group| {
                run(&group, seed, 6);
                group.finish().unwrap();
            });
        }
    });
}

#[test]
fn whatever_they_do_between_nodes_messages_arrive() {
    let (meta, other) = cluster(71);
    let seed = seed();
    let mut rng = Rng::new(seed);
    for _ in 0..4 {
        let (size, seed) = (2 + rng.next_u32() % 4, rng.next_u64());
        together(&[&meta, &other], size, options(&mut rng), |group| {
            run(&group, seed, 6);
            group.finish().unwrap();
        });
    }
}
