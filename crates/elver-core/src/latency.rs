//! How long send WRs take, from the call that posts them until they are done in their turn: of a sample, since a look at
//! each would cost more than it tells.
//!
//! One WR is followed at a time, the next one at least [`PERIOD`] WRs later, so that those that take long are not rarer
//! in the sample than they are.

use alloc::vec::Vec;

use elver_verbs::{SendOpcode, Time};

use crate::VqpId;
use crate::vqp::seq::SendSeq;

/// WRs for one that is followed, at least.
const PERIOD: u32 = 512;
/// Parts of each doubling that a histogram tells apart.
const PARTS: u64 = 8;
/// Doublings of a nanosecond up to more than a minute.
const DOUBLINGS: u64 = 36;
const BUCKETS: usize = (PARTS * (DOUBLINGS - 2)) as usize;

/// What a WR does, as far as it changes how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrKind {
    /// A SEND, of any kind.
    Send,
    /// An RDMA WRITE, with immediate data or without.
    Write,
    /// An RDMA READ.
    Read,
    /// A compare-and-swap or a fetch-and-add.
    Atomic,
}

impl WrKind {
    /// All of them.
    pub const ALL: [WrKind; 4] = [WrKind::Send, WrKind::Write, WrKind::Read, WrKind::Atomic];

    /// Its name: `send`, `write`, `read` or `atomic`.
    pub fn name(self) -> &'static str {
        match self {
            WrKind::Send => "send",
            WrKind::Write => "write",
            WrKind::Read => "read",
            WrKind::Atomic => "atomic",
        }
    }

    /// None of what never leaves the queue pair.
    fn of(opcode: SendOpcode) -> Option<WrKind> {
        match opcode {
            SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => {
                Some(WrKind::Send)
            }
            SendOpcode::Write | SendOpcode::WriteWithImm => Some(WrKind::Write),
            SendOpcode::Read => Some(WrKind::Read),
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => Some(WrKind::Atomic),
            SendOpcode::BindMw | SendOpcode::LocalInv => None,
        }
    }
}

/// How many took how long: each doubling in eight parts, so that a time is known to an eighth of itself.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: alloc::vec![0; BUCKETS], count: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time in nanoseconds that so many of a thousand took at most, rounded up to where its part ends; 0 if there are
    /// none.
    pub fn at_most_ns(&self, per_mille: u32) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1_000) as u64;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted && seen > 0
        });
        found.map_or(0, |found| end_of(found).min(self.max_ns))
    }
}

/// The part that a time lies in. Those below [`PARTS`] have one each.
fn bucket(ns: u64) -> usize {
    let part = match ns {
        0..PARTS => ns,
        _ => {
            let doubling = u64::from(ns.ilog2());
            (doubling - 2) * PARTS + (ns >> (doubling - 3)) - PARTS
        }
    };
    (part as usize).min(BUCKETS - 1)
}

/// The longest time of a part.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match bucket / PARTS {
        0 => bucket,
        doubling => ((PARTS + bucket % PARTS + 1) << (doubling - 1)) - 1,
    }
}

