//! What is known of a peer that there are calls to.

use alloc::collections::VecDeque;

use elver_verbs::Time;

/// A peer from which nothing came for this long is given up.
pub(super) const PATIENCE_NS: u64 = 1_000_000_000;

/// Calls to one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// All of them.
    pub(super) calls: usize,
    /// Those that have not had their turn, in order. An id whose call does not wait means nothing.
    pub(super) waiting: VecDeque<u64>,
    /// Those that it turned away for now, in order. An id whose call does not rest means nothing.
    pub(super) resting: VecDeque<u64>,
    /// Those under way.
    pub(super) flying: usize,
    /// Those that it has worked on for long. While there are any, one other is under way to it at once.
    pub(super) slow: usize,
    /// When it was last heard.
    pub(super) heard: Time,
    /// It let a call come to its timer and was not heard meanwhile.
    pub(super) silent: bool,
    /// It stands among the turns.
    pub(super) enlisted: bool,
}

impl Peer {
    /// Whether one more call to it may be under way.
    pub(super) fn may_fly(&self) -> bool {
        !self.silent && (self.slow == 0 || self.flying == 0)
    }
}
