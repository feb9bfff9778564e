//! What the VQPs of a session hold of the node's leased queue pairs.
//!
//! The core has WRs for so many of them in all, and knows of no users: what each holds is counted here, from when a
//! connect asks for one until the VQP is gone, or connected another way, or its connect has failed.

use elver_portal::ConnectOptions;
use elver_verbs::Policy;
use rustc_hash::FxHashMap;

use super::quota::Usage;

/// What the core keeps of each send queue for itself.
const RESERVED: u32 = 16;
/// The core has no more of them than its WRs are for if each takes so many.
const WRS_MIN: u32 = 32;

/// WRs that a VQP's leased queue pair takes, which it is made for, where a shared one has so many.
pub(super) fn wrs(max_send_wr: u32, sq_depth: u32) -> u32 {
    max_send_wr.min(sq_depth).saturating_add(RESERVED).max(WRS_MIN)
}

/// Whether a connect asks for a queue pair of its own.
pub(super) fn asks(options: &ConnectOptions) -> bool {
    match options.policy {
        Policy::Leased => true,
        // As if there was none to a peer that could be shared, and none is left behind.
        Policy::Lite => options.uncached,
        Policy::Shared | Policy::RpcMeta => false,
    }
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// The WRs of each VQP that has one, and the connect that asked for it.
    held: FxHashMap<u32, (u32, u32)>,
    last: u32,
}

impl Leases {
    /// The number of the next connect, which is never 0.
    pub(super) fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }

    /// A VQP's connect asks for so many WRs.
    pub(super) fn begin(&mut self, vqp: u32, wrs: u32, connect: u32) {
        self.held.insert(vqp, (wrs, connect));
    }

    /// What a VQP has.
    pub(super) fn of(&self, vqp: u32) -> Usage {
        self.held.get(&vqp).map_or(Usage::NONE, |(wrs, _)| Usage::leased(*wrs))
    }

    /// A VQP has none any more; what it had.
    pub(super) fn end(&mut self, vqp: u32) -> Usage {
        self.held.remove(&vqp).map_or(Usage::NONE, |(wrs, _)| Usage::leased(wrs))
    }

    /// A connect has failed; what its VQP had, unless it is an earlier one of the VQP's, or none that asked for one.
    pub(super) fn failed(&mut self, vqp: u32, connect: u32) -> Option<Usage> {
        let (_, of) = self.held.get(&vqp)?;
        (*of == connect).then(|| self.end(vqp))
    }

    /// What all have.
    pub(super) fn usage(&self) -> Usage {
        let wrs = self.held.values().map(|(wrs, _)| *wrs);
        Usage::leased(wrs.fold(0, u32::saturating_add))
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests;
