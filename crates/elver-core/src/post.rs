//! Posting of send WRs (Algorithm 2): checks, rings, bursts, and turns among VQPs.

use alloc::vec::Vec;

use elver_verbs::{
    Device, Memory, ObjectKind, Payload, PostError, QpState, QpType, RecvWr, RemoteAddr, SendFlags,
    SendOp, SendOpcode, SendWr, Time, VerbsError, WcStatus,
};

use crate::lane::LaneState;
use crate::message::{HEADER_BYTES, Header, Kind};
use crate::mr::LocalMrs;
use crate::mr_store::remote_of;
use crate::pool::Pool;
use crate::rendezvous::{PIECE_BYTES, encode_piece};
use crate::ring::{NONE, SendRing, SqEntry};
use crate::vqp::{Vqp, Wait};
use crate::wr_id::WrId;
use crate::{ClientId, Core, Via, VqpId, VqpState};

/// Most WRs posted to the device by one call.
const BURST: u32 = 32;
/// Bytes that a VQP may post in each of its turns on a lane that others wait for.
const QUANTUM: i64 = 64 << 10;
/// What a WR counts as besides its bytes.
const WR_BYTES: i64 = 256;
/// Send slots kept for the core's own messages.
pub(crate) const SLOTS_RESERVED: u32 = 32;
/// The most that a VQP may owe; a WR may be as long as 2 GB.
const DEBT_MAX: i64 = 8 * QUANTUM;

/// What stopped a VQP's posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Nothing is left.
    Empty,
    /// The lane has no room, or the turn is over.
    Room,
    /// Something else, which brings it back when it is there.
    Waits,
}

/// What the checks say of a WR that is to be posted.
enum Check {
    Ready,
    /// The peer's region must be looked up.
    Unknown(u32),
    /// The peer's region does not permit it.
    Refused,
    /// The VQP's class has no tokens.
    Held,
    /// Its region cannot be shared with the receiver.
    Failed,
    /// There is no send slot for its header.
    NoSlot,
    /// It takes more room than there is, or must be posted by itself.
    Apart,
}

impl<D: Device> Core<D> {
    /// Posts send WRs (Algorithm 2, `post_send_virtualized`). On an error the WRs before the
    /// refused one are posted. What only the peer can refuse, its region above all, is told by a
    /// completion.
    pub fn post_send(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[SendWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        let found = self.vqps.get_mut(vqp.0);
        let Some(entry) = found.filter(|entry| entry.client == client.0 && !entry.zombie) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if !matches!(entry.state, VqpState::Connected | VqpState::Connecting) {
            return Err((0, state_error(entry.state)));
        }
        let Some(owner) = self.clients.get_mut(client.0) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        let limits = Limits {
            max_sge: self.config.max_sge,
            max_inline: self.pool.max_inline,
            max_length: self.pool.max_length,
        };
        let mut result = Ok(());
        let mut taken = 0;
        for (index, wr) in wrs.iter().enumerate() {
            let capacity = owner.limits.completions;
            let accepted = if owner.pending >= capacity {
                Err(PostError::QueueFull { capacity })
            } else {
                entry.accept(&mut self.mrs, &limits, wr)
            };
            match accepted {
                Ok(length) => {
                    owner.pending += 1;
                    taken += 1;
                    self.stats.send_bytes += u64::from(length);
                }
                Err(error) => {
                    self.stats.posts_refused += 1;
                    result = Err((index, error));
                    break;
                }
            }
        }
        self.stats.send_wrs += taken;
        if taken > 0 {
            self.pump(vqp.0, now);
        }
        result
    }

    /// Posts receives.
    pub fn post_recv(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[RecvWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        let found = self.vqps.get_mut(vqp.0);
        let Some(entry) = found.filter(|entry| entry.client == client.0 && !entry.zombie) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if entry.state == VqpState::Error {
            return Err((0, state_error(entry.state)));
        }
        let Some(owner) = self.clients.get_mut(client.0) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            let capacity = owner.limits.completions;
            let taken = if owner.pending >= capacity {
                Err(PostError::QueueFull { capacity })
            } else {
                entry.accept_recv(&self.mrs, self.config.max_sge, wr)
            };
            if let Err(error) = taken {
                result = Err((index, error));
                break;
            }
            owner.pending += 1;
            self.stats.recv_wrs += 1;
        }
        if entry.backlog.is_some() {
            self.serve_backlog(vqp.0, now);
        }
        result
    }

    /// Posts what waits in a VQP's ring: at once if nobody waits for the lane, else in turn.
    #[inline]
    pub(crate) fn pump(&mut self, id: u32, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return };
        if !vqp.may_post() || vqp.ready || vqp.sq.unposted() == 0 {
            if vqp.lane == NONE && vqp.state == VqpState::Connected {
                self.find_lane(id, now);
            }
            return;
        }
        let lane = &self.lanes.lanes[vqp.lane as usize];
        if lane.state == LaneState::Gone {
            return self.leave_gone_lane(id, now);
        }
        if lane.state != LaneState::Running || !lane.ready.is_empty() || !lane.ops.is_empty() {
            return self.enlist(id);
        }
        if self.post_ready(id, None, now) == Stop::Room {
            self.enlist(id);
        }
    }

