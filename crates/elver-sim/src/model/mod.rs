//! What a run must have led to: every WR that was posted, what became of it, and what memory must
//! hold because of it.
//!
//! The rules, each checked as soon as it can be:
//! - a WR completes once, in the order of its QP, or of its DCI stream; an unsignalled one is done
//!   when a later one completes ([`completion`]);
//! - a failure has a cause: a bad WR, a fault between its two hosts, a peer that was stopped
//!   ([`cause`]);
//! - a message of RC or DC is received once and in order, one of UC or UD at most once for each
//!   copy that the network carried, and always with the bytes that were sent ([`delivery`]);
//! - after success the effect is there; of what failed, no more than a beginning of what was posted,
//!   in order; and no byte changed that no WR named ([`effects`]).

mod arena;
mod cause;
mod completion;
mod delivery;
mod effects;
mod ids;

use std::collections::{BTreeMap, VecDeque};

use elver_rnic::Rnic;
use elver_verbs::{Mw, Qp, QpType, SendOpcode, Srq, WcStatus};

pub(crate) use arena::{Arena, Owner, Range, Room};
pub(crate) use ids::{
    ArenaId, CellId, EndpointId, LaneId, OpId, QueueId, RecvId, Violation, WindowId, message_id,
    recv_wr_id, send_wr_id,
};

use crate::memory::SimMemory;
use crate::network::Network;
use crate::pattern::Stream;
use crate::plan::Setup;

/// Bytes in front of a UD message (IBTA vol. 1, annex A17.4.5.2).
pub(crate) const GRH_LEN: u32 = 40;
/// A message of fewer bytes does not carry its number.
pub(crate) const NUMBERED_LEN: u32 = 8;

/// What the model may look at when it judges a completion.
pub(crate) struct View<'a> {
    pub(crate) network: &'a Network,
    /// The device that gave the completion.
    pub(crate) rnic: &'a Rnic<SimMemory>,
}

/// What is wrong with a WR on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// An rkey that opens nothing.
    RemoteKey,
    /// A range that ends behind its region.
    RemoteRange,
    /// A region that grants peers nothing.
    RemoteRights,
    /// A region of another protection domain.
    RemoteDomain,
    /// A region that was deregistered.
    RemoteDeregistered,
    /// A region whose memory has gone.
    RemoteVanished,
    /// A memory window that was invalidated, or that is bound on another QP.
    StaleWindow,
    /// The wrong DC access key.
    AccessKey,
    /// The wrong Q_Key.
    QKey,
    /// An lkey that opens nothing.
    LocalKey,
    /// A message longer than the receive.
    TooLong,
    /// An atomic on a word that is not aligned.
    Misaligned,
    /// A SEND that invalidates what is no window of the peer's QP.
    InvalidateNothing,
    /// A bind to a range outside of its region.
    BindRange,
    /// A local invalidate of an rkey that is no window's.
    InvalidateLocally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Outstanding,
    Done(WcStatus),
    /// Its QP was reset or its host crashed before it completed: nobody will tell.
    Forgotten,
}

/// What a WR does at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It changes and reads no memory there, but for a receive.
    None,
    /// Writes a range that no other WR writes.
    Write(Range),
    /// Writes a range that other WRs of its lane write too.
    Overwrite(CellId),
    /// Reads bytes that do not change.
    Read(Stream, u64),
    /// Swaps a word that only its lane changes; `expected` is what it must find.
    Swap { cell: CellId, expected: u64 },
    /// Adds to a word that many lanes add to.
    Add { cell: CellId, add: u64 },
}

/// A send WR.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) opcode: SendOpcode,
    pub(crate) lane: LaneId,
    pub(crate) epoch: u32,
    /// Who answers it; itself for an operation that sends nothing.
    pub(crate) dest: EndpointId,
    pub(crate) len: u32,
    /// Path MTU in bytes, as it was when the WR was posted.
    pub(crate) mtu: u32,
    /// The bytes that it sends, from an offset on.
    pub(crate) content: (Stream, u64),
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) effect: Effect,
    /// What it fetches goes there, in order.
    pub(crate) local: Vec<Range>,
    pub(crate) planted: Option<Planted>,
    pub(crate) window: Option<WindowId>,
    /// The chunk that it uses, if peers may lose that meanwhile.
    pub(crate) mortal: Option<(ArenaId, usize)>,
    /// The rkey that a SEND invalidates.
    pub(crate) invalidates: Option<u32>,
    pub(crate) state: State,
    /// Receives that got it.
    pub(crate) delivered: u32,
}

