//! Completions of send WRs: once each, in order, and with what they promise.

use elver_rnic::Rnic;
use elver_verbs::{QpState, SendOpcode, Wc, WcStatus};

use super::{LaneId, Model, OpId, Phase, State, View, Violation, WindowState};
use crate::memory::SimMemory;
use crate::network::Network;

impl Model {
    /// Takes a completion that a host polled.
    pub(crate) fn complete(
        &mut self,
        host: usize,
        wc: &Wc,
        view: &View<'_>,
    ) -> Result<(), Violation> {
        let Some(&endpoint) = self.by_qpn.get(&(host, wc.qp_num)) else {
            return Err(Violation::new(format!(
                "host {host} completed wr_id {} for QPN {:#x}, which does not exist",
                wc.wr_id, wc.qp_num
            )));
        };
        if wc.wr_id & 1 == 1 {
            return self.received(endpoint, wc, view);
        }
        let op = (wc.wr_id >> 1) as OpId;
        let known = self.ops.get(op).is_some_and(|op| self.lanes[op.lane].endpoint == endpoint);
        if !known {
            return Err(Violation::new(format!(
                "QPN {:#x} completed wr_id {}, which was not posted to it",
                wc.qp_num, wc.wr_id
            )));
        }
        match self.ops[op].state {
            State::Outstanding => {}
            State::Done(before) => {
                return Err(Violation::new(format!(
                    "WR {op} completed twice: {before}, then {}",
                    wc.status
                )));
            }
            State::Forgotten => {
                return Err(Violation::new(format!(
                    "WR {op} completed with {} after its QP was reset",
                    wc.status
                )));
            }
        }
        let lane = self.ops[op].lane;
        self.pass_unsignaled(lane, op)?;
        if wc.status == WcStatus::Success {
            if self.endpoints[endpoint].phase == Phase::Drained {
                return Err(Violation::new(format!("WR {op} was started in SQD")));
            }
            self.check_success_fields(op, wc)?;
            self.succeed(op)
        } else {
            let state = state_of(view.rnic, &self.endpoints[endpoint])?;
            self.fail(op, wc.status, state, view.network)
        }
    }

    /// WRs before the one that completes were unsignalled, and have succeeded.
    fn pass_unsignaled(&mut self, lane: LaneId, op: OpId) -> Result<(), Violation> {
        while let Some(front) = self.lanes[lane].outstanding.pop_front() {
            if front == op {
                return Ok(());
            }
            if self.ops[front].signaled {
                return Err(Violation::new(format!(
                    "WR {op} completed before WR {front}, which was posted earlier to its QP"
                )));
            }
            self.succeed(front)?;
        }
        Err(Violation::new(format!("WR {op} is not on its queue")))
    }

    fn check_success_fields(&self, id: OpId, wc: &Wc) -> Result<(), Violation> {
        let op = &self.ops[id];
        if !op.signaled {
            return Err(Violation::new(format!(
                "WR {id} is unsignalled, but its success gave a completion"
            )));
        }
        let fetches =
            matches!(op.opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd);
        let len_fits = !fetches || wc.byte_len == op.len;
        if wc.opcode != op.opcode.wc_opcode() || !len_fits {
            return Err(Violation::new(format!(
                "WR {id}, {:?} of {} bytes, completed as {:?} of {} bytes",
                op.opcode, op.len, wc.opcode, wc.byte_len
            )));
        }
        Ok(())
    }

    fn succeed(&mut self, id: OpId) -> Result<(), Violation> {
        let lane = &self.lanes[self.ops[id].lane];
        if lane.failed {
            return Err(Violation::new(format!(
                "WR {id} succeeded, though one before it on its queue had failed"
            )));
        }
        self.check_may_succeed(id)?;
        self.end(id, State::Done(WcStatus::Success));
        self.move_window(id, true);
        self.check_effect(id)
    }

    fn fail(
        &mut self,
        id: OpId,
        status: WcStatus,
        state: QpState,
        network: &Network,
    ) -> Result<(), Violation> {
        self.justify(id, status, state, network)?;
        self.end(id, State::Done(status));
        self.move_window(id, false);
        self.lanes[self.ops[id].lane].failed = true;
        Ok(())
    }

    /// What a WR that binds or invalidates a window has done to it.
    fn move_window(&mut self, id: OpId, done: bool) {
        let op = &self.ops[id];
        let Some(window) = op.window else { return };
        let after = match op.opcode {
            SendOpcode::BindMw => WindowState::Open,
            SendOpcode::LocalInv | SendOpcode::SendWithInv => WindowState::Closed,
            _ => return,
        };
        let window = &mut self.windows[window];
        if window.state != WindowState::Lost {
            window.state = if done { after } else { WindowState::Lost };
        }
    }
}

/// The state that a device says a QP is in.
pub(super) fn state_of(
    rnic: &Rnic<SimMemory>,
    endpoint: &super::Endpoint,
) -> Result<QpState, Violation> {
    rnic.query_qp(endpoint.qp)
        .map(|(attr, _)| attr.qp_state)
        .map_err(|error| Violation::new(format!("query_qp was refused: {error}")))
}
