//! QPs of one device that talk to each other: a WR is executed in one step, from MR to MR, by the
//! same [`crate::execute`] as what comes in packets.
//!
//! What is longer than [`crate::Config::local_step_bytes`] would hold up everybody else: a READ or a WRITE is executed in
//! several steps, and a SEND, which keeps its receive from one step to the next, goes in packets
//! ([`crate::loopback`]).

mod execution;
mod request;
mod steps;

use alloc::vec::Vec;

use elver_verbs::{
    AsyncEvent, Dest, Memory, Qp, QpState, QpType, SendFlags, SendOp, Time, WcStatus,
};
use elver_wire::NakCode;

use self::execution::give;
use self::request::{Reply, Request, Stopped};
use crate::Rnic;
use crate::aside::{ERRAND_BYTES_MAX, Part};
use crate::execute::Fault;
use crate::hw::Hw;
use crate::ingress::{status_of, takes_packets};
use crate::lane::{Hold, Lane};
use crate::qp::QueuePair;
use crate::qp_core::QpCore;
use crate::route::Route;
use crate::send_queue::{Local, SendWqe};

/// Bytes that are copied within the device before what is due by the clock is done: a few milliseconds' work.
pub(crate) const TURN_BYTES: u64 = 16 << 20;

impl<M: Memory> Rnic<M> {
    /// Executes the WRs at the front of a lane that go to this device, until one must wait or so many bytes were copied that
    /// the rest has to. Each takes a WR off the queue, so that the queue's capacity bounds it.
    pub(crate) fn run_local(&mut self, now: Time, qp: u32, lane: usize) {
        loop {
            if self.copied >= TURN_BYTES {
                if let Some(queue_pair) = self.qps.get_mut(qp) {
                    queue_pair.with_lane(lane, &mut self.hw, now, Lane::give_way);
                }
                return;
            }
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return bug!("WRs within the device run on a QP that is gone");
            };
            let reply = if queue_pair.lanes[lane].has_waited_to_copy() {
                match self.resume(qp, lane) {
                    None => return,
                    Some(reply) => reply,
                }
            } else {
                match queue_pair.prepare(&mut self.hw, lane, false) {
                    None => return,
                    Some(Err(status)) => Reply::Local(status),
                    Some(Ok(request)) => {
                        self.copied += u64::from(request.length);
                        let target = self.named(request.dest_qpn);
                        match self.qps.get_mut(target) {
                            Some(target) => target.serve(&mut self.hw, now, &request),
                            None => Reply::NoAnswer,
                        }
                    }
                }
            };
            let reply = match reply {
                Reply::Later(found) => self.run_later(now, qp, lane, found),
                reply => reply,
            };
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return bug!("a QP went with its own WR");
            };
            if !queue_pair.conclude(&mut self.hw, now, lane, reply) {
                return;
            }
        }
    }

    /// The front WR has waited for memory.
    #[cold]
    #[inline(never)]
    fn resume(&mut self, qp: u32, lane: usize) -> Option<Reply> {
        let prepared = self.qps.get_mut(qp)?.prepare(&mut self.hw, lane, false)?;
        Some(match prepared {
            Ok(_) => Reply::Later(None),
            Err(status) => Reply::Local(status),
        })
    }

    /// The front WR needs memory that is not at hand. Its turn is taken with what was read and
    /// written for it, and in pieces that an errand can carry.
    #[cold]
    fn run_later(&mut self, now: Time, qp: u32, lane: usize, found: Option<u64>) -> Reply {
        let too_long = self.hw.regions.desk.was_too_long();
        self.hw.regions.desk.clear();
        if too_long && !self.cut(qp, lane) {
            return Reply::Local(WcStatus::LocProtErr);
        }
        let (mut done, mut found) = (Vec::new(), found);
        if let Some(queue_pair) = self.qps.get_mut(qp)
            && let Some(mut aside) = queue_pair.lanes[lane].sending.take_if(|aside| aside.lands)
        {
            (done, found) = (aside.take_done(), found.or(aside.original));
        }
        self.hw.regions.desk.lay_out(done);
        let mut reply = self.run_again(now, qp, lane, found);
        if matches!(reply, Reply::Later(_)) && self.hw.regions.desk.was_too_long() {
            self.hw.regions.desk.clear();
            reply = match self.cut(qp, lane) {
                true => self.run_again(now, qp, lane, found),
                false => Reply::Local(WcStatus::LocProtErr),
            };
        }
        let Reply::Later(found) = reply else {
            self.hw.regions.desk.clear();
            return reply;
        };
        let mut aside = self.hw.put_aside(qp, Part::Sends(lane as u32));
        aside.original = found;
        // What was begun comes to its end: nobody could tell how far it got.
        aside.lands = true;
        if let Some(queue_pair) = self.qps.get_mut(qp) {
            queue_pair.lanes[lane].wait_for_memory(aside);
        }
        reply
    }

    /// The QP has failed, and the memory is there that the front WR waited for, which had begun: it is
    /// executed to its end, and what stands behind it is flushed.
    #[cold]
    pub(crate) fn end_local(&mut self, now: Time, qp: u32, lane: usize) {
        loop {
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return bug!("a WR within the device ends on a QP that is gone");
            };
            queue_pair.lanes[lane].hold = Hold::No;
            let reply = self.run_later(now, qp, lane, None);
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return bug!("a QP went with its own WR");
            };
            let Some((front, mut env)) = queue_pair.split(lane, &mut self.hw, now) else {
                return bug!("a WR within the device ends on a lane that is gone");
            };
            match reply {
                Reply::Later(_) => return,
                Reply::Done if front.goes_on(&env) => continue,
                Reply::Done | Reply::Dropped => {
                    env.hw.counters.local_copies += 1;
                    front.retire(&mut env, WcStatus::Success);
                }
                Reply::Refused(code) => front.retire(&mut env, status_of(code)),
                Reply::Local(status) => front.retire(&mut env, status),
                Reply::NotReady(_) | Reply::NoAnswer => {}
            }
            return queue_pair.flush_lane(lane, &mut self.hw, now);
        }
    }

    /// Has the front WR copied in pieces that errands can carry from now on; false if it cannot be.
    fn cut(&mut self, qp: u32, lane: usize) -> bool {
        let Some(QueuePair { pool, lanes, .. }) = self.qps.get_mut(qp) else {
            bug!("a WR is cut on a QP that is gone");
            return false;
        };
        let lane = &mut lanes[lane];
        let op = lane.queue.front().map(|slot| pool.get(*slot).op);
        op.as_ref().is_some_and(goes_in_steps) && lane.shorten(ERRAND_BYTES_MAX)
    }

    /// Takes the turn of the front WR. What an atomic has `found` that was executed is put in its
    /// place. Out of the way of those that need not wait, which are executed in one piece.
    #[cold]
    #[inline(never)]
    fn run_again(&mut self, now: Time, qp: u32, lane: usize, found: Option<u64>) -> Reply {
        let prepared = self
            .qps
            .get_mut(qp)
            .and_then(|queue_pair| queue_pair.prepare(&mut self.hw, lane, true));
        match (prepared, found) {
            (Some(Ok(_)), Some(found)) => match give(&self.hw, &found.to_ne_bytes()) {
                Ok(()) => Reply::Done,
                Err(Stopped::Fault(Fault::Later)) => Reply::Later(Some(found)),
                Err(_) => Reply::Local(WcStatus::LocProtErr),
            },
            (Some(Ok(request)), None) => {
                let target = self.named(request.dest_qpn);
                match self.qps.get_mut(target) {
                    Some(target) => target.serve(&mut self.hw, now, &request),
                    None => Reply::NoAnswer,
                }
            }
            (Some(Err(status)), _) => Reply::Local(status),
            // It could begin, and nothing has changed since.
            (None, _) => Reply::Local(WcStatus::GeneralErr),
        }
    }
}

