//! The requester: one ordered stream of send WRs (IBTA vol. 1, 9.7.3 and 9.7.5).
//!
//! An RC, UC or UD QP has one lane; a DCI has one for each of its streams. A lane assigns PSNs,
//! cuts messages into packets, keeps what is unacknowledged and sends it again from the oldest
//! (go-back-N), and completes its WRs in order. What is not done here: local copies
//! ([`crate::local`]) and the consequences of a failed WR for the QP ([`crate::qp`]).

mod packet;
mod probe;

use alloc::collections::VecDeque;

use elver_verbs::{Dest, Memory, QpState, QpType, SendFlags, SendOp, Wc, WcFlags, WcStatus};
use elver_wire::{
    AtomicEth, DcConnect, DcEth, Deth, Headers, Message, NakCode, Psn, Qpn, Reth, RnrTimer,
    Route as Header, Syndrome, Timeout,
};

use crate::hw::Hw;
use crate::qp::QpCore;
use crate::route::Route;
use crate::send_queue::{Local, SendPool, SendWqe};
use crate::{Time, Transmit};
use packet::data_message;

/// A packet asks for an acknowledgement at least this often.
const ACK_REQUEST_INTERVAL: u32 = 16;
/// The retry count that stands for no bound (IBTA vol. 1, 9.7.5.2.8).
const RNR_RETRY_UNBOUNDED: u8 = 7;

#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number: the DCI stream, else 0.
    index: u16,
    /// Slots of the outstanding WQEs, oldest first.
    pub(crate) queue: VecDeque<u32>,
    /// Position in the queue of the WQE that is sent next.
    cursor: usize,
    /// PSN that is sent next.
    next_psn: Psn,
    /// Oldest PSN not yet acknowledged.
    una: Psn,
    /// One beyond the highest PSN ever sent.
    sent_end: Psn,
    /// Packets charged to the path's window.
    charged: u32,
    /// Last PSNs of the READ requests and atomics that wait for responses.
    reads: VecDeque<Psn>,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    retry_left: u8,
    rnr_left: u8,
    /// When progress was last made, or the oldest outstanding packet was sent.
    last_heard: Time,
    /// When it was last certain that the oldest outstanding packet had not been executed: it was
    /// sent for the first time, or an answer said so.
    unexecuted_at: Time,
    /// Nothing is sent before this: an RNR NAK, or pacing.
    pub(crate) wait_until: Option<Time>,
    /// The earliest entry in the timer heap.
    timer_at: Option<Time>,
    /// A tail probe went out, or is about to, since progress was last made.
    probed: bool,
    /// The oldest unacknowledged packet is to go out again, by itself.
    probe_due: bool,
    /// The last progress was that a probe alone was acknowledged: what was sent after it may be
    /// lost too.
    suspect: bool,
    /// A gap in the responses led to a rewind since progress was last made.
    rewound: bool,
    /// It waits for room in its path's window, which others of the path may make, and is to be woken.
    pub(crate) stalled: bool,
    /// A local copy found its peer not ready to answer.
    pub(crate) unanswered: bool,
    /// The front WQE failed: the QP must act on it.
    pub(crate) fault: bool,
    /// A DCI stream in error: takes no WRs until it is reset.
    pub(crate) errored: bool,
    /// Where a DCI stream's outstanding requests go.
    target: Option<Target>,
    session: u32,
    /// The session was acknowledged: packets need no connect header.
    connected: bool,
}

/// A DCT as a WR names it, and the way there.
#[derive(Clone, Copy, Debug)]
struct Target {
    dest: Dest,
    dctn: Qpn,
    access_key: u64,
    route: Route,
}

/// What a lane works with.
pub(crate) struct Env<'a, M> {
    pub(crate) core: &'a QpCore,
    pub(crate) pool: &'a mut SendPool,
    pub(crate) hw: &'a mut Hw<M>,
    pub(crate) now: Time,
}

/// Whether the WQE at the cursor may send.
enum Start {
    Ready,
    /// It sends nothing and is done, or has failed.
    Decided,
    /// Something must happen first.
    Wait,
}

