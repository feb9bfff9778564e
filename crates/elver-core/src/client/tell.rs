//! The one place where a WR's end is told to its client, or passed over in silence.

use alloc::collections::VecDeque;

use crate::client::Client;
use crate::{ClientId, Completion};

/// What is told, counted, and to whom.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Completions so far.
    pub(crate) count: u64,
    /// Clients that got completions since they were last told, once each.
    ready: VecDeque<ClientId>,
}

impl Told {
    /// The next client that got completions.
    pub(crate) fn next_ready(&mut self) -> Option<ClientId> {
        self.ready.pop_front()
    }
}

impl Client {
    /// A WR has ended, and its client, which this is, gets a completion.
    #[inline(always)] // At each completion.
    pub(crate) fn tell(&mut self, id: ClientId, completion: Completion, told: &mut Told) {
        self.completions.push_back(completion);
        told.count += 1;
        if !self.ready {
            self.ready = true;
            told.ready.push_back(id);
        }
    }

    /// So many WRs have ended of which no completion tells.
    #[inline(always)] // At each completion.
    pub(crate) fn tell_nothing(&mut self, wrs: u32) {
        count_off!(self.pending, wrs);
    }
}
