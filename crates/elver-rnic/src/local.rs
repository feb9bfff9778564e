//! QPs of one device that talk to each other: a WR is executed in one step, from MR to MR, with
//! the same checks, the same order and the same completions as over packets.

use elver_verbs::{
    AccessFlags, AsyncEvent, Dest, Memory, Qp, QpState, QpType, SendFlags, SendOp, Wc, WcFlags,
    WcOpcode, WcStatus,
};
use elver_wire::{IpId, NakCode, RnrTimer};

use crate::hw::Hw;
use crate::qp::{QpCore, QueuePair};
use crate::recv_queue::Recv;
use crate::regions::{Place, Refused, Segment};
use crate::route::Route;
use crate::send_queue::{Local, SendWqe};
use crate::unreliable::receive_datagram;
use crate::{Rnic, RxMeta, Time, grh};

/// A WR on its way to a QP of the same device. Its local memory stands in the device's scratch
/// buffers.
#[derive(Clone, Copy)]
struct Request {
    op: SendOp,
    qp_type: QpType,
    source: u32,
    dest_qpn: u32,
    /// The DC access key, or the Q_Key.
    key: u64,
    length: u32,
    solicited: bool,
    inline: bool,
    route: Route,
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
}

impl<M: Memory> Rnic<M> {
    /// Executes the WRs at the front of a lane that go to this device, until one must wait. Each
    /// takes a WR off the queue, so that the queue's capacity bounds it.
    pub(crate) fn run_local(&mut self, now: Time, qp: u32, lane: usize) {
        loop {
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return;
            };
            let Some(prepared) = queue_pair.prepare(&mut self.hw, lane) else {
                return;
            };
            let reply = match prepared {
                Ok(request) => match self.qps.get_mut(request.dest_qpn) {
                    Some(target) => target.serve(&mut self.hw, now, &request),
                    None => Reply::NoAnswer,
                },
                Err(status) => Reply::Local(status),
            };
            let Some(queue_pair) = self.qps.get_mut(qp) else {
                return;
            };
            if !queue_pair.conclude(&mut self.hw, now, lane, reply) {
                return;
            }
        }
    }
}

