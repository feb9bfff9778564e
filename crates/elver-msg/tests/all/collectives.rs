//! Every collective operation, for 1 to 8 ranks, compared with what one process computes.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{TestNode, cluster, config, together};
use elver_msg::{Element, Error, Group, Options, ops};
use elver_testkit::wait_for;

/// Elements of each rank: none, one, some, and as many as take the algorithms for many bytes.
const COUNTS: [usize; 5] = [0, 1, 13, 5_000, 20_011];

fn own(rank: u32, at: usize) -> u64 {
    (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 % 64)
        + at as u64
}

fn elements(rank: u32, count: usize) -> Vec<u64> {
    (0..count).map(|at| own(rank, at)).collect()
}

/// What one process makes of all ranks' elements.
fn folded<T: Element>(size: u32, of: impl Fn(u32) -> Vec<T>, with: impl Fn(T, T) -> T) -> Vec<T> {
    let mut all = of(0);
    for rank in 1..size {
        for (all, one) in all.iter_mut().zip(of(rank)) {
            *all = with(*all, one);
        }
    }
    all
}

fn all_of_them(group: &Group) {
    let (rank, size) = (group.rank(), group.size());
    for count in COUNTS {
        let mine = elements(rank, count);
        let gathered: Vec<u64> = (0..size).flat_map(|rank| elements(rank, count)).collect();
        assert_eq!(group.allgather(&mine).unwrap(), gathered, "allgather of {count}, {size} ranks");
        let functions: [fn(u64, u64) -> u64; 6] =
            [ops::sum, ops::product, ops::min, ops::max, ops::xor, |one, other| one | other];
        for with in functions {
            let expected = folded(size, |rank| elements(rank, count), with);
            let mut all = mine.clone();
            group.allreduce(&mut all, with).unwrap();
            assert!(all == expected, "allreduce of {count}, {size} ranks");
        }
        for root in 0..size {
            let mut told = if rank == root { elements(99, count) } else { vec![0; count] };
            group.broadcast(root, &mut told).unwrap();
            assert!(told == elements(99, count), "broadcast of {count} from {root} of {size}");
            let at_root = |what: Vec<u64>| (rank == root).then_some(what);
            assert_eq!(group.gather(root, &mine).unwrap(), at_root(gathered.clone()));
            let expected = folded(size, |rank| elements(rank, count), ops::sum);
            assert_eq!(group.reduce(root, &mine, ops::sum).unwrap(), at_root(expected));
        }
    }
    // Floats are added in one order everywhere: the ranks agree to the bit.
    let mut sums: Vec<f64> = (0..9_000).map(|at| 1.0 / f64::from(rank * 7 + at + 1)).collect();
    for count in [10, 9_000] {
        group.allreduce(&mut sums[..count], ops::sum).unwrap();
        let bits: Vec<_> = sums[..count].iter().map(|sum| sum.to_bits()).collect();
        let all = group.allgather(&bits).unwrap();
        assert!(all.chunks(count).all(|others| others == bits));
    }
}

#[test]
fn they_give_what_one_process_computes() {
    let node = TestNode::start(config(40, 1));
    for size in 1..=8 {
        together(&[&node], size, Options::default(), |group| {
            all_of_them(&group);
            group.finish().unwrap();
        });
    }
}

#[test]
fn they_run_over_two_nodes() {
    let (meta, other) = cluster(41);
    together(&[&meta, &other], 5, Options::default(), |group| {
        all_of_them(&group);
        group.finish().unwrap();
    });
}

/// Nobody leaves a barrier before all have come.
#[test]
fn a_barrier_holds_all() {
    let node = TestNode::start(config(42, 1));
    for size in 1..=8 {
        let come = AtomicU32::new(0);
        together(&[&node], size, Options::default(), |group| {
            for turn in 1..=20 {
                come.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(come.load(Ordering::SeqCst) >= turn * size);
            }
            group.finish().unwrap();
        });
        assert_eq!(come.load(Ordering::SeqCst), 20 * size);
    }
}

/// Messages of users do not meet those of operations, whatever their tags are.
#[test]
fn messages_pass_operations() {
    let node = TestNode::start(config(43, 1));
    together(&[&node], 3, Options::default(), |group| {
        let next = (group.rank() + 1) % 3;
        let any = group.irecv(elver_msg::Source::Any, elver_msg::Tag::Any, 8).unwrap();
        group.barrier().unwrap();
        let mut sum = [1_u32];
        group.allreduce(&mut sum, ops::sum).unwrap();
        assert_eq!(sum, [3]);
        assert!(!any.test().unwrap());
        group.barrier().unwrap();
        group.send(next, 0, &next.to_le_bytes()).unwrap();
        let came = any.wait().unwrap();
        assert_eq!((came.status.source + 1) % 3, group.rank());
        assert_eq!(came.bytes, group.rank().to_le_bytes());
        group.finish().unwrap();
    });
}

