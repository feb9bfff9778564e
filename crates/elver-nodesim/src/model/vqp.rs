use std::collections::{BTreeMap, VecDeque};

use elver_core::{ConnectOptions, VqpId, VqpInit};
use elver_verbs::Time;

use crate::model::{ClientIx, OpIx, Place, RecvIx, VqpIx};

/// A VQP as its client knows it.
#[derive(Debug)]
pub(crate) struct Vqp {
    pub(crate) client: ClientIx,
    pub(crate) id: VqpId,
    pub(crate) init: VqpInit,
    pub(crate) phase: Phase,
    /// Where it sends.
    pub(crate) target: Option<Target>,
    /// How it was connected last.
    pub(crate) options: ConnectOptions,
    /// Grows with each connect.
    pub(crate) epoch: u32,
    /// The epoch in which it failed last, and why.
    pub(crate) failed: Option<(u32, String)>,
    /// Its last connect found no RC QP left for it.
    pub(crate) no_rc_qp: bool,
    pub(crate) bound: Option<u16>,
    /// The steps at which it was bound, and connected last.
    pub(crate) bound_at: u64,
    pub(crate) connected_at: u64,
    /// When it was connected last its node may have known the peer as what that was before.
    pub(crate) outdated: bool,
    /// When it was made, or accepted.
    pub(crate) since: Time,
    /// For an accepted VQP: the one that sent the first message.
    pub(crate) origin: Option<VqpIx>,
    /// WRs that have not completed, oldest first.
    pub(crate) sends: VecDeque<OpIx>,
    pub(crate) recvs: VecDeque<RecvIx>,
    /// Messages that it sent and nobody received yet, oldest first.
    pub(crate) stream: VecDeque<OpIx>,
    /// Accepted VQPs, by sender.
    pub(crate) accepted: BTreeMap<VqpIx, VqpIx>,
    /// It was accepted, but no message has told yet from whom.
    pub(crate) accepted_unknown: bool,
    /// The node that it was accepted from, as its own node says.
    pub(crate) accepted_from: Option<usize>,
    /// An epoch in which a WR failed: all behind it are flushed.
    pub(crate) flushing: Option<u32>,
    /// An epoch in which WRs were flushed, and nothing has told why yet.
    pub(crate) unexplained: Option<(u32, OpIx)>,
    /// It was accepted from a connection that its origin has left.
    pub(crate) stale: bool,
    /// It had receives that are too short for some messages, or did not take some for another reason.
    pub(crate) has_unfit: bool,
    /// An epoch in which a message was passed by later ones: it must have been refused.
    pub(crate) hole: Option<u32>,
    /// While messages of its were under way, their receiver may have had no room.
    pub(crate) crowded: bool,
    /// It was told that the receiver of its messages had no room.
    pub(crate) crowded_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    Connecting,
    Up,
    /// It failed, or a connect did.
    Down,
    /// Destroyed, or its client or node is gone.
    Gone,
}

/// Where a VQP sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The node, as it was booted when the VQP was connected.
    pub(crate) place: Place,
    pub(crate) to: Addressee,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee {
    Port(u16),
    Vqp(VqpIx),
}

impl Vqp {
    pub(crate) fn new(client: ClientIx, id: VqpId, init: VqpInit, since: Time) -> Vqp {
        Vqp {
            client,
            id,
            init,
            phase: Phase::Idle,
            target: None,
            options: ConnectOptions::default(),
            epoch: 0,
            failed: None,
            no_rc_qp: false,
            bound: None,
            bound_at: 0,
            connected_at: 0,
            outdated: false,
            since,
            origin: None,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            stream: VecDeque::new(),
            accepted: BTreeMap::new(),
            accepted_unknown: false,
            accepted_from: None,
            flushing: None,
            unexplained: None,
            stale: false,
            has_unfit: false,
            hole: None,
            crowded: false,
            crowded_out: false,
        }
    }

    /// The number of the node that it sends to.
    pub(crate) fn peer(&self) -> Option<usize> {
        self.target.map(|target| target.place.0).or(self.accepted_from)
    }

    /// Whether it failed in an epoch.
    pub(crate) fn failed_in(&self, epoch: u32) -> bool {
        self.failed.as_ref().is_some_and(|(failed, _)| *failed >= epoch)
    }

    /// Whether it ever failed.
    pub(crate) fn ever_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// It failed for a reason; the first one of an epoch counts.
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        if self.unexplained.is_some_and(|(epoch, _)| epoch == self.epoch) {
            self.unexplained = None;
        }
        if !self.failed_in(self.epoch) {
            self.failed = Some((self.epoch, why.into()));
        }
        if self.phase != Phase::Gone {
            self.phase = Phase::Down;
        }
    }
}