/// The sample.
#[derive(Debug)]
pub(crate) struct Latency {
    followed: Option<Followed>,
    /// WRs until the next one is followed.
    left: u32,
    histograms: [Histogram; WrKind::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Followed {
    vqp: VqpId,
    seq: SendSeq,
    kind: WrKind,
    since: Time,
}

impl Latency {
    pub(crate) fn new() -> Latency {
        Latency { followed: None, left: PERIOD, histograms: Default::default() }
    }

    /// Whether one of these WRs, which were posted, is to be followed.
    #[inline]
    pub(crate) fn wants(&mut self, posted: u32) -> bool {
        self.left = self.left.saturating_sub(posted);
        self.left == 0
    }

    /// Follows a WR. The one before it is dropped, which was not done all the while.
    #[cold]
    pub(crate) fn follow(&mut self, vqp: VqpId, seq: SendSeq, opcode: SendOpcode, since: Time) {
        self.left = PERIOD;
        // Whoever waits for so long is still in the sample.
        if let Some(late) = self.followed.take() {
            self.add(late.kind, since.ns_since(late.since));
        }
        self.followed = WrKind::of(opcode).map(|kind| Followed { vqp, seq, kind, since });
    }

    /// Whether a WR of this VQP is followed.
    #[inline]
    pub(crate) fn follows(&self, vqp: VqpId) -> bool {
        self.followed.is_some_and(|followed| followed.vqp == vqp)
    }

    /// The WRs of the VQP before `head` are done; those of one that has failed count for nothing.
    #[cold]
    pub(crate) fn done(&mut self, head: SendSeq, failed: bool, now: Time) {
        let is_done = |followed: &mut Followed| (head.since(followed.seq) as i32) > 0;
        let Some(followed) = self.followed.take_if(|it| failed || is_done(it)) else { return };
        if !failed {
            self.add(followed.kind, now.ns_since(followed.since));
        }
    }

    fn add(&mut self, kind: WrKind, ns: u64) {
        self.histograms[kind as usize].add(ns);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WrKind, &Histogram)> {
        WrKind::ALL.into_iter().zip(&self.histograms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_time_is_known_to_an_eighth_of_itself(ns in 0..1u64 << DOUBLINGS) {
            let end = end_of(bucket(ns));
            prop_assert!(end >= ns && end - ns <= ns / PARTS, "{ns} is told as {end}");
            prop_assert!(bucket(ns) == 0 || end_of(bucket(ns) - 1) < ns);
        }

        #[test]
        fn ranks_are_those_of_the_sorted_times(
            mut times in prop::collection::vec(0..1u64 << 30, 1..200),
            per_mille in 0..=1_000u32,
        ) {
            let mut histogram = Histogram::default();
            times.iter().for_each(|ns| histogram.add(*ns));
            times.sort_unstable();
            let rank = (times.len() * per_mille as usize).div_ceil(1_000).max(1);
            let (exact, told) = (times[rank - 1], histogram.at_most_ns(per_mille));
            prop_assert!(told >= exact && told <= exact + exact / PARTS, "{told} for {exact}");
            prop_assert_eq!(histogram.count(), times.len() as u64);
        }
    }

    #[test]
    fn what_takes_longer_than_any_part_is_in_the_last_one() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.at_most_ns(999), 0);
        histogram.add(u64::MAX);
        assert_eq!(histogram.max_ns(), u64::MAX);
        assert_eq!(histogram.at_most_ns(500), end_of(BUCKETS - 1));
    }

    #[test]
    fn one_wr_of_many_is_followed_until_it_is_done() {
        let (mut latency, vqp) = (Latency::new(), VqpId(7));
        assert!(!latency.wants(PERIOD - 1) && latency.wants(1));
        latency.follow(vqp, SendSeq::FIRST.before(), SendOpcode::Read, Time(100));
        assert!(latency.follows(vqp) && !latency.follows(VqpId(8)));
        latency.done(SendSeq::FIRST.before(), false, Time(200));
        assert!(latency.follows(vqp), "it is the next one");
        latency.done(SendSeq::FIRST.after(0), false, Time(300));
        assert!(!latency.follows(vqp));
        let reads = latency.iter().find(|(kind, _)| *kind == WrKind::Read).unwrap().1;
        assert_eq!((reads.count(), reads.max_ns()), (1, 200));
        // One that failed tells nothing, one that takes for ever is in the sample.
        latency.follow(vqp, SendSeq::FIRST.after(5), SendOpcode::Write, Time(300));
        latency.done(SendSeq::FIRST.after(5), true, Time(400));
        latency.follow(vqp, SendSeq::FIRST.after(6), SendOpcode::Send, Time(500));
        latency.follow(vqp, SendSeq::FIRST.after(7), SendOpcode::LocalInv, Time(900));
        let counts: Vec<u64> = latency.iter().map(|(_, histogram)| histogram.count()).collect();
        assert_eq!((counts, latency.follows(vqp)), (alloc::vec![1, 0, 1, 0], false));
    }
}
