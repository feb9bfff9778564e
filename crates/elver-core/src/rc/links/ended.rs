//! Ends of links of which a peer may still ask how far they got.

use elver_control::Ticket;
use elver_verbs::Qp;

use crate::ids::{LinkId, PeerId};

/// An end that went before its peer had agreed to that: the peer may still ask how far it got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// The peer, its end, and this one.
    pub(super) peer: PeerId,
    pub(super) peer_qpn: u32,
    pub(super) qpn: u32,
    pub(super) psn: u32,
}

/// An end that was stopped while the device copied for it.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) id: LinkId,
    pub(super) qp: Qp,
    /// What the peer has asked; else we ask the peer.
    pub(super) asked: Option<(Ticket, (u32, u32), u32)>,
}

impl Unsettled {
    /// What it owes an answer.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.asked.map(|(ticket, ..)| ticket)
    }
}

/// How far an end got that was taken to ERR.
pub(super) enum Stopped {
    /// The PSN that it expects next, which is final.
    At(u32),
    /// The device still copies what the peer writes.
    Waiting,
    Unknown,
}

impl Stopped {
    pub(super) fn psn(self) -> Option<u32> {
        match self {
            Stopped::At(psn) => Some(psn),
            Stopped::Waiting | Stopped::Unknown => None,
        }
    }
}