impl QueuePair {
    /// Takes the front WR of a lane, if it goes to this device and may run now.
    fn prepare<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        lane: usize,
    ) -> Option<Result<Request, WcStatus>> {
        let QueuePair { core, pool, lanes, .. } = self;
        let lane = &lanes[lane];
        if core.state != QpState::Rts || !lane.may_copy() {
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
        if let Some(status) = core.run_own(hw, &wqe.op) {
            return Some(Err(status));
        }
        let request = Request {
            op: wqe.op,
            qp_type: core.qp_type,
            source: core.qpn.get(),
            dest_qpn,
            key,
            length: wqe.length,
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            inline: matches!(pool.local(slot), Local::Inline(_)),
            route,
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
                if hw.regions.resolve(core.pd, sges, wqe.length, writes, segments).is_err() {
                    return Some(Err(WcStatus::LocProtErr));
                }
            }
        }
        Some(Ok(request))
    }

    /// Completes the front WR of a lane, or lets it wait. False when the lane must stop here.
    fn conclude<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        now: Time,
        lane: usize,
        reply: Reply,
    ) -> bool {
        let reliable = self.core.qp_type.is_reliable();
        let acted = self.with_lane(lane, hw, now, |lane, env| match reply {
            Reply::Done => {
                env.hw.counters.local_copies += 1;
                lane.answered(env.core);
                lane.retire(env, WcStatus::Success);
                true
            }
            Reply::NotReady(timer) => {
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
                lane.fail_front(env, crate::ingress::status_of(code));
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

    /// Executes a request that came from a QP of the same device.
    fn serve<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time, request: &Request) -> Reply {
        let core = &mut self.core;
        if !matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Reply::NoAnswer;
        }
        let reply = match (request.qp_type, core.qp_type) {
            (QpType::Rc, QpType::Rc) | (QpType::Uc, QpType::Uc)
                if core.attr.dest_qp_num == request.source
                    && core.remote.is_some_and(|remote| {
                        remote.flow.dst.ip() == request.route.flow.src.ip()
                    }) =>
            {
                core.heard(hw);
                core.execute(hw, request)
            }
            (QpType::Ud, QpType::Ud) => {
                core.serve_datagram(hw, request);
                Reply::Done
            }
            (QpType::Dci, QpType::Dct) => {
                if core.init.dc_access_key == request.key {
                    core.execute(hw, request)
                } else {
                    hw.counters.dc_refused_key += 1;
                    hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
                    return Reply::Refused(NakCode::RemoteAccess);
                }
            }
            _ => return Reply::NoAnswer,
        };
        match (reply, core.qp_type) {
            (Reply::Refused(_) | Reply::NotReady(_), QpType::Uc) => {
                hw.counters.drop_unreliable += 1;
                Reply::Done
            }
            (Reply::Refused(code), qp_type) => {
                let qp = Qp(core.qpn.get());
                hw.event(match code {
                    NakCode::RemoteAccess => AsyncEvent::QpAccessErr(qp),
                    _ => AsyncEvent::QpReqErr(qp),
                });
                if qp_type == QpType::Rc {
                    self.enter_error(hw, now);
                }
                Reply::Refused(code)
            }
            (reply, _) => reply,
        }
    }
}

impl QpCore {
    /// Where a WQE goes: the route, the QPN, and the DC access key or the Q_Key.
    #[inline]
    fn destination<M>(&self, hw: &Hw<M>, wqe: &SendWqe) -> Option<(Route, u32, u64)> {
        match wqe.dest {
            None => Some((self.remote?, self.attr.dest_qp_num, 0)),
            Some(Dest::Ud { ah, remote_qpn, remote_qkey }) => {
                let qkey = self.effective_qkey(remote_qkey);
                Some((hw.ahs.get(ah.0)?.route, remote_qpn, u64::from(qkey)))
            }
            Some(Dest::Dc { ah, remote_dctn, dc_access_key, .. }) => {
                Some((hw.ahs.get(ah.0)?.route, remote_dctn, dc_access_key))
            }
        }
    }

    /// Whether a WQE goes to a QP of this device and is copied, not sent.
    #[inline]
    pub(crate) fn goes_local<M>(&self, hw: &Hw<M>, wqe: &SendWqe) -> bool {
        self.destination(hw, wqe).is_some_and(|(route, ..)| route.local)
    }

    /// Runs an operation that concerns this device alone; none if it is not one.
    pub(crate) fn run_own<M: Memory>(&self, hw: &mut Hw<M>, op: &SendOp) -> Option<WcStatus> {
        let (pd, qpn) = (self.pd, self.qpn.get());
        match op {
            SendOp::BindMw(bind) => {
                Some(hw.regions.bind(pd, qpn, bind).err().unwrap_or(WcStatus::Success))
            }
            SendOp::LocalInv(rkey) => match hw.regions.invalidate(pd, qpn, *rkey) {
                Ok(()) => Some(WcStatus::Success),
                Err(Refused) => Some(WcStatus::LocProtErr),
            },
            _ => None,
        }
    }

    fn execute<M: Memory>(&mut self, hw: &mut Hw<M>, request: &Request) -> Reply {
        match request.op {
            SendOp::Write(remote) => {
                match self.grant(hw, remote.addr, remote.rkey, request, AccessFlags::REMOTE_WRITE) {
                    Ok(place) => put(hw, request, place),
                    Err(reply) => reply,
                }
            }
            SendOp::WriteWithImm(remote, imm) => {
                match self.grant(hw, remote.addr, remote.rkey, request, AccessFlags::REMOTE_WRITE) {
                    Ok(place) => self.write_imm(hw, request, place, imm),
                    Err(reply) => reply,
                }
            }
            SendOp::Read(remote) => {
                match self.grant(hw, remote.addr, remote.rkey, request, AccessFlags::REMOTE_READ) {
                    Ok(Some(place)) => get(hw, place),
                    Ok(None) => Reply::Done,
                    Err(reply) => reply,
                }
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                self.atomic(hw, request, remote.addr, remote.rkey, |hw, at| {
                    hw.regions.compare_swap(at, compare, swap)
                })
            }
            SendOp::FetchAdd { remote, add } => {
                self.atomic(hw, request, remote.addr, remote.rkey, |hw, at| {
                    hw.regions.fetch_add(at, add)
                })
            }
            SendOp::Send => self.receive(hw, request, WcFlags::empty(), 0),
            SendOp::SendWithImm(imm) => self.receive(hw, request, WcFlags::WITH_IMM, imm),
            SendOp::SendWithInv(rkey) => self.receive(hw, request, WcFlags::WITH_INV, rkey),
            SendOp::BindMw(_) | SendOp::LocalInv(_) => Reply::Local(WcStatus::LocQpOpErr),
        }
    }

    #[inline]
    fn grant<M: Memory>(
        &self,
        hw: &Hw<M>,
        va: u64,
        rkey: u32,
        request: &Request,
        access: AccessFlags,
    ) -> Result<Option<Place>, Reply> {
        if !self.attr.qp_access_flags.contains(access) {
            return Err(Reply::Refused(NakCode::RemoteAccess));
        }
        hw.regions
            .remote(self.pd, self.qpn.get(), rkey, va, u64::from(request.length), access)
            .map_err(|_| Reply::Refused(NakCode::RemoteAccess))
    }

    fn atomic<M: Memory>(
        &self,
        hw: &mut Hw<M>,
        request: &Request,
        va: u64,
        rkey: u32,
        run: impl FnOnce(&mut Hw<M>, Place) -> Result<u64, Refused>,
    ) -> Reply {
        if !va.is_multiple_of(8) {
            return Reply::Refused(NakCode::InvalidRequest);
        }
        match self.grant(hw, va, rkey, request, AccessFlags::REMOTE_ATOMIC) {
            Ok(Some(place)) => match run(hw, place) {
                Ok(original) => give(hw, &original.to_ne_bytes()),
                Err(Refused) => Reply::Refused(NakCode::RemoteOperation),
            },
            Ok(None) => Reply::Refused(NakCode::InvalidRequest),
            Err(reply) => reply,
        }
    }

    fn not_ready<M>(&self, hw: &mut Hw<M>) -> Reply {
        hw.counters.rnr_nak_sent += 1;
        let timer = RnrTimer::new(self.attr.min_rnr_timer);
        Reply::NotReady(timer.unwrap_or_else(|| RnrTimer::at_least_ns(0)))
    }

    fn write_imm<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        request: &Request,
        place: Option<Place>,
        imm: u32,
    ) -> Reply {
        let mut recv = core::mem::take(&mut hw.scratch.recv);
        if !self.take_receive(hw, &mut recv) {
            hw.scratch.recv = recv;
            return self.not_ready(hw);
        }
        let reply = put(hw, request, place);
        let status = match reply {
            Reply::Done => WcStatus::Success,
            _ => WcStatus::LocAccessErr,
        };
        let opcode = WcOpcode::RecvRdmaWithImm;
        self.complete_receive(hw, request, &recv, opcode, status, WcFlags::WITH_IMM, imm);
        hw.scratch.recv = recv;
        reply
    }

    /// Fills a receive with a SEND.
    fn receive<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        request: &Request,
        flags: WcFlags,
        imm: u32,
    ) -> Reply {
        let mut recv = core::mem::take(&mut hw.scratch.recv);
        if !self.take_receive(hw, &mut recv) {
            hw.scratch.recv = recv;
            return self.not_ready(hw);
        }
        let (status, reply) = self.fill(hw, request, &recv, flags, imm);
        if status != WcStatus::Success && self.qp_type == QpType::Uc {
            self.return_receive(hw, &recv);
        } else {
            self.complete_receive(hw, request, &recv, WcOpcode::Recv, status, flags, imm);
        }
        hw.scratch.recv = recv;
        reply
    }

    fn fill<M: Memory>(
        &self,
        hw: &mut Hw<M>,
        request: &Request,
        recv: &Recv,
        flags: WcFlags,
        imm: u32,
    ) -> (WcStatus, Reply) {
        if u64::from(request.length) > recv.capacity {
            return (WcStatus::LocLenErr, Reply::Refused(NakCode::InvalidRequest));
        }
        hw.scratch.targets.clear();
        let targets = &mut hw.scratch.targets;
        let resolved = hw.regions.resolve(self.pd, &recv.sges, request.length, true, targets);
        if resolved.is_err() {
            return (WcStatus::LocProtErr, Reply::Refused(NakCode::RemoteOperation));
        }
        let moved = if request.inline {
            spread(hw, &hw.scratch.targets, 0, &hw.scratch.inline)
        } else {
            transfer(hw, &hw.scratch.targets, &hw.scratch.segments)
        };
        if moved.is_err() {
            return (WcStatus::LocProtErr, Reply::Refused(NakCode::RemoteOperation));
        }
        if flags.contains(WcFlags::WITH_INV)
            && hw.regions.invalidate(self.pd, self.qpn.get(), imm).is_err()
        {
            return (WcStatus::LocAccessErr, Reply::Refused(NakCode::RemoteAccess));
        }
        (WcStatus::Success, Reply::Done)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one completion")]
    fn complete_receive<M: Memory>(
        &self,
        hw: &mut Hw<M>,
        request: &Request,
        recv: &Recv,
        opcode: WcOpcode,
        status: WcStatus,
        flags: WcFlags,
        imm_data: u32,
    ) {
        let wc = Wc {
            wr_id: recv.wr_id,
            status,
            opcode,
            flags,
            byte_len: request.length,
            imm_data,
            qp_num: self.qpn.get(),
            src_qp: request.source,
            vendor_err: 0,
        };
        hw.complete(self.init.recv_cq.0, wc, request.solicited);
    }

    fn serve_datagram<M: Memory>(&mut self, hw: &mut Hw<M>, request: &Request) {
        if u64::from(self.attr.qkey) != request.key {
            hw.counters.drop_qkey += 1;
            return;
        }
        let imm = match request.op {
            SendOp::SendWithImm(imm) => Some(imm),
            _ => None,
        };
        let meta = RxMeta {
            flow: request.route.flow,
            traffic_class: request.route.traffic_class,
            hop_limit: request.route.hop_limit,
            ip_id: IpId::Exact(0),
        };
        let length = request.length as usize;
        let header = grh::from_meta(&meta, length);
        let (source, solicited) = (request.source, request.solicited);
        receive_datagram(self, hw, &header, source, imm, solicited, length, |core, hw, recv| {
            let total = grh::LEN as u32 + request.length;
            hw.scratch.targets.clear();
            let targets = &mut hw.scratch.targets;
            if hw.regions.resolve(core.pd, &recv.sges, total, true, targets).is_err() {
                return false;
            }
            skip(&mut hw.scratch.targets, grh::LEN as u32);
            let moved = if request.inline {
                spread(hw, &hw.scratch.targets, 0, &hw.scratch.inline)
            } else {
                transfer(hw, &hw.scratch.targets, &hw.scratch.segments)
            };
            moved.is_ok()
        });
    }
}