    /// Puts a VQP behind the others that wait for its lane.
    pub(crate) fn enlist(&mut self, id: u32) {
        let Some(vqp) = self.vqps.get_mut(id) else { return };
        if vqp.ready || !vqp.may_post() || vqp.sq.unposted() == 0 {
            return;
        }
        vqp.ready = true;
        self.lanes.lanes[vqp.lane as usize].ready.push_back(id);
        self.lanes.wait(vqp.lane);
    }

    /// Gives turns on the QPs where room was made.
    pub(crate) fn serve_dirty(&mut self, now: Time) {
        while let Some(qp) = self.dirty_qps.pop() {
            let phys = &mut self.lanes.qps[qp as usize];
            phys.dirty = false;
            for _ in 0..phys.waiting.len() {
                let Some(lane) = self.lanes.qps[qp as usize].waiting.pop_front() else { break };
                self.lanes.lanes[lane as usize].waiting = false;
                self.serve_lane(lane, now);
                let entry = &self.lanes.lanes[lane as usize];
                if !entry.ready.is_empty() || !entry.ops.is_empty() {
                    self.lanes.wait(lane);
                }
            }
        }
    }

    /// Gives turns on a lane while it has room: to the core's own operations, then to the VQPs in
    /// turn, each by bytes (deficit round robin).
    fn serve_lane(&mut self, lane: u32, now: Time) {
        loop {
            let entry = &mut self.lanes.lanes[lane as usize];
            let phys = &self.lanes.qps[entry.qp as usize];
            if entry.state != LaneState::Running {
                return;
            }
            if phys.posted < phys.depth
                && let Some(op) = entry.ops.pop_front()
            {
                if !self.send_op(op, now) {
                    self.conclude_op(op, false, now);
                }
                continue;
            }
            if entry.room(phys) == 0 {
                return;
            }
            let Some(id) = entry.ready.pop_front() else { return };
            let alone = entry.ready.is_empty();
            let Some(vqp) = self.vqps.get_mut(id) else { continue };
            vqp.ready = false;
            if vqp.lane != lane || !vqp.may_post() {
                continue;
            }
            let deficit = if alone { QUANTUM } else { vqp.deficit + QUANTUM };
            vqp.deficit = deficit.min(2 * QUANTUM);
            let before = vqp.sq.posted;
            let stop = self.post_ready(id, Some(()), now);
            let Some(vqp) = self.vqps.get_mut(id) else { continue };
            if stop != Stop::Room {
                vqp.deficit = 0;
            } else if vqp.sq.posted == before && vqp.deficit > 0 {
                // Its next WR takes more room than there is: it keeps its turn.
                vqp.ready = true;
                self.lanes.lanes[lane as usize].ready.push_front(id);
                return;
            } else {
                self.enlist(id);
            }
        }
    }

