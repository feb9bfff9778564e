//! Datagrams in: what they are, whom they are for, and every reason to drop them.

use elver_verbs::{Memory, QpState, QpType, Time, WcStatus};
use elver_wire::{
    BTH_LEN, Flow, Headers, ICRC_LEN, Message, NakCode, PKEY_DEFAULT, PacketView, Route, icrc,
    packet_len,
};

use crate::dct::Dct;
use crate::distrust::Class;
use crate::execute::Fault;
use crate::qp::QueuePair;
use crate::responder::Handled;
use crate::rx_meta::RxMeta;
use crate::transmit::Notification;
use crate::{Rnic, unreliable};

/// The lower two bits of a traffic class: congestion was experienced (RFC 3168).
const ECN_CE: u8 = 0b11;
/// CNPs that wait at most; further ones are not sent.
const NOTIFICATIONS_MAX: usize = 64;
/// Length of a CNP, from the BTH to the ICRC.
const CNP_LEN: usize = BTH_LEN + 16 + ICRC_LEN;
/// Membership is the high bit; the rest names the partition (IBTA vol. 1, 10.9.3).
const PKEY_PARTITION: u16 = 0x7fff;

/// The completion status that a NAK stands for (IBTA vol. 1, table 46).
pub(crate) fn status_of(code: NakCode) -> WcStatus {
    match code {
        NakCode::InvalidRequest => WcStatus::RemInvReqErr,
        NakCode::RemoteAccess => WcStatus::RemAccessErr,
        NakCode::RemoteOperation => WcStatus::RemOpErr,
        NakCode::InvalidRdRequest => WcStatus::RemInvRdReqErr,
        NakCode::PsnSequence | NakCode::DcNoContext | NakCode::DcProve => WcStatus::RetryExcErr,
    }
}

impl<M: Memory> Rnic<M> {
    /// Takes a UDP payload, from the BTH to the ICRC.
    pub fn handle_datagram(&mut self, now: Time, meta: &RxMeta, payload: &[u8]) {
        self.hw.takes(now);
        if let Some(view) = self.accept(meta, payload, true) {
            self.dispatch(now, meta, view.headers(), view.payload());
            self.stop_cut_off(now);
        }
    }

    /// As [`Rnic::handle_datagram`], of a packet that no network could damage and that was not sealed.
    pub fn handle_unsealed(&mut self, now: Time, meta: &RxMeta, payload: &[u8]) {
        self.hw.takes(now);
        if let Some(view) = self.accept(meta, payload, false) {
            self.dispatch(now, meta, view.headers(), view.payload());
            self.stop_cut_off(now);
        }
    }

