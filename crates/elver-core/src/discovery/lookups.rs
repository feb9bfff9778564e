//! Look-ups with one-sided READs: nodes at meta servers, regions at their owners (section 4.2).

mod found;
mod nodes;
mod regions;
mod run;
mod run_regions;
pub(crate) mod warms;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::Time;

use crate::VqpId;
use crate::discovery::lookups::nodes::NodeLookups;
use crate::discovery::lookups::regions::MrLookups;
use crate::discovery::lookups::warms::Warms;
use crate::discovery::peer::Waiter;
use crate::discovery::servers::Servers;
use crate::ids::PeerId;
use crate::pool::create::READ_BUFFER_BYTES;

/// What is being looked up, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// The meta servers and their tables of nodes.
    pub(crate) servers: Servers,
    nodes: NodeLookups,
    /// Connects that wait.
    pub(crate) waiting: u32,
    /// Connects that ever waited; their number is the last one's.
    attempts: u32,
    mrs: MrLookups,
    warms: Warms,
    /// An empty list of waiters, whose memory the next look-up takes.
    no_waiters: Vec<Waiter>,
    /// The cluster that was read last, out of the reach of whoever may write a buffer.
    cluster: Vec<u8>,
}

impl Lookups {
    pub(crate) fn new() -> Lookups {
        Lookups { cluster: alloc::vec![0; READ_BUFFER_BYTES as usize], ..Lookups::default() }
    }

    /// A connect waits: its number, which no other has that may still be waited for.
    pub(crate) fn attempt_begins(&mut self) -> u32 {
        self.waiting += 1;
        self.attempts = self.attempts.wrapping_add(1);
        self.attempts
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.nodes.next_deadline()
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.nodes.bytes() + self.mrs.bytes()) as u64
    }
}

/// For [`crate::Core::audit`].
impl Lookups {
    /// Look-ups of nodes and regions, and `warm` calls.
    pub(crate) fn under_way(&self) -> u32 {
        let (running, queued) = self.nodes.counts();
        running + (queued + self.mrs.len() + self.warms.len()) as u32
    }

    /// Whether the look-up of a region of the peer's brings a VQP back.
    pub(crate) fn awaits(&self, peer: PeerId, vqp: VqpId) -> bool {
        self.mrs.awaits(peer, vqp)
    }

    /// Whether as many look-ups of nodes run and wait as peers say.
    pub(crate) fn agree(&self, running: u32, queued: usize) -> Result<(), String> {
        let counted = self.nodes.counts();
        if (running, queued) != counted {
            return Err(format!("look-ups: {:?}, counted as {counted:?}", (running, queued)));
        }
        Ok(())
    }
}
