//! What connects did beside taking time, by a node's own counters: what they asked and whom, and
//! whether anything left the host.

use elver_node::Status;
use elver_testbed::node::Node;
use serde_json::{Value, json};

/// Counts of one node; of its life so far, or between two looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Connects that succeeded.
    pub(crate) connects: u64,
    /// READs of meta servers' tables.
    pub(crate) reads: u64,
    /// Nodes asked for their record by an RPC.
    pub(crate) rpcs: u64,
    /// RC QPs that were connected.
    pub(crate) rc_made: u64,
    /// Packets that left the device.
    pub(crate) packets: u64,
    /// RC QPs that had been connected before the clock began; of several times the most.
    pub(crate) rc_before: u64,
}

impl Counted {
    /// Of an embedded node.
    pub(crate) fn of(node: &mut Node) -> Counted {
        let (stats, packets) = node.counters();
        Counted {
            connects: stats.connects_rc + stats.connects_cached + stats.connects_looked_up,
            reads: stats.lookup_reads,
            rpcs: stats.meta_calls,
            rc_made: stats.links_made,
            packets,
            rc_before: 0,
        }
    }

    /// Of a daemon.
    pub(crate) fn of_daemon(status: &Status) -> Counted {
        let core = |name: &str| status.core.get(name).copied().unwrap_or(0);
        let connects = ["connects_rc", "connects_cached", "connects_looked_up"];
        Counted {
            connects: connects.into_iter().map(core).sum(),
            reads: core("lookup_reads"),
            rpcs: core("meta_calls"),
            rc_made: core("links_made"),
            packets: status.device.get("tx_packets").copied().unwrap_or(0),
            rc_before: 0,
        }
    }

    pub(crate) fn since(self, earlier: Counted) -> Counted {
        Counted { rc_before: earlier.rc_made, ..self.with(earlier, u64::saturating_sub) }
    }

    pub(crate) fn and(self, other: Counted) -> Counted {
        self.with(other, u64::saturating_add)
    }

    fn with(self, other: Counted, op: impl Fn(u64, u64) -> u64) -> Counted {
        Counted {
            connects: op(self.connects, other.connects),
            reads: op(self.reads, other.reads),
            rpcs: op(self.rpcs, other.rpcs),
            rc_made: op(self.rc_made, other.rc_made),
            packets: op(self.packets, other.packets),
            rc_before: self.rc_before.max(other.rc_before),
        }
    }

    /// Into a row of JSON.
    pub(crate) fn tell(self, row: &mut Value) {
        row["connects"] = json!(self.connects);
        row["reads"] = json!(self.reads);
        row["rpcs"] = json!(self.rpcs);
        row["rc_made"] = json!(self.rc_made);
        row["packets"] = json!(self.packets);
    }

    /// For people: READs, RPCs, RC QPs and packets of a connect.
    pub(crate) fn texts(self) -> [String; 4] {
        let each = |count: u64| match (count, self.connects) {
            (0, _) => "0".to_string(),
            (_, 0) => "-".to_string(),
            (count, connects) => {
                let each = count as f64 / connects as f64;
                if each < 0.01 { format!("{count} in all") } else { format!("{each:.2}") }
            }
        };
        [self.reads, self.rpcs, self.rc_made, self.packets].map(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_told_as_a_number_and_many_by_connect() {
        let counted = Counted {
            connects: 42_000,
            reads: 229,
            rpcs: 42_000,
            rc_made: 0,
            packets: 63_000,
            rc_before: 0,
        };
        assert_eq!(counted.texts(), ["229 in all", "1.00", "0", "1.50"]);
        assert_eq!(counted.since(counted), Counted::default());
    }

    #[test]
    fn what_was_there_before_is_told_beside_what_was_made() {
        let at = |rc_made| Counted { rc_made, ..Counted::default() };
        let (first, second) = (at(5).since(at(2)), at(9).since(at(5)));
        assert_eq!((first.rc_made, first.rc_before), (3, 2));
        let both = Counted::default().and(first).and(second);
        assert_eq!((both.rc_made, both.rc_before), (7, 5));
    }
}
