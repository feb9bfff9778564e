//! The DC target: a bounded number of contexts, one for each initiator that is connected.
//!
//! A connect rides on the packets of a session until the first of them is acknowledged. A context
//! is made when such a packet arrives with the right access key, and given up when room is needed
//! and its initiator was silent for `dc_context_idle_ns`, the longest silent first; or if the room
//! is a receive, which a message holds that does not go on. See `docs/wire.md` for the rules that
//! keep this exactly-once.

mod admission;
mod contexts;
mod refusals;

use alloc::collections::VecDeque;
use core::net::IpAddr;
use core::num::NonZeroU64;

use elver_verbs::{AsyncEvent, Gid, Memory, Qp, Time};
use elver_wire::{DcEth, DcExtra, Flow, Headers, NakCode, RnrTimer, Route, Syndrome, packet_len};

use self::admission::{Request, check_connect, class, first_psn};
use self::contexts::{Context, Contexts, Initiator};
use self::refusals::{Answered, Refusals};
use crate::RxMeta;
use crate::hw::Hw;
use crate::proof::Proof;
use crate::qp_core::QpCore;
use crate::responder::{Handled, Responder};

/// Answers to one initiator before the next one has its turn.
const TURN_ANSWERS: u32 = 16;
/// How long an initiator is told to wait when there is no room for its context, in nanoseconds:
/// room comes by silence, which takes seconds.
const NO_ROOM_WAIT_NS: u64 = 20_000_000;
/// Unfinished messages that are looked at when an initiator comes.
const UNFINISHED_LOOKED_AT: usize = 4;

#[derive(Debug)]
pub(crate) struct Dct {
    contexts: Contexts,
    /// Contexts of which a message had a receive and did not end at once; each stands here once.
    unfinished: VecDeque<u32>,
    /// Contexts that have answers to send.
    ready: VecDeque<u32>,
    /// Answers in a row to the first of them.
    answered: u32,
    refusals: Refusals,
}

impl Dct {
    pub(crate) fn new() -> Dct {
        Dct {
            contexts: Contexts::new(),
            unfinished: VecDeque::new(),
            ready: VecDeque::new(),
            answered: 0,
            refusals: Refusals::default(),
        }
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.ready.is_empty() || !self.refusals.is_empty()
    }

    /// Gives back what unfinished messages hold: the DCT goes.
    pub(crate) fn release<M: Memory>(mut self, core: &mut QpCore, hw: &mut Hw<M>) {
        for context in self.contexts.iter_mut() {
            if let Some(recv) = context.responder.take_receive() {
                core.return_receive(hw, recv);
            }
        }
    }