impl QueuePair {
    /// Takes the front WR of a lane, if it goes to this device and may run now, or has `begun`.
    #[inline(always)]
    fn prepare<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        lane: usize,
        begun: bool,
    ) -> Option<Result<Request, WcStatus>> {
        let QueuePair { core, pool, lanes, .. } = self;
        let lane = &mut lanes[lane];
        // In SQD what was begun goes on, and what had begun when the QP failed.
        let runs = match core.state {
            QpState::Rts => true,
            QpState::Sqd => begun || lane.has_begun_copy(),
            _ => lane.flushing,
        };
        if !runs || !lane.may_copy() {
            return None;
        }
        let slot = *lane.queue.front()?;
        let wqe = pool.get(slot);
        if wqe.outcome.is_some() {
            return None;
        }
        let (route, dest_qpn, key) = core.destination(hw, wqe)?;
        if !route.local {
            return None;
        }
        if wqe.length > hw.config.local_step_bytes {
            if !goes_in_steps(&wqe.op) {
                return None;
            }
            lane.shorten(hw.config.local_step_bytes);
        }
        let (from, to) = (route.flow.src.ip(), route.flow.dst.ip());
        if core.must_wait(hw, &wqe.op) {
            return None;
        }
        if let Some(status) = core.run_own(hw, &wqe.op) {
            return Some(Err(status));
        }
        if wqe.expects_data() && core.attr.max_rd_atomic == 0 {
            return Some(Err(WcStatus::LocQpOpErr));
        }
        let mut request = Request {
            op: wqe.op,
            qp_type: core.qp_type,
            source: core.qpn.get(),
            dest_qpn,
            key,
            length: lane.turn_of(wqe.length),
            skip: lane.copied,
            total: wqe.length,
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            inline: matches!(pool.local(slot), Local::Inline(_)),
            placed: true,
            from,
            to,
            ah: wqe.dest.and_then(|dest| match dest {
                Dest::Ud { ah, .. } => Some(ah),
                Dest::Xrc { .. } | Dest::Dc { .. } => None,
            }),
        };
        hw.scratch.segments.clear();
        match pool.local(slot) {
            Local::Inline(bytes) => {
                hw.scratch.inline.clear();
                hw.scratch.inline.extend_from_slice(bytes);
            }
            Local::Sges(sges) => {
                let writes = wqe.expects_data();
                let segments = &mut hw.scratch.segments;
                let (skip, length) = (request.skip, request.length);
                if hw.regions.resolve(core.pd, sges, skip, length, writes, segments).is_err() {
                    if !writes {
                        return Some(Err(WcStatus::LocProtErr));
                    }
                    // What comes back is found to have no place when it has come.
                    request.placed = false;
                }
            }
        }
        Some(Ok(request))
    }

    /// Completes the front WR of a lane, or lets it wait. False when the lane must stop here.
    #[inline(always)] // It has one caller.
    fn conclude<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        now: Time,
        lane: usize,
        reply: Reply,
    ) -> bool {
        let reliable = self.core.qp_type.is_reliable();
        let acted = self.with_lane(lane, hw, now, |lane, env| match reply {
            Reply::Later(_) => false,
            // A QP that is connected to itself went to ERR with what it could not take, and flushed it.
            _ if lane.queue.is_empty() => false,
            Reply::Done if lane.goes_on(env) => {
                lane.answered(env.core);
                true
            }
            Reply::Done => {
                env.hw.counters.local_copies += 1;
                lane.answered(env.core);
                lane.retire(env, WcStatus::Success);
                true
            }
            Reply::NotReady(timer) => {
                lane.unanswered = true;
                lane.receiver_not_ready(env, timer);
                false
            }
            Reply::NoAnswer if reliable => {
                lane.no_answer(env);
                false
            }
            Reply::NoAnswer | Reply::Dropped => {
                lane.leave_off();
                lane.retire(env, WcStatus::Success);
                true
            }
            Reply::Refused(code) => {
                lane.fail_front(env, status_of(code));
                false
            }
            Reply::Local(WcStatus::Success) => {
                lane.retire(env, WcStatus::Success);
                true
            }
            Reply::Local(status) => {
                lane.fail_front(env, status);
                false
            }
        });
        acted.unwrap_or(false)
    }

    /// Takes a request that came from a QP of the same device.
    #[inline]
    fn serve<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time, request: &Request) -> Reply {
        let core = &mut self.core;
        if !takes_packets(core.state, false) && !hw.regions.desk.is_laid() {
            return Reply::NoAnswer;
        }
        match (request.qp_type, core.qp_type) {
            (QpType::Rc, QpType::Rc) | (QpType::Uc, QpType::Uc) if request.is_of_peer(core) => {
                core.heard(hw);
            }
            (QpType::XrcSend, QpType::XrcRecv) if request.is_of_peer(core) => {
                core.heard(hw);
                if !self.name_locally(hw, request.key as u32) {
                    return self.stop(hw, now, Fault::Invalid);
                }
            }
            (QpType::Ud, QpType::Ud) if u64::from(core.attr.qkey) == request.key => {}
            (QpType::Ud, QpType::Ud) => {
                hw.counters.drop_qkey += 1;
                return Reply::Done;
            }
            (QpType::Dci, QpType::Dct) if core.init.dc_access_key == request.key => {}
            (QpType::Dci, QpType::Dct) => {
                hw.counters.dc_refused_key += 1;
                hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
                return Reply::Refused(NakCode::RemoteAccess);
            }
            _ => return Reply::NoAnswer,
        }
        match self.core.execute(hw, request) {
            Ok(()) if request.placed => Reply::Done,
            Ok(()) | Err(Stopped::Unplaced | Stopped::Fault(Fault::Source)) => {
                Reply::Local(WcStatus::LocProtErr)
            }
            Err(Stopped::Fault(Fault::Later)) => Reply::Later(None),
            Err(Stopped::Found(original)) => Reply::Later(Some(original)),
            Err(Stopped::Fault(fault)) => self.stop(hw, now, fault),
        }
    }

    /// A request was not executed: what that means here, and to who asked.
    fn stop<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time, fault: Fault) -> Reply {
        let core = &self.core;
        if !core.qp_type.is_reliable() {
            fault.count_drop(&mut hw.counters);
            return Reply::Dropped;
        }
        let Some(code) = fault.nak() else {
            if !takes_packets(core.state, false) {
                // It failed while what was begun waited for memory: no receive will come.
                return Reply::NoAnswer;
            }
            hw.counters.rnr_nak_sent += 1;
            return Reply::NotReady(core.rnr_timer());
        };
        core.tell_refused(hw, code);
        if matches!(core.qp_type, QpType::Rc | QpType::XrcRecv) {
            self.enter_error(hw, now);
        }
        Reply::Refused(code)
    }
}

