//! What a lane does with acknowledgements, NAKs and responses.

use core::net::IpAddr;
use core::num::NonZeroU64;

use elver_verbs::{Memory, SendOp, WcStatus};
use elver_wire::{DcExtra, Headers, Message, NakCode, Psn, RnrTimer, Syndrome};

use super::{Env, Hold, Lane, RNR_RETRY_UNBOUNDED, Target};
use crate::RxMeta;
use crate::aside::Part;
use crate::flow::Paths;
use crate::ingress::status_of;
use crate::place::Refused;
use crate::send_queue::Local;

impl Lane {
    /// Whether a response of this DC session is ours. One that only a target which holds the
    /// session can give ends the connect.
    ///
    /// A target that tells a token has yet to hear it: the next packets carry it.
    pub(crate) fn takes_session(
        &mut self,
        paths: &mut Paths,
        session: u32,
        from: IpAddr,
        message: &Message,
        extra: DcExtra,
    ) -> bool {
        let Some(Target { route, .. }) = self.target else { return false };
        if self.session != session || route.flow.dst.ip() != from {
            return false;
        }
        if let DcExtra::Token(token) = extra {
            let token = NonZeroU64::new(token);
            if self.token != token {
                self.token = token;
                self.unproved_end = Some(self.sent_end);
            }
            paths.told(route.path, token);
        }
        let held = match message {
            Message::Ack(aeth) => {
                matches!(aeth.syndrome, Syndrome::Ack { .. } | Syndrome::Nak(NakCode::PsnSequence))
            }
            _ => true,
        };
        let tells = extra != DcExtra::None;
        self.connected |= held;
        self.telling = tells || (self.telling && !held);
        true
    }

