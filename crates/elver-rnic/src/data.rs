//! Posting and polling.

use core::borrow::Borrow;

use elver_verbs::{
    Cq, Dest, Memory, ObjectKind, PostError, Qp, QpState, QpType, RecvWr, SendWr, Srq, Time,
    VerbsError, Wc, WrLimits, qpn_valid,
};

use crate::hw::Hw;
use crate::qp::QueuePair;
use crate::recv_queue::RecvQueue;
use crate::{MAX_MESSAGE, Rnic};

impl<M: Memory> Rnic<M> {
    /// Posts send WRs. On an error the WRs before the refused one are posted: the pair tells how
    /// many.
    ///
    /// # Errors
    ///
    /// The index of the WR that was refused, and why: [`PostError`] has the reasons.
    pub fn post_send(
        &mut self,
        now: Time,
        qp: Qp,
        wrs: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        self.post_sends(now, qp, wrs.iter())
    }

    /// Posts the send WRs that `wrs` gives, as [`Rnic::post_send`].
    ///
    /// # Errors
    ///
    /// As [`Rnic::post_send`].
    #[inline]
    pub fn post_sends<'a>(
        &mut self,
        now: Time,
        qp: Qp,
        wrs: impl Iterator<Item: Borrow<SendWr<'a>>>,
    ) -> Result<(), (usize, PostError)> {
        let Some(queue_pair) = self.qps.get_mut(qp.0) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: qp.0 }));
        };
        let mut result = Ok(());
        let mut lanes = (u64::MAX, 0);
        for (index, wr) in wrs.enumerate() {
            match queue_pair.post(&mut self.hw, wr.borrow()) {
                Ok(lane) => lanes = (lanes.0.min(lane as u64), lanes.1.max(lane as u64)),
                Err(error) => {
                    result = Err((index, error));
                    break;
                }
            }
        }
        if lanes.0 > lanes.1 {
            return result;
        }
        let failing = queue_pair.core.state == QpState::Err
            || queue_pair.core.state == QpState::Sqe
            || queue_pair.errored_streams > 0;
        if failing {
            queue_pair.flush_stopped(&mut self.hw, now);
        }
        for lane in lanes.0..=lanes.1 {
            self.run_local(now, qp.0, lane as usize);
        }
        if self.qps.get(qp.0).is_some_and(QueuePair::wants_to_send) {
            self.schedule(qp.0);
        }
        self.stop_cut_off(now);
        result
    }

    /// Posts receive WRs, as [`Rnic::post_send`].
    ///
    /// # Errors
    ///
    /// The index of the receive that was refused, and why: [`PostError::InvalidHandle`]; [`PostError::UsesSrq`]
    /// of a QP that has an SRQ; [`PostError::State`] in RESET; [`PostError::QueueFull`];
    /// [`PostError::TooManySges`] and what else [`RecvWr::check_shape`] finds.
    pub fn post_recv(
        &mut self,
        now: Time,
        qp: Qp,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let Some(queue_pair) = self.qps.get_mut(qp.0) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: qp.0 }));
        };
        let core = &mut queue_pair.core;
        if core.init.srq.is_some() {
            return Err((0, PostError::UsesSrq));
        }
        if core.state == QpState::Reset {
            let (qp_type, state) = (core.qp_type, core.state);
            return Err((0, PostError::State { qp_type, state }));
        }
        let result = push_receives(&mut core.rq, wrs);
        if core.state == QpState::Err {
            queue_pair.flush_receives(&mut self.hw);
            self.stop_cut_off(now);
        }
        result
    }

    /// Posts receives on an SRQ, as [`Rnic::post_send`].
    ///
    /// # Errors
    ///
    /// The index of the receive that was refused, and why: [`PostError::InvalidHandle`];
    /// [`PostError::QueueFull`]; what [`RecvWr::check_shape`] finds.
    pub fn post_srq_recv(
        &mut self,
        _now: Time,
        srq: Srq,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        match self.hw.srqs.get_mut(srq.0) {
            Some(shared) => push_receives(&mut shared.queue, wrs),
            None => Err((0, PostError::InvalidHandle { kind: ObjectKind::Srq, handle: srq.0 })),
        }
    }

    /// Takes completions, oldest first; returns how many.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such CQ.
    #[inline]
    pub fn poll_cq(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        Ok(self.hw.cqs.require_mut(cq.0)?.poll(wcs))
    }

    /// Asks for one completion event.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such CQ.
    pub fn req_notify_cq(&mut self, cq: Cq, solicited_only: bool) -> Result<(), VerbsError> {
        self.hw.cqs.require_mut(cq.0)?.arm(solicited_only);
        Ok(())
    }
}