impl Op {
    /// Whether it takes a receive at its target.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Send
                | SendOpcode::SendWithImm
                | SendOpcode::SendWithInv
                | SendOpcode::WriteWithImm
        )
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.state == State::Done(WcStatus::Success)
    }

    /// Whether it succeeded, and somebody else had to do something for it.
    pub(crate) fn answered_by_peer(&self) -> bool {
        self.succeeded() && !matches!(self.opcode, SendOpcode::BindMw | SendOpcode::LocalInv)
    }

    /// Whether it ended in another way than success, so that it may have had no effect.
    pub(crate) fn may_be_void(&self) -> bool {
        self.state != State::Outstanding && !self.succeeded()
    }
}

/// A receive WR.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) queue: QueueId,
    pub(crate) ranges: Vec<Range>,
    pub(crate) state: State,
    /// The WR whose message it got, and the bytes in front of it.
    pub(crate) got: Option<(OpId, u32)>,
}

/// A receive queue, or an SRQ.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub(crate) host: usize,
    /// The SRQ; otherwise the queue of an endpoint.
    pub(crate) srq: Option<Srq>,
    /// The SRQ is shared by the RC QPs of its host.
    pub(crate) shared_by_rc: bool,
    /// The endpoint that it was made for.
    pub(crate) endpoint: EndpointId,
    pub(crate) outstanding: VecDeque<RecvId>,
    /// Bytes that each receive holds.
    pub(crate) capacity: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Receives are posted too late on purpose.
    pub(crate) late: bool,
    /// Receives ever posted, and messages ever sent to it.
    pub(crate) posted: u64,
    pub(crate) aimed: u64,
    pub(crate) gone: bool,
    /// Its CQ overflowed: completions of its receives are lost.
    pub(crate) overflown: bool,
    /// An event is to tell when fewer receives are left; 0 when none is.
    pub(crate) limit: u32,
}

/// An ordered stream of send WRs: that of a QP, or a stream of a DCI.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) endpoint: EndpointId,
    pub(crate) stream: u16,
    /// Counts the times at which it began anew.
    pub(crate) epoch: u32,
    /// A WR of this epoch failed: the others are flushed.
    pub(crate) failed: bool,
    pub(crate) outstanding: VecDeque<OpId>,
    /// Messages that were posted and not yet received, oldest first.
    pub(crate) inbound: VecDeque<OpId>,
    /// WRs of the epoch, oldest first.
    pub(crate) posted: Vec<OpId>,
    /// Cells of the epoch, by target.
    pub(crate) overwrites: BTreeMap<EndpointId, CellId>,
    pub(crate) swaps: BTreeMap<EndpointId, CellId>,
    /// Latest message received from it, by receiver.
    pub(crate) latest: BTreeMap<EndpointId, OpId>,
}

/// Where a QP stands, as far as the harness has moved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Up,
    /// Moved to SQD: started WRs finish, no new one starts.
    Draining,
    /// In SQD, with nothing started left.
    Drained,
    /// Stopped: by an error, or on purpose.
    Down,
    /// Destroyed, or its host crashed.
    Gone,
}

impl Phase {
    /// Whether it answers its peers.
    pub(crate) fn is_up(self) -> bool {
        matches!(self, Phase::Up | Phase::Draining | Phase::Drained)
    }
}

/// A QP.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) host: usize,
    pub(crate) arena: ArenaId,
    pub(crate) qp: Qp,
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) mtu: u32,
    pub(crate) peer: Option<EndpointId>,
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) queue: Option<QueueId>,
    pub(crate) phase: Phase,
    /// It may be in ERR through no WR of its own: it was moved there, or a peer's bad WR did it.
    pub(crate) may_fail: bool,
    /// It was not up all the time since it was connected.
    pub(crate) interrupted: bool,
    /// It was not up all the time since it was made.
    pub(crate) ever_interrupted: bool,
    /// Its ACK timeout is so short that congestion alone can exceed it.
    pub(crate) impatient: bool,
    /// Its RNR retries are bounded.
    pub(crate) rnr_bounded: bool,
    /// ERR when so many DCI streams have failed.
    pub(crate) errored_streams_max: u32,
    /// Copies of messages that it received.
    pub(crate) received_copies: u64,
    pub(crate) down_since: u64,
    /// PSN that it sends first.
    pub(crate) sq_psn: u32,
    /// It stays in RTR until it hears of its peer; it has to tell of a WR that was posted to it from
    /// this one on.
    pub(crate) listens_from: Option<OpId>,
    /// What it was set up with, to be set up so again.
    pub(crate) setup: Setup,
}