    /// Takes a response, or puts it aside if one waits for memory.
    #[inline]
    pub(crate) fn response<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        let psn = headers.psn;
        if self.taking.is_none() {
            match headers.message() {
                Message::Ack(aeth) => match aeth.syndrome {
                    Syndrome::Ack(_) => self.on_ack(env, psn),
                    Syndrome::RnrNak(timer) => self.on_rnr_nak(env, psn, timer),
                    Syndrome::Nak(NakCode::PsnSequence) => self.on_sequence_nak(env, psn),
                    Syndrome::Nak(NakCode::DcNoContext) => self.on_no_context(env, psn),
                    Syndrome::Nak(NakCode::DcProve) => self.on_prove(env, psn),
                    Syndrome::Nak(code) => self.on_fatal_nak(env, psn, status_of(code)),
                },
                Message::AtomicAck(_, original) => self.on_atomic_ack(env, psn, original),
                _ => self.on_read_response(env, psn, payload),
            }
        }
        if let Some(aside) = &mut self.taking {
            env.hw.park(aside, meta, headers, payload);
        }
    }

    /// Whether `psn` names something outstanding, or what was acknowledged last.
    fn is_outstanding(&self, psn: Psn) -> bool {
        !psn.is_before(self.una) && psn.is_before(self.sent_end)
    }

    /// An acknowledgement of everything up to `psn`.
    #[inline]
    pub(crate) fn on_ack<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) {
        if !self.is_outstanding(psn) {
            env.hw.counters.rx_stale_response += 1;
            return;
        }
        self.advance(env, psn);
        if self.una != psn.next() && !self.fault {
            self.missed_response(env);
        }
    }

    /// A NAK: the packet `psn` must be sent again.
    pub(crate) fn on_sequence_nak<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) {
        env.hw.counters.nak_sequence += 1;
        if !self.reach(env, psn) {
            return;
        }
        self.lost_packet(env);
        if self.retry_left == 0 {
            self.fail_front(env, WcStatus::RetryExcErr);
            return;
        }
        self.retry_left -= 1;
        self.rewind(env);
    }

    /// An RNR NAK: the packet `psn` must be sent again, but not before the timer's time.
    pub(crate) fn on_rnr_nak<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        psn: Psn,
        timer: RnrTimer,
    ) {
        env.hw.counters.rnr_nak += 1;
        if !self.reach(env, psn) {
            return;
        }
        self.not_executed_by(env);
        self.rewind(env);
        self.receiver_not_ready(env, timer);
    }

    /// The receiver had no receive posted for the front WQE.
    pub(crate) fn receiver_not_ready<M: Memory>(&mut self, env: &mut Env<'_, M>, timer: RnrTimer) {
        if env.core.attr.rnr_retry != RNR_RETRY_UNBOUNDED {
            if self.rnr_left == 0 {
                self.fail_front(env, WcStatus::RnrRetryExcErr);
                return;
            }
            self.rnr_left -= 1;
        }
        let until = env.now.saturating_add_ns(timer.duration_ns());
        self.hold = Hold::Until(until);
        self.ensure_timer(env, until);
    }

    /// A NAK that ends the WR of packet `psn`.
    pub(crate) fn on_fatal_nak<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        psn: Psn,
        status: WcStatus,
    ) {
        env.hw.counters.nak_fatal += 1;
        if self.reach(env, psn) {
            self.fail_front(env, status);
        }
    }

    /// A DCT answers `psn` once we have proved where we are. The answer brought the token for that;
    /// what was sent before it came goes out again. A target that is never content costs retries.
    pub(crate) fn on_prove<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) {
        let unproved = self.unproved_end.is_some_and(|end| psn.is_before(end));
        if !unproved || !self.is_outstanding(psn) {
            env.hw.counters.rx_stale_response += 1;
            return;
        }
        self.unproved_end = None;
        if core::mem::replace(&mut self.proved, true) {
            if self.retry_left == 0 {
                self.fail_front(env, WcStatus::RetryExcErr);
                return;
            }
            self.retry_left -= 1;
        }
        env.hw.counters.dc_proofs_given += 1;
        self.rewind(env);
    }

    /// A DCT has no context for our session. If it cannot have executed what is outstanding, we
    /// open a new session and send that again from its first byte.
    pub(crate) fn on_no_context<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) {
        if !self.is_outstanding(psn) {
            env.hw.counters.rx_stale_response += 1;
            return;
        }
        if self.may_be_forgotten(env) || self.retry_left == 0 {
            self.fail_front(env, WcStatus::RetryExcErr);
            return;
        }
        self.retry_left -= 1;
        env.hw.counters.dc_reconnects += 1;
        self.uncharge(env.core.remote, env.hw);
        self.reads.clear();
        self.cursor = 0;
        for slot in &self.queue {
            let wqe = env.pool.get_mut(*slot);
            wqe.started = false;
            wqe.responses = 0;
        }
        self.open_session(env);
    }

    /// A READ response.
    pub(crate) fn on_read_response<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        psn: Psn,
        payload: &[u8],
    ) {
        if !self.reach(env, psn) {
            return;
        }
        let Some(&slot) = self.queue.front() else {
            return bug!("a PSN is outstanding of no WR");
        };
        let wqe = *env.pool.get(slot);
        if !wqe.started || !matches!(wqe.op, SendOp::Read(_)) {
            self.fail_front(env, WcStatus::BadRespErr);
            return;
        }
        let mtu = env.core.attr.path_mtu.bytes();
        let offset = (psn.distance(wqe.first_psn) as u32).wrapping_mul(mtu);
        if payload.len() as u32 != mtu.min(wqe.length - offset) {
            self.fail_front(env, WcStatus::BadRespErr);
            return;
        }
        self.take_data(env, slot, psn, offset, payload);
    }

    /// The response of an atomic.
    pub(crate) fn on_atomic_ack<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        psn: Psn,
        original: u64,
    ) {
        if !self.reach(env, psn) {
            return;
        }
        let Some(&slot) = self.queue.front() else {
            return bug!("a PSN is outstanding of no WR");
        };
        let wqe = *env.pool.get(slot);
        let atomic = matches!(wqe.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if !wqe.started || !atomic {
            self.fail_front(env, WcStatus::BadRespErr);
            return;
        }
        self.take_data(env, slot, psn, 0, &original.to_ne_bytes());
    }

    /// Puts a response's bytes into the front WQE's local memory.
    fn take_data<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        slot: u32,
        psn: Psn,
        offset: u32,
        bytes: &[u8],
    ) {
        let placed = match env.pool.local(slot) {
            Local::Sges(sges) => env.hw.regions.scatter(env.core.pd, sges, offset, bytes),
            // A READ of nothing, with nothing inline.
            Local::Inline(inline) if inline.is_empty() && bytes.is_empty() => Ok(()),
            Local::Inline(_) => Err(Refused::Access),
        };
        if let Err(refused) = placed {
            if refused == Refused::Later {
                let part = Part::Responses(u32::from(self.index));
                self.taking = Some(env.hw.put_aside(env.core.qpn.get(), part));
                self.answered_at.get_or_insert(env.hw.came_at(env.now));
            } else {
                self.fail_front(env, WcStatus::LocProtErr);
            }
            return;
        }
        env.pool.get_mut(slot).responses += 1;
        self.advance(env, psn);
    }

    /// Takes `psn`'s response as an acknowledgement of all before it. False if it answers nothing,
    /// or if responses before it are missing.
    fn reach<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) -> bool {
        if !self.is_outstanding(psn) {
            env.hw.counters.rx_stale_response += 1;
            return false;
        }
        if psn != self.una {
            self.advance(env, psn.wrapping_sub(1));
            if self.fault {
                return false;
            }
            if self.una != psn {
                self.missed_response(env);
                return false;
            }
        }
        true
    }

    /// An answer says that what is the oldest outstanding packet from now on was not executed when the answer was
    /// sent: which it may have been long ago, if this device was not driven, or its memory was not at hand.
    fn not_executed_by<M: Memory>(&mut self, env: &Env<'_, M>) {
        self.unexecuted_at = self.unexecuted_at.max(env.hw.came_at(env.now));
    }

    /// Moves the oldest unacknowledged PSN to beyond `psn`, but not past a READ or an atomic whose
    /// response is missing, and completes what that covers.
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>, psn: Psn) {
        let before = self.una;
        for at in 0..self.queue.len() {
            let wqe = env.pool.get_mut(self.queue[at]);
            if wqe.outcome.is_some() {
                continue;
            }
            if !wqe.started {
                break;
            }
            if wqe.expects_data() && wqe.responses < wqe.packets {
                let answered = wqe.first_psn.wrapping_add(wqe.responses);
                if self.una.is_before(answered) {
                    self.una = answered;
                }
                break;
            }
            if psn.is_before(wqe.last_psn()) {
                self.una = psn.next();
                break;
            }
            self.una = wqe.last_psn().next();
            wqe.outcome = Some(WcStatus::Success);
        }
        let progress = self.una.distance(before);
        if progress <= 0 {
            self.una = before;
            return;
        }
        while self.reads.front().is_some_and(|last| last.is_before(self.una)) {
            self.reads.pop_front();
        }
        let acked = self.charged.min(progress as u32);
        self.charged -= acked;
        if let Some(route) = self.path(env.core) {
            env.hw.paths.acked(route.path, acked);
        }
        let probed = self.probes > 0;
        self.heard(env);
        self.not_executed_by(env);
        let probe_alone = self.probe_end.is_some_and(|end| end.next() == self.una);
        self.renew_budgets(env.core);
        if probed {
            self.arm(env);
        }
        if self.next_psn.is_before(self.una) {
            self.next_psn = self.una;
        }
        self.settle(env);
        self.suspect = probe_alone;
    }
}
