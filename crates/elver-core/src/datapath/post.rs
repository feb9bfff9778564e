//! Posting: WRs are checked and taken into the rings of their VQPs (Algorithm 2).

use elver_verbs::{
    Device, Memory, ObjectKind, Payload, PostError, QpState, QpType, RecvWr, SendFlags, SendOp,
    SendOpcode, SendWr, Sge, Time, VqpState, WcStatus,
};

use crate::memory::mr::{LocalMrs, Users};
use crate::vqp::Vqp;
use crate::vqp::send_ring::{NONE, SqEntry};
use crate::{ClientId, Core, VqpId};

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
        let found = self.vqps.get_mut(vqp);
        let Some(entry) = found.filter(|entry| entry.client == client.0 && !entry.zombie) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if !matches!(entry.state, VqpState::Connected | VqpState::Connecting) {
            return Err((0, state_error(entry.state)));
        }
        let Some(owner) = self.clients.get_mut(client.0) else {
            bug!("a VQP has no client");
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        let limits = Limits {
            max_sge: self.config.max_sge,
            max_inline: self.pool.max_inline,
            max_length: self.pool.max_length,
        };
        // Room is asked for once.
        let completions = owner.limits.completions.saturating_sub(owner.pending);
        let room = completions.min(entry.sq.room());
        let fit = &wrs[..wrs.len().min(room as usize)];
        entry.sq.reserve(fit.len() as u32);
        let (mut users, mut taken, mut bytes) = (Users::default(), 0, 0);
        let mut result = Ok(());
        for wr in fit {
            match entry.accept(&mut self.mrs, &mut users, &limits, wr) {
                Ok(length) => (taken, bytes) = (taken + 1, bytes + u64::from(length)),
                Err(error) => {
                    result = Err((taken, error));
                    break;
                }
            }
        }
        self.mrs.add_users(users);
        if result.is_ok() && taken < wrs.len() {
            let full = completions == room;
            let capacity = if full { owner.limits.completions } else { entry.sq.max() };
            result = Err((taken, PostError::QueueFull { capacity }));
        }
        owner.pending += taken as u32;
        self.stats.send_bytes += bytes;
        self.stats.send_wrs += taken as u64;
        self.stats.posts_refused += u64::from(result.is_err());
        if taken > 0 && self.pump(vqp, now) {
            self.apply(now);
        }
        result
    }

    /// Takes a WR that [`Core::post_send`] refused, of a client that cannot be told at once: it takes
    /// its turn behind those before it, and ends with `status`; the VQP fails with it, and what is posted
    /// behind it is flushed, as an RC QP does it (IBTA vol. 1, 10.3.1.7). Where it has no place in the
    /// VQP's queue, or there is no such VQP, it comes back with how it ends, for the caller to tell.
    pub fn refuse_send(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        (wr_id, opcode): (u64, SendOpcode),
        status: WcStatus,
        now: Time,
    ) -> Result<(), WcStatus> {
        let found = self.vqps.get_mut(vqp);
        let entry = found.filter(|entry| entry.client == client.0 && !entry.zombie);
        let entry = entry.filter(|entry| entry.state != VqpState::Idle).ok_or(status)?;
        let owner = self.clients.get_mut(client.0).ok_or(status)?;
        let is_first = entry.state != VqpState::Error && entry.fault.is_none();
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
            (entry.fault, entry.fault_at) = (Some(status), entry.sq.tail);
        }
        entry.sq.push(SqEntry { wr_id, opcode, ..SqEntry::BLANK });
        if entry.state == VqpState::Error {
            self.settle(vqp, now);
        } else {
            self.pump(vqp, now);
        }
        self.apply(now);
        Ok(())
    }

    /// A client's receive was refused, and the client has been told: the VQP fails, and all that it
    /// holds is flushed.
    pub fn refuse_recv(&mut self, client: ClientId, vqp: VqpId, now: Time) {
        let found = self.vqps.get(vqp).filter(|vqp| vqp.client == client.0 && !vqp.zombie);
        match found.map(|vqp| vqp.state) {
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
    pub fn post_recv(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[RecvWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        let found = self.vqps.get_mut(vqp);
        let Some(entry) = found.filter(|entry| entry.client == client.0 && !entry.zombie) else {
            return Err((0, PostError::InvalidHandle { kind: ObjectKind::Qp, handle: vqp.0 }));
        };
        if entry.state == VqpState::Error {
            return Err((0, state_error(entry.state)));
        }
        let Some(owner) = self.clients.get_mut(client.0) else {
            bug!("a VQP has no client");
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
            self.serve_backlog(vqp, now);
            self.apply(now);
        }
        result
    }
}

/// Limits of a WR.
struct Limits {
    /// At least 1.
    max_sge: u32,
    max_inline: u32,
    max_length: u32,
}

impl Vqp {
    /// Checks a WR as far as that is possible here, and takes it into the ring, which has room;
    /// returns its bytes. Its region's users are counted in `users`.
    #[inline]
    fn accept<M: Memory>(
        &mut self,
        mrs: &mut LocalMrs<M>,
        users: &mut Users,
        limits: &Limits,
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
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let flags = wr.flags | sig_all;
        let sge = match wr.payload {
            Payload::Sges(&[sge]) if !atomic => sge,
            _ => return self.accept_other(mrs, limits, wr, writes, flags),
        };
        let mr = mrs.check(ClientId(self.client), &mut self.local, &sge, writes)?;
        check_length(limits, sge.length.into())?;
        if let Some(others) = users.next(mr) {
            mrs.add_users(others);
        }
        let entry = SqEntry::new(wr.wr_id, &wr.op, flags);
        self.sq.push(SqEntry { length: sge.length, mr, num_sge: 1, sge, ..entry });
        Ok(sge.length)
    }

    /// Checks and takes a WR that has another number of SGEs than one, or inline bytes, or is an atomic.
    #[inline(never)]
    fn accept_other<M: Memory>(
        &mut self,
        mrs: &mut LocalMrs<M>,
        limits: &Limits,
        wr: &SendWr<'_>,
        writes: bool,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        let mut entry = SqEntry::new(wr.wr_id, &wr.op, flags);
        let (sges, bytes) = match wr.payload {
            Payload::Sges(sges) => {
                (entry.length, entry.mr) = self.check_sges(mrs, limits, sges, writes)?;
                (sges, &[][..])
            }
            Payload::Inline(bytes) => {
                let is_read = self.confirm_sends && entry.is_send();
                let max = if writes || is_read { 0 } else { limits.max_inline };
                let given = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if given > max || is_read {
                    return Err(PostError::InlineTooLong { given, max });
                }
                (entry.length, entry.inline) = (given, true);
                (&[][..], bytes)
            }
        };
        check_atomic(&wr.op, entry.length)?;
        check_length(limits, entry.length.into())?;
        entry.num_sge = sges.len() as u8;
        mrs.add_users(Users::one(entry.mr));
        for sge in sges.iter().skip(1) {
            if let Some(slot) = mrs.slot_of(sge.lkey).filter(|_| sge.length > 0) {
                mrs.add_users(Users::one(slot));
            }
        }
        self.sq.push_with(entry, &wr.op, sges, bytes);
        Ok(entry.length)
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
    fn check_sges<M: Memory>(
        &mut self,
        mrs: &LocalMrs<M>,
        limits: &Limits,
        sges: &[Sge],
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
}

/// Checks the length of an atomic and where its word stands.
fn check_atomic(op: &SendOp, length: u32) -> Result<(), PostError> {
    if let SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } = op {
        if length != 8 {
            return Err(PostError::AtomicLength { given: length.into() });
        }
        if remote.addr % 8 != 0 {
            return Err(PostError::AtomicAlignment { addr: remote.addr });
        }
    }
    Ok(())
}

/// Checks how long a WR is.
#[inline]
fn check_length(limits: &Limits, length: u64) -> Result<(), PostError> {
    let max = u64::from(limits.max_length);
    if length > max {
        return Err(PostError::MessageTooLong { given: length, max });
    }
    Ok(())
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
