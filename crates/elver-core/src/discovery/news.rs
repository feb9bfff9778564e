//! What the registry has told of nodes lately.
//!
//! It tells each node in order, and the meta servers' tables as well, but not one before the other: for a
//! moment a table has what a node was. Who knows what it was does not believe that
//! ([`crate::discovery::peer::Peer::news`]); who had no reason to know the node when it was told of, or has
//! forgotten it since, has this.

use alloc::collections::VecDeque;

use elver_control::NodeRecord;
use elver_verbs::{Gid, Time};

/// For so long after its news a node's record is not taken from a table that has another, in nanoseconds:
/// within this a meta server that has lost the registry is no longer on anybody's list.
const LATE_NS: u64 = 10_000_000_000;
/// News that are remembered: beyond those the oldest are forgotten early.
const NEWS_MAX: usize = 256;

/// The latest news, oldest first.
#[derive(Debug, Default)]
pub(crate) struct News {
    latest: VecDeque<(Time, Gid, Option<NodeRecord>)>,
}

impl News {
    /// A node came with this record, or went.
    pub(crate) fn told(&mut self, gid: Gid, record: Option<NodeRecord>, now: Time) {
        if self.latest.len() == NEWS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back((now, gid, record));
    }

    /// Whether what a table says that a node is disagrees with what was told of it lately.
    pub(crate) fn disputes(&self, gid: Gid, record: NodeRecord, now: Time) -> bool {
        let recent = self.latest.iter().rev().take_while(|(at, ..)| now.ns_since(*at) < LATE_NS);
        let mut told = recent.filter(|(_, of, _)| *of == gid).map(|(.., told)| told);
        told.next().is_some_and(|told| *told != Some(record))
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.latest.capacity() * size_of::<(Time, Gid, Option<NodeRecord>)>()) as u64
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
            news.told(Gid([2; 16]), None, Time(5));
        }
        assert!(news.disputes(NODE, record(1), Time(5)));
        news.told(Gid([2; 16]), None, Time(5));
        assert!(!news.disputes(NODE, record(1), Time(5)));
        assert!(news.bytes() <= 64 << 10);
    }
}