    /// Posts a VQP's WRs, as many as are there and the lane has room for; in its turn (`turn`), as
    /// many as its deficit allows.
    fn post_ready(&mut self, id: u32, turn: Option<()>, now: Time) -> Stop {
        loop {
            let Core { vqps, lanes, peers, store, device, stats, pool, blank, mrs, .. } = self;
            let (qos, links, config) = (&mut self.qos, &mut self.links, &self.config);
            let Some(vqp) = vqps.get_mut(id) else { return Stop::Waits };
            let unposted = vqp.sq.unposted();
            if unposted == 0 {
                return Stop::Empty;
            }
            let lane = &mut lanes.lanes[vqp.lane as usize];
            let phys = &mut lanes.qps[lane.qp as usize];
            let room = lane.room(phys);
            let limit = unposted.min(room).min(BURST);
            if limit == 0 {
                return Stop::Room;
            }
            let (mut count, mut bytes, mut blocked, mut pair) = (0, 0, Check::Ready, false);
            while count < limit {
                if turn.is_some() && vqp.deficit <= 0 {
                    break;
                }
                let seq = vqp.sq.posted.wrapping_add(count);
                let entry = vqp.sq.entry(seq);
                let (op, length, is_message) = (entry.op, entry.length, entry.is_message());
                blocked = vqp.check_remote(store, &op, length, now);
                if !matches!(blocked, Check::Ready) {
                    break;
                }
                if !qos.ready(vqp.class, now) {
                    blocked = Check::Held;
                    break;
                }
                if is_message {
                    let two = matches!(op, SendOp::WriteWithImm(..));
                    if two && (count > 0 || room < 2) {
                        blocked = Check::Apart;
                        break;
                    }
                    let before = vqp.sq.entry(seq).shared;
                    blocked = vqp.prepare(seq, pool, blank, mrs, device);
                    if !before && vqp.sq.entry(seq).shared {
                        self.unread.push_back((Self::query_at(now), id, seq));
                    }
                    if !matches!(blocked, Check::Ready) {
                        break;
                    }
                }
                qos.charge(vqp.class, length.into());
                let cost = i64::from(length) + WR_BYTES;
                vqp.deficit = (vqp.deficit - cost).max(-DEBT_MAX);
                bytes += u64::from(length);
                count += 1;
                pair = matches!(op, SendOp::WriteWithImm(..));
                if pair {
                    break;
                }
            }
            if count > 0 {
                let first = vqp.sq.posted;
                let posted = match count {
                    1 if pair => {
                        let cost = vqp.sq.entry(first).cost();
                        let posted = send_pair(device, phys.qp, vqp, first);
                        // The second of the two is counted here, the first below.
                        let more = cost - 1;
                        vqp.inflight += more * posted;
                        lane.uncompleted += more * posted;
                        phys.posted += more * posted;
                        posted
                    }
                    1 => send::<D, 1>(device, phys.qp, vqp, first, count),
                    2..=4 => send::<D, 4>(device, phys.qp, vqp, first, count),
                    5..=12 => send::<D, 12>(device, phys.qp, vqp, first, count),
                    _ => send::<D, { BURST as usize }>(device, phys.qp, vqp, first, count),
                };
                vqp.sq.posted = first.wrapping_add(posted);
                vqp.inflight += posted;
                lane.uncompleted += posted;
                phys.posted += posted;
                stats.posts += 1;
                if let Some(peer) = peers.get_mut(vqp.peer) {
                    peer.ops += u64::from(posted);
                    peer.bytes += bytes;
                    let heat = &mut peer.heat[vqp.class as usize];
                    if heat.note(posted.into(), &config.transfer, now)
                        && vqp.via != Some(Via::Leased)
                    {
                        links.hot.push_back((vqp.peer, vqp.class));
                    }
                }
                if posted < count {
                    stats.device_refusals += 1;
                    self.fail_next(id, WcStatus::LocQpOpErr, now);
                    return Stop::Waits;
                }
            }
            let peer = vqp.peer;
            match blocked {
                Check::Unknown(rkey) => {
                    vqp.wait = Wait::Mr;
                    self.want_mr(peer, rkey, Some(id), now);
                    return Stop::Waits;
                }
                Check::Held => {
                    vqp.wait = Wait::Tokens;
                    qos.hold(id, now);
                    stats.low_held += 1;
                    return Stop::Waits;
                }
                Check::Refused => {
                    self.stats.mr_refusals += 1;
                    self.fail_next(id, WcStatus::RemAccessErr, now);
                    return Stop::Waits;
                }
                Check::Failed => {
                    self.fail_next(id, WcStatus::LocQpOpErr, now);
                    return Stop::Waits;
                }
                Check::NoSlot => {
                    vqp.wait = Wait::Slot;
                    self.slot_waiters.push_back(id);
                    return Stop::Waits;
                }
                Check::Apart if count == 0 => return Stop::Room,
                Check::Ready if count < limit && !pair => return Stop::Room,
                Check::Apart => {}
                Check::Ready => {}
            }
        }
    }