impl QpCore {
    /// Where a WQE goes: the route, the QPN, and the DC access key, the Q_Key or the number of an XRC SRQ.
    #[inline]
    fn destination<'a, M>(&'a self, hw: &'a Hw<M>, wqe: &SendWqe) -> Option<(&'a Route, u32, u64)> {
        match wqe.dest {
            None => Some((self.remote.as_ref()?, self.attr.dest_qp_num, 0)),
            Some(Dest::Ud { ah, remote_qpn, remote_qkey }) => {
                let qkey = self.effective_qkey(remote_qkey);
                Some((&hw.ahs.get(ah.0)?.route, remote_qpn, u64::from(qkey)))
            }
            Some(Dest::Xrc { remote_srqn }) => {
                Some((self.remote.as_ref()?, self.attr.dest_qp_num, u64::from(remote_srqn)))
            }
            Some(Dest::Dc { ah, remote_dctn, dc_access_key, .. }) => {
                Some((&hw.ahs.get(ah.0)?.route, remote_dctn, dc_access_key))
            }
        }
    }

    /// Whether a WQE goes to a QP of this device and is copied, not sent.
    #[inline]
    pub(crate) fn goes_local<M>(&self, hw: &mut Hw<M>, wqe: &SendWqe) -> bool {
        if !self.destination(hw, wqe).is_some_and(|(route, ..)| route.local) {
            return false;
        }
        let sent = wqe.length > hw.config.local_step_bytes && !goes_in_steps(&wqe.op);
        hw.loops_back |= sent;
        !sent
    }

    /// Whether a window is to be invalidated, or bound anew, while something may still be written
    /// through it.
    #[inline]
    pub(crate) fn must_wait<M: Memory>(&self, hw: &Hw<M>, op: &SendOp) -> bool {
        matches!(op, SendOp::BindMw(_) | SendOp::LocalInv(_)) && Self::is_written_through(hw, op)
    }

    #[cold]
    fn is_written_through<M: Memory>(hw: &Hw<M>, op: &SendOp) -> bool {
        let window = match op {
            SendOp::LocalInv(rkey) => rkey >> 8,
            // One of type 1 may be bound already.
            SendOp::BindMw(bind) => bind.mw.0,
            _ => return false,
        };
        hw.regions.keys.errands_behind(window) > 0
    }

    /// Runs an operation that concerns this device alone; none if it is not one.
    #[inline(always)] // Hardly any is one.
    pub(crate) fn run_own<M: Memory>(&self, hw: &mut Hw<M>, op: &SendOp) -> Option<WcStatus> {
        if !matches!(op, SendOp::BindMw(_) | SendOp::LocalInv(_)) {
            return None;
        }
        let (pd, qpn) = (self.pd, self.qpn.get());
        match op {
            SendOp::BindMw(bind) => {
                Some(hw.regions.keys.bind(pd, qpn, bind).err().unwrap_or(WcStatus::Success))
            }
            SendOp::LocalInv(rkey) => match hw.regions.keys.invalidate(pd, qpn, *rkey) {
                Ok(()) => Some(WcStatus::Success),
                Err(_) => Some(WcStatus::LocProtErr),
            },
            _ => None,
        }
    }
}

/// Whether an operation can be executed in several steps: READs and WRITEs are where they were after each.
fn goes_in_steps(op: &SendOp) -> bool {
    matches!(op, SendOp::Read(_) | SendOp::Write(_) | SendOp::WriteWithImm(..))
}