impl Lane {
    pub(crate) fn new(index: u16) -> Lane {
        let zero = Psn::from_wrapping(0);
        Lane {
            index,
            queue: VecDeque::new(),
            cursor: 0,
            next_psn: zero,
            una: zero,
            sent_end: zero,
            charged: 0,
            reads: VecDeque::new(),
            unasked: 0,
            retry_left: 0,
            rnr_left: 0,
            last_heard: Time::ZERO,
            unexecuted_at: Time::ZERO,
            wait_until: None,
            timer_at: None,
            probed: false,
            probe_due: false,
            suspect: false,
            rewound: false,
            stalled: false,
            unanswered: false,
            fault: false,
            errored: false,
            target: None,
            session: 0,
            connected: false,
        }
    }

    /// Sets the first PSN and the retry budgets: the QP goes to RTS.
    pub(crate) fn start_sending(&mut self, sq_psn: Psn, core: &QpCore) {
        self.next_psn = sq_psn;
        self.una = sq_psn;
        self.sent_end = sq_psn;
        self.renew_budgets(core);
    }

    /// The PSN that would be sent next by a lane with nothing outstanding.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Whether a WR was started and has not ended.
    pub(crate) fn has_started(&self, pool: &SendPool) -> bool {
        let front = self.queue.front().map(|slot| pool.get(*slot));
        self.unanswered || front.is_some_and(|wqe| wqe.started && wqe.outcome.is_none())
    }

    /// Whether packets or a local copy wait for an answer.
    fn in_flight(&self) -> bool {
        self.next_psn != self.una || self.unanswered
    }

    /// Whether the front WQE may be copied locally: nothing is on its way to anywhere.
    pub(crate) fn may_copy(&self) -> bool {
        !self.queue.is_empty()
            && self.cursor == 0
            && self.next_psn == self.una
            && self.wait_until.is_none()
            && !self.fault
            && !self.errored
    }

    /// Drops all outstanding state; the WQEs are the caller's to release.
    pub(crate) fn reset<M: Memory>(&mut self, route: Option<Route>, hw: &mut Hw<M>) {
        self.uncharge(route, hw);
        let (timer_at, stalled) = (self.timer_at, self.stalled);
        *self = Lane::new(self.index);
        self.timer_at = timer_at;
        self.stalled = stalled;
    }

    fn renew_budgets(&mut self, core: &QpCore) {
        self.retry_left = core.attr.retry_cnt;
        self.rnr_left = core.attr.rnr_retry;
        self.probed = false;
        self.probe_due = false;
        self.rewound = false;
    }

    fn uncharge<M: Memory>(&mut self, route: Option<Route>, hw: &mut Hw<M>) {
        if let Some(route) = self.target.map(|target| target.route).or(route) {
            hw.paths.forgotten(route.path, self.charged);
        }
        self.charged = 0;
    }

    fn path(&self, core: &QpCore) -> Option<Route> {
        self.target.map(|target| target.route).or(core.remote)
    }

    // ---- sending ----