    /// Takes a request.
    #[allow(clippy::too_many_arguments, reason = "the parts of one packet, parsed once")]
    pub(crate) fn request<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        now: Time,
        meta: &RxMeta,
        eth: &DcEth,
        extra: DcExtra,
        headers: &Headers,
        payload: &[u8],
    ) {
        let address = meta.flow.src.ip();
        let initiator = Initiator { address, qpn: eth.src_qpn, stream: eth.stream };
        let known = self.contexts.find(&initiator);
        let proved = |id: u32| self.contexts[id].is_proved_in(eth.session);
        let id = match known.filter(|id| proved(*id)) {
            Some(id) => id,
            None => {
                let (connect, token) = match extra {
                    DcExtra::Connect(connect) => (Some(connect), Some(connect.token)),
                    DcExtra::Token(token) => (None, Some(token)),
                    DcExtra::None => (None, None),
                };
                let check = |token| hw.tokens.check(address, NonZeroU64::new(token), now);
                let (tells, proof) = (token.is_some(), token.map_or(Proof::None, check));
                let len = packet_len(headers.header_len(), payload.len()) as u64;
                let request = Request { meta, initiator, eth, connect, tells, proof, headers, len };
                match self.meet(core, hw, now, known, &request) {
                    Ok(id) => id,
                    Err(None) => return,
                    Err(Some(syndrome)) => {
                        self.refusals.refuse(core, hw, now, &request, syndrome);
                        return;
                    }
                }
            }
        };
        self.contexts.touch(id, hw.awake);
        let context = &mut self.contexts[id];
        context.responder.refuse_again(headers.psn);
        let handled = context.responder.request(core, hw, eth.src_qpn.get(), id, headers, payload);
        if handled == Handled::Later {
            context.responder.park(hw, meta, headers, payload);
        }
        if handled == Handled::Fatal(NakCode::RemoteAccess) {
            hw.distrust.failed(address, class(context.proof), now);
        }
        if let Handled::Fatal(_) = handled
            && let Some(recv) = context.responder.take_receive()
        {
            core.return_receive(hw, recv);
        }
        if !context.listed && context.responder.holds_receive() {
            context.listed = true;
            self.unfinished.push_back(id);
        }
        self.line_up(id);
    }

    /// Puts a context in line to answer, if it can.
    fn line_up(&mut self, id: u32) {
        let context = &mut self.contexts[id];
        if context.responder.has_answers() && !context.ready {
            context.ready = true;
            self.ready.push_back(id);
        }
    }

    /// A packet of an initiator who is not known, comes with another session, or has not proved where
    /// he is; `known` is his context. Returns the one that takes it. `Err(None)` drops it.
    #[inline(never)]
    fn meet<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        now: Time,
        known: Option<u32>,
        request: &Request<'_>,
    ) -> Result<u32, Option<Syndrome>> {
        match known {
            Some(id) if request.eth.session == self.contexts[id].session => {
                self.contexts[id].go_on(&mut hw.counters, request, id)
            }
            Some(id) => self.resume(core, hw, now, id, request),
            None => self.admit(core, hw, now, request),
        }
    }

    /// What a context waits for was done, so that it may have something to send.
    pub(crate) fn go_on(&mut self, id: u32) {
        if self.contexts.has(id) {
            self.line_up(id);
        }
    }

    /// A context's responder.
    pub(crate) fn responder(&mut self, id: u32) -> Option<&mut Responder> {
        self.contexts.get_mut(id).map(|context| &mut context.responder)
    }

    /// A packet of another session than the context's: the connect of a later one. `Err(None)`
    /// drops it.
    fn resume<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        now: Time,
        id: u32,
        request: &Request<'_>,
    ) -> Result<u32, Option<Syndrome>> {
        let context = &mut self.contexts[id];
        let session = request.eth.session;
        let forgotten = hw.was_silent(context.heard);
        let later = session.wrapping_sub(context.session) as i32 > 0;
        if !later && !forgotten {
            hw.counters.drop_dc_session += 1;
            return Err(None);
        }
        let mtu = check_connect(core, hw, now, request, false)?;
        if let Some(recv) = context.responder.take_receive() {
            core.return_receive(hw, recv);
        }
        context.session = session;
        let peer = Gid::from(context.initiator.address);
        context.responder = Responder::new(first_psn(session), mtu.bytes(), peer);
        (context.proof, context.asked) = (request.proof, false);
        hw.counters.dc_accepts += 1;
        Ok(id)
    }

    /// A packet from an initiator without a context.
    fn admit<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        now: Time,
        request: &Request<'_>,
    ) -> Result<u32, Option<Syndrome>> {
        let crowded = 2 * self.contexts.len() as u64 >= u64::from(hw.config.max_dc_contexts);
        let mtu = check_connect(core, hw, now, request, crowded)?;
        self.return_receives(core, hw);
        let Request { meta, initiator, eth, .. } = *request;
        if self.contexts.len() as u32 >= hw.config.max_dc_contexts && !self.reclaim(core, hw) {
            hw.counters.dc_refused_room += 1;
            hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
            return Err(Some(Syndrome::RnrNak(RnrTimer::at_least_ns(NO_ROOM_WAIT_NS))));
        }
        hw.counters.dc_accepts += 1;
        let responder =
            Responder::new(first_psn(eth.session), mtu.bytes(), Gid::from(initiator.address));
        let back = (Flow { src: meta.flow.dst, dst: meta.flow.src }, meta.traffic_class);
        let context =
            Context::new(initiator, eth.session, back, responder, request.proof, hw.awake);
        Ok(self.contexts.insert(context))
    }

    /// Gives up the context that was silent longest, if that is long enough.
    pub(crate) fn reclaim<M: Memory>(&mut self, core: &mut QpCore, hw: &mut Hw<M>) -> bool {
        self.contexts.oldest().is_some_and(|oldest| self.give_up(oldest, core, hw))
    }

    /// Gives up contexts whose initiators fell silent within a message: its receive is another's
    /// who comes.
    fn return_receives<M: Memory>(&mut self, core: &mut QpCore, hw: &mut Hw<M>) {
        for _ in 0..self.unfinished.len().min(UNFINISHED_LOOKED_AT) {
            let Some(id) = self.unfinished.pop_front() else {
                return bug!("contexts with unfinished messages are fewer");
            };
            let holds = |dct: &Dct| dct.contexts[id].responder.holds_receive();
            if holds(self) && !self.give_up(id, core, hw) {
                self.unfinished.push_back(id);
            } else {
                self.contexts[id].listed = false;
            }
        }
    }

    /// Gives up a context if its initiator was silent for long enough.
    fn give_up<M: Memory>(&mut self, id: u32, core: &mut QpCore, hw: &mut Hw<M>) -> bool {
        let context = &mut self.contexts[id];
        if !hw.was_silent(context.heard) || context.ready {
            return false;
        }
        if let Some(recv) = context.responder.take_receive() {
            core.return_receive(hw, recv);
        }
        self.contexts.remove(id);
        hw.counters.dc_reclaimed += 1;
        true
    }

    /// Writes the next answer to any initiator.
    #[inline(always)] // It has one caller.
    pub(crate) fn next_answer<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        now: Time,
        buf: &mut [u8],
    ) -> Option<Answered> {
        if !self.refusals.is_empty() {
            return self.refusals.next(buf);
        }
        while let Some(&id) = self.ready.front() {
            let context = &mut self.contexts[id];
            let Initiator { address, qpn: to, stream } = context.initiator;
            let eth = DcEth { src_qpn: core.qpn, stream, session: context.session, fill: 0 };
            let extra = match context.proof {
                Proof::Fresh => DcExtra::None,
                Proof::None | Proof::Old => DcExtra::Token(hw.tokens.of(address, now).get()),
            };
            let answer = context.responder.next_answer(core, hw, id, buf, |message, psn| {
                Headers::new(Route::Dc { eth, extra }, message, to, psn).ok()
            });
            let over = !context.responder.has_answers();
            if over {
                context.ready = false;
                self.ready.pop_front();
                self.answered = 0;
            } else {
                // One who reads without end does not keep the others from their answers.
                self.answered += 1;
                if self.answered >= TURN_ANSWERS {
                    self.answered = 0;
                    self.ready.rotate_left(1);
                }
            }
            if let Some((headers, payload)) = answer {
                let (flow, traffic_class) = (context.flow, context.traffic_class);
                return Some(Answered { headers, payload, flow, traffic_class });
            }
            // It waits for memory, or what it had was a duplicate that is not answered any longer: it
            // is the next one's turn.
            debug_assert!(over, "an answer can be written");
            if !over {
                break;
            }
        }
        None
    }

    /// Its owner has stopped the target: nobody is answered any more.
    pub(crate) fn fall_silent(&mut self) {
        self.refusals.clear();
        for id in core::mem::take(&mut self.ready) {
            self.contexts[id].ready = false;
        }
        for context in self.contexts.iter_mut() {
            context.responder.fall_silent();
        }
    }

    /// Whether a session's initiator proved where he is.
    pub(crate) fn knows(&self, address: IpAddr, eth: &DcEth) -> bool {
        let initiator = Initiator { address, qpn: eth.src_qpn, stream: eth.stream };
        let context = self.contexts.of(&initiator).map(|id| &self.contexts[id]);
        context.is_some_and(|held| held.session == eth.session && held.proof != Proof::None)
    }

    /// Receives that unfinished messages hold.
    pub(crate) fn receives_held(&self) -> u32 {
        self.contexts.iter().filter(|context| context.responder.holds_receive()).count() as u32
    }

    /// Contexts held.
    pub(crate) fn len(&self) -> usize {
        self.contexts.len()
    }
}