    /// Lets VQPs go on that waited for send slots.
    pub(crate) fn serve_slot_waiters(&mut self, now: Time) {
        self.tell_waiting(now);
        while self.pool.sends.available() > SLOTS_RESERVED
            && let Some(id) = self.slot_waiters.pop_front()
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
    fn leave_gone_lane(&mut self, id: u32, now: Time) {
        if self.move_to_dc(id) {
            self.pump(id, now);
        } else {
            self.fail_next(id, WcStatus::RetryExcErr, now);
        }
    }
}

/// Posts `count` WRs of a VQP, from sequence number `first` on, in one call. `N` is at least
/// `count`, and not far above. Returns how many the device took.
#[inline]
fn send<D: Device, const N: usize>(
    device: &mut D,
    qp: elver_verbs::Qp,
    vqp: &Vqp,
    first: u32,
    count: u32,
) -> u32 {
    let mut wrs = [BLANK; N];
    for (at, wr) in wrs[..count as usize].iter_mut().enumerate() {
        let at = at as u32;
        fill(wr, vqp, first.wrapping_add(at), at + 1 == count);
    }
    match device.post_send(qp, &wrs[..count as usize]) {
        Ok(()) => count,
        Err((taken, _)) => taken as u32,
    }
}

/// A WR that is yet to be filled.
const BLANK: SendWr<'static> = SendWr {
    wr_id: 0,
    op: SendOp::Send,
    flags: SendFlags::empty(),
    payload: Payload::Inline(&[]),
    dest: None,
};

/// Makes a WR as it goes to the device, in place. The last of a burst is signalled, so that the
/// lane's room is known, whatever the user asked for.
#[inline(always)] // Copies of a WR that was just written stall on the stores.
fn fill<'a>(wr: &mut SendWr<'a>, vqp: &'a Vqp, seq: u32, last: bool) {
    let ring: &SendRing = &vqp.sq;
    let entry = ring.entry(seq);
    let signaled = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
    wr.wr_id = WrId::User { vqp: vqp.id, seq, second: false }.encode();
    wr.flags = entry.flags | signaled;
    wr.dest = vqp.dest;
    match entry.op {
        SendOp::Send | SendOp::SendWithImm(_) => {
            let sges = ring.message_sges(seq);
            wr.op = SendOp::Send;
            // Of a message that is read later only the header goes.
            wr.payload = Payload::Sges(if entry.shared { &sges[..1] } else { sges });
        }
        op => {
            wr.op = op;
            wr.payload = if entry.inline {
                Payload::Inline(ring.inline(seq))
            } else {
                Payload::Sges(ring.sges(seq))
            };
        }
    }
}

/// Posts a WRITE_WITH_IMM: a WRITE, and a message behind it. Returns whether the device took both.
fn send_pair<D: Device>(device: &mut D, qp: elver_verbs::Qp, vqp: &Vqp, seq: u32) -> u32 {
    let entry = vqp.sq.entry(seq);
    let SendOp::WriteWithImm(remote, _) = entry.op else { return 0 };
    let flags = entry.flags - SendFlags::SIGNALED;
    let mut write = BLANK;
    fill(&mut write, vqp, seq, false);
    (write.op, write.flags) = (SendOp::Write(remote), flags);
    let message = SendWr {
        wr_id: WrId::User { vqp: vqp.id, seq, second: true }.encode(),
        op: SendOp::Send,
        flags: flags | SendFlags::SIGNALED,
        payload: Payload::Sges(&vqp.sq.message_sges(seq)[..1]),
        dest: vqp.dest,
    };
    let wrs = [write, message];
    let wrs = if entry.first_done { &wrs[1..] } else { &wrs[..] };
    u32::from(device.post_send(qp, wrs).is_ok())
}

/// Limits of a WR.
struct Limits {
    max_sge: u32,
    max_inline: u32,
    max_length: u32,
}

