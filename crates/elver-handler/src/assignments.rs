//! Which child has which QP, and where each goes: the QP Table and the Assignment Table (Swift, section 4.1.3).
//!
//! Both are vectors with an entry for each QP, whose number is its place in them. The INIT process alone changes them.
//! QPs belong to sessions, and a child has all of one session: those to the destinations of the function, and the others,
//! which a child connects when it wants to go elsewhere, and which stay connected there for the next ones.

use std::collections::BTreeSet;

use elver::Gid;
use rustix::process::Pid;

/// A session that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) set: usize,
    pub(crate) number: u32,
}

/// A QP's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpNumber(pub(crate) usize);

/// An entry of the QP Table.
#[derive(Clone, Copy, Debug)]
struct Qp {
    session: Which,
    /// Its place among the session's QPs without a destination of the function's, if it is one of them.
    place: Option<u32>,
}

/// An entry of the Assignment Table.
#[derive(Clone, Debug, Default)]
struct Assignment {
    child: Option<Pid>,
    destination: Option<Gid>,
    /// Its child has told of it since it has it.
    is_told: bool,
}

/// How good a session is for a child, the least the best: whether it lacks something that is wanted, whether it has too few
/// QPs for that, and how many connections it lacks.
type Rank = (bool, bool, usize);

/// That of one that lacks nothing: no other is better.
const FITS: Rank = (false, false, 0);

#[derive(Debug)]
pub(crate) struct Assignments {
    destinations: Vec<Gid>,
    unassigned: u32,
    qps: Vec<Qp>,
    entries: Vec<Assignment>,
}

impl Assignments {
    /// Empty tables, of a function with these destinations, whose sessions have so many QPs beside those to them.
    pub(crate) fn new(destinations: Vec<Gid>, unassigned: u32) -> Assignments {
        Assignments { destinations, unassigned, qps: Vec::new(), entries: Vec::new() }
    }

    pub(crate) fn clear(&mut self) {
        self.qps.clear();
        self.entries.clear();
    }

    /// QPs of a session.
    fn each(&self) -> usize {
        self.destinations.len() + self.unassigned as usize
    }

    /// A set of so many sessions is there.
    pub(crate) fn add(&mut self, set: usize, sessions: u32) {
        for number in 0..sessions {
            let session = Which { set, number };
            let named = self.destinations.iter().map(|to| (None, Some(*to)));
            let others = (0..self.unassigned).map(|place| (Some(place), None));
            for (place, destination) in named.chain(others) {
                self.qps.push(Qp { session, place });
                self.entries.push(Assignment { destination, ..Assignment::default() });
            }
        }
    }

    /// The first QP of each session that a child may have now, of those that the node says are free.
    pub(crate) fn free(&self, is_free: impl Fn(Which) -> bool) -> impl Iterator<Item = QpNumber> {
        (0..self.qps.len())
            .step_by(self.each().max(1))
            .filter(move |at| self.entries[*at].child.is_none() && is_free(self.qps[*at].session))
            .map(QpNumber)
    }

