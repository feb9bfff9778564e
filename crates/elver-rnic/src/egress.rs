//! Packets out, QP by QP in turn; within a QP answers and requests by turns, since neither waits for the other on
//! hardware: a peer who READs much would keep its sends and its retransmissions from leaving.

use elver_verbs::{Memory, QpState, Time};
use elver_wire::{Flow, Headers, Message, Psn, Route, packet_len};

use crate::Rnic;
use crate::hw::Hw;
use crate::qp::QueuePair;
use crate::transmit::{Notification, Transmit};

/// Packets that a QP sends before the next one has its turn.
const TURN_PACKETS: u32 = 64;
/// As many where its turns are short.
const SHORT_TURN_PACKETS: u32 = 1;
/// IP hop limit of answers.
const HOP_LIMIT: u8 = 64;
/// ECT(0) (RFC 3168).
const ECN_CAPABLE: u8 = 0b10;

impl<M: Memory> Rnic<M> {
    /// Writes one packet to the start of `buf`, if there is any to send now. The caller seals it
    /// ([`elver_wire::icrc::seal`]) and sends it.
    ///
    /// # Panics
    /// If `buf` is shorter than [`crate::MAX_PACKET`].
    #[inline]
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        if !self.wants_to_transmit() {
            return None;
        }
        self.transmit(now, buf)
    }

    /// Whether [`Rnic::poll_transmit`] may have something to write.
    #[inline]
    pub fn wants_to_transmit(&self) -> bool {
        !self.active.is_empty() || !self.notifications.is_empty() || self.can_wake()
    }

    /// Whether QPs wait for room in a window and some came back.
    #[inline]
    fn can_wake(&self) -> bool {
        self.hw.paths.has_freed() && !self.hw.stalled.is_empty()
    }

    #[inline(never)] // It is asked for now and then, and by several.
    fn wake_stalled(&mut self) {
        self.hw.paths.clear_freed();
        while let Some(qpn) = self.hw.stalled.pop() {
            if let Some(queue_pair) = self.qps.get_mut(qpn) {
                for lane in &mut queue_pair.lanes {
                    lane.stalled = false;
                }
            }
            self.schedule(qpn);
        }
    }

    fn transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        if let Some(notification) = self.notifications.pop_front() {
            return self.notify(&notification, buf);
        }
        if self.can_wake() {
            self.wake_stalled();
        }
        while let Some(&qpn) = self.active.front() {
            let sent = self.transmit_from(now, qpn, buf);
            self.stop_cut_off(now);
            let Some(mut sent) = sent else {
                self.active.pop_front();
                self.turn_sent = 0;
                if let Some(queue_pair) = self.qps.get_mut(qpn) {
                    queue_pair.scheduled = false;
                }
                continue;
            };
            self.turn_sent += 1;
            let short = self.qps.get_mut(qpn).is_some_and(|queue_pair| queue_pair.short_turns);
            if self.turn_sent >= if short { SHORT_TURN_PACKETS } else { TURN_PACKETS } {
                self.turn_sent = 0;
                self.active.rotate_left(1);
                sent.ends_piece = short;
            }
            if self.hw.loops_back && self.takes_own(now, qpn, sent, buf) {
                if self.can_wake() {
                    self.wake_stalled();
                }
                continue;
            }
            return Some(sent);
        }
        None
    }

    fn transmit_from(&mut self, now: Time, qpn: u32, buf: &mut [u8]) -> Option<Transmit> {
        let queue_pair = self.qps.get_mut(qpn)?;
        let requests_first = core::mem::take(&mut queue_pair.requests_first);
        if !requests_first && let Some(sent) = queue_pair.answer(&mut self.hw, now, buf) {
            queue_pair.requests_first = !queue_pair.pool.is_empty();
            return Some(sent);
        }
        // Once around, beginning where the last packet came from.
        let first = queue_pair.next_lane;
        let mut passed_end = false;
        let mut at = first;
        loop {
            let queue_pair = self.qps.get_mut(qpn)?;
            let found = queue_pair.filled.next_from(at).filter(|&lane| !passed_end || lane < first);
            let Some(lane) = found else {
                if passed_end || first == 0 {
                    break;
                }
                (passed_end, at) = (true, 0);
                continue;
            };
            at = lane + 1;
            if queue_pair.lanes[lane].queue.is_empty() {
                queue_pair.filled.remove(lane);
                continue;
            }
            if queue_pair.lanes[lane].may_copy() {
                self.run_local(now, qpn, lane);
            }
            let queue_pair = self.qps.get_mut(qpn)?;
            let sent = queue_pair
                .with_lane(lane, &mut self.hw, now, |lane, env| lane.transmit(env, buf))
                .flatten();
            if sent.is_some() {
                queue_pair.next_lane = lane;
                return sent;
            }
        }
        if requests_first {
            return self.qps.get_mut(qpn)?.answer_instead(&mut self.hw, now, buf);
        }
        None
    }

    fn notify(&mut self, notification: &Notification, buf: &mut [u8]) -> Option<Transmit> {
        let (to, psn) = (notification.to, Psn::from_wrapping(0));
        let mut headers = Headers::new(Route::Rc, Message::Cnp, to, psn).ok()?;
        headers.becn = true;
        headers.emit(buf, 0);
        self.hw.counters.cnp_sent += 1;
        let len = packet_len(headers.header_len(), 0);
        Some(self.hw.sent(len, notification.flow, ECN_CAPABLE))
    }
}

