//! The core's own operations on lanes: posted like the WRs of VQPs, and ahead of them.

use elver_verbs::{Class, Dest, Device, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Time};

use crate::Core;
use crate::datapath::Datapath;
use crate::datapath::ops::{Op, OpKind, Work};
use crate::datapath::wr_id::WrId;
use crate::effects::Effect;
use crate::ids::{LaneIx, OpId, PeerId};
use crate::messaging::message::Kind;
use crate::pool::lane::LaneKind;
use crate::pool::lanes::Lanes;
use crate::rc::suspect::Suspect;

/// What a READ of no bytes names; nobody looks at it.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };

impl Datapath {
    /// Nobody waits for an operation any longer.
    pub(crate) fn abandon_op(&mut self, id: OpId) {
        // It may have ended, and its end not have been told yet.
        if let Some(op) = self.ops.get_mut(id) {
            op.abandoned = true;
        }
    }

    /// Whether an operation may be done twice: it reads, or tells what means the same when it is told
    /// again. A grant does not: who heard it may have used it up.
    pub(crate) fn is_repeatable(&self, id: OpId) -> bool {
        self.ops.get(id).is_some_and(|op| match &op.kind {
            OpKind::Message(note) => note.kind != Kind::Grant,
            OpKind::Node { .. } | OpKind::Probe { .. } | OpKind::Mr { .. } | OpKind::Gather(_) => {
                true
            }
        })
    }
}

impl Lanes {
    /// An operation's WR was not executed, or may be executed again: it is posted anew.
    pub(crate) fn op_again(&mut self, id: OpId, lane: LaneIx) {
        self.lanes[lane].ops.push_back(id);
        self.wait(lane);
    }
}

