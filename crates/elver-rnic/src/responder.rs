//! The responder: one ordered stream of requests from one initiator (IBTA vol. 1, 9.7.4 and 9.7.5).
//!
//! An RC QP has one; a DCT has one for each initiator that is connected to it. It has each request
//! executed once ([`crate::execute`]), acknowledges, answers READs packet by packet as they can be sent, and keeps what
//! a duplicate READ or atomic needs. UC, which only consumes, is in [`crate::unreliable`].

mod history;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{AccessFlags, Gid, Memory};
use elver_wire::{Aeth, AtomicEth, Credits, Headers, Message, Msn, NakCode, Psn, Reth, Syndrome};

use crate::RxMeta;
use crate::aside::{Aside, Part};
use crate::execute::{Atomic, End, Fault, Inbound, Sender};
use crate::hw::Hw;
use crate::place::{Place, Refused};
use crate::qp_core::QpCore;
use crate::recv_queue::Recv;
use crate::responder::history::{Executed, History};

/// The acknowledgement that grants no credits because it counts none (IBTA vol. 1, 9.7.7.2.1).
const ACK: Syndrome = Syndrome::Ack(Credits::UNCOUNTED);

#[derive(Debug)]
pub(crate) struct Responder {
    /// Expected PSN.
    epsn: Psn,
    /// Path MTU in bytes.
    mtu: u32,
    /// Whose requests these are.
    peer: Gid,
    /// Messages completed.
    msn: Msn,
    inbound: Inbound,
    /// A NAK went out for the expected PSN: what comes beyond it is dropped until it arrives.
    nak_sent: bool,
    /// READs and atomics executed last, for duplicates; bounded by `max_dest_rd_atomic`.
    history: History,
    /// Answers to send, in order.
    out: VecDeque<Answer>,
    /// READs and atomics among the answers that were not asked for before.
    fresh: u32,
    /// Those that answer a duplicate.
    replays: u32,
    /// A request was refused: its PSN, and why. Nothing more is executed.
    refused: Option<(Psn, NakCode)>,
    /// Nothing is executed now: one was refused, or the oldest request waits for memory.
    stopped: bool,
    /// A request that waits for memory, and what came after it.
    waiting: Option<Box<Aside>>,
    /// The first answer, a READ's, waits for memory, or has bytes that were read ahead.
    fetching: Option<Box<Aside>>,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ack { psn: Psn, syndrome: Syndrome, msn: Msn },
    Read { psn: Psn, va: u64, rkey: u32, length: u32, sent: u32, msn: Msn, replay: bool },
    Atomic { psn: Psn, original: u64, msn: Msn, replay: bool },
}

// What a stranger can make a responder hold is bounded by this and by the agreed READs.
const _: () = assert!(size_of::<Answer>() <= 56);

/// What a request led to, for the QP or the DCT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Fine,
    /// The request was refused and the stream is dead.
    Fatal(NakCode),
    /// It must wait for memory, or for one that does: to be parked.
    Later,
}

impl Responder {
    pub(crate) fn new(epsn: Psn, mtu: u32, peer: Gid) -> Responder {
        Responder {
            epsn,
            mtu,
            peer,
            msn: Msn::default(),
            inbound: Inbound::default(),
            nak_sent: false,
            history: History::new(epsn),
            out: VecDeque::new(),
            fresh: 0,
            replays: 0,
            refused: None,
            stopped: false,
            waiting: None,
            fetching: None,
        }
    }

    /// The PSN of the first request that was not executed.
    pub(crate) fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// The path MTU.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Whether an answer can be sent now.
    pub(crate) fn has_answers(&self) -> bool {
        !self.out.is_empty() && self.fetching.as_ref().is_none_or(|aside| aside.ready)
    }

    /// Its owner has stopped the QP: it says nothing any more, and reads nothing of his memory (IBTA vol. 1, 10.3.1.7).
    pub(crate) fn fall_silent(&mut self) {
        self.out.clear();
        (self.fresh, self.replays) = (0, 0);
        self.fetching = None;
    }

    /// Where it waits for memory with requests, and where with answers.
    pub(crate) fn asides(&mut self) -> [&mut Option<Box<Aside>>; 2] {
        [&mut self.waiting, &mut self.fetching]
    }

    /// Ends the wait of requests; what is parked is to be brought again.
    pub(crate) fn resume(&mut self) -> Option<Box<Aside>> {
        self.stopped = self.is_dead();
        self.waiting.take()
    }

