//! What a lane sends: which WR may go now, and its packets.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use elver_verbs::{Dest, Memory, QpState, QpType, SendFlags, SendOp, Sge, WcStatus};
use elver_wire::{
    AtomicEth, DcConnect, DcEth, DcExtra, Deth, Headers, Message, Psn, Qpn, Reth, Route as Header,
    Tail, XrcEth,
};

use super::{Env, Hold, Lane, Target};
use crate::Transmit;
use crate::aside::{Aside, Part};
use crate::place::Refused;
use crate::proof;
use crate::route::Route;
use crate::send_queue::{Local, SendWqe};

/// A packet asks for an acknowledgement at least this often.
const ACK_REQUEST_INTERVAL: u32 = 16;

/// Time between two tries to invalidate a window whose region is being copied.
const INVALIDATE_AGAIN_NS: u64 = 20_000;

/// Whether the WQE at the cursor may send.
enum Start {
    Ready,
    /// It sends nothing and is done, or has failed.
    Decided,
    /// Something must happen first.
    Wait,
    /// The path has no room for it.
    Full,
}

impl Lane {
    /// Writes the next packet, if one may be sent now.
    #[inline(always)] // It has one caller, and that one nothing else to do.
    pub(crate) fn transmit<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        if self.fault || self.errored || !matches!(self.hold, Hold::No) {
            return None;
        }
        if self.probing {
            let packet = self.probe(env, buf);
            if packet.is_some() || self.fault {
                return packet;
            }
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
                Start::Full => return self.ask(env, buf),
            }
            return self.emit(env, slot, buf);
        }
    }

    /// Sends the oldest unacknowledged packet once more and asks for an answer. Most often the peer
    /// was only late and has the rest. If it answers for this packet alone, and then for nothing
    /// more, the rest is lost.
    fn probe<M: Memory>(&mut self, env: &mut Env<'_, M>, buf: &mut [u8]) -> Option<Transmit> {
        let front = self.queue.front().filter(|slot| {
            let wqe = env.pool.get(**slot);
            wqe.started && wqe.outcome.is_none() && self.next_psn != self.una
        });
        let Some(&slot) = front else {
            self.probing = false;
            return None;
        };
        let next_psn = core::mem::replace(&mut self.next_psn, self.una);
        let packet = self.emit(env, slot, buf);
        self.probe_end = Some(self.next_psn.wrapping_sub(1));
        self.next_psn = next_psn;
        self.probing = false;
        packet
    }

    /// The path is full, with packets of this lane's among others which nobody was asked to acknowledge:
    /// they wait for their successors, which have no room. It asks, or none would ever come back.
    #[cold]
    fn ask<M: Memory>(&mut self, env: &mut Env<'_, M>, buf: &mut [u8]) -> Option<Transmit> {
        if self.unasked == 0 {
            return None;
        }
        self.probing = true;
        let packet = self.probe(env, buf);
        if packet.is_some() {
            self.unasked = 0;
        }
        packet
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
            if core.must_wait(env.hw, &wqe.op) {
                let later = env.now.saturating_add_ns(INVALIDATE_AGAIN_NS);
                self.hold = Hold::Until(later);
                self.ensure_timer(env, later);
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
                bug!("a lane that sends has no way to its peer");
                return Start::Wait;
            };
            if in_flight >= env.hw.config.max_packets_in_flight {
                return Start::Wait;
            }
            if self.silent {
                if in_flight > 0 {
                    return Start::Wait;
                }
            } else if !env.hw.paths.has_room(route.path) {
                if !self.stalled {
                    self.stalled = true;
                    env.hw.stalled.push(core.qpn.get());
                }
                return Start::Full;
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
            bug!("a WR of a DCI names no DCT");
            env.pool.get_mut(slot).outcome = Some(WcStatus::LocQpOpErr);
            return false;
        };
        if self.target.is_some_and(|target| target.dest == dest) {
            return true;
        }
        if self.cursor > 0 || self.next_psn != self.una {
            return false;
        }
        let route = env.hw.ahs.get(ah.0).map(|handle| handle.route);
        // A DCT is on one host.
        let Some(route) = route.filter(|route| !route.flow.dst.ip().is_multicast()) else {
            env.pool.get_mut(slot).outcome = Some(WcStatus::LocQpOpErr);
            return false;
        };
        self.uncharge(None, env.hw);
        env.hw.paths.hold(route.path);
        let dctn = Qpn::from_wrapping(remote_dctn);
        let target = Target { dest, dctn, access_key: dc_access_key, route };
        if let Some(before) = self.target.replace(target) {
            env.hw.paths.close(before.route.path);
        }
        self.open_session(env);
        true
    }

    /// Begins a new DC session; its first PSN is the low 24 bits of its number.
    pub(super) fn open_session<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let Some(target) = self.target else {
            return bug!("a DC session begins without a target");
        };
        self.session = env.hw.next_dc_session(target.route.flow.dst.ip(), target.dctn);
        self.connected = false;
        self.telling = false;
        self.token = env.hw.paths.token(target.route.path);
        self.unproved_end = None;
        let psn = Psn::from_wrapping(self.session);
        self.next_psn = psn;
        self.una = psn;
        self.sent_end = psn;
        env.hw.counters.dc_connects += 1;
    }

    /// Whether a DCT may have executed what is outstanding and given up our context since: then to
    /// send it again could execute it twice.
    pub(super) fn may_be_forgotten<M: Memory>(&self, env: &Env<'_, M>) -> bool {
        env.now.ns_since(self.unexecuted_at) > env.hw.config.dc_context_idle_ns / 2
    }

    /// Writes the packet at `next_psn` of a started WQE.
    pub(super) fn emit<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        slot: u32,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let core = env.core;
        let wqe = *env.pool.get(slot);
        let mtu = core.attr.path_mtu.bytes();
        let offset = (self.next_psn.distance(wqe.first_psn) as u32).wrapping_mul(mtu);
        let (route, mut header, dest_qpn) = match self.address(env, &wqe) {
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
                self.hold = Hold::Until(later);
                self.ensure_timer(env, later);
                return None;
            }
        }

        if let Header::Dc { eth, .. } = &mut header {
            let told = self.connected || self.token.is_some();
            eth.fill = proof::fill(&message, payload_len, mtu, !self.connected, told);
        }
        let mut headers = Headers::new(header, message, dest_qpn, self.next_psn).ok()?;
        let last = self.next_psn.wrapping_add(psns - 1) == wqe.last_psn();
        headers.solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        if reliable {
            headers.ack_req = last
                || self.probing
                || self.silent
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
            let fetched = match fetched {
                Err(Refused::Later) => self.fetch(env, slot, offset, payload),
                fetched => fetched,
            };
            if let Err(refused) = fetched {
                if refused == Refused::Later {
                    return None;
                }
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
            ends_piece: false,
        })
    }

    /// Takes a packet's payload from what was read for it, or has that read, with what follows.
    #[cold]
    fn fetch<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        slot: u32,
        offset: u32,
        payload: &mut [u8],
    ) -> Result<(), Refused> {
        let (wqe, Local::Sges(sges)) = (env.pool.get(slot), env.pool.local(slot)) else {
            bug!("inline bytes are fetched");
            return Err(Refused::Access);
        };
        let tag = (slot, wqe.first_psn.get());
        let done = match self.sending.take_if(|aside| aside.tag == tag) {
            Some(aside) if !aside.ready => {
                self.wait_for_memory(aside);
                return Err(Refused::Later);
            }
            Some(mut aside) => aside.take_done(),
            None => Vec::new(),
        };
        let desk = &env.hw.regions.desk;
        desk.lay_out(done);
        desk.expect(ahead(sges, offset, payload.len() as u32));
        let fetched = env.hw.regions.gather(env.core.pd, sges, offset, payload);
        let part = Part::Sends(u32::from(self.index));
        if fetched == Err(Refused::Later) {
            let mut aside = env.hw.put_aside(env.core.qpn.get(), part);
            aside.tag = tag;
            self.wait_for_memory(aside);
        } else {
            let last = offset + payload.len() as u32 == wqe.length;
            let kept = env.hw.regions.desk.clear();
            self.sending = (!last).then(|| Aside::kept(tag, kept));
        }
        fetched
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
        if self.probing {
            env.hw.counters.retransmits += 1;
            return;
        }
        self.unasked = if headers.ack_req { 0 } else { self.unasked + 1 };
        if !self.silent {
            env.hw.paths.sent(route.path, psns);
            self.charged += psns;
        }
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
            self.heard(env);
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
                    bug!("a WR of a UD QP names nobody");
                    return None;
                };
                let handle = env.hw.ahs.get(ah.0)?;
                let qkey = core.effective_qkey(remote_qkey);
                let deth = Deth { qkey, src_qpn: core.qpn };
                Some((handle.route, Header::Ud(deth), Qpn::from_wrapping(remote_qpn)))
            }
            QpType::Dci => {
                let target = self.target?;
                let (stream, session) = (self.index, self.session);
                let eth = DcEth { src_qpn: core.qpn, stream, session, fill: 0 };
                let token = self.token.map_or(0, NonZeroU64::get);
                let extra = match (self.connected, self.telling) {
                    (true, false) => DcExtra::None,
                    (true, true) => DcExtra::Token(token),
                    (false, _) => DcExtra::Connect(DcConnect {
                        access_key: target.access_key,
                        token,
                        mtu: core.attr.path_mtu.code(),
                    }),
                };
                Some((target.route, Header::Dc { eth, extra }, target.dctn))
            }
            QpType::XrcSend => {
                let Some(Dest::Xrc { remote_srqn }) = wqe.dest else {
                    bug!("a WR of an XRC initiator names no queue");
                    return None;
                };
                let eth = XrcEth { srqn: Qpn::from_wrapping(remote_srqn) };
                Some((core.remote?, Header::Xrc(Some(eth)), core.dest_qpn()))
            }
            QpType::XrcRecv | QpType::Dct => None,
        }
    }
}

