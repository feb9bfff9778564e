//! What the parts of a core leave to be done by the one that drives them all.
//!
//! Where one part finds that another has to go on, it says so here and returns; [`crate::Core::apply`] then has
//! the other one go on. So no part is entered again while it is at work, and each can be read without those above it.

use alloc::collections::VecDeque;

use elver_control::NodeRecord;

use elver_verbs::{Class, Qp};

use crate::ConnectError;
use crate::VqpId;
use crate::ids::{LaneIx, OpId, PeerId};

/// Something to do once the part that found it has returned. What it is about may be gone by then.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A VQP may post what waits in its ring.
    Pump(VqpId),
    /// An operation of the core's own ends without another WR: it was done, or will not be.
    Conclude {
        /// The operation.
        op: OpId,
        /// It was done.
        ok: bool,
    },
    /// Nodes wait to be looked up, and no meta server can be reached.
    SeekMetaLink,
    /// The look-up of a peer has ended.
    NodeFound {
        /// The peer.
        peer: PeerId,
        /// What it is.
        found: Result<NodeRecord, ConnectError>,
    },
    /// A region of a peer's cannot be looked up.
    NoRegion {
        /// The peer.
        peer: PeerId,
        /// The region's key.
        rkey: u32,
    },
    /// Look-ups of regions wait for their turn anew.
    StartMrLookups,
    /// VQPs or operations of a class wait for a lane to a peer.
    WantLane(PeerId, Class),
    /// What a VQP was connected to has gone, and another is in its place.
    PeerPast(VqpId),
    /// Nobody is at the other end of a link any longer.
    LinkErrored(Qp),
    /// Something was settled that a lane which has failed may have waited for.
    Restart(LaneIx),
}

/// What is to be done, in order. It is empty whenever a call of the core's returns.
#[derive(Debug, Default)]
pub(crate) struct Effects(VecDeque<Effect>);

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push_back(effect);
    }

    pub(crate) fn pop(&mut self) -> Option<Effect> {
        self.0.pop_front()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