impl<D: Device> Core<D> {
    /// Prepares an operation to a peer; [`Core::post_op`] starts it. What it is for comes back if the
    /// peer cannot be reached.
    pub(crate) fn start_op(
        &mut self,
        peer: PeerId,
        class: Class,
        kind: OpKind,
        work: Work,
    ) -> Result<OpId, OpKind> {
        // Another meta server may be asked as well.
        let waits = !matches!(kind, OpKind::Node { .. } | OpKind::Probe { .. });
        let (lane, dest) = match self.way_of_op(peer, class) {
            Some((lane, dest)) => (Some(lane), dest),
            None if waits && self.way_comes(peer) => (None, None),
            None => return Err(kind),
        };
        if self.datapath.ops.is_full() {
            return Err(kind);
        }
        let suspect = Suspect::default();
        let op = Op { lane, dest, peer, class, kind, work, abandoned: false, suspect };
        let Some(id) = self.datapath.ops.insert_in_turn(op) else {
            bug!("a table that is not full takes no operation");
            return Err(OpKind::Probe { asked_at: Time::ZERO });
        };
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.pins += 1;
        }
        Ok(id)
    }

    /// The lane of an operation to a peer, and its destination there.
    pub(crate) fn way_of_op(
        &mut self,
        peer: PeerId,
        class: Class,
    ) -> Option<(LaneIx, Option<Dest>)> {
        let lane = self.op_lane(peer, class)?;
        self.address_of(peer).ok()?;
        let entry = self.peers.get(peer)?;
        match self.lanes.lanes[lane].kind {
            LaneKind::Dc { stream } => Some((lane, Some(entry.dc_dest(stream)?))),
            LaneKind::Rc { .. } => Some((lane, None)),
        }
    }

    /// Posts an operation's WR, now or when there is a lane that has room.
    pub(crate) fn post_op(&mut self, id: OpId, now: Time) {
        let Some(op) = self.datapath.ops.get(id) else {
            return bug!("an operation that is gone is posted");
        };
        self.datapath.stalls.watch(now);
        let Some(lane) = op.lane else { return self.await_way(id, now) };
        let entry = &self.lanes.lanes[lane];
        if entry.takes_op(&self.lanes.qps[entry.qp]) {
            if !self.send_op(id, now) {
                self.effects.push(Effect::Conclude { op: id, ok: false });
            }
            return;
        }
        self.lanes.lanes[lane].ops.push_back(id);
        self.lanes.wait(lane);
    }

    /// Puts an operation's WR on its lane. Returns whether it may still be done, and the device took
    /// it.
    pub(crate) fn send_op(&mut self, id: OpId, now: Time) -> bool {
        let Some(op) = self.datapath.ops.get(id) else {
            bug!("an operation that is gone is posted");
            return true;
        };
        // What nobody waits for may be of a peer that has started anew since, and so may a table.
        let is_late = match (&op.kind, &op.work) {
            (OpKind::Gather(gather), _) => gather.is_late(now),
            (OpKind::Node { .. } | OpKind::Probe { .. }, Work::Read { remote, .. }) => {
                !self.discovery.lookups.servers.has_table(op.peer, remote.rkey)
            }
            _ => false,
        };
        if op.abandoned || is_late {
            return false;
        }
        let Some(lane) = op.lane else {
            bug!("an operation is posted that has no lane");
            return false;
        };
        let lane = &mut self.lanes.lanes[lane];
        let phys = &mut self.lanes.qps[lane.qp];
        let one;
        let (send, sges) = match (&op.work, &op.kind) {
            (Work::Read { remote, length, buffer }, _) => {
                one = [self.pool.read_sge(*buffer, *length)];
                (SendOp::Read(*remote), &one[..])
            }
            (Work::Send { slot, length }, _) => {
                one = [self.pool.send_sge(*slot, *length)];
                (SendOp::Send, &one[..])
            }
            (Work::Gather, OpKind::Gather(gather)) => {
                let (remote, sges) = gather.read();
                (SendOp::Read(remote), sges)
            }
            (Work::Gather, _) => (SendOp::Read(NOWHERE), &[][..]),
        };
        let wr = SendWr {
            wr_id: WrId::Op(id).encode(),
            op: send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(sges),
            dest: op.dest,
        };
        if self.device.post_send(phys.qp, &[wr]).is_err() {
            self.stats.device_refusals += 1;
            return false;
        }
        phys.posted += 1;
        lane.uncompleted += 1;
        if let Some(path) = &mut lane.path {
            path.advance(path.psns_of_op(op));
        }
        true
    }

    /// Takes an operation that has ended off its peer; its buffer is free again.
    pub(crate) fn end_op(&mut self, id: OpId) -> Option<Op> {
        let op = self.datapath.ops.remove(id)?;
        match op.work {
            Work::Read { buffer, .. } => self.pool.reads.give(buffer),
            Work::Send { slot, .. } => self.pool.sends.give(slot),
            Work::Gather => {}
        }
        if matches!(op.kind, OpKind::Message(_)) {
            self.messaging.notes.sent_ended(op.peer);
        }
        self.peers.unpin(op.peer);
        Some(op)
    }

    /// The same for a READ of which nothing is needed any longer: it goes where it stands.
    pub(crate) fn discard_read(&mut self, id: OpId, peer: PeerId, buffer: u32) {
        self.pool.reads.give(buffer);
        self.datapath.ops.discard(id);
        self.peers.unpin(peer);
    }

    /// Whether an operation to a peer that has no way there now may have one soon.
    pub(crate) fn way_comes(&self, peer: PeerId) -> bool {
        self.lacks_dc(peer) && self.peers.get(peer).is_some_and(|entry| entry.control.is_some())
    }

    /// An operation waits for a link to its peer.
    pub(crate) fn await_way(&mut self, op: OpId, now: Time) {
        let Some(entry) = self.datapath.ops.get_mut(op) else {
            return bug!("an operation that is gone waits for a way");
        };
        (entry.lane, entry.dest) = (None, None);
        let (peer, class) = (entry.peer, entry.class);
        self.links.await_way(op, (peer, class), now);
        self.stats.ops_waited += 1;
    }
}
