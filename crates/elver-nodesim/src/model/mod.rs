//! What must be, seen from outside of the cores: clients, their VQPs, memory and WRs.

mod arena;
mod ids;
mod op;
mod pattern;
mod region;
mod vqp;

use std::collections::{BTreeMap, BTreeSet};

use elver_core::{ClientId, VqpId, VqpInit};
use elver_verbs::{Gid, Time};

pub(crate) use arena::{Arena, Hold};
pub(crate) use ids::{ArenaIx, ClientIx, OpIx, Place, RecvIx, RegionIx, VqpIx};
pub(crate) use op::{Op, OpState, Piece, Planted, Recv};
pub(crate) use pattern::{byte, bytes};
pub(crate) use region::{ATOMIC_BYTES, ATOMIC_WORDS, COUNTERS, Moment, Region};
pub(crate) use vqp::{Addressee, Phase, Target, Vqp};

/// A rule that was broken.
#[derive(Debug)]
pub(crate) struct Violation(pub(crate) String);

impl Violation {
    pub(crate) fn new(what: impl Into<String>) -> Violation {
        Violation(what.into())
    }
}

/// Ends the function with a violation.
macro_rules! broken {
    ($($what:tt)*) => {
        return Err($crate::model::Violation(format!($($what)*)))
    };
}
pub(crate) use broken;

/// Everything that the model knows.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) clients: Vec<Client>,
    pub(crate) vqps: Vec<Vqp>,
    pub(crate) ops: Vec<Op>,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) regions: Vec<Region>,
    pub(crate) by_vqp: BTreeMap<(Place, VqpId), VqpIx>,
    /// VQPs that were destroyed.
    pub(crate) destroyed: BTreeMap<(Place, VqpId), VqpIx>,
    /// Ports of each node that were bound at any time, with the VQP that is bound now.
    pub(crate) ports: BTreeMap<(Place, u16), Option<VqpIx>>,
    /// Calls that an event will answer, by token.
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Orders what happened: each post and each completion is a step.
    step: u64,
    /// Messages received.
    pub(crate) messages: u64,
}

/// A client process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) place: Place,
    pub(crate) id: ClientId,
    pub(crate) phase: ClientPhase,
    pub(crate) vqps: BTreeSet<VqpIx>,
    pub(crate) arenas: Vec<ArenaIx>,
    pub(crate) regions: Vec<RegionIx>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientPhase {
    Open,
    /// It died, and its node was told so.
    Closed,
    /// Nothing of it is left; or its node is gone.
    Gone,
}

/// A call that an event will answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Connect { client: ClientIx, vqp: VqpIx, epoch: u32, since: Time, node: Option<usize>, gid: Gid },
    Warm { client: ClientIx, peers: u32 },
    DropArena { client: ClientIx, arena: ArenaIx },
    DropRegion { client: ClientIx, region: RegionIx },
}

impl Pending {
    pub(crate) fn client(&self) -> ClientIx {
        match self {
            Pending::Connect { client, .. }
            | Pending::Warm { client, .. }
            | Pending::DropArena { client, .. }
            | Pending::DropRegion { client, .. } => *client,
        }
    }
}

