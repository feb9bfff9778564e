use std::collections::VecDeque;

use elver_rnic::{Config, Rnic, Time};
use elver_verbs::{AddressVector, Ah, Cq, CqInit, Gid, Pd, VerbsError};

use crate::errands::Errands;
use crate::memory::SimMemory;
use crate::model::ArenaId;
use crate::network::Packet;

/// Entries of a CQ that never overflows: more than a run has WRs outstanding.
pub(crate) const CQ_ENTRIES: u32 = 1 << 14;
/// Packets that wait for a slow engine at most, as in a socket buffer.
pub(crate) const INBOX_PACKETS: usize = 2_048;

/// What a completion event was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

/// A host: a device, and what stands around it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) rnic: Rnic<SimMemory>,
    pub(crate) errands: Errands,
    pub(crate) config: Config,
    pub(crate) arena: ArenaId,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// Address handles, by host.
    pub(crate) ahs: Vec<Ah>,
    pub(crate) inbox: VecDeque<Packet>,
    /// By how much its clock is ahead of the others'.
    pub(crate) ahead: u64,
    /// Until when, on the network's clock, its driver had looked.
    pub(crate) looked_at: u64,
    /// Its engine works until then.
    pub(crate) busy_until: u64,
    /// When its engine runs next.
    pub(crate) wake_at: Option<u64>,
    pub(crate) armed: Armed,
    /// Entries of its CQ, and the most that were ever polled from it at once.
    pub(crate) cq_entries: u32,
    pub(crate) polled_most: u32,
    /// Its CQ overflowed.
    pub(crate) cq_failed: bool,
}

/// The objects that every host has from the start.
pub(crate) struct Objects {
    pub(crate) rnic: Rnic<SimMemory>,
    pub(crate) pd: Pd,
    pub(crate) foreign: Pd,
    pub(crate) cq: Cq,
    pub(crate) ahs: Vec<Ah>,
}

impl Objects {
    /// Makes a device and these objects in it. `gids` are those of all hosts.
    pub(crate) fn make(
        config: &Config,
        gids: &[Gid],
        cqe: u32,
        seed: u64,
    ) -> Result<Objects, VerbsError> {
        let mut rnic = Rnic::new(config.clone(), seed)?;
        let pd = rnic.alloc_pd()?;
        let foreign = rnic.alloc_pd()?;
        let cq = rnic.create_cq(CqInit { cqe })?;
        let mut ahs = Vec::with_capacity(gids.len());
        for gid in gids {
            ahs.push(rnic.create_ah(pd, AddressVector { dgid: *gid, ..AddressVector::default() })?);
        }
        Ok(Objects { rnic, pd, foreign, cq, ahs })
    }
}

/// Looks that are told of at most, for one time without packets.
const LOOKS_MAX: u64 = 64;

impl Host {
    pub(crate) fn new(config: Config, objects: Objects, cq_entries: u32, arena: ArenaId) -> Host {
        Host {
            rnic: objects.rnic,
            errands: Errands::default(),
            config,
            arena,
            pd: objects.pd,
            cq: objects.cq,
            ahs: objects.ahs,
            inbox: VecDeque::new(),
            ahead: 0,
            looked_at: 0,
            busy_until: 0,
            wake_at: None,
            armed: Armed::No,
            cq_entries,
            polled_most: 0,
            cq_failed: false,
        }
    }

    /// Its driver looked for packets again and again since it last ran, and there were none. Not
    /// so when it stood still, or its clock jumped: then it has looked nothing up.
    pub(crate) fn look(&mut self, now: u64) {
        let step = (self.config.dc_context_idle_ns / 16).max(1);
        let first = self.looked_at.max(self.busy_until);
        let steps = now.saturating_sub(first) / step;
        for count in 1..=steps.min(LOOKS_MAX) {
            self.rnic.caught_up(Time(first + count * step + self.ahead));
        }
        self.looked_at = now;
    }

    /// Asks for the engine to run at `at`, or as soon after as it is free.
    pub(crate) fn wake(&mut self, at: u64) {
        let at = at.max(self.busy_until);
        self.wake_at = Some(self.wake_at.map_or(at, |planned| planned.min(at)));
    }
}
