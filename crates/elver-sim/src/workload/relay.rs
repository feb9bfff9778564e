//! A WRITE of what a READ before it is still to bring: only the fence makes that right.

use elver_verbs::{SendFlags, SendOp, SendOpcode, Sge};

use super::Prepared;
use crate::model::{Effect, LaneId, Op, OpId, State, Violation, send_wr_id};
use crate::world::World;

impl World {
    /// Posts a fenced WRITE from the buffer of an earlier READ of the lane, if there is one.
    pub(crate) fn post_relay(&mut self, lane: LaneId) -> Result<(), Violation> {
        let endpoint = self.model.lanes[lane].endpoint;
        if !self.has_room(lane) {
            return Ok(());
        }
        let fetching = |id: &&OpId| {
            let op = &self.model.ops[**id];
            op.planted.is_none() && !op.local.is_empty() && matches!(op.effect, Effect::Read(..))
        };
        let Some(read) = self.model.lanes[lane].posted.iter().rev().find(fetching).copied() else {
            return Ok(());
        };
        let read = &self.model.ops[read];
        let (Effect::Read(stream, offset), dest, len) = (read.effect, read.dest, read.len) else {
            return Ok(());
        };
        let sges: Vec<Sge> = read.local.iter().map(|range| self.sge(*range)).collect();
        let id = self.model.ops.len();
        let aim = self.aim_fresh(dest, len)?;
        let signaled = self.posting.percent(50);
        self.note(Op {
            opcode: SendOpcode::Write,
            lane,
            epoch: self.model.lanes[lane].epoch,
            dest,
            len,
            mtu: self.model.endpoints[endpoint].mtu,
            content: (stream, offset),
            signaled,
            solicited: false,
            effect: aim.effect,
            local: Vec::new(),
            planted: None,
            window: None,
            mortal: aim.mortal,
            invalidates: None,
            state: State::Outstanding,
            delivered: 0,
        });
        let mut flags = SendFlags::FENCE;
        flags.set(SendFlags::SIGNALED, signaled);
        let op = SendOp::Write(aim.remote);
        let dest = self.address(lane, dest, false);
        self.submit(
            endpoint,
            &[Prepared { id: send_wr_id(id), op, flags, sges, inline: None, dest }],
        )
    }
}