impl Model {
    /// The next step.
    pub(crate) fn tick(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    pub(crate) fn place(&self, vqp: VqpIx) -> Place {
        self.clients[self.vqps[vqp].client].place
    }

    /// A VQP by the id that its node gave it.
    pub(crate) fn find(&self, place: Place, id: VqpId) -> Option<VqpIx> {
        self.by_vqp.get(&(place, id)).copied()
    }

    /// A VQP that a node made.
    pub(crate) fn add_vqp(
        &mut self,
        client: ClientIx,
        id: VqpId,
        init: VqpInit,
        now: Time,
    ) -> Result<VqpIx, Violation> {
        let place = self.clients[client].place;
        let index = self.vqps.len();
        if self.by_vqp.insert((place, id), index).is_some() {
            broken!("node {}: the id of VQP {:#x} came twice", place.0, id.0);
        }
        self.vqps.push(Vqp::new(client, id, init, now));
        self.clients[client].vqps.insert(index);
        Ok(index)
    }

    /// What stands in the local pieces of a WR.
    pub(crate) fn gather(&self, pieces: &[Piece], len: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(len as usize);
        for piece in pieces {
            let at = piece.offset as usize;
            out.extend(&self.arenas[piece.arena].memory.view()[at..at + piece.len as usize]);
        }
        out.truncate(len as usize);
        out
    }

    /// The first byte of a receive behind the first `len` that is not as it was before it was posted.
    pub(crate) fn overfilled(&self, pieces: &[Piece], len: u32) -> Option<u64> {
        let mut start = 0;
        pieces.iter().find_map(|piece| {
            let (skip, before) = (u64::from(len).saturating_sub(start), start);
            start += u64::from(piece.len);
            let at = self.arenas[piece.arena].changed(piece.offset, piece.len, skip)?;
            Some(before + at)
        })
    }

    /// Plants a byte in a receive behind its first `len`, if it has any.
    pub(crate) fn overfill(&self, pieces: &[Piece], len: u32) {
        let all: u32 = pieces.iter().map(|piece| piece.len).sum();
        if let Some(last) = pieces.last().filter(|_| all > len) {
            self.arenas[last.arena].spoil(last.offset + u64::from(last.len) - 1);
        }
    }

    /// The WR is over: its pieces are the client's again, with what stands in them now.
    pub(crate) fn release(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.arenas[piece.arena].release(piece.offset);
        }
    }

    /// A VQP is no more: what it had outstanding completes to nobody.
    pub(crate) fn forget(&mut self, vqp: VqpIx) {
        let (place, id) = (self.place(vqp), self.vqps[vqp].id);
        let gone = &mut self.vqps[vqp];
        gone.phase = Phase::Gone;
        let bound = gone.bound.take();
        for op in std::mem::take(&mut gone.sends) {
            self.ops[op].state = OpState::Forgotten;
        }
        gone.recvs.clear();
        let client = gone.client;
        self.clients[client].vqps.remove(&vqp);
        self.by_vqp.remove(&(place, id));
        self.destroyed.insert((place, id), vqp);
        if let Some(port) = bound {
            self.ports.insert((place, port), None);
        }
    }

    /// Everything of a client is forgotten but its memory, which its node may still use.
    pub(crate) fn client_died(&mut self, client: ClientIx) {
        for vqp in std::mem::take(&mut self.clients[client].vqps) {
            self.forget(vqp);
        }
        self.pending.retain(|_, pending| pending.client() != client);
        self.clients[client].phase = ClientPhase::Closed;
        for arena in self.clients[client].arenas.clone() {
            self.arenas[arena].drop_asked();
        }
        for region in self.clients[client].regions.clone() {
            self.regions[region].drop_asked();
        }
    }

    /// Nothing of a client is left at its node: its memory must not change any more.
    pub(crate) fn client_gone(&mut self, client: ClientIx) {
        self.clients[client].phase = ClientPhase::Gone;
        let step = self.tick();
        for arena in self.clients[client].arenas.clone() {
            self.arenas[arena].watch();
        }
        for region in self.clients[client].regions.clone() {
            self.regions[region].watch(step);
        }
    }

    /// A node is gone, with its memory.
    pub(crate) fn node_gone(&mut self, place: Place) {
        for client in 0..self.clients.len() {
            if self.clients[client].place != place {
                continue;
            }
            if self.clients[client].phase == ClientPhase::Open {
                self.client_died(client);
            }
            self.client_gone(client);
        }
    }

    /// Receivers may hold more than the model knows of: none of the messages under way may find room.
    pub(crate) fn crowd(&mut self) {
        for known in self.vqps.iter_mut().filter(|known| !known.stream.is_empty()) {
            known.crowded = true;
        }
    }

    /// Compares all memory that nobody may change with what it must hold.
    pub(crate) fn check_memory(&self) -> Result<(), Violation> {
        for (index, arena) in self.arenas.iter().enumerate() {
            arena.check().map_err(|what| Violation(format!("local memory {index}: {what}")))?;
        }
        for (index, region) in self.regions.iter().enumerate() {
            region.check().map_err(|what| Violation(format!("region {index}: {what}")))?;
        }
        Ok(())
    }
}