/// Moves the request's bytes to one place.
fn put<M: Memory>(hw: &Hw<M>, request: &Request, place: Option<Place>) -> Reply {
    let Some(mut at) = place else {
        return Reply::Done;
    };
    if request.inline {
        return match hw.regions.write(at, &hw.scratch.inline) {
            Ok(()) => Reply::Done,
            Err(Refused) => Reply::Refused(NakCode::RemoteOperation),
        };
    }
    for segment in &hw.scratch.segments {
        if hw.regions.copy(at, segment.place, u64::from(segment.length)).is_err() {
            return Reply::Refused(NakCode::RemoteOperation);
        }
        at.offset += u64::from(segment.length);
    }
    Reply::Done
}

/// Moves bytes from one place to the request's memory.
fn get<M: Memory>(hw: &Hw<M>, place: Place) -> Reply {
    let mut at = place;
    for segment in &hw.scratch.segments {
        if hw.regions.copy(segment.place, at, u64::from(segment.length)).is_err() {
            return Reply::Local(WcStatus::LocProtErr);
        }
        at.offset += u64::from(segment.length);
    }
    Reply::Done
}

/// Puts an answer's bytes into the request's memory.
fn give<M: Memory>(hw: &Hw<M>, bytes: &[u8]) -> Reply {
    match spread(hw, &hw.scratch.segments, 0, bytes) {
        Ok(()) => Reply::Done,
        Err(Refused) => Reply::Local(WcStatus::LocProtErr),
    }
}

