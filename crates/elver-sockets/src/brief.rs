//! Servers whose connections end after a request or two: to look for the peer's end, and to connect a stream, takes longer
//! than such a one lives. Where many in a row were so, the next ones go by TCP until they last.

use std::collections::HashMap;
use std::net::SocketAddr;

/// A connection lasts that has read or written so often.
pub(crate) const LASTING: u32 = 16;
/// So many in a row have the next ones wait.
const IN_A_ROW: u32 = 16;
/// Servers that are known; beyond it all are forgotten.
const SERVERS_MAX: usize = 1_024;

/// By the servers' addresses, how many in a row did not last.
#[derive(Debug, Default)]
pub(crate) struct Brief(HashMap<SocketAddr, u32>);

impl Brief {
    /// One that has read or written so often, by now, tries to do so; whether its peer is to be looked for.
    pub(crate) fn is_due(&mut self, server: SocketAddr, calls: u32) -> bool {
        if calls == LASTING {
            self.0.remove(&server);
        }
        calls >= LASTING || self.0.get(&server).is_none_or(|count| *count < IN_A_ROW)
    }

    /// One has ended. One that neither read nor wrote has cost nothing.
    pub(crate) fn ended(&mut self, server: SocketAddr, calls: u32) {
        if calls == 0 || calls >= LASTING {
            return;
        }
        if self.0.len() >= SERVERS_MAX && !self.0.contains_key(&server) {
            self.0.clear();
        }
        let count = self.0.entry(server).or_default();
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn connections_wait_behind_many_that_did_not_last_until_one_does() {
        let mut brief = Brief::default();
        for _ in 0..IN_A_ROW {
            assert!(brief.is_due(server(1), 1));
            brief.ended(server(1), 4);
            brief.ended(server(3), 0);
        }
        assert!(brief.is_due(server(3), 1));
        assert!(!brief.is_due(server(1), 1) && !brief.is_due(server(1), LASTING - 1));
        assert!(brief.is_due(server(2), 1), "another server's");
        assert!(brief.is_due(server(1), LASTING));
        assert!(brief.is_due(server(1), 1), "it lasts");
        brief.ended(server(1), LASTING);
        assert!(brief.0.is_empty());
    }

    #[test]
    fn servers_without_end_take_no_room_without_end() {
        let mut brief = Brief::default();
        (0..10_000).for_each(|port| brief.ended(server(port), 1));
        assert!(brief.0.len() <= SERVERS_MAX);
    }
}