/// How many bytes of a message stand behind `length` of them at `offset` in the same SGE, if these do.
fn ahead(sges: &[Sge], mut offset: u32, length: u32) -> u32 {
    for sge in sges {
        if offset < sge.length {
            return (sge.length - offset).saturating_sub(length);
        }
        offset -= sge.length;
    }
    0
}

/// The packet of a SEND or a WRITE by its place in the message.
#[inline]
fn data_message(wqe: &SendWqe, first: bool, last: bool) -> Message {
    let (tail, imm) = match wqe.op {
        SendOp::SendWithImm(imm) => (Tail::Imm(imm), None),
        SendOp::SendWithInv(rkey) => (Tail::Inv(rkey), None),
        SendOp::WriteWithImm(_, imm) => (Tail::Plain, Some(imm)),
        _ => (Tail::Plain, None),
    };
    match wqe.op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, len: wqe.length };
            match (first, last) {
                (true, true) => Message::WriteOnly(reth, imm),
                (true, false) => Message::WriteFirst(reth),
                (false, false) => Message::WriteMiddle,
                (false, true) => Message::WriteLast(imm),
            }
        }
        _ => match (first, last) {
            (true, true) => Message::SendOnly(tail),
            (true, false) => Message::SendFirst,
            (false, false) => Message::SendMiddle,
            (false, true) => Message::SendLast(tail),
        },
    }
}
