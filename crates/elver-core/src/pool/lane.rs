use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{Dest, Qp};

use crate::VqpId;
use crate::ids::{LaneIx, OpId, PeerId, QpIx};
use crate::rc::path::{Flushed, Path};

/// Of every queue so many places are kept for the core's own operations, so that look-ups and FINs
/// pass however many WRs wait.
pub(crate) const RESERVED: u32 = 16;

/// A physical QP of the pool that VQPs send on.
#[derive(Debug)]
pub(crate) struct PhysQp {
    /// Its handle.
    pub(crate) qp: Qp,
    /// WRs that its send queue holds.
    pub(crate) depth: u32,
    /// WRs on it that have not completed. What only a later completion tells to be done counts.
    pub(crate) posted: u32,
    /// Lanes of it that have something to post and no room, the next one first.
    pub(crate) waiting: VecDeque<LaneIx>,
    /// It stands in the list of QPs on which room was made.
    pub(crate) dirty: bool,
    /// Its lanes: the first, and how many.
    lanes: (LaneIx, u32),
    /// It is in its error state, and is set up anew once nothing of its is outstanding.
    pub(crate) broken: bool,
    /// It takes short turns: of the low class, while the high one is loaded.
    pub(crate) short_turns: bool,
}

impl PhysQp {
    pub(crate) fn new(qp: Qp, depth: u32, lanes: (LaneIx, u32)) -> PhysQp {
        let waiting = VecDeque::new();
        let (dirty, broken, short_turns) = (false, false, false);
        PhysQp { qp, depth, posted: 0, waiting, dirty, lanes, broken, short_turns }
    }

    /// All lanes of it.
    pub(crate) fn all_lanes(&self) -> impl Iterator<Item = LaneIx> + use<> {
        let (first, count) = self.lanes;
        (first.0..first.0 + count).map(LaneIx)
    }
}

/// Kind of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// A stream of a DCI: WRs name their target.
    Dc {
        /// The stream.
        stream: u16,
    },
    /// An RC QP: WRs name no target.
    Rc {
        /// The peer that it is connected to.
        peer: PeerId,
    },
}

/// State of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// It takes WRs.
    Running,
    /// A WR on it failed: what is outstanding comes back flushed, then it is set going again.
    Failing,
    /// An RC QP that is gone, or not yet there.
    Gone,
}

/// An ordered share of a physical QP: a stream of a DCI, or an RC QP.
///
/// What is posted on it completes in order. VQPs that found no room take turns.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of its QP in the pool.
    pub(crate) qp: QpIx,
    /// What it is.
    pub(crate) kind: LaneKind,
    /// Whether it takes WRs.
    pub(crate) state: LaneState,
    /// Physical WRs on it that have not completed.
    pub(crate) uncompleted: u32,
    /// VQPs that have something to post, the next one first; see [`crate::vqp::Vqp::ready`].
    pub(crate) ready: VecDeque<VqpId>,
    /// Operations of the core's own that wait; they go before VQPs.
    pub(crate) ops: VecDeque<OpId>,
    /// It stands in its QP's list of waiting lanes.
    pub(crate) waiting: bool,
    /// VQPs connected through it.
    pub(crate) vqps: u32,
    /// While it fails: the peer that does not answer, all of whose VQPs here fail.
    pub(crate) dead: Option<PeerId>,
    /// While it fails: VQPs whose WRs are posted again.
    pub(crate) rewound: Vec<VqpId>,
    /// While it fails: what was flushed may have been executed, see [`crate::rc::fate`]; of a lane over DC,
    /// what goes where the WR went that failed.
    pub(crate) unsure: Option<(PeerId, Option<Dest>)>,
    /// Of an RC QP: how what is posted on it is counted. Nobody asks for the PSNs of a lane over DC.
    pub(crate) path: Option<Path>,
    /// Of an RC QP that fails: what was flushed and may have been executed, in order. It counts as
    /// outstanding until that is known.
    pub(crate) flushed: Vec<Flushed>,
}

impl Lane {
    pub(crate) fn new(qp: QpIx, kind: LaneKind) -> Lane {
        Lane {
            qp,
            kind,
            state: LaneState::Running,
            uncompleted: 0,
            ready: VecDeque::new(),
            ops: VecDeque::new(),
            waiting: false,
            vqps: 0,
            dead: None,
            rewound: Vec::new(),
            unsure: None,
            path: None,
            flushed: Vec::new(),
        }
    }

    /// Whether nobody is on it any longer, and nothing of anybody's.
    pub(crate) fn is_left(&self) -> bool {
        self.vqps == 0 && self.uncompleted == 0 && self.ops.is_empty()
    }

    /// WRs of VQPs that the lane takes now.
    ///
    /// A lane never has more than as many as its QP has room left: one lane alone gets half of the
    /// queue, and lanes whose targets do not answer leave room to the others however many they are.
    #[inline]
    pub(crate) fn room(&self, qp: &PhysQp) -> u32 {
        let free = qp.depth.saturating_sub(RESERVED).saturating_sub(qp.posted);
        match self.kind {
            LaneKind::Rc { .. } => free,
            LaneKind::Dc { .. } => free.saturating_sub(self.uncompleted).div_ceil(2),
        }
    }

    /// Whether it takes an operation of the core's own, ahead of those that wait. The places that are kept for
    /// these are theirs too, but one lane alone gets half of the queue: a peer that answers nothing
    /// would stop all lanes of the QP.
    #[inline]
    pub(crate) fn has_room_for_op(&self, qp: &PhysQp) -> bool {
        let on_lane = match self.kind {
            LaneKind::Rc { .. } => 0,
            LaneKind::Dc { .. } => self.uncompleted,
        };
        qp.posted.saturating_add(on_lane) < qp.depth
    }

    /// Whether it takes an operation of the core's own now.
    #[inline]
    pub(crate) fn takes_op(&self, qp: &PhysQp) -> bool {
        self.state == LaneState::Running && self.ops.is_empty() && self.has_room_for_op(qp)
    }
}
