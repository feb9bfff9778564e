//! Look-ups with one-sided READs: nodes at meta servers, regions at their owners (section 4.2).

mod found;
mod run;

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::ClientId;
use crate::VqpId;
use crate::discovery::peer::Waiter;
use crate::discovery::servers::Servers;
use crate::ids::PeerId;
use crate::pool::READ_BUFFER_BYTES;

/// How long one meta server may take before the next one is asked, in nanoseconds. Far above what a
/// READ takes, since a spurious change costs only a READ more.
const ATTEMPT_NS: u64 = 100_000_000;
/// A core that looks so much later whether one has was asleep, and the answer may lie before it.
const LATE_NS: u64 = 100_000;

/// Most `warm` calls that are under way.
pub(crate) const WARMS_MAX: usize = 256;

/// What is being looked up, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// The meta servers and their tables of nodes.
    pub(crate) servers: Servers,
    /// Peers whose look-up waits for its turn.
    queue: VecDeque<PeerId>,
    /// Look-ups of nodes that run.
    running: u32,
    /// When each of these is given up, in order; entries of look-ups that ended mean nothing.
    deadlines: VecDeque<(Time, PeerId)>,
    /// Connects that wait.
    pub(crate) waiting: u32,
    /// Connects that ever waited; their number is the last one's.
    attempts: u32,
    /// Regions being looked up, by peer and rkey.
    mrs: HashMap<(PeerId, u32), MrLookup, FxBuildHasher>,
    /// Of these, the ones that wait for a buffer.
    mr_queue: VecDeque<(PeerId, u32)>,
    /// `warm` calls.
    warms: Vec<Option<Warm>>,
    /// An empty list of waiters, whose memory the next look-up takes.
    no_waiters: Vec<Waiter>,
    /// The cluster that was read last, out of the reach of whoever may write a buffer.
    cluster: Vec<u8>,
}

/// The look-up of a region.
#[derive(Debug)]
struct MrLookup {
    /// For whom it is.
    account: u64,
    /// The region was there when it was looked up last, so that this is no guess.
    was_there: bool,
    /// The VQPs that wait.
    waiting: Vec<VqpId>,
}

/// A `warm` call.
#[derive(Debug)]
pub(crate) struct Warm {
    client: ClientId,
    token: u64,
    left: u32,
    ready: u32,
    failed: u32,
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
        self.deadlines.front().map(|(due, _)| *due)
    }

    pub(crate) fn bytes(&self) -> u64 {
        let queues = self.queue.capacity() * 4 + self.deadlines.capacity() * 16;
        let mrs = self.mrs.capacity() * (size_of::<((PeerId, u32), MrLookup)>() + 1);
        (queues + mrs + self.mr_queue.capacity() * 8) as u64
    }
}

/// For [`crate::Core::audit`].
impl Lookups {
    /// Look-ups of nodes and regions, and `warm` calls.
    pub(crate) fn under_way(&self) -> u32 {
        let warms = self.warms.iter().flatten().count();
        self.running + (self.queue.len() + self.mrs.len() + warms) as u32
    }

    /// Whether the look-up of a region of the peer's brings a VQP back.
    pub(crate) fn awaits(&self, peer: PeerId, vqp: VqpId) -> bool {
        self.mrs.iter().any(|((at, _), mr)| *at == peer && mr.waiting.contains(&vqp))
    }

    /// Whether as many look-ups of nodes run and wait as peers say.
    pub(crate) fn agree(&self, running: u32, queued: usize) -> Result<(), String> {
        if (running, queued) != (self.running, self.queue.len()) {
            let counted = (self.running, self.queue.len());
            return Err(format!("look-ups: {:?}, counted as {counted:?}", (running, queued)));
        }
        Ok(())
    }
}