    /// A packet that is whole and of our partition.
    #[inline(always)]
    pub(crate) fn accept<'a>(
        &mut self,
        meta: &RxMeta,
        payload: &'a [u8],
        sealed: bool,
    ) -> Option<PacketView<'a>> {
        if payload.len() < BTH_LEN + ICRC_LEN {
            self.hw.counters.drop_truncated += 1;
            return None;
        }
        let view = match PacketView::parse(payload) {
            Ok(view) => view,
            Err(error) => {
                self.hw.counters.count_malformed(&error);
                return None;
            }
        };
        if sealed && icrc::verify(&meta.flow, meta.ip_id, payload).is_err() {
            self.hw.counters.drop_icrc += 1;
            return None;
        }
        if view.headers().pkey & PKEY_PARTITION != PKEY_DEFAULT & PKEY_PARTITION {
            self.hw.counters.drop_pkey += 1;
            return None;
        }
        self.hw.counters.rx_packets += 1;
        self.hw.counters.rx_bytes += payload.len() as u64;
        Some(view)
    }

    pub(crate) fn dispatch(&mut self, now: Time, meta: &RxMeta, headers: &Headers, payload: &[u8]) {
        let qpn = self.named(headers.dest_qpn.get());
        let Some(queue_pair) = self.qps.get_mut(qpn) else {
            self.hw.counters.drop_qpn += 1;
            return;
        };
        let message = headers.message();
        let remote = queue_pair.core.remote.filter(|_| queue_pair.core.qp_type.is_connected());
        let foreign = remote.is_some_and(|remote| {
            remote.flow.dst.ip() != meta.flow.src.ip() || remote.flow.src.ip() != meta.flow.dst.ip()
        });
        if message == Message::Cnp {
            // It slows all that goes to an address. What is connected knows who may say so; to the others RNICs say it
            // from their own port, which a process beside them has not.
            let may = match queue_pair.core.qp_type {
                QpType::Ud | QpType::Dci => {
                    meta.flow.src.port() == self.hw.config.udp_port
                        && takes_packets(queue_pair.core.state, true)
                }
                _ => remote.is_some() && !foreign,
            };
            if may {
                self.congestion_notified(now, meta);
            } else {
                self.hw.counters.drop_source += 1;
            }
            return;
        }
        let fits = matches!(
            (headers.route(), queue_pair.core.qp_type, message.is_response()),
            (Route::Rc, QpType::Rc, _)
                | (Route::Xrc(Some(_)), QpType::XrcRecv, false)
                | (Route::Xrc(None), QpType::XrcSend, true)
                | (Route::Uc, QpType::Uc, false)
                | (Route::Ud(_), QpType::Ud, false)
                | (Route::Dc { .. }, QpType::Dci, true)
                | (Route::Dc { .. }, QpType::Dct, false)
        );
        if !fits {
            self.hw.counters.drop_qpn += 1;
            return;
        }
        if !takes_packets(queue_pair.core.state, message.is_response()) {
            self.hw.counters.drop_state += 1;
            return;
        }
        if foreign {
            self.hw.counters.drop_source += 1;
            return;
        }
        let minds_port = match headers.route() {
            Route::Dc { .. } => true,
            Route::Ud(_) => queue_pair.core.init.same_source_port,
            Route::Rc | Route::Uc | Route::Xrc(_) => false,
        };
        if minds_port && meta.flow.src.port() != self.hw.config.udp_port {
            self.hw.counters.drop_source_port += 1;
            return;
        }
        if meta.traffic_class & ECN_CE == ECN_CE {
            self.notify_congestion(now, meta, headers, payload.len());
        }
        let Some(queue_pair) = self.qps.get_mut(qpn) else {
            return bug!("a QP went while its packet was looked at");
        };
        match headers.route() {
            Route::Rc if message.is_response() => {
                self.response(now, qpn, 0, meta, headers, payload)
            }
            Route::Rc => {
                let QueuePair { core, responder, .. } = queue_pair;
                core.heard(&mut self.hw);
                let source = core.attr.dest_qp_num;
                let handled = responder.request(core, &mut self.hw, source, 0, headers, payload);
                if handled == Handled::Later {
                    responder.park(&mut self.hw, meta, headers, payload);
                }
                if let Handled::Fatal(code) = handled {
                    if code == NakCode::RemoteAccess {
                        // Not to come as a stranger either, which takes a proof.
                        for class in [Class::Stranger, Class::Proved] {
                            self.hw.distrust.failed(meta.flow.src.ip(), class, now);
                        }
                    }
                    queue_pair.enter_error(&mut self.hw, now);
                }
                if queue_pair.responder.has_answers() {
                    self.schedule(qpn);
                }
            }
            Route::Xrc(None) => self.response(now, qpn, 0, meta, headers, payload),
            Route::Xrc(Some(eth)) => {
                queue_pair.core.heard(&mut self.hw);
                let handled = queue_pair.xrc_request(&mut self.hw, eth, headers, payload);
                self.handled(now, qpn, handled, meta, headers, payload);
            }
            Route::Uc => {
                let QueuePair { core, assembly, .. } = queue_pair;
                core.heard(&mut self.hw);
                if assembly.packet(core, &mut self.hw, headers, payload) == Err(Fault::Access) {
                    // It fits without a PSN: whoever says that he is there may have sent it.
                    self.hw.distrust.failed(meta.flow.src.ip(), Class::Stranger, now);
                }
            }
            Route::Ud(deth) => {
                let core = &mut queue_pair.core;
                if meta.flow.src.port() != self.hw.config.udp_port {
                    let address = meta.flow.src.ip();
                    if self.hw.distrust.holds(address, Class::OtherPort, now) {
                        self.hw.counters.drop_distrusted += 1;
                        return;
                    }
                    if deth.qkey != core.attr.qkey {
                        self.hw.distrust.failed(address, Class::OtherPort, now);
                    }
                }
                unreliable::datagram(core, &mut self.hw, meta, &deth, headers, payload);
            }
            Route::Dc { eth, extra } if message.is_response() => {
                let lane = usize::from(eth.stream);
                let from = meta.flow.src.ip();
                let paths = &mut self.hw.paths;
                let taken = queue_pair.lanes.get_mut(lane).is_some_and(|lane| {
                    lane.takes_session(paths, eth.session, from, &message, extra)
                });
                if taken {
                    self.response(now, qpn, lane, meta, headers, payload);
                } else {
                    self.hw.counters.drop_dc_session += 1;
                }
            }
            Route::Dc { eth, extra } => {
                let QueuePair { core, dct, .. } = queue_pair;
                let Some(dct) = dct else {
                    return bug!("a DCT that takes packets has no contexts");
                };
                dct.request(core, &mut self.hw, now, meta, &eth, extra, headers, payload);
                if dct.has_answers() {
                    self.schedule(qpn);
                }
            }
        }
    }

    /// Bears what an XRC target's request led to.
    #[cold]
    fn handled(
        &mut self,
        now: Time,
        qpn: u32,
        handled: Handled,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        let Some(queue_pair) = self.qps.get_mut(qpn) else {
            return bug!("a QP went with its own request");
        };
        match handled {
            Handled::Fine => {}
            Handled::Later => queue_pair.responder.park(&mut self.hw, meta, headers, payload),
            Handled::Fatal(code) => {
                if code == NakCode::RemoteAccess {
                    // As over RC.
                    for class in [Class::Stranger, Class::Proved] {
                        self.hw.distrust.failed(meta.flow.src.ip(), class, now);
                    }
                }
                queue_pair.enter_error(&mut self.hw, now);
            }
        }
        if queue_pair.responder.has_answers() {
            self.schedule(qpn);
        }
    }

    /// Gives a response to the lane that it answers.
    fn response(
        &mut self,
        now: Time,
        qpn: u32,
        lane: usize,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        let Some(queue_pair) = self.qps.get_mut(qpn) else {
            return bug!("a response comes to a QP that is gone");
        };
        queue_pair.with_lane(lane, &mut self.hw, now, |lane, env| {
            lane.response(env, meta, headers, payload);
        });
        if queue_pair.lanes.get(lane).is_some_and(|lane| !lane.queue.is_empty()) {
            self.schedule(qpn);
        }
    }

    fn congestion_notified(&mut self, now: Time, meta: &RxMeta) {
        self.hw.counters.cnp_received += 1;
        if let Some(path) = self.hw.paths.find(meta.flow.src.ip())
            && self.hw.paths.congested(now, path)
        {
            self.hw.counters.window_cuts += 1;
        }
    }

    /// A packet was marked: its sender is told, and where it answers a READ of ours we slow down
    /// ourselves, for it is we who ask for the data. A stranger is told nothing that is longer than
    /// what he sent.
    #[cold]
    fn notify_congestion(&mut self, now: Time, meta: &RxMeta, headers: &Headers, payload: usize) {
        let Some(path) = self.hw.paths.find(meta.flow.src.ip()) else {
            return;
        };
        if headers.message().is_response() && self.hw.paths.congested(now, path) {
            self.hw.counters.window_cuts += 1;
        }
        let Some(queue_pair) = self.qps.get(self.named(headers.dest_qpn.get())) else {
            return bug!("a QP went while its packet was looked at");
        };
        let to = match headers.route() {
            Route::Rc | Route::Uc | Route::Xrc(_) => queue_pair.core.dest_qpn(),
            Route::Ud(deth) => {
                let known = deth.qkey == queue_pair.core.attr.qkey;
                if !known || packet_len(headers.header_len(), payload) < CNP_LEN {
                    return;
                }
                deth.src_qpn
            }
            Route::Dc { eth, .. } => {
                let stranger = |dct: &Dct| !dct.knows(meta.flow.src.ip(), &eth);
                if queue_pair.dct.as_deref().is_some_and(stranger) {
                    return;
                }
                eth.src_qpn
            }
        };
        if self.notifications.len() < NOTIFICATIONS_MAX && self.hw.paths.may_notify(now, path) {
            let flow = Flow { src: meta.flow.dst, dst: meta.flow.src };
            self.notifications.push_back(Notification { flow, to });
        }
    }
}

/// Whether a QP of this state takes requests, or responses.
pub(crate) fn takes_packets(state: QpState, response: bool) -> bool {
    match state {
        QpState::Rts | QpState::Sqd => true,
        QpState::Rtr | QpState::Sqe => !response,
        QpState::Reset | QpState::Init | QpState::Err => false,
    }
}