/// A range that several WRs change.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) range: Range,
    pub(crate) kind: CellKind,
}

#[derive(Debug)]
pub(crate) enum CellKind {
    /// Written as a whole by one lane's WRs, in this order.
    Overwritten(Vec<OpId>),
    /// A word swapped by one lane: what it holds after each of its WRs, and before the first.
    Swapped { ops: Vec<OpId>, values: Vec<u64> },
    /// A word that many lanes add to.
    Counter { initial: u64, ops: Vec<OpId> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    Binding,
    Open,
    /// An invalidate was posted.
    Closing,
    Closed,
    /// Unknown, because its QP failed.
    Lost,
}

/// A memory window: bound by `owner`, used by its peer.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) owner: EndpointId,
    /// The window, until it is freed.
    pub(crate) mw: Option<Mw>,
    pub(crate) rkey: u32,
    pub(crate) range: Range,
    pub(crate) used: u32,
    pub(crate) uses: u32,
    pub(crate) state: WindowState,
}

/// Everything that the model knows.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) arenas: Vec<Arena>,
    pub(crate) ops: Vec<Op>,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) queues: Vec<RecvQueue>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) windows: Vec<Window>,
    /// Endpoints that exist, by host and QPN.
    pub(crate) by_qpn: BTreeMap<(usize, u32), EndpointId>,
    /// WRs that are still to complete.
    pub(crate) outstanding: usize,
    /// DCTs that may have no room for an initiator.
    pub(crate) crowded: bool,
    /// Memory may not be at hand.
    pub(crate) late_memory: bool,
}

impl Model {
    /// The endpoint that posted a WR.
    pub(crate) fn source(&self, op: OpId) -> &Endpoint {
        &self.endpoints[self.lanes[self.ops[op].lane].endpoint]
    }

    /// The endpoint that answers a WR.
    pub(crate) fn target(&self, op: OpId) -> &Endpoint {
        &self.endpoints[self.ops[op].dest]
    }

    /// Whether a WR uses a chunk that peers have lost after it had been posted.
    pub(crate) fn was_bereft(&self, op: &Op) -> bool {
        [Room::Dead, Room::Vanished].into_iter().any(|room| self.was_bereft_by(op, room))
    }

    /// The same, in this way.
    pub(crate) fn was_bereft_by(&self, op: &Op, room: Room) -> bool {
        op.mortal.is_some_and(|(arena, chunk)| self.arenas[arena].chunks[chunk].room == room)
    }

    /// Peers have lost a chunk: the RC QPs that answer WRs which use it may fail.
    pub(crate) fn bereave(&mut self, chunk: (ArenaId, usize)) {
        let uses = |op: &&Op| op.mortal == Some(chunk) && !op.succeeded();
        for dest in self.ops.iter().filter(uses).map(|op| op.dest).collect::<Vec<_>>() {
            if self.endpoints[dest].qp_type == QpType::Rc {
                self.endpoints[dest].may_fail = true;
            }
        }
    }

    /// Its owner invalidates a window: the RC QP that answers WRs through it may fail, also for one of
    /// which its poster was told that it failed. Its packets may still be on their way.
    pub(crate) fn forsake(&mut self, window: WindowId) {
        let uses = |op: &Op| {
            let own = matches!(op.opcode, SendOpcode::BindMw | SendOpcode::LocalInv);
            op.window == Some(window) && !own && !op.succeeded()
        };
        let owner = self.windows[window].owner;
        if self.endpoints[owner].qp_type == QpType::Rc && self.ops.iter().any(uses) {
            self.endpoints[owner].may_fail = true;
        }
    }

    pub(crate) fn arena(&self, range: Range) -> &Arena {
        &self.arenas[range.arena]
    }

