//! QPs of one device that talk to each other: a WR is executed in one step, from MR to MR, by the
//! same [`crate::execute`] as what comes in packets.

use alloc::vec::Vec;
use core::net::IpAddr;

use elver_verbs::{
    AccessFlags, Ah, AsyncEvent, Dest, Gid, Memory, Qp, QpState, QpType, RemoteAddr, SendFlags,
    SendOp, Time, WcStatus,
};
use elver_wire::{IpId, NakCode, Reth, RnrTimer, Tail};

use crate::aside::{ERRAND_BYTES_MAX, Part};
use crate::execute::{Atomic, End, Fault, Inbound, Segments, Sender, Source};
use crate::hw::Hw;
use crate::ingress::{status_of, takes_packets};
use crate::lane::{Env, Hold, Lane};
use crate::place::{Place, Refused};
use crate::qp::QueuePair;
use crate::qp_core::QpCore;
use crate::route::Route;
use crate::send_queue::{Local, SendWqe};
use crate::unreliable::receive_datagram;
use crate::{Rnic, RxMeta, grh};

/// A WR on its way to a QP of the same device. Its local memory stands in the device's scratch
/// buffers.
#[derive(Clone, Copy)]
struct Request {
    op: SendOp,
    qp_type: QpType,
    source: u32,
    dest_qpn: u32,
    /// The DC access key, the Q_Key, or the number of an XRC SRQ.
    key: u64,
    /// Bytes that are copied now, behind so many that were before, of so many.
    length: u32,
    skip: u32,
    total: u32,
    solicited: bool,
    inline: bool,
    /// All of its own memory may take what comes back.
    placed: bool,
    /// The addresses that it goes from and to, and the address handle of a datagram.
    from: IpAddr,
    to: IpAddr,
    ah: Option<Ah>,
}

impl Request {
    /// Whether a connected QP takes it: it comes from its peer, between the addresses that it has and expects.
    #[inline]
    fn is_of_peer(&self, core: &QpCore) -> bool {
        let fits =
            |remote: &Route| remote.flow.dst.ip() == self.from && remote.flow.src.ip() == self.to;
        core.attr.dest_qp_num == self.source && core.remote.as_ref().is_some_and(fits)
    }
}

/// Bytes that are copied within the device before what is due by the clock is done: a few milliseconds' work.
const TURN_BYTES: u64 = 16 << 20;

/// Why a request came to no good end at its target.
enum Stopped {
    Fault(Fault),
    /// It was executed, and the request's own memory does not take what came back.
    Unplaced,
    /// An atomic was executed; what it found waits for the request's own memory.
    Found(u64),
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Stopped {
        Stopped::Fault(fault)
    }
}

