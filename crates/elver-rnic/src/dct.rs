//! The DC target: a bounded number of contexts, one for each initiator that is connected.
//!
//! A connect rides on the packets of a session until the first of them is acknowledged. A context
//! is made when such a packet arrives with the right access key, and given up when room is needed
//! and its initiator was silent for `dc_context_idle_ns`, the longest silent first; or if the room
//! is a receive, which a message holds that does not go on. See `docs/wire.md` for the rules that
//! keep this exactly-once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU64;

use elver_verbs::{AsyncEvent, Gid, MaybeSlot, Memory, Mtu, Qp, Time};
use elver_wire::{
    Aeth, DcConnect, DcEth, DcExtra, Flow, Headers, Message, Msn, NakCode, Psn, Qpn, RnrTimer,
    Route, Syndrome, packet_len,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::RxMeta;
use crate::counters::Counters;
use crate::distrust::Class;
use crate::hw::Hw;
use crate::proof::{Proof, answer_len, refusal_len};
use crate::qp_core::QpCore;
use crate::responder::{Handled, Responder};

/// Refusals that wait to be sent; further ones are not answered.
const REFUSALS_MAX: usize = 64;
/// Answers to one initiator before the next one has its turn.
const TURN_ANSWERS: u32 = 16;
/// How long an initiator is told to wait when there is no room for its context, in nanoseconds:
/// room comes by silence, which takes seconds.
const NO_ROOM_WAIT_NS: u64 = 20_000_000;
/// Unfinished messages that are looked at when an initiator comes.
const UNFINISHED_LOOKED_AT: usize = 4;

#[derive(Debug)]
pub(crate) struct Dct {
    by_initiator: HashMap<Initiator, u32, FxBuildHasher>,
    contexts: Vec<Context>,
    free: Vec<u32>,
    /// Most and least recently heard of.
    newest: MaybeSlot,
    oldest: MaybeSlot,
    /// Contexts of which a message had a receive and did not end at once; each stands here once.
    unfinished: VecDeque<u32>,
    /// Contexts that have answers to send.
    ready: VecDeque<u32>,
    /// Answers in a row to the first of them.
    answered: u32,
    refusals: VecDeque<Refusal>,
}

/// Who opened a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Initiator {
    address: IpAddr,
    qpn: Qpn,
    stream: u16,
}

#[derive(Debug)]
struct Context {
    initiator: Initiator,
    session: u32,
    /// From us to the initiator.
    flow: Flow,
    traffic_class: u8,
    responder: Responder,
    /// What the initiator proved.
    proof: Proof,
    /// He was asked to: until he does, nothing is executed.
    asked: bool,
    /// In time awake.
    heard: Time,
    ready: bool,
    /// It stands among the unfinished; so does whatever takes its place.
    listed: bool,
    newer: MaybeSlot,
    older: MaybeSlot,
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

/// A request, and what is known of where it came from.
#[derive(Clone, Copy)]
struct Request<'a> {
    meta: &'a RxMeta,
    initiator: Initiator,
    eth: &'a DcEth,
    connect: Option<DcConnect>,
    /// It has a token, or says that it has none.
    tells: bool,
    proof: Proof,
    headers: &'a Headers,
    /// From the BTH to the ICRC.
    len: u64,
}

impl Request<'_> {
    /// Whether the answers to it would be longer than it is.
    fn asks_for_more(&self, mtu: u32) -> bool {
        answer_len(&self.headers.message(), mtu) > self.len
    }
}

const PROVE: Option<Syndrome> = Some(Syndrome::Nak(NakCode::DcProve));

/// An answer that was written: where it goes and how long its payload is.
pub(crate) struct Answered {
    pub(crate) headers: Headers,
    pub(crate) payload: usize,
    pub(crate) flow: Flow,
    pub(crate) traffic_class: u8,
}

impl Dct {
    pub(crate) fn new() -> Dct {
        Dct {
            by_initiator: HashMap::default(),
            contexts: Vec::new(),
            free: Vec::new(),
            newest: MaybeSlot::NONE,
            oldest: MaybeSlot::NONE,
            unfinished: VecDeque::new(),
            ready: VecDeque::new(),
            answered: 0,
            refusals: VecDeque::new(),
        }
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.ready.is_empty() || !self.refusals.is_empty()
    }

