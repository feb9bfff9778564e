use std::collections::BTreeSet;

use elver_core::{ClientId, Holdings, Stats};
use elver_verbs::Time;

use crate::engine::Engine;
use crate::model::{ClientIx, Place};

/// A node: a host with a core, or without one while it is down.
pub(crate) struct Node {
    pub(crate) boot: u32,
    pub(crate) engine: Engine,
    /// Its clients that are open.
    pub(crate) clients: Vec<ClientIx>,
    /// Clients that died, of which something may be left.
    pub(crate) dying: Vec<ClientIx>,
    /// Clients that have completions to take, as the core told.
    pub(crate) ready: BTreeSet<ClientId>,
    /// It was called since it last ran.
    pub(crate) called: bool,
    /// It does not run before this: it has just run, and nothing came of it.
    pub(crate) rests_until: Time,
    /// Runs in a row of which nothing came, not even a packet.
    pub(crate) idle_runs: u32,
    /// Packets that its device had moved when it last ran.
    pub(crate) packets: u64,
    /// What it had most of.
    pub(crate) most: Most,
    /// Requests that its device has refused for good.
    pub(crate) refused: u64,
    /// Bytes that a planted bug keeps.
    pub(crate) kept_bytes: u64,
}

/// The most that a node had of some things at once since it booted: its tables keep their room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Most {
    pub(crate) peers: u64,
    pub(crate) vqps: u64,
    pub(crate) rc_qps: u64,
    pub(crate) under_way: u64,
}

impl Most {
    pub(crate) fn see(&mut self, stats: &Stats) {
        self.peers = self.peers.max(stats.peers);
        self.vqps = self.vqps.max(stats.vqps);
        self.rc_qps = self.rc_qps.max(stats.rc_qps);
    }

    pub(crate) fn see_all(&mut self, held: &Holdings) {
        let under_way = held.ops + held.pending_notes + held.requests + held.waiting;
        self.under_way = self.under_way.max(under_way.into());
    }
}

impl Node {
    pub(crate) fn new() -> Node {
        Node {
            boot: 0,
            engine: Engine::default(),
            clients: Vec::new(),
            dying: Vec::new(),
            ready: BTreeSet::new(),
            called: false,
            rests_until: Time::ZERO,
            idle_runs: 0,
            packets: 0,
            most: Most::default(),
            refused: 0,
            kept_bytes: 0,
        }
    }

    /// Where a client of its stands, if it is up.
    pub(crate) fn place(&self, number: usize) -> Place {
        (number, self.boot)
    }
}