/// Writes bytes over segments, from the first on.
fn spread<M: Memory>(
    hw: &Hw<M>,
    segments: &[Segment],
    mut done: usize,
    bytes: &[u8],
) -> Result<(), Refused> {
    for segment in segments {
        let len = (segment.length as usize).min(bytes.len() - done);
        hw.regions.write(segment.place, &bytes[done..done + len])?;
        done += len;
    }
    if done == bytes.len() { Ok(()) } else { Err(Refused) }
}

/// Copies segments to segments; the targets hold at least as much as the sources.
fn transfer<M: Memory>(
    hw: &Hw<M>,
    targets: &[Segment],
    sources: &[Segment],
) -> Result<(), Refused> {
    let mut targets = targets.iter();
    let mut target = Segment { place: Place { region: 0, offset: 0 }, length: 0 };
    for source in sources {
        let mut source = *source;
        while source.length > 0 {
            while target.length == 0 {
                target = *targets.next().ok_or(Refused)?;
            }
            let len = source.length.min(target.length);
            hw.regions.copy(target.place, source.place, u64::from(len))?;
            for segment in [&mut source, &mut target] {
                segment.length -= len;
                segment.place.offset += u64::from(len);
            }
        }
    }
    Ok(())
}

/// Takes the first bytes off a list of segments.
fn skip(segments: &mut [Segment], mut bytes: u32) {
    for segment in segments {
        let len = segment.length.min(bytes);
        segment.length -= len;
        segment.place.offset += u64::from(len);
        bytes -= len;
    }
}
