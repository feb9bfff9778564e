//! A queue pair: its attributes, its lanes, its responders, and what an error does to it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use elver_verbs::{AsyncEvent, Gid, Memory, Qp, QpAttr, QpInit, QpState, QpType, Time, WcStatus};
use elver_wire::{Psn, Qpn};

use crate::dct::Dct;
use crate::hw::Hw;
use crate::lane::{Env, Lane};
use crate::lane_set::LaneSet;
use crate::qp_core::QpCore;
use crate::recv_queue::RecvQueue;
use crate::responder::Responder;
use crate::send_queue::SendPool;
use crate::unreliable::Assembly;
use crate::xrc_target::XrcTarget;

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) core: QpCore,
    pub(crate) pool: SendPool,
    pub(crate) lanes: Vec<Lane>,
    /// Lanes that hold WRs, and perhaps some that no longer do.
    pub(crate) filled: LaneSet,
    /// Of RC and XRC.
    pub(crate) responder: Responder,
    /// Of UC.
    pub(crate) assembly: Assembly,
    pub(crate) dct: Option<Box<Dct>>,
    /// Of an XRC target.
    pub(crate) xrc: Option<Box<XrcTarget>>,
    /// It stands in the list of QPs that have something to send.
    pub(crate) scheduled: bool,
    /// See [`elver_verbs::Device::take_short_turns`].
    pub(crate) short_turns: bool,
    /// The lane that sends next.
    pub(crate) next_lane: usize,
    /// The last packet was an answer, and WRs wait: they come before the next one.
    pub(crate) requests_first: bool,
    pub(crate) errored_streams: u32,
    drain_told: bool,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, init: QpInit) -> QueuePair {
        let cap = init.cap;
        let streams = match init.qp_type {
            QpType::Dci => 1 << init.dci.log_num_concurrent,
            QpType::Dct | QpType::XrcRecv => 0,
            _ => 1,
        };
        let receives = init.srq.is_none() && init.qp_type != QpType::XrcSend;
        let recv_capacity = if receives { cap.max_recv_wr } else { 0 };
        QueuePair {
            core: QpCore {
                qpn,
                qp_type: init.qp_type,
                pd: init.pd.into(),
                recv_cq: Some(init.recv_cq),
                state: QpState::Reset,
                attr: QpAttr { cap, ..QpAttr::default() },
                init,
                remote: None,
                rq: RecvQueue::new(recv_capacity, cap.max_recv_sge),
                max_message: crate::MAX_MESSAGE,
                established: false,
            },
            pool: SendPool::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data),
            lanes: (0..streams).map(Lane::new).collect(),
            filled: LaneSet::new(usize::from(streams)),
            responder: Responder::new(Psn::from_wrapping(0), 0, Gid::default()),
            assembly: Assembly::default(),
            dct: None,
            xrc: None,
            scheduled: false,
            short_turns: false,
            next_lane: 0,
            requests_first: false,
            errored_streams: 0,
            drain_told: false,
        }
    }

    /// The parts that a lane works with.
    pub(crate) fn split<'a, M>(
        &'a mut self,
        lane: usize,
        hw: &'a mut Hw<M>,
        now: Time,
    ) -> Option<(&'a mut Lane, Env<'a, M>)> {
        let QueuePair { core, pool, lanes, .. } = self;
        let lane = lanes.get_mut(lane)?;
        Some((lane, Env { core, pool, hw, now }))
    }

    /// Runs `act` on a lane and bears the consequences.
    #[inline(always)] // Once for each packet and WR, by callers that differ in `act`.
    pub(crate) fn with_lane<M: Memory, R>(
        &mut self,
        index: usize,
        hw: &mut Hw<M>,
        now: Time,
        act: impl FnOnce(&mut Lane, &mut Env<'_, M>) -> R,
    ) -> Option<R> {
        let (lane, mut env) = self.split(index, hw, now)?;
        let result = act(lane, &mut env);
        if lane.fault {
            self.lane_failed(index, hw, now);
        }
        if self.core.state == QpState::Sqd {
            self.check_drained(hw);
        }
        Some(result)
    }

    /// The front WQE of a lane failed: it completes with its error, and what stands behind it is
    /// flushed. An RC QP goes to ERR, a UC or UD QP to SQE; of a DCI only the stream fails, until
    /// as many have failed as it may bear.
    pub(crate) fn lane_failed<M: Memory>(&mut self, index: usize, hw: &mut Hw<M>, now: Time) {
        let Some((lane, mut env)) = self.split(index, hw, now) else {
            return bug!("a lane fails that a QP does not have");
        };
        if lane.is_landing() {
            return;
        }
        lane.fault = false;
        let status = lane.front_status(env.pool);
        lane.retire(&mut env, status);
        match self.core.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::Dct => {
                self.enter_error(hw, now)
            }
            QpType::Uc | QpType::Ud => {
                self.core.state = QpState::Sqe;
                hw.failures += 1;
                self.flush_lane(index, hw, now);
            }
            QpType::Dci => {
                self.lanes[index].errored = true;
                self.flush_lane(index, hw, now);
                self.errored_streams += 1;
                if self.errored_streams >= 1 << self.core.init.dci.log_num_errored {
                    self.enter_error(hw, now);
                }
            }
        }
    }

    /// Completes everything on a lane as flushed, and forgets what was in flight. It is done later if
    /// memory of the WRs is being written.
    pub(crate) fn flush_lane<M: Memory>(&mut self, index: usize, hw: &mut Hw<M>, now: Time) {
        let route = self.core.remote;
        let Some((lane, mut env)) = self.split(index, hw, now) else {
            return bug!("a lane is flushed that a QP does not have");
        };
        if lane.is_landing() {
            lane.flush_later();
            return;
        }
        while !lane.queue.is_empty() {
            lane.retire(&mut env, WcStatus::WrFlushErr);
        }
        let (errored, next_psn) = (lane.errored, lane.next_psn());
        lane.reset(route, env.hw);
        lane.errored = errored;
        lane.start_sending(next_psn, env.core);
    }

    /// Moves to ERR: every outstanding WR is flushed, in order (IBTA vol. 1, 10.3.1.7).
    pub(crate) fn enter_error<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time) {
        if self.core.state == QpState::Err {
            return;
        }
        self.core.state = QpState::Err;
        hw.failures += 1;
        for index in 0..self.lanes.len() {
            self.flush_lane(index, hw, now);
        }
        self.flush_receives(hw);
        let shares = !matches!(self.core.qp_type, QpType::Dct | QpType::XrcRecv);
        if self.core.init.srq.is_some() && shares {
            hw.event(AsyncEvent::QpLastWqeReached(Qp(self.core.qpn.get())));
        }
    }

    /// Completes as flushed the receives that the QP holds: those posted on its own queue, and one
    /// that a message had begun to fill.
    pub(crate) fn flush_receives<M: Memory>(&mut self, hw: &mut Hw<M>) {
        let flushed = WcStatus::WrFlushErr;
        if let Some(recv) = self.responder.take_receive() {
            self.core.complete_failed(hw, recv.wr_id, flushed);
        }
        if let Some(recv) = self.assembly.take_receive() {
            self.core.complete_failed(hw, recv.wr_id, flushed);
        }
        while let Some(wr_id) = self.core.rq.pop_wr_id() {
            self.core.complete_failed(hw, wr_id, flushed);
        }
    }

    /// Moves to RESET: everything outstanding is forgotten without completions.
    pub(crate) fn reset<M: Memory>(&mut self, hw: &mut Hw<M>) {
        let route = self.core.remote;
        for lane in &mut self.lanes {
            for slot in core::mem::take(&mut lane.queue) {
                self.pool.release(slot);
            }
            lane.reset(route, hw);
        }
        if self.core.init.srq.is_some() {
            if let Some(recv) = self.responder.take_receive() {
                self.core.return_receive(hw, recv);
            }
            if let Some(recv) = self.assembly.take_receive() {
                self.core.return_receive(hw, recv);
            }
        }
        if let Some(dct) = self.dct.take() {
            dct.release(&mut self.core, hw);
        }
        if let Some(target) = &mut self.xrc {
            target.forget(&mut self.core);
        }
        self.core.rq.clear();
        if let Some(remote) = self.core.remote.take() {
            hw.paths.close(remote.path);
        }
        self.core.state = QpState::Reset;
        self.core.established = false;
        self.core.attr = QpAttr { cap: self.core.attr.cap, ..QpAttr::default() };
        self.responder = Responder::new(Psn::from_wrapping(0), 0, Gid::default());
        self.assembly = Assembly::default();
        self.errored_streams = 0;
        self.drain_told = false;
        for cq in [Some(self.core.init.send_cq), self.core.recv_cq].into_iter().flatten() {
            if let Some(queue) = hw.cqs.get_mut(cq.0) {
                queue.forget(self.core.qpn.get());
            }
        }
    }

    /// In SQD: tells once that the started WRs are done.
    pub(crate) fn check_drained<M: Memory>(&mut self, hw: &mut Hw<M>) {
        if self.drain_told || self.lanes.iter().any(|lane| lane.has_started(&self.pool)) {
            return;
        }
        self.drain_told = true;
        if self.core.attr.en_sqd_async_notify {
            hw.event(AsyncEvent::SqDrained(Qp(self.core.qpn.get())));
        }
    }

    /// Whether it is in SQD, with WRs that had started and are not done.
    pub(crate) fn is_draining(&self) -> bool {
        self.core.state == QpState::Sqd && !self.drain_told
    }

    /// Enters SQD.
    pub(crate) fn drain<M: Memory>(&mut self, hw: &mut Hw<M>) {
        self.core.state = QpState::Sqd;
        self.drain_told = false;
        self.check_drained(hw);
    }

    /// Whether anything may have to be sent.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.responder.has_answers()
            || self.dct.as_ref().is_some_and(|dct| dct.has_answers())
            || !self.pool.is_empty()
    }
}
