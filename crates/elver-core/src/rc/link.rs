//! An RC QP between two nodes: what it serves, and where it stands.

use elver_control::{ControlAddr, Ticket};
use elver_verbs::{Class, Mtu, Qp, Time};

use crate::VqpId;
use crate::ids::{LaneIx, PeerId};

/// An RC QP, from its creation to its end.
#[derive(Debug)]
pub(crate) struct RcLink {
    pub(crate) qp: Qp,
    pub(crate) qpn: u32,
    /// PSN that it sends first.
    pub(crate) psn: u32,
    /// The other end, once it is known.
    pub(crate) peer_end: Option<PeerEnd>,
    /// The peer.
    pub(crate) peer: PeerId,
    /// Where the node takes requests that the link was agreed with: what is known of the peer may be
    /// of an earlier start of its, and then of a later one.
    pub(crate) control: ControlAddr,
    /// Whose traffic it carries.
    pub(crate) class: Class,
    /// What it serves.
    pub(crate) purpose: Purpose,
    pub(crate) state: LinkState,
    /// The lane that it is, once it takes WRs.
    pub(crate) lane: Option<LaneIx>,
    /// WRs that its send queue holds.
    pub(crate) depth: u32,
    /// When it was made.
    pub(crate) since: Time,
    /// How far its other end got, which counts when this one has failed.
    pub(crate) reached: Reached,
}

/// The other end of an RC QP, as its node has told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerEnd {
    pub(crate) qpn: u32,
    /// READs and atomics that it serves at once.
    pub(crate) rd_atomic: u8,
    /// Path MTU: both ends carry it.
    pub(crate) mtu: Mtu,
}

impl RcLink {
    /// Whether it is on the way out.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state, LinkState::Leaving(_) | LinkState::Closing)
    }

    /// Whether it is connected to the end of this number.
    pub(crate) fn leads_to(&self, qpn: u32) -> bool {
        self.peer_end.is_some_and(|end| end.qpn == qpn)
    }
}

/// How far the other end of an RC QP got with what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Nobody has asked: both ends work.
    Unasked,
    /// The peer was asked.
    Asked,
    /// It has taken its end to ERR, and all before this PSN was executed there.
    Psn(u32),
    /// It does not know, or has not answered.
    Unknown {
        /// It has answered.
        answered: bool,
    },
}

/// What an RC QP serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All VQPs of its class to the peer.
    Pool,
    /// As `Pool`, and it is never reclaimed: without DC, look-ups at a meta server go over it.
    Meta,
    /// At a meta server, whoever looks up over it at the peer, for which it is `Meta`. Nothing is sent on it, and
    /// it is never reclaimed: those of many readers would take each other's places in the pool.
    Reader,
    /// One VQP alone; at the peer, nobody.
    Leased(Option<VqpId>),
}

impl Purpose {
    /// Whether it is an end for the peer's WRs alone, and has no lane.
    pub(crate) fn only_serves(self) -> bool {
        matches!(self, Purpose::Reader | Purpose::Leased(None))
    }

    /// Whether all VQPs of its class to the peer use it.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Purpose::Pool | Purpose::Meta)
    }
}

/// State of an RC QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The peer was asked to make its end.
    Asking,
    /// Made at the peer's request; it sends only when something came over it, since the peer may
    /// have given up meanwhile.
    Listening,
    /// It takes WRs.
    Ready,
    /// Its VQPs leave and its work ends. Then it is closed: at the peer's request if there is a
    /// ticket.
    Leaving(Option<Ticket>),
    /// Nothing of ours is on it, and the peer was asked to leave it too.
    Closing,
}