impl Vqp {
    /// Checks a WR as far as that is possible here, and takes it into the ring; returns its bytes.
    #[inline]
    fn accept<M: Memory>(
        &mut self,
        mrs: &mut LocalMrs<M>,
        limits: &Limits,
        wr: &SendWr<'_>,
    ) -> Result<u32, PostError> {
        let opcode = wr.op.opcode();
        // Whether the device writes local memory.
        let writes = match opcode {
            SendOpcode::Send
            | SendOpcode::SendWithImm
            | SendOpcode::Write
            | SendOpcode::WriteWithImm => false,
            SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd => true,
            _ => return Err(PostError::Opcode { qp_type: QpType::Rc, opcode }),
        };
        if self.sq.is_full() {
            return Err(PostError::QueueFull { capacity: self.sq.max() });
        }
        if wr.dest.is_some() {
            return Err(PostError::Destination { qp_type: QpType::Rc });
        }
        let (length, mr, sges, inline) = match wr.payload {
            Payload::Sges(sges) => {
                let (length, mr) = self.check_sges(mrs, limits, sges, writes)?;
                (length, mr, sges, &[][..])
            }
            Payload::Inline(bytes) => {
                let max = if writes { 0 } else { limits.max_inline };
                if bytes.len() > max as usize {
                    let given = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    return Err(PostError::InlineTooLong { given, max });
                }
                (bytes.len() as u32, NONE, &[][..], bytes)
            }
        };
        if let SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } = wr.op {
            if length != 8 {
                return Err(PostError::AtomicLength { given: u64::from(length) });
            }
            if remote.addr % 8 != 0 {
                return Err(PostError::AtomicAlignment { addr: remote.addr });
            }
        }
        if mr != NONE {
            mrs.add_user(mr);
        }
        for sge in sges.iter().skip(1) {
            if let Some(slot) = mrs.slot_of(sge.lkey).filter(|_| sge.length > 0) {
                mrs.add_user(slot);
            }
        }
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let entry = SqEntry {
            wr_id: wr.wr_id,
            op: wr.op,
            length,
            mr,
            slot: NONE,
            num_sge: sges.len() as u8,
            flags: wr.flags | sig_all,
            inline: matches!(wr.payload, Payload::Inline(_)),
            status: WcStatus::Success,
            await_fin: false,
            shared: false,
            first_done: false,
        };
        self.sq.push(entry, sges, inline);
        Ok(length)
    }

    /// Checks a receive, and takes it into the ring.
    fn accept_recv<M: Memory>(
        &mut self,
        mrs: &LocalMrs<M>,
        max: u32,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        if wr.sges.len() > max as usize {
            let given = u32::try_from(wr.sges.len()).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges { given, max });
        }
        if self.rq.is_full() {
            return Err(PostError::QueueFull { capacity: self.rq.max() });
        }
        for sge in wr.sges {
            mrs.check(ClientId(self.client), &mut self.local, sge, true)?;
        }
        self.rq.push(wr);
        Ok(())
    }

    /// Checks a WR's pieces; returns their bytes and the region of the first.
    #[inline]
    fn check_sges<M: Memory>(
        &mut self,
        mrs: &LocalMrs<M>,
        limits: &Limits,
        sges: &[elver_verbs::Sge],
        writes: bool,
    ) -> Result<(u32, u32), PostError> {
        let max = limits.max_sge;
        if sges.len() > max as usize {
            let given = u32::try_from(sges.len()).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges { given, max });
        }
        let (mut length, mut first) = (0u64, NONE);
        for (index, sge) in sges.iter().enumerate() {
            let slot = mrs.check(ClientId(self.client), &mut self.local, sge, writes)?;
            if index == 0 {
                first = slot;
            }
            length += u64::from(sge.length);
        }
        let max = u64::from(limits.max_length);
        if length > max {
            return Err(PostError::MessageTooLong { given: length, max });
        }
        Ok((length as u32, first))
    }

    /// Makes a message's header, in a send slot, unless that is done. A message that is too long to
    /// be copied is opened to its receiver.
    fn prepare<D: Device>(
        &mut self,
        seq: u32,
        pool: &mut Pool<D::Memory>,
        blank: &Header,
        mrs: &mut LocalMrs<D::Memory>,
        device: &mut D,
    ) -> Check {
        let entry = *self.sq.entry(seq);
        if entry.slot != NONE {
            return Check::Ready;
        }
        if pool.sends.available() <= SLOTS_RESERVED {
            return Check::NoSlot;
        }
        let Some(slot) = pool.sends.take() else { return Check::NoSlot };
        self.sq.entry_mut(seq).slot = slot;
        let (kind, imm) = match entry.op {
            SendOp::WriteWithImm(_, imm) => (Kind::WriteImm, Some(imm)),
            SendOp::SendWithImm(imm) => (Kind::Eager, Some(imm)),
            _ => (Kind::Eager, None),
        };
        // Inline bytes stand in no region that could be read, and always fit a buffer.
        let long = kind == Kind::Eager && !entry.inline && entry.length > pool.eager_max;
        let kind = if long { Kind::Rendezvous } else { kind };
        let body = pool.sends.offset(slot) + HEADER_BYTES as u64;
        let (mut written, mut length) = (Ok(()), HEADER_BYTES);
        if long {
            let shared = self.share(seq, pool, mrs, device);
            let Ok(pieces) = shared else { return Check::Failed };
            written = pool.memory.write(body, &pieces);
            length += pieces.len();
        } else if entry.inline && kind == Kind::Eager {
            let bytes = self.sq.inline(seq);
            written = pool.memory.write(body, bytes);
            length += bytes.len();
        }
        let header = Header {
            kind,
            imm,
            detail: if long { ((length - HEADER_BYTES) / PIECE_BYTES) as u16 } else { 0 },
            dst_port: if self.peer_vqp == 0 { self.peer_port } else { 0 },
            dst_vqp: self.peer_vqp,
            src_vqp: self.id,
            length: entry.length,
            cookie: self.cookie(seq),
            ..*blank
        };
        let written = written.and(pool.memory.write(pool.sends.offset(slot), &header.encode()));
        debug_assert_eq!(written, Ok(()), "a slot has room for all that may stand in it");
        self.sq.set_header(seq, pool.send_sge(slot, length as u32));
        Check::Ready
    }

    /// Opens the regions of a long message to its receiver; returns where its pieces are.
    #[cold]
    fn share<D: Device>(
        &mut self,
        seq: u32,
        pool: &Pool<D::Memory>,
        mrs: &mut LocalMrs<D::Memory>,
        device: &mut D,
    ) -> Result<Vec<u8>, VerbsError> {
        let mut pieces = Vec::new();
        let mut opened: Vec<u32> = Vec::new();
        for sge in self.sq.sges(seq).iter().filter(|sge| sge.length > 0) {
            let slot = mrs.slot_of(sge.lkey).unwrap_or(NONE);
            match mrs.share(slot, device, pool.pd) {
                Ok(rkey) => {
                    opened.push(slot);
                    let remote = RemoteAddr { addr: sge.addr, rkey };
                    pieces.extend(encode_piece(remote, sge.length));
                }
                Err(error) => {
                    for slot in opened {
                        mrs.unshare(slot);
                    }
                    return Err(error);
                }
            }
        }
        let entry = self.sq.entry_mut(seq);
        (entry.await_fin, entry.shared) = (true, true);
        Ok(pieces)
    }

    /// Checks a WR against what is known of the peer's region.
    #[inline]
    fn check_remote(
        &mut self,
        store: &crate::mr_store::MrStore,
        op: &SendOp,
        length: u32,
        now: Time,
    ) -> Check {
        let Some((at, needs)) = remote_of(op) else { return Check::Ready };
        // A WR of no bytes touches no memory; the device does not look at its key either.
        if length == 0 {
            return Check::Ready;
        }
        if self.remote.0 != at.rkey || self.remote.1.until <= now {
            match store.get(self.peer, at.rkey, now) {
                Some(mr) => self.remote = (at.rkey, mr),
                None => return Check::Unknown(at.rkey),
            }
        }
        if self.remote.1.permits(&at, length, needs) { Check::Ready } else { Check::Refused }
    }
}

/// Why a VQP in this state takes no WR, as a QP of the verbs would say it.
fn state_error(state: VqpState) -> PostError {
    let state = match state {
        VqpState::Error => QpState::Err,
        VqpState::Connected => QpState::Rts,
        VqpState::Idle | VqpState::Connecting => QpState::Init,
    };
    PostError::State { qp_type: QpType::Rc, state }
}