impl<M> Hw<M> {
    fn sent(&mut self, len: usize, flow: Flow, traffic_class: u8) -> Transmit {
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        Transmit { len, flow, traffic_class, hop_limit: HOP_LIMIT, ends_piece: false }
    }
}

impl QueuePair {
    /// No request could be sent before the next answer: it goes, and the requests are before the next again.
    #[inline(never)] // As below.
    fn answer_instead<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        now: Time,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let sent = self.answer(hw, now, buf);
        self.requests_first = sent.is_some() && !self.pool.is_empty();
        sent
    }

    /// Writes the next packet of the responder, or of a DCT's responders.
    #[inline(always)] // Who sends has none most of the time.
    fn answer<M: Memory>(&mut self, hw: &mut Hw<M>, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        if self.dct.is_some() {
            return self.answer_initiators(hw, now, buf);
        }
        if !self.responder.has_answers() {
            return None;
        }
        if self.xrc.is_some() {
            return self.xrc_answer(hw, now, buf);
        }
        let QueuePair { core, responder, .. } = self;
        let remote = core.remote?;
        let to = core.dest_qpn();
        let (headers, payload) = responder.next_answer(core, hw, 0, buf, |message, psn| {
            Headers::new(Route::Rc, message, to, psn).ok()
        })?;
        let dead = responder.is_dead();
        if dead && self.core.state != QpState::Err {
            self.enter_error(hw, now);
        }
        let len = packet_len(headers.header_len(), payload);
        Some(hw.sent(len, remote.flow, remote.traffic_class))
    }

    /// Writes the next packet of a DCT's responders.
    #[inline(never)] // It would make the way of who sends longer.
    fn answer_initiators<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        now: Time,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let QueuePair { core, dct, .. } = self;
        let answered = dct.as_mut()?.next_answer(core, hw, now, buf)?;
        let len = packet_len(answered.headers.header_len(), answered.payload);
        let traffic_class = answered.traffic_class & !0b11 | ECN_CAPABLE;
        Some(hw.sent(len, answered.flow, traffic_class))
    }

    /// Writes the next packet of an XRC target's responder: a READ's from the protection domain of the queue that
    /// it named.
    #[cold]
    #[inline(never)]
    fn xrc_answer<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        now: Time,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let QueuePair { core, responder, xrc, .. } = self;
        let (remote, to) = (core.remote?, core.dest_qpn());
        let current = core.pd;
        if let (Some(psn), Some(target)) = (responder.next_read(), xrc) {
            core.pd = target.domain_of(psn);
        }
        let answered = responder.next_answer(core, hw, 0, buf, |message, psn| {
            Headers::new(Route::Xrc(None), message, to, psn).ok()
        });
        core.pd = current;
        let (headers, payload) = answered?;
        if responder.is_dead() && self.core.state != QpState::Err {
            self.enter_error(hw, now);
        }
        let len = packet_len(headers.header_len(), payload);
        Some(hw.sent(len, remote.flow, remote.traffic_class))
    }
}
