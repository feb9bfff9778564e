//! Refusals that wait to be sent.

use alloc::collections::VecDeque;

use elver_verbs::{Memory, Time};
use elver_wire::{
    Aeth, DcEth, DcExtra, Flow, Headers, Message, Msn, NakCode, Psn, Qpn, Route, Syndrome,
};

use super::admission::{Request, first_psn};
use crate::hw::Hw;
use crate::proof::refusal_len;
use crate::qp_core::QpCore;

/// Refusals that wait to be sent; further ones are not answered.
const REFUSALS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Refusals {
    waiting: VecDeque<Refusal>,
}

#[derive(Debug)]
struct Refusal {
    flow: Flow,
    traffic_class: u8,
    to: Qpn,
    eth: DcEth,
    extra: DcExtra,
    psn: Psn,
    syndrome: Syndrome,
}

/// An answer that was written: where it goes and how long its payload is.
pub(crate) struct Answered {
    pub(crate) headers: Headers,
    pub(crate) payload: usize,
    pub(crate) flow: Flow,
    pub(crate) traffic_class: u8,
}

impl Refusals {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Queues the refusal of a request, unless it is longer than that.
    pub(super) fn refuse<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        now: Time,
        request: &Request<'_>,
        syndrome: Syndrome,
    ) {
        let Request { meta, eth, headers, .. } = *request;
        // A NAK acknowledges what comes before its PSN. Nothing of a refused session was executed,
        // so it names the first. That there is no context, or no proof, acknowledges nothing.
        let (psn, extra) = match syndrome {
            Syndrome::Nak(NakCode::DcNoContext) => (headers.psn, DcExtra::None),
            Syndrome::Nak(NakCode::DcProve) => {
                (headers.psn, DcExtra::Token(hw.tokens.of(meta.flow.src.ip(), now).get()))
            }
            _ => (first_psn(eth.session), DcExtra::None),
        };
        match syndrome {
            Syndrome::RnrNak(_) => hw.counters.rnr_nak_sent += 1,
            Syndrome::Nak(NakCode::DcProve) => hw.counters.dc_proofs_asked += 1,
            _ => hw.counters.nak_fatal_sent += 1,
        }
        if refusal_len(extra != DcExtra::None) > request.len {
            hw.counters.dc_unanswered += 1;
            return;
        }
        if self.waiting.len() >= REFUSALS_MAX {
            return;
        }
        self.waiting.push_back(Refusal {
            flow: Flow { src: meta.flow.dst, dst: meta.flow.src },
            traffic_class: meta.traffic_class,
            to: eth.src_qpn,
            eth: DcEth { src_qpn: core.qpn, fill: 0, ..*eth },
            extra,
            psn,
            syndrome,
        });
    }

    /// Writes the next one.
    pub(super) fn next(&mut self, buf: &mut [u8]) -> Option<Answered> {
        let refusal = self.waiting.pop_front()?;
        let aeth = Aeth { syndrome: refusal.syndrome, msn: Msn::default() };
        let route = Route::Dc { eth: refusal.eth, extra: refusal.extra };
        let headers = Headers::new(route, Message::Ack(aeth), refusal.to, refusal.psn).ok()?;
        headers.emit(buf, 0);
        let (flow, traffic_class) = (refusal.flow, refusal.traffic_class);
        Some(Answered { headers, payload: 0, flow, traffic_class })
    }
}
