//! What ended sessions leave: what the core still has something of, and memory that is being given back.

use elver_core::ClientId;
use elver_verbs::Time;
use rustc_hash::FxHashMap;

use super::super::account::Account;
use super::super::held::Held;
use super::super::maker::Maker;
use super::super::orders::{Awaiting, Cleared, Leavings};
use super::super::quota::{Quotas, Usage};
use super::super::session::Open;

/// What a session had counts as one if it cannot be given back within this.
const CLEARING_NS: u64 = 100_000_000;
/// Regions in its own memory that a session which has ended may still count for a moment.
const SMALL_MRS: u32 = 16;

/// All of it, by client.
#[derive(Default)]
pub(in crate::engine) struct Ghosts {
    /// Of which the core still has something.
    all: FxHashMap<ClientId, Ghost>,
    /// Those of which it has nothing more, and whose memory is being given back.
    cleared: FxHashMap<ClientId, Account>,
    /// These by account, and since when: who makes them many is gone through for itself alone.
    clearing: FxHashMap<Account, FxHashMap<ClientId, Time>>,
}

struct Ghost {
    account: Account,
    usage: Usage,
    leavings: Leavings,
    memory: Vec<Held>,
}

impl Ghosts {
    /// Whether the core has nothing of any.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Keeps what a session leaves, or one that was made ahead, until the core has nothing of it. Its mappings count until
    /// they have gone.
    pub(in crate::engine) fn retire(&mut self, account: Account, open: Open, quotas: &mut Quotas) {
        let session = Usage::SESSION.minus(Usage::SESSION.of_memory());
        quotas.give_back(account, session);
        if let Some(process) = &open.process {
            // What is still in flight must not reach into a process that has no session.
            process.revoke();
        }
        let usage = open.own_usage().minus(session);
        let Open { client, end, arena, backing, gate, regions, leaving, .. } = open;
        let (rings, mut memory) = (Some(end), Vec::new());
        let mut files = vec![backing];
        for region in regions.into_values().chain(leaving.into_values()) {
            memory.extend(region.memory);
            files.extend(region.backing);
        }
        let leavings = Leavings { memory: vec![arena], rings, files, gate };
        self.all.insert(client, Ghost { account, usage, leavings, memory });
    }

    /// Whether nothing of an ended session is kept any more.
    pub(in crate::engine) fn has_forgotten(&self, client: ClientId) -> bool {
        !self.all.contains_key(&client) && !self.cleared.contains_key(&client)
    }

    /// Gives back what ended sessions had of which nothing else is left. The memory that each has by itself waits while
    /// others are hurried for: what it counts until then are mappings, and a few regions.
    pub(in crate::engine) fn clear_gone(
        &mut self,
        is_gone: impl Fn(ClientId) -> bool,
        (maker, may_wait): (&Maker, bool),
        quotas: &mut Quotas,
        now: Time,
    ) {
        for (_, ghost) in self.all.iter_mut().filter(|(client, _)| is_gone(**client)) {
            quotas.give_back(ghost.account, ghost.usage.minus(ghost.usage.of_memory()));
            ghost.usage = ghost.usage.of_memory();
        }
        // A process that keeps the mapping must not keep memory that counts for nobody.
        let goes =
            |ghost: &Ghost| !may_wait || ghost.usage.bytes > 0 || ghost.usage.mrs > SMALL_MRS;
        for (client, ghost) in self.all.extract_if(|client, ghost| is_gone(*client) && goes(ghost))
        {
            let Ghost { account, usage, mut leavings, memory } = ghost;
            leavings.memory.extend(memory.into_iter().filter_map(Held::into_last));
            quotas.give_back(account, usage.minus(usage.of_memory()));
            let awaited_by = Awaiting::Session(client);
            maker.clear(leavings, Cleared { account, usage: usage.of_memory(), awaited_by });
            self.cleared.insert(client, account);
            self.clearing.entry(account).or_default().insert(client, now);
        }
    }

    /// Ended sessions of an account's whose memory is not given back yet, though that takes microseconds: its processes keep
    /// it from going.
    pub(super) fn clearing(&self, account: Account, now: Time) -> u32 {
        let is_stuck = |since| now.ns_since(since) >= CLEARING_NS;
        let own = self.clearing.get(&account).into_iter().flat_map(FxHashMap::values);
        own.filter(|since| is_stuck(**since)).count() as u32
    }

    /// The memory of an ended session was given back.
    pub(in crate::engine) fn forget(&mut self, client: ClientId) {
        let Some(account) = self.cleared.remove(&client) else { return };
        if let Some(own) = self.clearing.get_mut(&account) {
            own.remove(&client);
            if own.is_empty() {
                self.clearing.remove(&account);
            }
        }
    }
}