    /// The first free session with QPs to all that is wanted, or else with unassigned ones for what it lacks, or else any; of
    /// those that are as good, one that lacks the fewest connections of the function's too. What a session has, the node
    /// says, by a QP's place: it may have had no room to connect one, or no answer.
    pub(crate) fn choose(
        &self,
        wanted: &BTreeSet<Gid>,
        is_free: impl Fn(Which) -> bool,
        is_connected: impl Fn(Which, usize) -> bool,
    ) -> Option<QpNumber> {
        let mut best = None;
        for first in self.free(is_free) {
            let rank = self.rank(first, wanted, &is_connected);
            if rank == FITS {
                return Some(first);
            }
            // The first of those that are as good.
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, first));
            }
        }
        best.map(|(_, first)| first)
    }

    fn rank(
        &self,
        first: QpNumber,
        wanted: &BTreeSet<Gid>,
        is_connected: impl Fn(Which, usize) -> bool,
    ) -> Rank {
        let session = self.session(first);
        let entries = || self.of(first).iter().enumerate();
        let goes_to = |entry: &Assignment, to: &Gid| entry.destination.as_ref() == Some(to);
        let has =
            |to: &Gid| entries().any(|(at, entry)| goes_to(entry, to) && is_connected(session, at));
        let missing: Vec<_> = wanted.iter().filter(|to| !has(to)).collect();
        // One that lacks its connection is there to be connected.
        let is_there = |to: &Gid| entries().any(|(_, entry)| goes_to(entry, to));
        let places = missing.iter().filter(|to| !is_there(to)).count();
        let open = entries().filter(|(_, entry)| entry.destination.is_none()).count();
        let others = self.destinations.iter().filter(|to| !wanted.contains(*to) && !has(to));
        (!missing.is_empty(), open < places, missing.len() + others.count())
    }

    /// The session that a QP is of.
    pub(crate) fn session(&self, qp: QpNumber) -> Which {
        self.qps[qp.0].session
    }

    /// Where the QPs of a session go, by its first.
    pub(crate) fn destinations(
        &self,
        first: QpNumber,
    ) -> impl Iterator<Item = (QpNumber, Option<Gid>)> {
        let at = (first.0..).map(QpNumber);
        at.zip(self.of(first).iter().map(|entry| entry.destination))
    }

    fn of(&self, first: QpNumber) -> &[Assignment] {
        &self.entries[first.0..first.0 + self.each()]
    }

    pub(crate) fn assign(&mut self, first: QpNumber, child: Pid) {
        let each = self.each();
        for entry in &mut self.entries[first.0..first.0 + each] {
            (entry.child, entry.is_told) = (Some(child), false);
        }
    }

    pub(crate) fn ended(&mut self, child: Pid) {
        for entry in self.entries.iter_mut().filter(|entry| entry.child == Some(child)) {
            entry.child = None;
        }
    }

    /// A child has connected one of its QPs, or could not: where the node is to have it from now on. That may be where it
    /// should have been: the node tries a connection once, and not again until it is told to. What goes to a destination of
    /// the function's stays with nobody, since each session has a QP for that. Children tell of what they have, and may be
    /// wrong; one that tells the same again is not heard.
    pub(crate) fn connected(
        &mut self,
        qp: QpNumber,
        destination: Option<Gid>,
    ) -> Option<(Which, u32)> {
        let (Qp { session, place }, entry) = (*self.qps.get(qp.0)?, self.entries.get_mut(qp.0)?);
        let place = place.filter(|_| entry.child.is_some())?;
        let is_same = entry.destination == destination;
        let is_functions = |to| self.destinations.contains(&to);
        if is_same && (entry.is_told || destination.is_none())
            || destination.is_some_and(is_functions)
        {
            return None;
        }
        entry.is_told = true;
        entry.destination = destination;
        Some((session, place))
    }

    /// QPs that go nowhere yet.
    pub(crate) fn count_unassigned(&self) -> usize {
        self.entries.iter().filter(|entry| entry.destination.is_none()).count()
    }

    /// Destinations beyond the function's.
    pub(crate) fn reached(&self) -> BTreeSet<Gid> {
        let places = self.qps.iter().zip(&self.entries).filter(|(qp, _)| qp.place.is_some());
        places.filter_map(|(_, entry)| entry.destination).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    /// A node, by a letter.
    fn to(name: &str) -> Gid {
        Gid([name.as_bytes()[0]; 16])
    }

    fn wanted(destinations: &[&str]) -> BTreeSet<Gid> {
        destinations.iter().copied().map(to).collect()
    }

    /// Three sessions, each with a QP to `a` and two others.
    fn table() -> Assignments {
        let mut table = Assignments::new(vec![to("a")], 2);
        table.add(0, 2);
        table.add(1, 1);
        table
    }

    fn all(_: Which) -> bool {
        true
    }

    /// What the tables say is connected.
    fn as_told(_: Which, _: usize) -> bool {
        true
    }

    #[test]
    fn the_first_free_entry_with_the_destination_is_taken_or_else_one_without_any() {
        let mut table = table();
        assert_eq!(table.choose(&wanted(&["a"]), all, as_told), Some(QpNumber(0)));
        table.assign(QpNumber(0), pid(7));
        assert_eq!(table.choose(&wanted(&[]), all, as_told), Some(QpNumber(3)));
        // The child goes elsewhere by the first of its own two, and the second session does so too, to another place.
        assert_eq!(
            table.connected(QpNumber(1), Some(to("b"))),
            Some((Which { set: 0, number: 0 }, 0))
        );
        table.assign(QpNumber(3), pid(8));
        assert_eq!(
            table.connected(QpNumber(5), Some(to("c"))),
            Some((Which { set: 0, number: 1 }, 1))
        );
        assert_eq!(table.reached(), wanted(&["b", "c"]));
        assert_eq!(table.choose(&wanted(&["a"]), all, as_told), Some(QpNumber(6)));
        table.ended(pid(7));
        table.ended(pid(8));
        for (named, first) in [("a", 0), ("b", 0), ("c", 3), ("d", 0)] {
            assert_eq!(
                table.choose(&wanted(&[named]), all, as_told),
                Some(QpNumber(first)),
                "{named}"
            );
        }
        // Two that nobody has take two entries without a destination.
        assert_eq!(table.choose(&wanted(&["d", "e"]), all, as_told), Some(QpNumber(6)));
        assert_eq!(table.choose(&wanted(&["d", "e", "f"]), all, as_told), Some(QpNumber(0)));
        // What the node makes anew is nobody's yet.
        let free = |which: Which| which.set == 0;
        assert_eq!(table.choose(&wanted(&["d", "e"]), free, as_told), Some(QpNumber(0)));
        assert_eq!(table.choose(&wanted(&[]), |_| false, as_told), None);
    }

    #[test]
    fn one_that_lacks_what_the_tables_say_it_has_is_passed_over() {
        let mut table = table();
        table.assign(QpNumber(3), pid(7));
        assert!(table.connected(QpNumber(4), Some(to("b"))).is_some());
        table.ended(pid(7));
        // The first has no connection to `a`, and the second none to `b`.
        let lacking = [(Which { set: 0, number: 0 }, 0), (Which { set: 0, number: 1 }, 1)];
        let is_there = |which: Which, at: usize| !lacking.contains(&(which, at));
        for (named, first) in [(&[] as &[&str], 3), (&["a"], 3), (&["b"], 3), (&["a", "c"], 3)] {
            assert_eq!(
                table.choose(&wanted(named), all, is_there),
                Some(QpNumber(first)),
                "{named:?}"
            );
        }
        // One whose place for `b` is to be connected again needs no other place for it.
        let lacks_b = |which: Which, at: usize| which.set == 1 || (which, at) != lacking[1];
        table.assign(QpNumber(0), pid(8));
        assert!(table.connected(QpNumber(1), Some(to("d"))).is_some());
        assert!(table.connected(QpNumber(2), Some(to("e"))).is_some());
        table.ended(pid(8));
        let first_set = |which: Which| which.set == 0;
        assert_eq!(table.choose(&wanted(&["b", "c"]), first_set, lacks_b), Some(QpNumber(3)));
        // Where all lack it, the first is as good as any.
        assert_eq!(table.choose(&wanted(&["a"]), all, |_, at| at != 0), Some(QpNumber(0)));
    }

    #[test]
    fn what_children_tell_counts_for_what_they_have() {
        let mut table = table();
        assert_eq!(table.connected(QpNumber(1), Some(to("b"))), None, "nobody's");
        table.assign(QpNumber(0), pid(7));
        for qp in [0, 9, usize::MAX] {
            assert_eq!(table.connected(QpNumber(qp), Some(to("b"))), None, "{qp}");
        }
        assert!(table.connected(QpNumber(2), Some(to("b"))).is_some());
        assert_eq!(table.connected(QpNumber(2), Some(to("b"))), None, "as before");
        assert_eq!(
            table.connected(QpNumber(1), Some(to("a"))),
            None,
            "each session has one to there"
        );
        assert_eq!(table.connected(QpNumber(1), None), None, "as before");
        assert_eq!(table.count_unassigned(), 5);
        assert!(table.connected(QpNumber(2), None).is_some());
        assert_eq!((table.count_unassigned(), table.reached().len()), (6, 0));
    }

    #[test]
    fn what_a_child_had_to_connect_again_is_kept_again() {
        let mut table = table();
        let kept = Some((Which { set: 0, number: 0 }, 1));
        for child in [7, 8] {
            table.assign(QpNumber(0), pid(child));
            assert_eq!(table.connected(QpNumber(2), Some(to("b"))), kept);
            assert_eq!(table.connected(QpNumber(2), Some(to("b"))), None, "once for each child");
            table.ended(pid(child));
        }
    }

    proptest! {
        /// All were ranked for each child, though the first that fits would do.
        #[test]
        fn the_first_that_fits_is_taken_without_a_look_at_others_and_else_the_first_of_the_best(
            reached in vec((0..24_usize, 0..6_u8), 0..20),
            wanted in btree_set(0..6_u8, 0..4),
            taken in vec(any::<bool>(), 6),
            lacks in vec(any::<bool>(), 24),
        ) {
            let node = |name: u8| Gid([name; 16]);
            let mut table = Assignments::new(vec![node(0), node(1)], 2);
            table.add(0, 6);
            table.assign(QpNumber(0), pid(1));
            for (qp, name) in reached {
                table.assign(QpNumber(qp / 4 * 4), pid(1));
                table.connected(QpNumber(qp), (name > 0).then(|| node(name)));
            }
            table.ended(pid(1));
            let wanted: BTreeSet<Gid> = wanted.into_iter().map(node).collect();
            let is_free = |which: Which| !taken[which.number as usize];
            let is_there = |which: Which, at: usize| !lacks[which.number as usize * 4 + at];
            let best =
                table.free(is_free).min_by_key(|first| table.rank(*first, &wanted, is_there));
            let last = std::cell::Cell::new(0);
            let looks = |which: Which, at: usize| {
                last.set(last.get().max(which.number));
                is_there(which, at)
            };
            prop_assert_eq!(table.choose(&wanted, is_free, looks), best);
            if let Some(best) = best.filter(|best| table.rank(*best, &wanted, is_there) == FITS) {
                prop_assert!(last.get() <= table.session(best).number);
            }
        }
    }
}