/// What became of it.
enum Reply {
    Done,
    NotReady(RnrTimer),
    Refused(NakCode),
    /// Nobody is there, or not ready to receive: as if the packet was lost.
    NoAnswer,
    /// It ended here, without the peer: its own memory is at fault, or it concerned no peer.
    Local(WcStatus),
    /// It must wait for memory. Nothing has happened but that an atomic has found this.
    Later(Option<u64>),
}

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
                Reply::Done => {
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

    /// Has the front WR copied piece by piece from now on; false if it cannot be.
    fn cut(&mut self, qp: u32, lane: usize) -> bool {
        let Some(QueuePair { pool, lanes, .. }) = self.qps.get_mut(qp) else {
            bug!("a WR is cut on a QP that is gone");
            return false;
        };
        let lane = &mut lanes[lane];
        let op = lane.queue.front().map(|slot| pool.get(*slot).op);
        let data =
            matches!(op, Some(SendOp::Read(_) | SendOp::Write(_) | SendOp::WriteWithImm(..)));
        data && !core::mem::replace(&mut lane.piecewise, true)
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
        let lane = &lanes[lane];
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
            Reply::Done if lane.goes_on(env) => true,
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
            Reply::NoAnswer => {
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
            return Reply::Done;
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

impl Lane {
    /// How many bytes of the front WR are copied at once.
    fn turn_of(&self, length: u32) -> u32 {
        if self.piecewise { ERRAND_BYTES_MAX.min(length - self.copied) } else { length }
    }

    /// A piece of the front WR was copied: whether there is more of it.
    #[inline]
    fn goes_on<M: Memory>(&mut self, env: &Env<'_, M>) -> bool {
        if self.sending.is_none() && !self.piecewise {
            return false;
        }
        self.sending = None;
        if !self.piecewise {
            return false;
        }
        let length = self.queue.front().map_or(0, |slot| env.pool.get(*slot).length);
        self.copied += self.turn_of(length);
        if self.copied < length {
            return true;
        }
        (self.piecewise, self.copied) = (false, 0);
        false
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
    pub(crate) fn goes_local<M>(&self, hw: &Hw<M>, wqe: &SendWqe) -> bool {
        self.destination(hw, wqe).is_some_and(|(route, ..)| route.local)
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
        hw.regions.errands_behind(window) > 0
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
                Some(hw.regions.bind(pd, qpn, bind).err().unwrap_or(WcStatus::Success))
            }
            SendOp::LocalInv(rkey) => match hw.regions.invalidate(pd, qpn, *rkey) {
                Ok(()) => Some(WcStatus::Success),
                Err(_) => Some(WcStatus::LocProtErr),
            },
            _ => None,
        }
    }

    #[inline]
    fn execute<M: Memory>(&mut self, hw: &mut Hw<M>, request: &Request) -> Result<(), Stopped> {
        let Request { op, length, skip, total, .. } = *request;
        let (remote, change) = match op {
            SendOp::Read(RemoteAddr { addr: va, rkey }) => {
                let place = self.grant_read(hw, &Reth { va, rkey, len: total }, 0)?;
                let Some(mut place) = place else { return Ok(()) };
                place.offset += u64::from(skip);
                if !request.placed {
                    look_first(hw, place, length)?;
                }
                return fetch(hw, place);
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                (remote, Atomic::CompareSwap { compare, swap })
            }
            SendOp::FetchAdd { remote, add } => (remote, Atomic::FetchAdd { add }),
            _ => return Ok(self.take_bytes(hw, request)?),
        };
        let original = self.atomic(hw, remote.addr, remote.rkey, 0, change)?;
        give(hw, &original.to_ne_bytes()).map_err(|stopped| match stopped {
            Stopped::Fault(Fault::Later) => Stopped::Found(original),
            stopped => stopped,
        })
    }

    /// Executes a request that brings bytes.
    fn take_bytes<M: Memory>(&mut self, hw: &mut Hw<M>, request: &Request) -> Result<(), Fault> {
        let recv = core::mem::take(&mut hw.scratch.recv);
        let mut inbound = Inbound::with_buffers(recv);
        let executed = if request.inline {
            let bytes = core::mem::take(&mut hw.scratch.inline);
            let executed = self.run(hw, &mut inbound, request, &bytes[..]);
            hw.scratch.inline = bytes;
            executed
        } else {
            let segments = core::mem::take(&mut hw.scratch.segments);
            let bytes = Segments { segments: &segments, length: request.length };
            let executed = self.run(hw, &mut inbound, request, &bytes);
            hw.scratch.segments = segments;
            executed
        };
        hw.scratch.recv = inbound.into_buffers();
        executed
    }

    fn run<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        inbound: &mut Inbound,
        request: &Request,
        bytes: &(impl Source + ?Sized),
    ) -> Result<(), Fault> {
        let Request { op, length, skip, total, solicited, source: qpn, .. } = *request;
        let source = || Sender { qpn, gid: Gid::from(request.from) };
        let va = |remote: RemoteAddr| remote.addr.wrapping_add(u64::from(skip));
        let reth = |remote: RemoteAddr| Reth { va: va(remote), rkey: remote.rkey, len: length };
        if let SendOp::Write(RemoteAddr { addr, rkey })
        | SendOp::WriteWithImm(RemoteAddr { addr, rkey }, _) = op
            && length < total
        {
            // All of it is granted, or nothing is.
            self.check_access(AccessFlags::REMOTE_WRITE)?;
            self.place(hw, addr, rkey, total, AccessFlags::REMOTE_WRITE)?;
        }
        let tail = match op {
            SendOp::Write(remote) => {
                return inbound.write_only(self, hw, &reth(remote), bytes, None);
            }
            SendOp::WriteWithImm(remote, imm) => {
                let last = skip + length == total;
                let end = End::of_write(last.then_some(imm), solicited, source);
                return inbound.write_only(self, hw, &reth(remote), bytes, end);
            }
            SendOp::Send => Tail::Plain,
            SendOp::SendWithImm(imm) => Tail::Imm(imm),
            SendOp::SendWithInv(rkey) => Tail::Inv(rkey),
            // What brings nothing is not run here.
            _ => return Err(Fault::Invalid),
        };
        let end = End { tail, solicited, source: source() };
        if let Some(ah) = request.ah {
            let handle = hw.ahs.get(ah.0).ok_or(Fault::Invalid)?;
            let Route { flow, traffic_class, hop_limit, .. } = handle.route;
            let meta = RxMeta { flow, traffic_class, hop_limit, ip_id: IpId::Exact(0) };
            let header = grh::from_meta(&meta, length as usize);
            return receive_datagram(self, hw, &header, bytes, end);
        }
        inbound.send(self, hw, bytes, Some(end))
    }
}

/// Whether bytes can be read that find no place: memory that is gone here is found before that. Of what
/// is not at hand and too long to be fetched it is not asked.
#[cold]
fn look_first<M: Memory>(hw: &Hw<M>, at: Place, length: u32) -> Result<(), Fault> {
    hw.regions.desk.expect(length);
    let looked = hw.regions.look_at(at, length.into());
    hw.regions.desk.expect(0);
    match looked {
        Ok(()) => Ok(()),
        Err(Refused::Later) if length <= ERRAND_BYTES_MAX => Err(Fault::Later),
        Err(Refused::Later) => Ok(()),
        Err(_) => Err(Fault::Operation),
    }
}

/// Moves bytes from one place to the memory of the request that reads them.
#[inline(always)]
fn fetch<M: Memory>(hw: &Hw<M>, mut at: Place) -> Result<(), Stopped> {
    for segment in &hw.scratch.segments {
        let length = u64::from(segment.length);
        hw.regions.copy(segment.place, at, length).map_err(|refused| match refused {
            Refused::Access => Stopped::Unplaced,
            Refused::Source => Stopped::Fault(Fault::Operation),
            Refused::Later => Stopped::Fault(Fault::Later),
        })?;
        at.offset += length;
    }
    Ok(())
}

/// Puts an answer's bytes into the request's memory.
fn give<M: Memory>(hw: &Hw<M>, mut bytes: &[u8]) -> Result<(), Stopped> {
    for segment in &hw.scratch.segments {
        let (piece, rest) = bytes.split_at((segment.length as usize).min(bytes.len()));
        hw.regions.write(segment.place, piece).map_err(|refused| match refused {
            Refused::Later => Stopped::Fault(Fault::Later),
            _ => Stopped::Unplaced,
        })?;
        bytes = rest;
    }
    Ok(())
}
