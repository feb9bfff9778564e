//! Look-ups with one-sided READs: nodes at meta servers, regions at their owners (section 4.2).

mod found;
mod nodes;
mod regions;
mod run;
mod run_regions;
pub(crate) mod turns;
pub(crate) mod warms;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::Time;

use crate::VqpId;
use crate::discovery::lookups::nodes::NodeLookups;
use crate::discovery::lookups::regions::MrLookups;
use crate::discovery::lookups::turns::Region;
use crate::discovery::lookups::warms::Warms;
use crate::discovery::news::News;
use crate::discovery::peer::Waiter;
use crate::discovery::servers::Servers;
use crate::ids::{OpId, PeerId};
use crate::pool::create::READ_BUFFER_BYTES;

/// What is being looked up, and who waits.
#[derive(Debug)]
pub(crate) struct Lookups {
    /// The meta servers and their tables of nodes.
    pub(crate) servers: Servers,
    /// What was told of nodes lately.
    pub(crate) news: News,
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
    /// Of `buffers` for READs look-ups of regions have half at most: nodes are looked up whatever their owners do.
    pub(crate) fn new(buffers: u32) -> Lookups {
        Lookups {
            servers: Servers::default(),
            news: News::default(),
            nodes: NodeLookups::default(),
            waiting: 0,
            attempts: 0,
            mrs: MrLookups::new(buffers / 2),
            warms: Warms::default(),
            no_waiters: Vec::new(),
            cluster: alloc::vec![0; READ_BUFFER_BYTES as usize],
        }
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

    /// When an owner that does not get on is given up.
    pub(crate) fn next_mr_deadline(&self) -> Option<Time> {
        self.mrs.next_deadline()
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.nodes.bytes() + self.mrs.bytes()) as u64 + self.news.bytes()
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

    /// Whether something brings each look-up of a region on; see [`MrLookups::audit`].
    pub(crate) fn audit_mrs(
        &self,
        runs: impl Fn(Region, OpId) -> bool,
        looked_up: impl Fn(Region) -> bool,
    ) -> Result<(), String> {
        self.mrs.audit(runs, looked_up)
    }

    /// READs of look-ups of regions that are under way, of all peers and of each, and look-ups that wait for those
    /// of their owners.
    pub(crate) fn mrs_under_way(&self) -> (u32, impl Iterator<Item = (PeerId, u32)>) {
        self.mrs.turns.counts()
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