fn push_receives(queue: &mut RecvQueue, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
    for (index, wr) in wrs.iter().enumerate() {
        wr.check_shape(queue.max_sge()).map_err(|error| (index, error))?;
        if queue.is_full() {
            return Err((index, PostError::QueueFull { capacity: queue.capacity() }));
        }
        queue.push(wr);
    }
    Ok(())
}

impl QueuePair {
    /// Checks a send WR and queues it; returns its lane.
    #[inline(always)] // Else a WR that is made on the way here is written down to be copied.
    fn post<M: Memory>(&mut self, hw: &mut Hw<M>, wr: &SendWr<'_>) -> Result<usize, PostError> {
        let qp_type = self.core.qp_type;
        let opcode = wr.op.opcode();
        if !qp_type.supports(opcode) {
            return Err(PostError::Opcode { qp_type, opcode });
        }
        match self.core.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
            state => return Err(PostError::State { qp_type, state }),
        }
        let length = wr.check_shape(&self.wr_limits())?;
        let lane = self.check_dest(hw, wr)?;
        if self.pool.is_full() {
            return Err(PostError::QueueFull { capacity: self.pool.capacity() });
        }
        let slot = self.pool.push(wr, length, self.core.init.sq_sig_all);
        self.lanes[lane].queue.push_back(slot);
        self.filled.insert(lane);
        Ok(lane)
    }

    /// The checks of [`QueuePair::post`], behind `ahead` WRs that are not posted yet; returns the length.
    pub(crate) fn would_take<M: Memory>(
        &self,
        hw: &Hw<M>,
        wr: &SendWr<'_>,
        ahead: usize,
    ) -> Result<u32, PostError> {
        let (qp_type, opcode) = (self.core.qp_type, wr.op.opcode());
        if !qp_type.supports(opcode) {
            return Err(PostError::Opcode { qp_type, opcode });
        }
        match self.core.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
            state => return Err(PostError::State { qp_type, state }),
        }
        let length = wr.check_shape(&self.wr_limits())?;
        self.check_dest(hw, wr)?;
        if ahead >= self.pool.room() {
            return Err(PostError::QueueFull { capacity: self.pool.capacity() });
        }
        Ok(length)
    }

    /// How large a WR may be.
    #[inline]
    fn wr_limits(&self) -> WrLimits {
        let cap = &self.core.init.cap;
        let max_length = match self.core.qp_type {
            QpType::Ud => self.core.attr.path_mtu.bytes(),
            _ => MAX_MESSAGE,
        };
        WrLimits {
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_length: max_length.into(),
            confirm_sends: false,
        }
    }

    /// Checks the destination of a WR; returns the lane that carries it.
    #[inline]
    fn check_dest<M: Memory>(&self, hw: &Hw<M>, wr: &SendWr<'_>) -> Result<usize, PostError> {
        let qp_type = self.core.qp_type;
        let (ah, qpn, lane) = match (qp_type, wr.dest) {
            (QpType::Rc | QpType::Uc, None) => return Ok(0),
            (QpType::XrcSend, Some(Dest::Xrc { .. })) => return Ok(0),
            (QpType::Ud, Some(Dest::Ud { ah, remote_qpn, .. })) => (ah, remote_qpn, 0),
            (QpType::Dci, Some(Dest::Dc { ah, remote_dctn, stream_id, .. })) => {
                (ah, remote_dctn, usize::from(stream_id) % self.lanes.len())
            }
            _ => return Err(PostError::Destination { qp_type }),
        };
        match hw.ahs.get(ah.0) {
            Some(handle) if self.core.pd.is(handle.pd) => {}
            _ => return Err(PostError::Ah { handle: ah.0 }),
        }
        if !qpn_valid(qpn) {
            return Err(PostError::Qpn { qpn });
        }
        Ok(lane)
    }

    /// Flushes what was posted to a QP or a stream that runs nothing more.
    fn flush_stopped<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time) {
        let stopped = matches!(self.core.state, QpState::Err | QpState::Sqe);
        for lane in 0..self.lanes.len() {
            if stopped || self.lanes[lane].errored {
                self.flush_lane(lane, hw, now);
            }
        }
    }
}
