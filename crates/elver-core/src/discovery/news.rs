//! What the registry has told of nodes lately.
//!
//! It tells each node in order, and the meta servers' tables as well, but not one before the other: for a
//! moment a table has what a node was. Who knows what it was does not believe that
//! ([`crate::discovery::peer::Peer::news`]); who had no reason to know the node when it was told of, or has
//! forgotten it since, has this.

use alloc::collections::VecDeque;

use elver_control::NodeRecord;
use elver_verbs::{Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// For so long after its news a node's record is not taken for sure from a table that has another, in nanoseconds: the
/// registry tells a meta server within a round trip, and one that it has lost it takes off the list, by default within
/// three seconds (`meta.ttl_ms`).
const LATE_NS: u64 = 10_000_000_000;
/// News that are remembered: beyond those the oldest are forgotten early.
const NEWS_MAX: usize = 4_096;

/// The latest news.
#[derive(Debug, Default)]
pub(crate) struct News {
    latest: HashMap<Gid, (Time, Option<NodeRecord>), FxBuildHasher>,
    /// Of whom there were news, and when, oldest first; also of whom there were others since.
    order: VecDeque<(Time, Gid)>,
}

impl News {
    /// A node came with this record, or went.
    pub(crate) fn told(&mut self, gid: Gid, record: Option<NodeRecord>, now: Time) {
        let is_old = |(at, _): &(Time, Gid)| now.ns_since(*at) >= LATE_NS;
        while self.order.len() == NEWS_MAX || self.order.front().is_some_and(is_old) {
            let Some((at, of)) = self.order.pop_front() else { break };
            if self.latest.get(&of).is_some_and(|(last, _)| *last == at) {
                self.latest.remove(&of);
            }
        }
        self.order.push_back((now, gid));
        self.latest.insert(gid, (now, record));
    }

    /// Whether a node's record disagrees with what was told of it lately.
    pub(crate) fn disputes(&self, gid: Gid, record: NodeRecord, now: Time) -> bool {
        let told = self.latest.get(&gid).filter(|(at, _)| now.ns_since(*at) < LATE_NS);
        told.is_some_and(|(_, told)| *told != Some(record))
    }

    pub(crate) fn bytes(&self) -> u64 {
        let each = size_of::<(Gid, (Time, Option<NodeRecord>))>() + 1;
        let order = self.order.capacity() * size_of::<(Time, Gid)>();
        (self.latest.capacity() * each + order) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Gid = Gid([1; 16]);

    fn record(dctn: u32) -> NodeRecord {
        let terms = elver_control::Terms::default();
        NodeRecord { dctn, dc_key: 2, control_qpn: 3, mrs_rkey: 4, log_mrs_max: 5, terms }
    }

    #[test]
    fn only_the_last_news_of_a_node_counts_and_not_for_ever() {
        let mut news = News::default();
        assert!(!news.disputes(NODE, record(1), Time(5)), "nothing was told");
        news.told(NODE, None, Time(5));
        assert!(news.disputes(NODE, record(1), Time(6)), "it went");
        news.told(NODE, Some(record(2)), Time(6));
        news.told(Gid([2; 16]), Some(record(1)), Time(7));
        assert!(news.disputes(NODE, record(1), Time(8)), "it came as another");
        assert!(!news.disputes(NODE, record(2), Time(8)), "it came as this one");
        assert!(!news.disputes(NODE, record(1), Time(6 + LATE_NS)), "tables have it by now");
    }

    #[test]
    fn as_many_are_remembered_as_may_be() {
        let mut news = News::default();
        news.told(NODE, None, Time(5));
        for _ in 1..NEWS_MAX {
            news.told(Gid([2; 16]), None, Time(6));
        }
        assert!(news.disputes(NODE, record(1), Time(5)));
        news.told(Gid([2; 16]), None, Time(6));
        assert!(!news.disputes(NODE, record(1), Time(6)));
        assert!(news.bytes() <= 1 << 20);
    }
}