#[test]
fn ranks_that_call_different_ones_are_told() {
    let node = TestNode::start(config(44, 1));
    let over = AtomicU32::new(0);
    together(&[&node], 2, Options::default(), |group| {
        let told = match group.rank() {
            0 => group.barrier().unwrap_err(),
            _ => group.allreduce(&mut [1_u8; 4], ops::max).unwrap_err(),
        };
        let text = told.to_string();
        assert!(matches!(told, Error::Disagree { .. }), "{text}");
        assert!(text.contains("barrier") && text.contains("allreduce"), "{text}");
        // And those that give other numbers of elements.
        let count = group.rank() as usize + 3;
        let told = group.allgather(&vec![7_u16; count]).unwrap_err();
        assert!(matches!(told, Error::Length { operation: "allgather", .. }), "{told}");
        over.fetch_add(1, Ordering::SeqCst);
        wait_for("the other rank", || (over.load(Ordering::SeqCst) == 2).then_some(()));
    });
}

/// One's part of a ring was as long as all of the other's elements: it took the one for the other.
#[test]
fn ranks_that_reduce_so_many_elements_that_they_do_it_in_other_ways_are_told() {
    let node = TestNode::start(config(46, 1));
    let over = AtomicU32::new(0);
    together(&[&node], 2, Options::default(), |group| {
        let count = if group.rank() == 0 { 10_000 } else { 5_000 };
        let told = group.allreduce(&mut vec![1.0_f64; count], ops::sum);
        over.fetch_add(1, Ordering::SeqCst);
        assert!(matches!(told, Err(Error::Disagree { .. })), "rank {}: {told:?}", group.rank());
        wait_for("the other rank", || (over.load(Ordering::SeqCst) == 2).then_some(()));
    });
}

/// One gathered in a ring what the others gathered otherwise, and each waited for one that waited for it.
#[test]
fn all_ranks_are_told_when_some_do_not_agree() {
    let node = TestNode::start(config(47, 1));
    for size in [3, 4, 7] {
        let over = AtomicU32::new(0);
        together(&[&node], size, Options::default(), |group| {
            let other = group.rank() == size / 2;
            let told = |error: Error| {
                let is_it = matches!(
                    error,
                    Error::Disagree { .. } | Error::GaveUp { .. } | Error::Length { .. }
                );
                assert!(is_it, "{size} ranks, rank {}: {error}", group.rank());
            };
            // More of them than may be on the way: nothing is left of those before.
            for count in 0..40 {
                let count = if other { 100_000 } else { count };
                told(group.allgather(&vec![1_u8; count]).unwrap_err());
            }
            let count = if other { 20_000 } else { 10 };
            told(group.allgather(&vec![1_u8; count]).unwrap_err());
            told(group.allreduce(&mut vec![1_u32; count], ops::sum).unwrap_err());
            told(
                if other { group.barrier() } else { group.allgather(&[1_u8]).map(drop) }
                    .unwrap_err(),
            );
            over.fetch_add(1, Ordering::SeqCst);
            wait_for("the others", || (over.load(Ordering::SeqCst) == size).then_some(()));
            // And then they do agree.
            let mut sum = vec![1_u32; 30_000];
            group.allreduce(&mut sum, ops::sum).unwrap();
            assert_eq!(sum, vec![size; 30_000]);
            group.finish().unwrap();
        });
    }
}

/// Its long messages were offered, and nobody took them: the good-bye waited for that.
#[test]
fn who_met_one_that_does_not_agree_can_finish() {
    let node = TestNode::start(config(48, 1));
    for size in [3, 4] {
        together(&[&node], size, Options::default(), |group| {
            for _ in 0..20 {
                let told = match group.rank() {
                    0 => group.barrier(),
                    _ => group.allreduce(&mut vec![1_u32; 40_000], ops::sum),
                };
                told.unwrap_err();
            }
            let mut few = vec![1_u32; if group.rank() == 0 { 3_000 } else { 30_000 }];
            group.allreduce(&mut few, ops::sum).unwrap_err();
            group.finish().unwrap();
        });
    }
}
