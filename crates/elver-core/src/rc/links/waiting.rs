//! Who waits for an RC QP: connects and VQPs for a shared one, connects for one of their own, and
//! peers that have asked for one while there was no room.
//!
//! Room comes when a link ends, which takes a round trip to its peer. Who waits goes on at that
//! moment, in order; the timers here only end what cannot come.

mod refuse;
mod serve;
mod sweep;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use elver_control::{Served, Shortage, Ticket};
use elver_verbs::{Class, Time};

use crate::VqpId;
use crate::ids::{OpId, PeerId};
use crate::slots::Slots;
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;

/// Those whose VQP waits no longer stay in the lists until they are as many as those that do, and
/// so many more.
const STALE_MAX: usize = 64;

/// Who waits for a link.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Connects that wait for a shared link, by its peer and class, each in order.
    pub(super) connects: BTreeMap<(PeerId, Class), VecDeque<Waiter>>,
    /// Peers to which a link must be made as soon as there is room, in order, by when it must be
    /// there.
    pub(super) wanted: VecDeque<(Time, PeerId, Class)>,
    /// The same ones.
    is_wanted: BTreeSet<(PeerId, Class)>,
    /// Connects that wait for room for a link of their own, in order, with its peer.
    pub(super) leases: VecDeque<(Waiter, PeerId)>,
    /// Links that went while they were waited for; the next sweep asks for others.
    pub(super) lost: Vec<(PeerId, Class)>,
    /// Requests of others that wait for room, in order, by when they are refused.
    pub(super) held: VecDeque<(Time, Served)>,
    /// Operations of the core's own that have no way to their peer.
    pub(super) ops: Vec<Laneless>,
    /// Room was made, or what was to make it did not.
    pub(super) stirred: bool,
}

/// A VQP whose `qconnect` waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    vqp: VqpId,
    attempt: u32,
    until: Time,
}

/// Why a link was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// It is not known where the peer takes requests.
    NoAddress,
    /// As many requests wait as may.
    Busy,
    /// There is too little of something: used, limit.
    Short(Shortage, u32, u32),
}

impl Waiter {
    /// Whether its VQP still waits.
    fn waits(&self, vqps: &Slots<VqpId, Box<Vqp>>) -> bool {
        let vqp = vqps.get(self.vqp).filter(|vqp| vqp.attempt == self.attempt);
        vqp.is_some_and(|vqp| vqp.phase == Phase::Connecting)
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        let Waiting { connects, wanted, leases, lost, held, ops, .. } = self;
        let ours = connects.is_empty() && wanted.is_empty() && leases.is_empty() && ops.is_empty();
        ours && lost.is_empty() && held.is_empty()
    }

    pub(super) fn want(&mut self, peer: PeerId, class: Class, until: Time) {
        if self.is_wanted.insert((peer, class)) {
            self.wanted.push_back((until, peer, class));
        }
    }

    /// Whether a link to a peer is to be made.
    pub(super) fn wants(&self, peer: PeerId, class: Class) -> bool {
        self.is_wanted.contains(&(peer, class))
    }

    /// Whether connects wait for a shared link to a peer.
    pub(super) fn is_waited_for(&self, peer: PeerId, class: Class) -> bool {
        self.connects.contains_key(&(peer, class))
    }

    /// Whether links to a peer were lost, or refused, and others will be asked for.
    pub(super) fn has_lost_any(&self, peer: PeerId) -> bool {
        self.lost.iter().any(|(lost, _)| *lost == peer)
    }

    pub(crate) fn next_wanted(&mut self) -> Option<(Time, PeerId, Class)> {
        let next = self.wanted.pop_front()?;
        self.is_wanted.remove(&(next.1, next.2));
        Some(next)
    }
}

/// For [`crate::Core::audit`].
impl Waiting {
    /// Whether a VQP's `qconnect` waits.
    pub(super) fn awaits(&self, vqp: VqpId, attempt: u32) -> bool {
        let shared = self.connects.values().flatten();
        let leases = self.leases.iter().map(|(waiter, _)| waiter);
        shared.chain(leases).any(|waiter| (waiter.vqp, waiter.attempt) == (vqp, attempt))
    }

    /// The peers and classes whose links connects wait for.
    pub(super) fn awaited(
        &self,
        vqps: &Slots<VqpId, Box<Vqp>>,
    ) -> impl Iterator<Item = (PeerId, Class)> {
        let waits = |waiting: &VecDeque<Waiter>| waiting.iter().any(|waiter| waiter.waits(vqps));
        self.connects.iter().filter(move |(_, waiting)| waits(waiting)).map(|(key, _)| *key)
    }

    /// Whether a link to a peer was lost and another will be asked for.
    pub(super) fn has_lost(&self, peer: PeerId, class: Class) -> bool {
        self.lost.contains(&(peer, class))
    }

    /// The requests of others that wait.
    pub(super) fn held_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.held.iter().map(|(_, served)| served.ticket)
    }
}

/// An operation that waits for a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laneless {
    pub(super) op: OpId,
    pub(super) peer: PeerId,
    pub(super) class: Class,
    /// Then it ends, without success.
    pub(super) until: Time,
}