    /// Gives back what unfinished messages hold: the DCT goes.
    pub(crate) fn release<M: Memory>(mut self, core: &mut QpCore, hw: &mut Hw<M>) {
        for context in &mut self.contexts {
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
        // Packets come in rows.
        let known = match self.contexts.get(self.newest.index()) {
            Some(context) if context.initiator == initiator => self.newest.get(),
            _ => self.by_initiator.get(&initiator).copied(),
        };
        let proved = |id: u32| self.contexts[id as usize].is_proved_in(eth.session);
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
                        self.refuse(core, hw, now, &request, syndrome);
                        return;
                    }
                }
            }
        };
        self.touch(id, hw.awake);
        let context = &mut self.contexts[id as usize];
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
        let context = &mut self.contexts[id as usize];
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
            Some(id) if request.eth.session == self.contexts[id as usize].session => {
                self.contexts[id as usize].go_on(&mut hw.counters, request, id)
            }
            Some(id) => self.resume(core, hw, now, id, request),
            None => self.admit(core, hw, now, request),
        }
    }

    /// What a context waits for was done, so that it may have something to send.
    pub(crate) fn go_on(&mut self, id: u32) {
        if (id as usize) < self.contexts.len() {
            self.line_up(id);
        }
    }

    /// A context's responder.
    pub(crate) fn responder(&mut self, id: u32) -> Option<&mut Responder> {
        self.contexts.get_mut(id as usize).map(|context| &mut context.responder)
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
        let context = &mut self.contexts[id as usize];
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
        let in_use = self.contexts.len() - self.free.len();
        let crowded = 2 * in_use as u64 >= u64::from(hw.config.max_dc_contexts);
        let mtu = check_connect(core, hw, now, request, crowded)?;
        self.return_receives(core, hw);
        let in_use = self.contexts.len() - self.free.len();
        let Request { meta, initiator, eth, .. } = *request;
        if in_use as u32 >= hw.config.max_dc_contexts && !self.reclaim(core, hw) {
            hw.counters.dc_refused_room += 1;
            hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
            return Err(Some(Syndrome::RnrNak(RnrTimer::at_least_ns(NO_ROOM_WAIT_NS))));
        }
        hw.counters.dc_accepts += 1;
        let free = self.free.pop();
        let peer = Gid::from(initiator.address);
        let context = Context {
            initiator,
            session: eth.session,
            flow: Flow { src: meta.flow.dst, dst: meta.flow.src },
            traffic_class: meta.traffic_class,
            responder: Responder::new(first_psn(eth.session), mtu.bytes(), peer),
            proof: request.proof,
            asked: false,
            heard: hw.awake,
            ready: false,
            listed: free.is_some_and(|id| self.contexts[id as usize].listed),
            newer: MaybeSlot::NONE,
            older: self.newest,
        };
        let id = match free {
            Some(id) => {
                self.contexts[id as usize] = context;
                id
            }
            None => {
                self.contexts.push(context);
                (self.contexts.len() - 1) as u32
            }
        };
        match self.newest.get() {
            None => self.oldest = id.into(),
            Some(newest) => self.contexts[newest as usize].newer = id.into(),
        }
        self.newest = id.into();
        self.by_initiator.insert(initiator, id);
        Ok(id)
    }

    /// Gives up the context that was silent longest, if that is long enough.
    pub(crate) fn reclaim<M: Memory>(&mut self, core: &mut QpCore, hw: &mut Hw<M>) -> bool {
        self.oldest.get().is_some_and(|oldest| self.give_up(oldest, core, hw))
    }

    /// Gives up contexts whose initiators fell silent within a message: its receive is another's
    /// who comes.
    fn return_receives<M: Memory>(&mut self, core: &mut QpCore, hw: &mut Hw<M>) {
        for _ in 0..self.unfinished.len().min(UNFINISHED_LOOKED_AT) {
            let Some(id) = self.unfinished.pop_front() else {
                return bug!("contexts with unfinished messages are fewer");
            };
            let holds = |dct: &Dct| dct.contexts[id as usize].responder.holds_receive();
            if holds(self) && !self.give_up(id, core, hw) {
                self.unfinished.push_back(id);
            } else {
                self.contexts[id as usize].listed = false;
            }
        }
    }

    /// Gives up a context if its initiator was silent for long enough.
    fn give_up<M: Memory>(&mut self, id: u32, core: &mut QpCore, hw: &mut Hw<M>) -> bool {
        let context = &mut self.contexts[id as usize];
        if !hw.was_silent(context.heard) || context.ready {
            return false;
        }
        if let Some(recv) = context.responder.take_receive() {
            core.return_receive(hw, recv);
        }
        let initiator = context.initiator;
        self.unlink(id);
        self.by_initiator.remove(&initiator);
        self.free.push(id);
        hw.counters.dc_reclaimed += 1;
        true
    }

    fn touch(&mut self, id: u32, awake: Time) {
        self.contexts[id as usize].heard = awake;
        if self.newest == id.into() {
            return;
        }
        self.unlink(id);
        let newest = self.newest;
        let context = &mut self.contexts[id as usize];
        context.newer = MaybeSlot::NONE;
        context.older = newest;
        match newest.get() {
            None => self.oldest = id.into(),
            Some(newest) => self.contexts[newest as usize].newer = id.into(),
        }
        self.newest = id.into();
    }

    fn unlink(&mut self, id: u32) {
        let (newer, older) = {
            let context = &self.contexts[id as usize];
            (context.newer, context.older)
        };
        match newer.get() {
            None => self.newest = older,
            Some(newer) => self.contexts[newer as usize].older = older,
        }
        match older.get() {
            None => self.oldest = newer,
            Some(older) => self.contexts[older as usize].newer = newer,
        }
    }

    fn refuse<M: Memory>(
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
        if self.refusals.len() >= REFUSALS_MAX {
            return;
        }
        self.refusals.push_back(Refusal {
            flow: Flow { src: meta.flow.dst, dst: meta.flow.src },
            traffic_class: meta.traffic_class,
            to: eth.src_qpn,
            eth: DcEth { src_qpn: core.qpn, fill: 0, ..*eth },
            extra,
            psn,
            syndrome,
        });
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
        if let Some(refusal) = self.refusals.pop_front() {
            let aeth = Aeth { syndrome: refusal.syndrome, msn: Msn::default() };
            let route = Route::Dc { eth: refusal.eth, extra: refusal.extra };
            let headers = Headers::new(route, Message::Ack(aeth), refusal.to, refusal.psn).ok()?;
            headers.emit(buf, 0);
            let (flow, traffic_class) = (refusal.flow, refusal.traffic_class);
            return Some(Answered { headers, payload: 0, flow, traffic_class });
        }
        while let Some(&id) = self.ready.front() {
            let context = &mut self.contexts[id as usize];
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
            self.contexts[id as usize].ready = false;
        }
        for context in &mut self.contexts {
            context.responder.fall_silent();
        }
    }

    /// Whether a session's initiator proved where he is.
    pub(crate) fn knows(&self, address: IpAddr, eth: &DcEth) -> bool {
        let initiator = Initiator { address, qpn: eth.src_qpn, stream: eth.stream };
        let context = self.by_initiator.get(&initiator).map(|id| &self.contexts[*id as usize]);
        context.is_some_and(|held| held.session == eth.session && held.proof != Proof::None)
    }

    /// Receives that unfinished messages hold.
    pub(crate) fn receives_held(&self) -> u32 {
        self.contexts.iter().filter(|context| context.responder.holds_receive()).count() as u32
    }

    /// Contexts held.
    pub(crate) fn len(&self) -> usize {
        self.by_initiator.len()
    }
}