    /// Adds a lane to an endpoint.
    pub(crate) fn add_lane(&mut self, endpoint: EndpointId, stream: u16) {
        let lane = self.lanes.len();
        self.lanes.push(Lane {
            endpoint,
            stream,
            epoch: 0,
            failed: false,
            outstanding: VecDeque::new(),
            inbound: VecDeque::new(),
            posted: Vec::new(),
            overwrites: BTreeMap::new(),
            swaps: BTreeMap::new(),
            latest: BTreeMap::new(),
        });
        self.endpoints[endpoint].lanes.push(lane);
    }

    /// Takes note of a WR that was posted.
    pub(crate) fn post(&mut self, op: Op) -> OpId {
        let id = self.ops.len();
        let takes_receive = op.takes_receive();
        let lane = &mut self.lanes[op.lane];
        lane.outstanding.push_back(id);
        lane.posted.push(id);
        if takes_receive {
            lane.inbound.push_back(id);
            if let Some(queue) = self.endpoints[op.dest].queue {
                self.queues[queue].aimed += 1;
            }
        }
        if let Some(planted) = op.planted
            && fails_peer(planted)
            && self.endpoints[op.dest].qp_type == QpType::Rc
        {
            self.endpoints[op.dest].may_fail = true;
        }
        if let Some(window) = op.window {
            self.windows[window].uses += 1;
        }
        match op.effect {
            Effect::Overwrite(cell) | Effect::Swap { cell, .. } | Effect::Add { cell, .. } => {
                match &mut self.cells[cell].kind {
                    CellKind::Overwritten(ops)
                    | CellKind::Swapped { ops, .. }
                    | CellKind::Counter { ops, .. } => ops.push(id),
                }
            }
            Effect::None | Effect::Write(_) | Effect::Read(..) => {}
        }
        self.outstanding += 1;
        self.ops.push(op);
        id
    }

    /// A lane begins anew: what it holds is forgotten, and what was not received may never be.
    pub(crate) fn restart_lane(&mut self, lane: LaneId) {
        while let Some(op) = self.lanes[lane].outstanding.pop_front() {
            self.end(op, State::Forgotten);
        }
        let lane = &mut self.lanes[lane];
        lane.epoch += 1;
        lane.failed = false;
        lane.posted.clear();
        lane.overwrites.clear();
        lane.swaps.clear();
    }

    /// The receives of a queue are gone without completions.
    pub(crate) fn forget_receives(&mut self, queue: QueueId) {
        while let Some(recv) = self.queues[queue].outstanding.pop_front() {
            self.recvs[recv].state = State::Forgotten;
        }
    }

    /// An endpoint is no more, or begins anew.
    pub(crate) fn close(&mut self, endpoint: EndpointId) {
        for lane in self.endpoints[endpoint].lanes.clone() {
            self.restart_lane(lane);
        }
        if let Some(queue) = self.endpoints[endpoint].queue
            && self.queues[queue].srq.is_none()
        {
            self.forget_receives(queue);
        }
        for window in &mut self.windows {
            if window.owner == endpoint {
                window.state = WindowState::Lost;
            }
        }
    }

    /// Notes how a WR ended.
    pub(crate) fn end(&mut self, op: OpId, state: State) {
        self.ops[op].state = state;
        self.outstanding -= 1;
        if let Some(window) = self.ops[op].window {
            self.windows[window].uses -= 1;
        }
    }
}

/// Whether a bad WR stops the RC QP that answers it.
fn fails_peer(planted: Planted) -> bool {
    match planted {
        Planted::RemoteKey
        | Planted::RemoteRange
        | Planted::RemoteRights
        | Planted::RemoteDomain
        | Planted::RemoteDeregistered
        | Planted::RemoteVanished
        | Planted::StaleWindow
        | Planted::AccessKey
        | Planted::TooLong
        | Planted::Misaligned
        | Planted::InvalidateNothing => true,
        Planted::QKey | Planted::LocalKey | Planted::BindRange | Planted::InvalidateLocally => {
            false
        }
    }
}

impl Endpoint {
    /// It does not serve any more.
    pub(crate) fn take_down(&mut self, now: u64) {
        self.listens_from = None;
        self.phase = Phase::Down;
        self.down_since = now;
        self.interrupted = true;
        self.ever_interrupted = true;
    }
}
