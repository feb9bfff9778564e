//! Posting: WRs are checked and taken into the rings of their VQPs (Algorithm 2).

use elver_verbs::{
    Device, MaybeSlot, Memory, ObjectKind, Payload, PostError, QpState, QpType, RecvWr, SendFlags,
    SendOp, SendOpcode, SendWr, Sge, Time, VqpState, WcStatus, WrLimits,
};

use crate::datapath::plain::{BURST, Plain};
use crate::memory::mr::{LocalMrs, Users};
use crate::messaging::message::HEADER_BYTES;
use crate::vqp::phase::Phase;
use crate::vqp::sq_entry::{Bytes, SqEntry};
use crate::vqp::{Fault, Vqp};
use crate::{ClientId, Core, VqpId};

impl<D: Device> Core<D> {
    /// Posts send WRs (Algorithm 2, `post_send_virtualized`). On an error the WRs before the
    /// refused one are posted. What only the peer can refuse, its region above all, is told by a
    /// completion.
    ///
    /// # Errors
    ///
    /// The index of the WR that was refused, and why.
    #[inline(never)]
    pub fn post_send(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[SendWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        let found = self.vqps.get_mut(vqp);
        let Some(entry) = found.filter(|entry| entry.client == client) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if !matches!(entry.phase, Phase::Connecting | Phase::Connected | Phase::Moving) {
            return Err((0, refusal(entry)));
        }
        let Some(owner) = self.clients.all.get_mut(client) else {
            bug!("a VQP has no client");
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        let limits = WrLimits {
            max_sge: self.config.max_sge,
            max_inline: self.pool.max_inline,
            max_length: self.pool.max_length.into(),
            confirm_sends: entry.confirm_sends,
        };
        // Room is asked for once.
        let completions = owner.limits.completions.saturating_sub(owner.pending);
        let room = completions.min(entry.sq.room());
        let fit = &wrs[..wrs.len().min(room as usize)];
        entry.sq.reserve(fit.len() as u32);
        let mut at_once = None;
        if let Some((lane, room)) = entry.free_lane(&self.lanes, &mut self.datapath.qos, now) {
            let first = &fit[..fit.len().min(room.min(BURST) as usize)];
            let longest = match &self.lanes.lanes[lane].path {
                Some(path) => path.one_packet.min(self.pool.max_length),
                None => self.pool.max_length,
            };
            let plain = match first.first() {
                Some(wr) if matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) => {
                    let behind = self.pool.max_inline.saturating_sub(HEADER_BYTES as u32);
                    let shorts = (&mut self.datapath.shorts[..], &self.messaging.blank);
                    entry.accept_shorts(first, &mut self.regions.local, shorts, longest.min(behind))
                }
                _ => entry.accept_accesses(
                    first,
                    (&mut self.regions.local, &self.regions.of_peers),
                    longest,
                    now,
                ),
            };
            let is_all = plain.count as usize == first.len();
            at_once = Some((lane, plain, is_all)).filter(|(_, plain, _)| plain.count > 0);
        }
        let plain = at_once.map_or(Plain::default(), |(_, plain, _)| plain);
        let (mut users, mut taken, mut bytes) =
            (Users::default(), plain.count as usize, plain.bytes);
        let mut result = Ok(());
        for wr in &fit[taken..] {
            match entry.accept(&mut self.regions.local, &mut users, &limits, wr) {
                Ok(length) => (taken, bytes) = (taken + 1, bytes + u64::from(length)),
                Err(error) => {
                    result = Err((taken, error));
                    break;
                }
            }
        }
        self.regions.local.add_users(users);
        if result.is_ok() && taken < wrs.len() {
            let full = completions == room;
            let capacity = if full { owner.limits.completions } else { entry.sq.max() };
            result = Err((taken, PostError::QueueFull { capacity }));
        }
        owner.pending += taken as u32;
        self.stats.send_bytes += bytes;
        self.stats.send_wrs += taken as u64;
        self.stats.posts_refused += u64::from(result.is_err());
        if self.latency.wants(taken as u32) {
            let seq = entry.sq.tail.before();
            self.latency.follow(vqp, seq, entry.sq.entry(seq).opcode, now);
        }
        let mut left = false;
        let mut unposted = taken;
        // What is posted together leaves together, in one call of the device's: where others stand behind, all go as
        // they do.
        if let Some((lane, plain, true)) = at_once {
            left = !self.post_plain(vqp, lane, plain, now);
            unposted -= plain.count as usize;
        }
        if unposted > 0 {
            left |= self.pump(vqp, now);
        }
        if left {
            self.apply(now);
        }
        result
    }

    /// Takes a WR that [`Core::post_send`] refused, of a client that cannot be told at once: it takes
    /// its turn behind those before it, and ends with `status`; the VQP fails with it, and what is posted
    /// behind it is flushed, as an RC QP does it (IBTA vol. 1, 10.3.1.7). Where it has no place in the
    /// VQP's queue, or there is no such VQP, it comes back with how it ends, for the caller to tell.
    ///
    /// # Errors
    ///
    /// How the WR ends, if the caller is to tell it.
    #[inline(never)]
    pub fn refuse_send(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        (wr_id, opcode): (u64, SendOpcode),
        status: WcStatus,
        now: Time,
    ) -> Result<(), WcStatus> {
        let found = self.vqps.get_mut(vqp);
        let entry = found.filter(|entry| entry.is_of(client));
        let entry = entry.filter(|entry| entry.phase != Phase::Idle).ok_or(status)?;
        let owner = self.clients.all.get_mut(client).ok_or(status)?;
        let is_first = !entry.phase.is_over() && entry.fault.is_none();
        // It may be refused for want of room, and its completion takes some too: as much as others.
        if entry.sq.room() == 0 || owner.pending >= owner.limits.completions.saturating_mul(2) {
            if is_first {
                self.fail(vqp, now);
            }
            return Err(if is_first { status } else { WcStatus::WrFlushErr });
        }
        owner.pending += 1;
        entry.sq.reserve(1);
        if is_first {
            entry.fault = Some(Fault { seq: entry.sq.tail, status });
        }
        entry.sq.push(SqEntry { wr_id, opcode, ..SqEntry::BLANK });
        if entry.phase.is_over() {
            self.settle(vqp, now);
        } else {
            self.pump(vqp, now);
        }
        self.apply(now);
        Ok(())
    }

    /// A client's receive was refused, and the client has been told: the VQP fails, and all that it
    /// holds is flushed.
    #[inline(never)]
    pub fn refuse_recv(&mut self, client: ClientId, vqp: VqpId, now: Time) {
        let found = self.vqps.get(vqp).filter(|vqp| vqp.is_of(client));
        match found.map(|vqp| vqp.phase.state()) {
            // It is bound perhaps, and not connected: its receives are flushed all the same.
            Some(VqpState::Connected | VqpState::Idle) => self.fail(vqp, now),
            Some(VqpState::Connecting) => {
                self.cancel_connect(vqp);
                self.fail(vqp, now);
            }
            Some(VqpState::Error) | None => {}
        }
        self.apply(now);
    }

    /// Posts receives.
    ///
    /// # Errors
    ///
    /// The index of the receive that was refused, and why; those before it are posted.
    #[inline(never)]
    pub fn post_recv(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[RecvWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        let found = self.vqps.get_mut(vqp);
        let Some(entry) = found.filter(|entry| entry.client == client) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if entry.phase.is_over() {
            return Err((0, refusal(entry)));
        }
        let Some(owner) = self.clients.all.get_mut(client) else {
            bug!("a VQP has no client");
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            let capacity = owner.limits.completions;
            let taken = if owner.pending >= capacity {
                Err(PostError::QueueFull { capacity })
            } else {
                entry.accept_recv(&self.regions.local, self.config.max_sge, wr)
            };
            if let Err(error) = taken {
                result = Err((index, error));
                break;
            }
            owner.pending += 1;
            self.stats.recv_wrs += 1;
        }
        if entry.backlog.is_some() {
            self.serve_backlog(vqp, now);
            self.apply(now);
        }
        result
    }
}

impl Vqp {
    /// Checks a WR as far as that is possible here, and takes it into the ring, which has room;
    /// returns its bytes. Its region's users are counted in `users`.
    #[inline]
    fn accept<M: Memory>(
        &mut self,
        mrs: &mut LocalMrs<M>,
        users: &mut Users,
        limits: &WrLimits,
        wr: &SendWr<'_>,
    ) -> Result<u32, PostError> {
        // Whether the device writes local memory, and it is an atomic.
        let (writes, atomic) = match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                (false, false)
            }
            SendOp::Read(_) => (true, false),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (true, true),
            op => return Err(PostError::Opcode { qp_type: QpType::Rc, opcode: op.opcode() }),
        };
        if wr.dest.is_some() {
            return Err(PostError::Destination { qp_type: QpType::Rc });
        }
        let length = wr.check_shape(limits)?;
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let flags = wr.flags | sig_all;
        let sge = match wr.payload {
            Payload::Sges(&[sge]) if !atomic => sge,
            _ => return self.accept_other(mrs, wr, length, writes, flags),
        };
        let mr = mrs.check(self.client, &mut self.local, &sge, writes)?;
        if let Some(others) = users.next(mr) {
            mrs.add_users(others);
        }
        let entry = SqEntry::new(wr.wr_id, &wr.op, flags);
        self.sq.push(SqEntry { length, mr, num_sge: 1, sge, ..entry });
        Ok(length)
    }