impl Context {
    /// Whether a packet of this session is taken as it comes.
    #[inline]
    fn is_proved_in(&self, session: u32) -> bool {
        self.session == session && self.proof == Proof::Fresh
    }

    /// A packet of the session. While the initiator did not prove where he is, nothing is executed
    /// whose answer is longer than what asks for it.
    fn go_on(
        &mut self,
        counters: &mut Counters,
        request: &Request<'_>,
        id: u32,
    ) -> Result<u32, Option<Syndrome>> {
        self.proof = self.proof.max(request.proof);
        if self.proof != Proof::None {
            return Ok(id);
        }
        if !request.tells {
            // Whom we told a token repeats it until we say that we heard it. This is not he.
            counters.drop_dc_session += 1;
            return Err(None);
        }
        self.asked |= request.connect.is_none() || request.asks_for_more(self.responder.mtu());
        if self.asked {
            self.responder.asked_again(request.headers.psn);
            return Err(PROVE);
        }
        Ok(id)
    }
}

/// A session's first PSN is the low 24 bits of its number.
fn first_psn(session: u32) -> Psn {
    Psn::from_wrapping(session)
}

fn class(proof: Proof) -> Class {
    if proof == Proof::None { Class::Stranger } else { Class::Proved }
}

/// Checks the connect header of a packet that opens a session. Whose place is uncertain is let in
/// with its first packet alone, if the answer is no longer, and not where it is `crowded`: forged
/// addresses take at most half of the room.
fn check_connect<M: Memory>(
    core: &QpCore,
    hw: &mut Hw<M>,
    now: Time,
    request: &Request<'_>,
    crowded: bool,
) -> Result<Mtu, Option<Syndrome>> {
    let connect = request.connect.ok_or(Some(Syndrome::Nak(NakCode::DcNoContext)))?;
    let (address, class) = (request.initiator.address, class(request.proof));
    if hw.distrust.holds(address, class, now) {
        if class == Class::Stranger {
            // Perhaps it is somebody else who says that he is there. Let him prove it.
            return Err(PROVE);
        }
        hw.counters.drop_distrusted += 1;
        return Err(None);
    }
    if connect.access_key != core.init.dc_access_key {
        hw.distrust.failed(address, class, now);
        hw.counters.dc_refused_key += 1;
        hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
        return Err(Some(Syndrome::Nak(NakCode::RemoteAccess)));
    }
    let mtu = Mtu::from_code(connect.mtu).filter(|mtu| *mtu <= hw.config.active_mtu);
    let mtu = mtu.ok_or(Some(Syndrome::Nak(NakCode::InvalidRequest)))?;
    let begins = request.headers.psn == first_psn(request.eth.session);
    if request.proof == Proof::None && (!begins || crowded || request.asks_for_more(mtu.bytes())) {
        return Err(PROVE);
    }
    Ok(mtu)
}
