use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use elver_core::ClientId;
use elver_portal::{
    Answer, Completion, NodeEnd, Peer, REPLY_SLOTS_MAX, Socket, Standing, Violation,
};
use elver_soft::{ProcessMemory, SoftMemory};
use elver_verbs::Time;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::process::Pid;

use super::account::{Account, Customer};
use super::gate::Gate;
use super::held::Held;
use super::leases::Leases;
use super::quota::Usage;
use super::room::Backing;
use super::spares::Spare;
use super::translate::Refused;

/// A process that connected.
pub(super) struct Session {
    /// Tells it from others that had its place before.
    pub(super) serial: u32,
    pub(super) socket: Socket,
    pub(super) peer: Peer,
    pub(super) customer: Customer,
    pub(super) standing: Standing,
    /// Its process, which its number cannot replace. None for this process, and for one that the
    /// system does not show.
    pub(super) process: Option<OwnedFd>,
    /// Its socket and its process are watched.
    pub(super) watched: bool,
    pub(super) since: Time,
    /// The process that made it ahead for its child, whose it is now.
    pub(super) parent: Option<Pid>,
    /// What it has from its hello on.
    pub(super) open: Option<Open>,
}

impl Session {
    /// Tells it from all others, at its place.
    pub(super) fn token(&self, slot: u32) -> u64 {
        u64::from(self.serial) << 32 | u64::from(slot)
    }

    /// Who pays for it.
    pub(super) fn account(&self) -> Account {
        self.customer.account
    }
}

/// The part of a session that has begun.
pub(super) struct Open {
    pub(super) client: ClientId,
    pub(super) end: NodeEnd,
    /// Memory that both ends map, of which the client has small regions registered.
    pub(super) arena: SoftMemory,
    /// The file of rings and arena.
    pub(super) backing: Backing,
    /// Replies that found no room. While there are any, nothing is taken from the session.
    owed: VecDeque<Owed>,
    /// Something was put into its ring since it was last woken.
    pub(super) touched: bool,
    /// The core holds completions for which there was no room.
    pub(super) stalled: bool,
    /// It is looked at in every round.
    pub(super) active: bool,
    pub(super) last: Time,
    /// Times that its process woke it since it slept last, and it was awake.
    pub(super) needless: u32,
    /// WRs that were taken from it.
    pub(super) wrs: u64,
    /// Commands whose answer is still to come.
    pub(super) pending: u32,
    /// Its process's memory, once it registered some.
    pub(super) process: Option<Arc<ProcessMemory>>,
    pub(super) regions: FxHashMap<u32, Region>,
    /// Deregistrations that wait, by request.
    pub(super) leaving: FxHashMap<u32, Region>,
    /// Memory that it has ordered, by request. It counts until that comes back, or is taken back, whatever becomes of the session.
    pub(super) ordered: FxHashMap<u32, Usage>,
    /// Its VQPs, and the send WRs that each may have outstanding.
    pub(super) vqps: FxHashMap<u32, u32>,
    pub(super) leases: Leases,
    /// Those of its VQPs that are bound to a port.
    pub(super) bound: FxHashSet<u32>,
    /// It has said goodbye.
    pub(super) is_parted: bool,
    /// The request of its goodbye, until that is answered.
    pub(super) goodbye: Option<u32>,
    /// The set that it was made ahead for, and its number there.
    pub(super) heir: Option<(u32, u32)>,
    /// By which its process reaches memory of others, once it has asked for it.
    pub(super) gate: Option<Gate>,
}

/// A region of a session's.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) usage: Usage,
    /// Keeps memory that the node allocated: the last owner takes long to give a large one back.
    pub(super) memory: Option<Held>,
    /// Its file, which tells how much of it is there.
    pub(super) backing: Option<Backing>,
}

/// A reply, kept until there is room.
pub(super) enum Owed {
    Completion(Completion),
    Answer { request: u32, answer: Answer<'static> },
    Refused { request: u32, refused: Refused },
    Failed { vqp: u32, cause: Refused },
}

impl Open {
    pub(super) fn new(client: ClientId, spare: Spare, now: Time) -> Open {
        let Spare { file: backing, end, arena } = spare;
        Open {
            client,
            end,
            arena,
            backing,
            owed: VecDeque::new(),
            touched: false,
            stalled: false,
            active: false,
            last: now,
            needless: 0,
            wrs: 0,
            pending: 0,
            process: None,
            regions: FxHashMap::default(),
            leaving: FxHashMap::default(),
            ordered: FxHashMap::default(),
            vqps: FxHashMap::default(),
            leases: Leases::default(),
            bound: FxHashSet::default(),
            is_parted: false,
            goodbye: None,
            heir: None,
            gate: None,
        }
    }

    /// Puts a reply into the ring, or keeps it until there is room.
    pub(super) fn reply(&mut self, owed: Owed) -> Result<(), Violation> {
        if self.owed.is_empty() && owed.push(&mut self.end)? {
            self.touched = true;
        } else {
            self.owed.push_back(owed);
        }
        Ok(())
    }

    /// Puts in what was kept, as much as there is room for.
    pub(super) fn repay(&mut self) -> Result<(), Violation> {
        while let Some(first) = self.owed.front() {
            if !first.push(&mut self.end)? {
                return Ok(());
            }
            self.touched = true;
            self.owed.pop_front();
        }
        Ok(())
    }

    /// Whether it has not taken what it was told: then nothing more is taken from it.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Completions that may be put in now; room for an answer is kept.
    #[inline]
    pub(super) fn completions_room(&mut self) -> Result<usize, Violation> {
        if self.owes() {
            return Ok(0);
        }
        Ok(self.end.room()?.saturating_sub(REPLY_SLOTS_MAX) as usize)
    }

    /// A VQP is gone, or connected anew.
    pub(super) fn goes_direct_no_more(&mut self, vqp: u32) {
        if let Some(gate) = &mut self.gate {
            gate.vqps.remove(&vqp);
        }
    }

    /// Whether a page of memory that it shares with the node could not be had.
    pub(super) fn has_lost_memory(&self) -> bool {
        let mut regions = self.regions.values().chain(self.leaving.values());
        self.end.is_lost()
            || self.arena.is_lost()
            || regions.any(|region| region.memory.as_ref().is_some_and(Held::is_lost))
    }

    /// All that it has of its user's quota.
    pub(super) fn usage(&self) -> Usage {
        self.ordered.values().fold(self.own_usage(), |sum, usage| sum.plus(*usage))
    }

    /// The same without what it has ordered.
    pub(super) fn own_usage(&self) -> Usage {
        let regions = self.regions.values().chain(self.leaving.values());
        regions.fold(
            Usage {
                vqps: self.vqps.len() as u32,
                ports: self.bound.len() as u32,
                ..Usage::SESSION.plus(self.leases.usage())
            },
            |sum, region| sum.plus(region.usage),
        )
    }
}

impl Owed {
    #[inline]
    fn push(&self, to: &mut NodeEnd) -> Result<bool, Violation> {
        match self {
            Owed::Completion(completion) => to.complete(completion),
            Owed::Answer { request, answer } => to.answer(*request, answer),
            Owed::Refused { request, refused } => {
                to.answer(*request, &Answer::Refused(refused.as_refusal()))
            }
            Owed::Failed { vqp, cause } => to.vqp_failed(*vqp, &cause.as_refusal()),
        }
    }
}