    /// Writes the next packet, if one may be sent now.
    pub(crate) fn transmit<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        if self.fault || self.errored || self.wait_until.is_some() {
            return None;
        }
        if core::mem::take(&mut self.probe_due)
            && let Some(probe) = self.probe(env, buf)
        {
            return Some(probe);
        }
        loop {
            let slot = *self.queue.get(self.cursor)?;
            let wqe = env.pool.get(slot);
            match wqe.outcome {
                Some(WcStatus::Success) => {
                    self.cursor += 1;
                    continue;
                }
                Some(_) => return None,
                None => {}
            }
            if wqe.started && wqe.packets > 0 && self.next_psn == wqe.last_psn().next() {
                self.cursor += 1;
                continue;
            }
            match self.start(env, slot) {
                Start::Ready => {}
                Start::Decided => {
                    self.settle(env);
                    if self.fault {
                        return None;
                    }
                    continue;
                }
                Start::Wait => return None,
            }
            return self.emit(env, slot, buf);
        }
    }

    /// Brings the WQE at the cursor to where its next packet can be sent.
    fn start<M: Memory>(&mut self, env: &mut Env<'_, M>, slot: u32) -> Start {
        let core = env.core;
        let wqe = env.pool.get(slot);
        let reliable = core.qp_type.is_reliable();
        if !wqe.started {
            if core.state != QpState::Rts {
                return Start::Wait;
            }
            if wqe.flags.contains(SendFlags::FENCE) && !self.reads.is_empty() {
                return Start::Wait;
            }
            if let Some(status) = core.run_own(env.hw, &wqe.op) {
                env.pool.get_mut(slot).outcome = Some(status);
                return Start::Decided;
            }
            if core.goes_local(env.hw, wqe) {
                return Start::Wait;
            }
            if core.qp_type == QpType::Dci && !self.aim(env, slot) {
                return if env.pool.get(slot).outcome.is_some() {
                    Start::Decided
                } else {
                    Start::Wait
                };
            }
        }
        let wqe = env.pool.get(slot);
        if wqe.expects_data() && self.reads.len() >= usize::from(core.attr.max_rd_atomic) {
            if core.attr.max_rd_atomic > 0 {
                return Start::Wait;
            }
            env.pool.get_mut(slot).outcome = Some(WcStatus::LocQpOpErr);
            return Start::Decided;
        }
        if reliable {
            let in_flight = self.next_psn.distance(self.una) as u32;
            let Some(route) = self.path(core) else {
                return Start::Wait;
            };
            if in_flight >= env.hw.config.max_packets_in_flight {
                return Start::Wait;
            }
            if !env.hw.paths.has_room(route.path) {
                if !self.stalled {
                    self.stalled = true;
                    env.hw.stalled.push(core.qpn.get());
                }
                return Start::Wait;
            }
        }
        let mtu = core.attr.path_mtu.bytes();
        let next_psn = self.next_psn;
        let wqe = env.pool.get_mut(slot);
        if !wqe.started {
            wqe.started = true;
            wqe.first_psn = next_psn;
            wqe.packets = wqe.length.div_ceil(mtu).max(1);
        }
        Start::Ready
    }

    /// Points the lane at the DCT that a WR names. Another DCT than before must wait until
    /// everything for that one is acknowledged, as on hardware.
    fn aim<M: Memory>(&mut self, env: &mut Env<'_, M>, slot: u32) -> bool {
        let Some(dest @ Dest::Dc { ah, remote_dctn, dc_access_key, .. }) = env.pool.get(slot).dest
        else {
            env.pool.get_mut(slot).outcome = Some(WcStatus::LocQpOpErr);
            return false;
        };
        if self.target.is_some_and(|target| target.dest == dest) {
            return true;
        }
        if self.cursor > 0 || self.next_psn != self.una {
            return false;
        }
        let Some(route) = env.hw.ahs.get(ah.0).map(|handle| handle.route) else {
            env.pool.get_mut(slot).outcome = Some(WcStatus::LocQpOpErr);
            return false;
        };
        self.uncharge(None, env.hw);
        self.target = Some(Target {
            dest,
            dctn: Qpn::from_wrapping(remote_dctn),
            access_key: dc_access_key,
            route,
        });
        self.open_session(env);
        true
    }

    /// Begins a new DC session; its first PSN is the low 24 bits of its number.
    fn open_session<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        self.session = env.hw.next_dc_session();
        self.connected = false;
        let psn = Psn::from_wrapping(self.session);
        self.next_psn = psn;
        self.una = psn;
        self.sent_end = psn;
        env.hw.counters.dc_connects += 1;
    }

    /// Whether a DCT may have executed what is outstanding and given up our context since: then to
    /// send it again could execute it twice.
    fn may_be_forgotten<M: Memory>(&self, env: &Env<'_, M>) -> bool {
        env.now.ns_since(self.unexecuted_at) > env.hw.config.dc_context_idle_ns / 2
    }

    /// Writes the packet at `next_psn` of a started WQE.
    fn emit<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        slot: u32,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let core = env.core;
        let wqe = *env.pool.get(slot);
        let mtu = core.attr.path_mtu.bytes();
        let offset = (self.next_psn.distance(wqe.first_psn) as u32).wrapping_mul(mtu);
        let (route, header, dest_qpn) = match self.address(env, &wqe) {
            Some(found) => found,
            None => return self.refuse(env, slot, WcStatus::LocQpOpErr),
        };

        let again = self.next_psn.is_before(self.sent_end);
        if core.qp_type == QpType::Dci && again && self.may_be_forgotten(env) {
            return self.refuse(env, slot, WcStatus::RetryExcErr);
        }

        let (message, payload_len, psns) = match wqe.op {
            SendOp::Read(remote) => {
                let chunk = env.hw.config.read_request_bytes;
                let end = wqe.length.min((offset / chunk + 1).saturating_mul(chunk));
                let len = end - offset;
                let va = remote.addr.wrapping_add(u64::from(offset));
                let psns = len.div_ceil(mtu).max(1);
                (Message::ReadRequest(Reth { va, rkey: remote.rkey, len }), 0, psns)
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                let eth =
                    AtomicEth { va: remote.addr, rkey: remote.rkey, swap_or_add: swap, compare };
                (Message::CmpSwp(eth), 0, 1)
            }
            SendOp::FetchAdd { remote, add } => {
                let eth =
                    AtomicEth { va: remote.addr, rkey: remote.rkey, swap_or_add: add, compare: 0 };
                (Message::FetchAdd(eth), 0, 1)
            }
            _ => {
                let len = mtu.min(wqe.length - offset);
                let last = offset + len == wqe.length;
                (data_message(&wqe, offset == 0, last), len, 1)
            }
        };

        let reliable = core.qp_type.is_reliable();
        if !reliable {
            let cost = u64::from(payload_len) + 64;
            if let Err(later) = env.hw.paths.take_tokens(env.now, route.path, cost) {
                self.wait_until = Some(later);
                self.ensure_timer(env, later);
                return None;
            }
        }

        let mut headers = Headers::new(header, message, dest_qpn, self.next_psn).ok()?;
        let last = self.next_psn.wrapping_add(psns - 1) == wqe.last_psn();
        headers.solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        if reliable {
            headers.ack_req = last
                || self.unasked + 1 >= ACK_REQUEST_INTERVAL
                || env.hw.paths.would_fill(route.path, psns)
                || self.next_psn.distance(self.una) as u32 + psns
                    >= env.hw.config.max_packets_in_flight;
        }
        let header_len = headers.emit(buf, payload_len as usize);
        if payload_len > 0 {
            let payload = &mut buf[header_len..header_len + payload_len as usize];
            let fetched = match env.pool.local(slot) {
                Local::Inline(bytes) => {
                    let at = offset as usize;
                    payload.copy_from_slice(&bytes[at..at + payload_len as usize]);
                    Ok(())
                }
                Local::Sges(sges) => env.hw.regions.gather(core.pd, sges, offset, payload),
            };
            if fetched.is_err() {
                return self.refuse(env, slot, WcStatus::LocProtErr);
            }
        }

        let len = elver_wire::packet_len(header_len, payload_len as usize);
        let psn = self.next_psn;
        self.next_psn = psn.wrapping_add(psns);
        if reliable {
            self.sent(env, &headers, route, psn, psns, wqe.expects_data());
        } else if last {
            self.una = self.next_psn;
            self.sent_end = self.next_psn;
            env.pool.get_mut(slot).outcome = Some(WcStatus::Success);
            self.settle(env);
        }
        env.hw.counters.tx_packets += 1;
        env.hw.counters.tx_bytes += len as u64;
        Some(Transmit {
            len,
            flow: route.flow,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
        })
    }

    /// Keeps account of a packet of a reliable transport that is about to leave.
    fn sent<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        headers: &Headers,
        route: Route,
        psn: Psn,
        psns: u32,
        expects_data: bool,
    ) {
        self.unasked = if headers.ack_req { 0 } else { self.unasked + 1 };
        env.hw.paths.sent(route.path, psns);
        self.charged += psns;
        if psn.is_before(self.sent_end) {
            env.hw.counters.retransmits += 1;
        } else if psn == self.una {
            self.unexecuted_at = env.now;
        }
        if self.sent_end.is_before(self.next_psn) {
            self.sent_end = self.next_psn;
        }
        if expects_data {
            self.reads.push_back(psn.wrapping_add(psns - 1));
        }
        if psn == self.una {
            self.last_heard = env.now;
            self.arm(env);
        }
    }

    /// Ends a WQE that cannot be sent.
    fn refuse<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        slot: u32,
        status: WcStatus,
    ) -> Option<Transmit> {
        env.pool.get_mut(slot).outcome = Some(status);
        self.settle(env);
        None
    }

    /// The way to the peer of a WQE, and its transport header.
    fn address<M: Memory>(&self, env: &Env<'_, M>, wqe: &SendWqe) -> Option<(Route, Header, Qpn)> {
        let core = env.core;
        match core.qp_type {
            QpType::Rc => Some((core.remote?, Header::Rc, core.dest_qpn())),
            QpType::Uc => Some((core.remote?, Header::Uc, core.dest_qpn())),
            QpType::Ud => {
                let Some(Dest::Ud { ah, remote_qpn, remote_qkey }) = wqe.dest else {
                    return None;
                };
                let handle = env.hw.ahs.get(ah.0)?;
                let qkey = core.effective_qkey(remote_qkey);
                let deth = Deth { qkey, src_qpn: core.qpn };
                Some((handle.route, Header::Ud(deth), Qpn::from_wrapping(remote_qpn)))
            }
            QpType::Dci => {
                let target = self.target?;
                let eth = DcEth { src_qpn: core.qpn, stream: self.index, session: self.session };
                let connect = (!self.connected).then_some(DcConnect {
                    access_key: target.access_key,
                    mtu: core.attr.path_mtu.code(),
                });
                Some((target.route, Header::Dc { eth, connect }, target.dctn))
            }
            QpType::Dct => None,
        }
    }

    // ---- answers ----

    /// Whether a response of this DC session is ours. One that only a target which holds the
    /// session can give ends the connect.
    pub(crate) fn takes_session(
        &mut self,
        session: u32,
        from: core::net::IpAddr,
        message: &Message,
    ) -> bool {
        let ours = self.session == session
            && self.target.is_some_and(|target| target.route.flow.dst.ip() == from);
        let held = match message {
            Message::Ack(aeth) => {
                matches!(aeth.syndrome, Syndrome::Ack { .. } | Syndrome::Nak(NakCode::PsnSequence))
            }
            _ => true,
        };
        self.connected |= ours && held;
        ours
    }

    /// Whether `psn` names something outstanding, or what was acknowledged last.
    fn is_outstanding(&self, psn: Psn) -> bool {
        !psn.is_before(self.una) && psn.is_before(self.sent_end)
    }

    /// An acknowledgement of everything up to `psn`.
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
        self.unexecuted_at = env.now;
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
        self.wait_until = Some(until);
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
            return;
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
            return;
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
            Local::Sges(sges) => env.hw.regions.scatter(env.core.pd, sges, offset, bytes).is_ok(),
            Local::Inline(_) => false,
        };
        if !placed {
            self.fail_front(env, WcStatus::LocProtErr);
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
        self.last_heard = env.now;
        self.unexecuted_at = env.now;
        let probed = self.probed;
        self.suspect = probed && progress == 1 && self.una != self.sent_end;
        self.renew_budgets(env.core);
        if probed {
            self.arm(env);
        }
        if self.next_psn.is_before(self.una) {
            self.next_psn = self.una;
        }
        self.settle(env);
    }

    /// Completes the WQEs at the front whose outcome is known. A failed one stops it.
    pub(crate) fn settle<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        while let Some(&slot) = self.queue.front() {
            match env.pool.get(slot).outcome {
                Some(WcStatus::Success) => self.retire(env, WcStatus::Success),
                Some(_) => {
                    self.fault = true;
                    return;
                }
                None => return,
            }
        }
    }

    /// Takes the front WQE off the queue and gives its completion.
    pub(crate) fn retire<M: Memory>(&mut self, env: &mut Env<'_, M>, status: WcStatus) {
        let Some(slot) = self.queue.pop_front() else {
            return;
        };
        self.cursor = self.cursor.saturating_sub(1);
        let wqe = env.pool.get(slot);
        if status != WcStatus::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let wc = Wc {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.op.opcode().wc_opcode(),
                flags: WcFlags::empty(),
                byte_len: if wqe.expects_data() { wqe.length } else { 0 },
                qp_num: env.core.qpn.get(),
                ..Wc::default()
            };
            env.hw.complete(env.core.init.send_cq.0, wc, false);
        }
        env.pool.release(slot);
    }

    /// Marks the front WQE as failed.
    pub(crate) fn fail_front<M: Memory>(&mut self, env: &mut Env<'_, M>, status: WcStatus) {
        if let Some(slot) = self.queue.front() {
            env.pool.get_mut(*slot).outcome = Some(status);
            self.fault = true;
        }
    }

    /// The status of the failed front WQE.
    pub(crate) fn front_status(&self, pool: &SendPool) -> WcStatus {
        let slot = self.queue.front().copied();
        slot.and_then(|slot| pool.get(slot).outcome).unwrap_or(WcStatus::GeneralErr)
    }

    // ---- loss ----

    /// Goes back to the oldest unacknowledged packet.
    fn rewind<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let route = env.core.remote;
        self.uncharge(route, env.hw);
        self.probe_due = false;
        self.next_psn = self.una;
        self.cursor = 0;
        self.reads.clear();
        self.unasked = 0;
    }

    /// A response that should have come before is missing: its request goes out again, once.
    fn missed_response<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if self.rewound {
            return;
        }
        self.rewound = true;
        self.lost_packet(env);
        self.rewind(env);
    }

    fn lost_packet<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if let Some(route) = self.path(env.core)
            && env.hw.paths.lost(env.now, route.path)
        {
            env.hw.counters.window_cuts += 1;
        }
    }

    // ---- time ----

    /// When something is due, if nothing is heard before.
    fn due<M: Memory>(&self, env: &Env<'_, M>) -> Option<Time> {
        if let Some(until) = self.wait_until {
            return Some(until);
        }
        if !self.in_flight() || !env.core.qp_type.is_reliable() {
            return None;
        }
        let timeout = Timeout::duration_ns(env.core.attr.timeout);
        let probe = env.hw.config.tail_probe_ns;
        let probing = probe > 0 && (!self.probed || (self.unanswered && timeout.is_none()));
        let wait = match (probing, timeout) {
            (true, Some(timeout)) => probe.min(timeout),
            (true, None) => probe,
            (false, timeout) => timeout?,
        };
        Some(self.last_heard.saturating_add_ns(wait))
    }

    fn arm<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if let Some(due) = self.due(env) {
            self.ensure_timer(env, due);
        }
    }

    fn ensure_timer<M: Memory>(&mut self, env: &mut Env<'_, M>, at: Time) {
        if self.timer_at.is_none_or(|queued| at < queued) {
            self.timer_at = Some(at);
            env.hw.timers.push(at, env.core.qpn.get(), self.index);
        }
    }

    /// A local copy found nobody to answer: it is tried again as a lost packet is.
    pub(crate) fn no_answer<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if !self.unanswered {
            self.unanswered = true;
            self.last_heard = env.now;
        }
        self.arm(env);
    }

    /// A local copy went through.
    pub(crate) fn answered(&mut self, core: &QpCore) {
        if self.unanswered || self.rnr_left != core.attr.rnr_retry {
            self.unanswered = false;
            self.renew_budgets(core);
        }
    }

    /// The heap's entry for `queued` came up. Returns whether the lane may now have something to
    /// send.
    pub(crate) fn on_timer<M: Memory>(&mut self, env: &mut Env<'_, M>, queued: Time) -> bool {
        if self.timer_at != Some(queued) {
            return false;
        }
        self.timer_at = None;
        let Some(due) = self.due(env) else {
            return false;
        };
        if due > env.now {
            self.ensure_timer(env, due);
            return false;
        }
        if self.wait_until.take().is_some() {
            self.last_heard = env.now;
            return true;
        }
        self.unheard(env);
        if !self.fault {
            self.arm(env);
        }
        true
    }

    /// Nothing was heard for as long as the QP waits.
    fn unheard<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let timeout = Timeout::duration_ns(env.core.attr.timeout);
        let probe = env.hw.config.tail_probe_ns;
        if !self.probed && probe > 0 && timeout.is_none_or(|timeout| probe < timeout) {
            self.probed = true;
            env.hw.counters.tail_probes += 1;
            // One packet shows whether the peer is slow or the packets are lost. When the last
            // probe showed them lost, the rest follows at once.
            if self.suspect {
                self.rewind(env);
            } else {
                self.probe_due = true;
            }
            return;
        }
        if timeout.is_none() {
            self.last_heard = env.now;
            self.rewind(env);
            return;
        }
        env.hw.counters.timeouts += 1;
        if self.retry_left == 0 {
            self.fail_front(env, WcStatus::RetryExcErr);
            return;
        }
        self.retry_left -= 1;
        self.last_heard = env.now;
        self.lost_packet(env);
        self.rewind(env);
    }
}
