//! Turns among the VQPs that share a lane (section 4.4): at once if nobody waits, else by bytes.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::VqpId;
use crate::datapath::burst::{QUANTUM, Stop};
use crate::effects::Effect;
use crate::ids::LaneIx;
use crate::pool::buffers::SLOTS_RESERVED;
use crate::pool::lane::LaneState;
use crate::vqp::Wait;

impl<D: Device> Core<D> {
    /// Posts what waits in a VQP's ring: at once if nobody waits for the lane, else in turn. Returns whether
    /// something may be left to be done ([`Core::apply`]).
    #[inline]
    pub(crate) fn pump(&mut self, id: VqpId, now: Time) -> bool {
        let Some(vqp) = self.vqps.get(id) else {
            bug!("a VQP that is gone posts");
            return false;
        };
        if !vqp.may_post() || vqp.ready || vqp.sq.unposted() == 0 {
            if vqp.lane.is_none() && vqp.phase.is_connected() {
                self.find_lane(id, now);
                return true;
            }
            return false;
        }
        let Some(lane) = vqp.lane else { return false };
        let lane = &self.lanes.lanes[lane];
        if lane.state == LaneState::Gone {
            self.leave_gone_lane(id);
            return true;
        }
        if lane.state != LaneState::Running || !lane.ready.is_empty() || !lane.ops.is_empty() {
            self.enlist(id);
            return false;
        }
        match self.post_ready(id, false, now) {
            Stop::Empty => false,
            Stop::Room => {
                self.enlist(id);
                false
            }
            Stop::Waits => true,
        }
    }

    /// Gives turns on the QPs where room was made.
    pub(crate) fn serve_dirty(&mut self, now: Time) {
        while let Some(qp) = self.datapath.dirty_qps.pop() {
            let phys = &mut self.lanes.qps[qp];
            phys.dirty = false;
            for _ in 0..phys.waiting.len() {
                // An RC QP that breaks meanwhile leaves none.
                let Some(lane) = self.lanes.qps[qp].waiting.pop_front() else { break };
                self.lanes.lanes[lane].waiting = false;
                self.serve_lane(lane, now);
                let entry = &self.lanes.lanes[lane];
                if !entry.ready.is_empty() || !entry.ops.is_empty() {
                    self.lanes.wait(lane);
                }
            }
        }
    }

    /// Gives turns on a lane while it has room: to the core's own operations, then to the VQPs in
    /// turn, each by bytes (deficit round robin).
    fn serve_lane(&mut self, lane: LaneIx, now: Time) {
        loop {
            let entry = &mut self.lanes.lanes[lane];
            let phys = &self.lanes.qps[entry.qp];
            if entry.state != LaneState::Running {
                return;
            }
            if entry.has_room_for_op(phys)
                && let Some(op) = entry.ops.pop_front()
            {
                if !self.send_op(op, now) {
                    self.effects.push(Effect::Conclude { op, ok: false });
                }
                continue;
            }
            if entry.room(phys) == 0 {
                return;
            }
            let Some(id) = entry.ready.pop_front() else { return };
            let alone = entry.ready.is_empty();
            let Some(vqp) = self.vqps.get_mut(id) else {
                bug!("a VQP whose turn it is is gone");
                continue;
            };
            vqp.ready = false;
            if vqp.lane != Some(lane) || !vqp.may_post() {
                continue;
            }
            let deficit = if alone { QUANTUM } else { vqp.deficit + QUANTUM };
            vqp.deficit = deficit.min(2 * QUANTUM);
            let before = vqp.sq.posted;
            let stop = self.post_ready(id, true, now);
            let Some(vqp) = self.vqps.get_mut(id) else {
                bug!("a VQP whose turn it is is gone");
                continue;
            };
            if stop != Stop::Room {
                vqp.deficit = 0;
            } else if vqp.sq.posted == before && vqp.deficit > 0 {
                // Its next WR takes more room than there is: it keeps its turn.
                vqp.ready = true;
                self.lanes.lanes[lane].ready.push_front(id);
                return;
            } else {
                self.enlist(id);
            }
        }
    }

    /// Lets VQPs go on that waited for send slots.
    pub(crate) fn serve_slot_waiters(&mut self, now: Time) {
        while self.pool.sends.available() > SLOTS_RESERVED
            && let Some(id) = self.datapath.slot_waiters.pop_front()
        {
            if let Some(vqp) = self.vqps.get_mut(id)
                && vqp.wait == Wait::Slot
            {
                vqp.wait = Wait::Nothing;
                self.pump(id, now);
            }
        }
    }

    /// The RC QP that a VQP was on is gone.
    #[cold]
    fn leave_gone_lane(&mut self, id: VqpId) {
        if self.move_to_dc(id) {
            self.effects.push(Effect::Pump(id));
        } else {
            self.switch_lane(id);
        }
    }
}