    /// Checks and takes a WR of `length` bytes that has another number of SGEs than one, or inline bytes, or is
    /// an atomic.
    #[inline(never)]
    fn accept_other<M: Memory>(
        &mut self,
        mrs: &mut LocalMrs<M>,
        wr: &SendWr<'_>,
        length: u32,
        writes: bool,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        wr.op.check_alignment()?;
        let mut entry = SqEntry { length, ..SqEntry::new(wr.wr_id, &wr.op, flags) };
        let (sges, inline) = match wr.payload {
            Payload::Sges(sges) => (sges, &[][..]),
            Payload::Inline(bytes) => {
                entry.bytes = Bytes::Inline;
                (&[][..], bytes)
            }
        };
        entry.mr = self.check_sges(mrs, sges, writes)?;
        entry.num_sge = sges.len() as u8;
        mrs.add_users(Users::one(entry.mr));
        for sge in sges.iter().skip(1) {
            if let Some(slot) = mrs.slot_of(sge.lkey).filter(|_| sge.length > 0) {
                mrs.add_users(Users::one(slot.into()));
            }
        }
        self.sq.push_with(entry, &wr.op, sges, inline);
        Ok(entry.length)
    }

    /// Checks a receive, and takes it into the ring.
    fn accept_recv<M: Memory>(
        &mut self,
        mrs: &LocalMrs<M>,
        max: u32,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        wr.check_shape(max)?;
        if self.rq.is_full() {
            return Err(PostError::QueueFull { capacity: self.rq.max() });
        }
        for sge in wr.sges {
            mrs.check(self.client, &mut self.local, sge, true)?;
        }
        self.rq.push(wr);
        Ok(())
    }

    /// Checks the regions of a WR's pieces; returns that of the first.
    fn check_sges<M: Memory>(
        &mut self,
        mrs: &LocalMrs<M>,
        sges: &[Sge],
        writes: bool,
    ) -> Result<MaybeSlot, PostError> {
        let mut first = MaybeSlot::NONE;
        for (index, sge) in sges.iter().enumerate() {
            let slot = mrs.check(self.client, &mut self.local, sge, writes)?;
            if index == 0 {
                first = slot;
            }
        }
        Ok(first)
    }
}

/// Why a VQP takes no WR in its phase, as a QP of the verbs would say it.
#[cold]
fn refusal(vqp: &Vqp) -> PostError {
    let state = match vqp.phase {
        Phase::Destroyed => {
            return PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.id.0 };
        }
        Phase::Failing | Phase::Failed => QpState::Err,
        Phase::Connected | Phase::Moving => QpState::Rts,
        Phase::Idle | Phase::Connecting => QpState::Init,
    };
    PostError::State { qp_type: QpType::Rc, state }
}