    /// Whether it is not known yet if the request of the expected PSN is executed, which is a WRITE that
    /// is being written, or what became of those before: a READ that waits for memory, and the refusal
    /// behind it, are still to be told.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.as_deref().is_some_and(Aside::is_writing) || self.fetching.is_some()
    }

    /// The QP is in ERR, and what was being written was or failed. A WRITE was executed that needs
    /// nothing else.
    #[cold]
    pub(crate) fn settle(&mut self, written: bool) {
        let Some(aside) = self.resume() else {
            return bug!("what was written waited for nothing");
        };
        let message = aside.parked.front().map(|packet| packet.headers.message());
        let executed = matches!(
            message,
            Some(
                Message::WriteFirst(_)
                    | Message::WriteMiddle
                    | Message::WriteOnly(_, None)
                    | Message::WriteLast(None)
            )
        );
        if written && executed {
            self.epsn = self.epsn.next();
        }
    }

    /// Whether a SEND has begun and not ended; its receive is taken.
    pub(crate) fn holds_receive(&self) -> bool {
        self.inbound.holds_receive()
    }

    /// Gives back the receive of a SEND that will never end.
    pub(crate) fn take_receive(&mut self) -> Option<&Recv> {
        self.inbound.take_receive()
    }

    /// The sender of packet `psn` was told to send it again: that is its NAK. A second one, for what
    /// he sent behind it, would cost him a retry.
    pub(crate) fn asked_again(&mut self, psn: Psn) {
        self.nak_sent |= psn == self.epsn;
    }

    /// Executes a request. `place` is where it waits if it must.
    pub(crate) fn request<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        source: u32,
        place: u32,
        headers: &Headers,
        payload: &[u8],
    ) -> Handled {
        if self.stopped {
            if !self.is_dead() {
                return Handled::Later;
            }
            hw.counters.drop_state += 1;
            return Handled::Fine;
        }
        let psn = headers.psn;
        let ahead = psn.distance(self.epsn);
        if ahead < 0 {
            hw.counters.rx_duplicate += 1;
            self.duplicate(core, hw, headers);
            return Handled::Fine;
        }
        if ahead > 0 {
            hw.counters.rx_out_of_order += 1;
            if !self.nak_sent {
                self.nak_sent = true;
                hw.counters.nak_sequence_sent += 1;
                self.say(self.epsn, Syndrome::Nak(NakCode::PsnSequence));
            }
            return Handled::Fine;
        }
        self.nak_sent = false;
        match self.execute(core, hw, source, headers, payload) {
            Ok(()) => Handled::Fine,
            Err(Fault::Later) => self.wait(core, hw, place, headers),
            Err(fault) => match fault.nak() {
                Some(code) => {
                    self.refuse(core, hw, psn, code);
                    Handled::Fatal(code)
                }
                None => {
                    self.ask_to_wait(core, hw, psn);
                    Handled::Fine
                }
            },
        }
    }

    /// A request waits for memory, if there is room for one that does.
    #[cold]
    fn wait<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        place: u32,
        headers: &Headers,
    ) -> Handled {
        if let Message::WriteFirst(_) = headers.message() {
            self.inbound.undo();
        }
        if !hw.regions.desk.may_wait() {
            // It comes again, and what is behind it; a lost packet would cost its sender a retry.
            hw.regions.desk.clear();
            hw.counters.drop_waiting += 1;
            self.ask_to_wait(core, hw, headers.psn);
            return Handled::Fine;
        }
        self.stopped = true;
        self.waiting = Some(hw.put_aside(core.qpn.get(), Part::Requests(place)));
        Handled::Later
    }

    fn ask_to_wait<M: Memory>(&mut self, core: &QpCore, hw: &mut Hw<M>, psn: Psn) {
        self.nak_sent = true;
        hw.counters.rnr_nak_sent += 1;
        self.say(psn, Syndrome::RnrNak(core.rnr_timer()));
    }

    /// Puts a packet behind the request that waits.
    #[cold]
    pub(crate) fn park<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        if let Some(aside) = &mut self.waiting {
            hw.park(aside, meta, headers, payload);
        }
    }

    /// Whether no SEND or WRITE has begun that has not ended.
    pub(crate) fn is_between(&self) -> bool {
        self.inbound.is_idle()
    }

    /// Refuses the request of the expected PSN, unless the stream waits or is dead: nothing of it is executed.
    #[cold]
    pub(crate) fn turn_down<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        psn: Psn,
    ) -> Handled {
        if self.stopped {
            hw.counters.drop_state += 1;
            return Handled::Fine;
        }
        self.refuse(core, hw, psn, NakCode::InvalidRequest);
        Handled::Fatal(NakCode::InvalidRequest)
    }

    /// The first packet of the READ that is answered next, if the next answer is to one.
    pub(crate) fn next_read(&self) -> Option<Psn> {
        match self.out.front()? {
            Answer::Read { psn, .. } => Some(*psn),
            _ => None,
        }
    }

    fn refuse<M: Memory>(&mut self, core: &QpCore, hw: &mut Hw<M>, psn: Psn, code: NakCode) {
        (self.refused, self.stopped) = (Some((psn, code)), true);
        hw.counters.nak_fatal_sent += 1;
        self.say(psn, Syndrome::Nak(code));
        core.tell_refused(hw, code);
    }

    /// Who sends this packet has not heard that the stream is dead, unless he sent it behind what was
    /// refused: he is told once more.
    pub(crate) fn refuse_again(&mut self, sent: Psn) {
        if let Some((psn, code)) = self.refused
            && sent.distance(psn) <= 0
            && self.out.is_empty()
        {
            self.say(psn, Syndrome::Nak(code));
        }
    }

    /// Executes the request of the expected PSN.
    fn execute<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        source: u32,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let message = headers.message();
        let begins = !matches!(
            message,
            Message::SendMiddle
                | Message::SendLast(_)
                | Message::WriteMiddle
                | Message::WriteLast(_)
        );
        if begins != self.inbound.is_idle() {
            return Err(Fault::Invalid);
        }
        check_length(self.mtu, &message, payload.len() as u32)?;
        let source = Sender { qpn: source, gid: self.peer };
        let end_of_write = |imm| End::of_write(imm, headers.solicited, || source);
        let (inbound, solicited) = (&mut self.inbound, headers.solicited);
        let mut psns = 1;
        match message {
            Message::SendFirst | Message::SendMiddle => inbound.send(core, hw, payload, None)?,
            Message::SendLast(tail) | Message::SendOnly(tail) => {
                inbound.send(core, hw, payload, Some(End { tail, solicited, source }))?;
                self.msn = self.msn.next();
            }
            Message::WriteFirst(reth) => {
                inbound.begin_write(core, hw, &reth)?;
                inbound.write(core, hw, payload)?;
            }
            Message::WriteMiddle => inbound.write(core, hw, payload)?,
            Message::WriteOnly(reth, imm) => {
                inbound.write_only(core, hw, &reth, reth.len, payload, end_of_write(imm))?;
                self.msn = self.msn.next();
            }
            Message::WriteLast(imm) => {
                inbound.end_write(core, hw, payload, end_of_write(imm))?;
                self.msn = self.msn.next();
            }
            Message::ReadRequest(reth) => psns = self.read(core, hw, headers.psn, &reth)?,
            Message::CmpSwp(eth) => {
                let change = Atomic::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                self.atomic(core, hw, headers.psn, &eth, change)?;
            }
            Message::FetchAdd(eth) => {
                let change = Atomic::FetchAdd { add: eth.swap_or_add };
                self.atomic(core, hw, headers.psn, &eth, change)?;
            }
            _ => return Err(Fault::Invalid),
        }
        self.epsn = self.epsn.wrapping_add(psns);
        let answered =
            matches!(message, Message::ReadRequest(_) | Message::CmpSwp(_) | Message::FetchAdd(_));
        if headers.ack_req && !answered {
            self.history.forget_distant(self.epsn);
            self.say(headers.psn, ACK);
        }
        Ok(())
    }

    /// Queues an acknowledgement of either kind. It takes the place of one that still waits: each
    /// says all that those before it said, so the answers that wait stay bounded. But a refusal is said once, and
    /// acknowledges all before it: what a duplicate is told takes nothing from that.
    fn say(&mut self, psn: Psn, syndrome: Syndrome) {
        let answer = Answer::Ack { psn, syndrome, msn: self.msn };
        match self.out.back_mut() {
            Some(Answer::Ack { psn: refused, syndrome: last, .. })
                if *last != ACK && syndrome == ACK && refused.distance(psn) > 0 => {}
            Some(last @ Answer::Ack { .. }) => *last = answer,
            _ => self.out.push_back(answer),
        }
    }

    // ---- READ and atomics ----

    /// Takes a READ; returns how many PSNs its responses take.
    fn read<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        psn: Psn,
        reth: &Reth,
    ) -> Result<u32, Fault> {
        core.grant_read(hw, reth, self.fresh)?;
        let packets = reth.len.div_ceil(self.mtu).max(1);
        self.msn = self.msn.next();
        self.remember(core, Executed::Read { first: psn, packets, va: reth.va, length: reth.len });
        self.fresh += 1;
        self.answer_read(psn, reth, false);
        Ok(packets)
    }

    fn answer_read(&mut self, psn: Psn, reth: &Reth, replay: bool) {
        self.out.push_back(Answer::Read {
            psn,
            va: reth.va,
            rkey: reth.rkey,
            length: reth.len,
            sent: 0,
            msn: self.msn,
            replay,
        });
    }

    fn atomic<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        psn: Psn,
        eth: &AtomicEth,
        change: Atomic,
    ) -> Result<(), Fault> {
        let original = core.atomic(hw, eth.va, eth.rkey, self.fresh, change)?;
        self.msn = self.msn.next();
        self.remember(core, Executed::Atomic { psn, original });
        self.fresh += 1;
        self.out.push_back(Answer::Atomic { psn, original, msn: self.msn, replay: false });
        Ok(())
    }

    fn remember(&mut self, core: &QpCore, executed: Executed) {
        self.history.remember(executed, usize::from(core.attr.max_dest_rd_atomic));
    }

    // ---- duplicates ----

    /// Answers a request that was executed before (IBTA vol. 1, 9.7.5.1.4), without executing it
    /// again: a SEND or WRITE is acknowledged, a READ reads again, an atomic gives what it gave.
    fn duplicate<M: Memory>(&mut self, core: &QpCore, hw: &Hw<M>, headers: &Headers) {
        let psn = headers.psn;
        match headers.message() {
            Message::ReadRequest(reth) => {
                let known = self.history.has_read(psn, &reth, self.mtu);
                let (pd, qpn, len) = (core.pd, core.qpn.get(), u64::from(reth.len));
                let granted = hw
                    .regions
                    .keys
                    .remote(pd, qpn, reth.rkey, reth.va, len, AccessFlags::REMOTE_READ)
                    .is_ok();
                if known && granted && self.has_room_to_replay(core) {
                    self.replays += 1;
                    self.answer_read(psn, &reth, true);
                }
            }
            Message::CmpSwp(_) | Message::FetchAdd(_) => {
                if let Some(original) = self.history.original(psn)
                    && self.has_room_to_replay(core)
                {
                    self.replays += 1;
                    let msn = self.msn;
                    self.out.push_back(Answer::Atomic { psn, original, msn, replay: true });
                }
            }
            _ => {
                let newest = self.history.newest_without_data(self.epsn);
                if newest.distance(psn) >= 0 {
                    self.say(newest, ACK);
                }
            }
        }
    }

    fn has_room_to_replay(&self, core: &QpCore) -> bool {
        self.replays < u32::from(core.attr.max_dest_rd_atomic)
    }

    // ---- answers ----

    /// The next answer's headers, with the bytes of a READ response already in `buf` behind where
    /// the headers end. An error ends the stream: the region of a READ is gone.
    #[inline(always)] // Answers are written by few, and a call costs as much as what is returned.
    pub(crate) fn next_answer<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        place: u32,
        buf: &mut [u8],
        mut build: impl FnMut(Message, Psn) -> Option<Headers>,
    ) -> Option<(Headers, usize)> {
        match *self.out.front()? {
            Answer::Ack { psn, syndrome, msn } => {
                self.out.pop_front();
                let headers = build(Message::Ack(Aeth { syndrome, msn }), psn)?;
                headers.emit(buf, 0);
                Some((headers, 0))
            }
            Answer::Atomic { psn, original, msn, replay } => {
                self.out.pop_front();
                self.answered(replay);
                let aeth = Aeth { syndrome: ACK, msn };
                let headers = build(Message::AtomicAck(aeth, original), psn)?;
                headers.emit(buf, 0);
                Some((headers, 0))
            }
            Answer::Read { psn, va, rkey, length, sent, msn, replay } => {
                let mtu = self.mtu;
                let len = mtu.min(length - sent);
                let (first, last) = (sent == 0, sent + len == length);
                let at = va.wrapping_add(u64::from(sent));
                let granted = core.place(hw, at, rkey, len, AccessFlags::REMOTE_READ);
                let aeth = Aeth { syndrome: ACK, msn };
                let message = match (first, last) {
                    (true, true) => Message::ReadResponseOnly(aeth),
                    (true, false) => Message::ReadResponseFirst(aeth),
                    (false, false) => Message::ReadResponseMiddle,
                    (false, true) => Message::ReadResponseLast(aeth),
                };
                let packet = psn.wrapping_add(sent / mtu);
                let headers = build(message, packet)?;
                let header_len = headers.emit(buf, len as usize);
                let payload = &mut buf[header_len..header_len + len as usize];
                let filled = granted.and_then(|from| match from {
                    Some(from) => match hw.regions.read(from, payload) {
                        Err(Refused::Later) => {
                            self.fetch(core, hw, place, from, payload, length - sent - len)
                        }
                        read => Ok(read?),
                    },
                    None => Ok(()),
                });
                if let Err(fault) = filled {
                    if fault == Fault::Later {
                        return None;
                    }
                    self.fetching = None;
                    if replay {
                        // Who asked may have had his answer since, and taken the key back or let the
                        // memory go: then he goes on, and so does the stream.
                        self.out.pop_front();
                        self.answered(replay);
                        if fault == Fault::Operation {
                            hw.counters.nak_fatal_sent += 1;
                            self.say(packet, Syndrome::Nak(NakCode::RemoteOperation));
                        }
                        return self.next_answer(core, hw, place, buf, build);
                    }
                    self.out.clear();
                    self.fresh = 0;
                    self.replays = 0;
                    // An access error would say that nothing behind it was executed.
                    let behind = self.epsn.distance(psn) > length.div_ceil(mtu).max(1) as i32;
                    let code = fault.nak().filter(|_| !behind);
                    let code = code.unwrap_or(NakCode::RemoteOperation);
                    self.refuse(core, hw, packet, code);
                    return self.next_answer(core, hw, place, buf, build);
                }
                if last {
                    self.out.pop_front();
                    self.fetching = None;
                    self.answered(replay);
                } else if let Some(Answer::Read { sent, .. }) = self.out.front_mut() {
                    *sent += len;
                }
                Some((headers, len as usize))
            }
        }
    }

    /// Takes a packet of a READ's response from what was read for it, or has that read, with what
    /// follows.
    #[cold]
    fn fetch<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        place: u32,
        from: Place,
        into: &mut [u8],
        ahead: u32,
    ) -> Result<(), Fault> {
        let done = match &mut self.fetching {
            Some(aside) if aside.ready => aside.take_done(),
            Some(_) => return Err(Fault::Later),
            None => Vec::new(),
        };
        hw.regions.desk.lay_out(done);
        hw.regions.desk.expect(ahead);
        let read = hw.regions.read(from, into);
        if read == Err(Refused::Later) {
            self.fetching = Some(hw.put_aside(core.qpn.get(), Part::Answers(place)));
        } else if let (done, Some(aside)) = (hw.regions.desk.clear(), &mut self.fetching) {
            aside.keep(done);
        }
        Ok(read?)
    }

    /// A READ or an atomic was answered to its end.
    fn answered(&mut self, replay: bool) {
        if replay {
            self.replays -= 1;
        } else {
            self.fresh -= 1;
        }
    }

    /// Whether the stream was refused: the QP or the context must go.
    pub(crate) fn is_dead(&self) -> bool {
        self.refused.is_some()
    }
}

/// Checks a packet's payload against its place in the message (IBTA vol. 1, 9.7.4.1.6).
pub(crate) fn check_length(mtu: u32, message: &Message, len: u32) -> Result<(), Fault> {
    let fits = match message {
        Message::SendFirst
        | Message::SendMiddle
        | Message::WriteFirst(_)
        | Message::WriteMiddle => len == mtu,
        Message::SendLast(_) | Message::WriteLast(_) => len >= 1 && len <= mtu,
        Message::SendOnly(_) => len <= mtu,
        Message::WriteOnly(reth, _) => len <= mtu && len == reth.len,
        _ => len == 0,
    };
    if fits { Ok(()) } else { Err(Fault::Length) }
}
