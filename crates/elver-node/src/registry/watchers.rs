//! Who is told which nodes there are, and which come and go.
//!
//! Changes stand in one log for all, each node once, and every watcher has its own place in it: when many
//! nodes go at once, there is not a frame for each of them and each watcher, but what watchers take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use elver_core::NodeRecord;
use elver_verbs::Gid;

use super::frame::Frame;
use super::output::{ConnectionId, Output};

/// Nodes of a list, and changes, that a watcher is told of at a turn.
pub(super) const TOLD_AT_ONCE: usize = 256;
/// The same for all of them.
const TOLD_AT_ONCE_TO_ALL: usize = 4_096;

/// All watchers.
#[derive(Debug)]
pub(super) struct Watchers {
    watchers: BTreeMap<ConnectionId, Watcher>,
    /// Those that may have to be told something.
    behind: BTreeSet<ConnectionId>,
    /// Nodes that have changed, in order.
    changes: BTreeMap<u64, Gid>,
    /// The last change of each of these.
    numbers: BTreeMap<Gid, u64>,
    changes_max: usize,
    /// The number of the next change.
    next: u64,
    /// Changes up to here were looked at for all watchers.
    spread: u64,
}

#[derive(Debug)]
struct Watcher {
    /// The first change that it was not told of.
    next: u64,
    list: List,
}

/// How far somebody was told of all nodes.
#[derive(Debug, PartialEq, Eq)]
enum List {
    Asked,
    /// The last of which it was told.
    Begun(Option<Gid>),
    Ended,
}

impl Watchers {
    /// Whoever is so many changes behind is told no more.
    pub(super) fn new(changes_max: usize) -> Watchers {
        Watchers {
            watchers: BTreeMap::new(),
            behind: BTreeSet::new(),
            changes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            changes_max,
            next: 0,
            spread: 0,
        }
    }

    /// Somebody wants to be told of all nodes, and of changes from now on.
    pub(super) fn begin(&mut self, id: ConnectionId) {
        self.watchers.insert(id, Watcher { next: self.next, list: List::Asked });
        self.behind.insert(id);
    }

    /// Somebody wants to be told nothing more.
    pub(super) fn end(&mut self, id: ConnectionId) {
        self.watchers.remove(&id);
        self.behind.remove(&id);
    }

    /// A node has changed. Returns who was so far behind that it is told no more.
    pub(super) fn note(&mut self, gid: Gid) -> Vec<ConnectionId> {
        if self.watchers.is_empty() {
            return Vec::new();
        }
        if let Some(before) = self.numbers.insert(gid, self.next) {
            self.changes.remove(&before);
        }
        self.changes.insert(self.next, gid);
        self.next += 1;
        if self.changes.len() <= self.changes_max {
            return Vec::new();
        }
        self.drop_half()
    }

    fn drop_half(&mut self) -> Vec<ConnectionId> {
        let Some((&middle, _)) = self.changes.iter().nth(self.changes_max / 2) else {
            return Vec::new();
        };
        self.changes = self.changes.split_off(&middle);
        self.numbers.retain(|_, number| *number >= middle);
        let behind = self.watchers.extract_if(.., |_, watcher| watcher.next < middle);
        let late: Vec<_> = behind.map(|(id, _)| id).collect();
        self.behind.retain(|id| !late.contains(id));
        late
    }

    /// Tells those that are behind, as far as each takes it: whether anybody was told something. Of a
    /// node that is there `record` is what is told; `complete` is of a list that ends now. Changes come
    /// in between, so that a list is what there was when it ended.
    pub(super) fn inform<N>(
        &mut self,
        (nodes, record): (&BTreeMap<Gid, N>, impl Fn(&N) -> NodeRecord),
        complete: bool,
        takes: impl Fn(ConnectionId) -> bool,
        outputs: &mut VecDeque<Output>,
    ) -> bool {
        if self.spread != self.next {
            self.behind.extend(self.watchers.keys());
            self.spread = self.next;
        }
        let (before, next) = (outputs.len(), self.next);
        let Watchers { watchers, behind, changes, .. } = self;
        behind.retain(|&id| {
            let Some(watcher) = watchers.get_mut(&id) else { return false };
            if watcher.next == next && watcher.list == List::Ended {
                return false;
            }
            if outputs.len() - before >= TOLD_AT_ONCE_TO_ALL || !takes(id) {
                return true;
            }
            let mut tell = |frame| outputs.push_back(Output::Send(id, frame));
            if watcher.list == List::Asked {
                tell(Frame::ListBegin);
                watcher.list = List::Begun(None);
            }
            let mut news = changes.range(watcher.next..);
            for (&number, &gid) in news.by_ref().take(TOLD_AT_ONCE) {
                tell(Frame::Node { gid, record: nodes.get(&gid).map(&record) });
                watcher.next = number + 1;
            }
            if news.next().is_some() {
                return true;
            }
            watcher.next = next;
            let List::Begun(last) = &mut watcher.list else { return false };
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let mut rest = nodes.range((from, Bound::Unbounded));
            for (&gid, node) in rest.by_ref().take(TOLD_AT_ONCE) {
                tell(Frame::Node { gid, record: Some(record(node)) });
                *last = Some(gid);
            }
            if rest.next().is_some() {
                return true;
            }
            tell(Frame::ListEnd { complete });
            watcher.list = List::Ended;
            false
        });
        if behind.is_empty() {
            self.changes.clear();
            self.numbers.clear();
        }
        outputs.len() > before
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{gid, record};
    use super::*;

    fn inform(watchers: &mut Watchers, nodes: &BTreeMap<Gid, u32>, who: u64) -> Vec<Output> {
        let mut outputs = VecDeque::new();
        let takes = |id| id == ConnectionId(who);
        while watchers.inform((nodes, |tag| record(*tag)), true, takes, &mut outputs) {}
        outputs.into()
    }

    /// Each change was a frame for each watcher, in memory at once.
    #[test]
    fn what_changes_is_kept_once_for_all_and_a_watcher_far_behind_is_given_up() {
        let mut nodes: BTreeMap<Gid, u32> = (0..100).map(|n| (gid(n), 1)).collect();
        let mut watchers = Watchers::new(200);
        let [quick, slow] = [1, 2].map(ConnectionId);
        for id in [quick, slow] {
            watchers.begin(id);
            inform(&mut watchers, &nodes, id.0);
        }
        assert!(watchers.behind.is_empty());
        for tag in 2..50 {
            for n in 0..100 {
                nodes.insert(gid(n), tag);
                assert!(watchers.note(gid(n)).is_empty());
            }
            assert!(watchers.changes.len() == 100 && watchers.numbers.len() == 100);
        }
        // Each hears the last of each node, and when all have heard nothing is kept.
        for id in [quick, slow] {
            let heard = inform(&mut watchers, &nodes, id.0);
            let node = |n| Frame::Node { gid: gid(n), record: Some(record(49)) };
            let all: Vec<_> = (0..100).map(|n| Output::Send(id, node(n))).collect();
            assert_eq!(heard, all);
        }
        assert!(watchers.changes.is_empty() && watchers.behind.is_empty());
        nodes.clear();
        for n in 0..=200 {
            let late = watchers.note(gid(n));
            inform(&mut watchers, &nodes, quick.0);
            assert_eq!(late, if n == 200 { vec![slow] } else { vec![] });
        }
        assert_eq!(watchers.note(gid(1)), []);
        assert_eq!(inform(&mut watchers, &nodes, quick.0).len(), 1);
        assert!(watchers.changes.is_empty());
    }
}
