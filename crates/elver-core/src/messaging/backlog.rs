//! Messages that wait for receives, and senders that wait until there are fewer.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::Config;
use crate::ids::PeerId;
use crate::messaging::incoming::Incoming;

/// A backlog is filling from this part of what it may hold on, and low below half of that.
const FILLING: u64 = 8;

/// Senders that wait for a VQP: their nodes and VQPs, and the last cookie of each.
pub(crate) type Halted = BTreeMap<(PeerId, u32), u64>;

/// Messages that wait for receives.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) messages: VecDeque<(Incoming, Vec<u8>)>,
    pub(crate) bytes: u64,
    /// Senders that wait until there are fewer.
    pub(crate) halted: Halted,
}

impl Backlog {
    /// Whether its senders must wait.
    pub(crate) fn is_filling(&self, config: &Config) -> bool {
        self.has_part(FILLING, config)
    }

    /// Whether senders that wait may go on.
    pub(crate) fn is_low(&self, config: &Config) -> bool {
        !self.has_part(2 * FILLING, config)
    }

    /// Whether it has at least the `parts`th part of what it may hold.
    fn has_part(&self, parts: u64, config: &Config) -> bool {
        let messages = (self.messages.len() as u64).saturating_mul(parts);
        messages >= u64::from(config.backlog).max(1)
            || self.bytes.saturating_mul(parts) >= config.backlog_bytes.max(1)
    }
}
