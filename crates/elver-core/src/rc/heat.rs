//! How hot a peer is: KRCORE makes an RC QP for one that is talked to much (section 4.3).

use elver_verbs::Time;

use crate::TransferConfig;

/// How much a peer is talked to: operations within a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heat {
    start: Time,
    last: Time,
    ops: u64,
}

impl Heat {
    /// When it was last talked to.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    /// Counts operations; whether the peer became hot by them, which it does once a window.
    #[inline]
    pub(crate) fn note(&mut self, ops: u64, config: &TransferConfig, now: Time) -> bool {
        if now.ns_since(self.start) >= config.window_ns {
            (self.start, self.ops) = (now, 0);
        }
        self.last = now;
        let before = self.ops;
        self.ops += ops;
        before < config.hot_ops && self.ops >= config.hot_ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: TransferConfig = TransferConfig {
        rc_qps_max: 4,
        leased_wrs_max: 250,
        hot_ops: 100,
        window_ns: 1_000,
        idle_ns: 50,
    };

    #[test]
    fn a_peer_is_hot_once_a_window() {
        let mut heat = Heat::default();
        assert!(!heat.note(99, &CONFIG, Time(5)));
        assert!(heat.note(1, &CONFIG, Time(6)));
        assert!(!heat.note(1_000, &CONFIG, Time(7)));
        assert!(!heat.note(99, &CONFIG, Time(2_000)), "a new window");
        assert!(!heat.note(99, &CONFIG, Time(4_000)));
        assert!(heat.note(1_000, &CONFIG, Time(4_001)));
    }
}
