//! The responder: one ordered stream of requests from one initiator (IBTA vol. 1, 9.7.4 and 9.7.5).
//!
//! An RC QP has one; a DCT has one for each initiator that is connected to it. It executes each
//! request once, acknowledges, answers READs packet by packet as they can be sent, and keeps what
//! a duplicate READ or atomic needs. UC, which only consumes, is in [`crate::unreliable`].

use alloc::collections::VecDeque;

use elver_verbs::{AccessFlags, AsyncEvent, Memory, Qp, Wc, WcFlags, WcOpcode, WcStatus};
use elver_wire::{
    Aeth, AtomicEth, Credits, Headers, Message, Msn, NakCode, Psn, Reth, RnrTimer, Syndrome, Tail,
};

use crate::hw::Hw;
use crate::qp::QpCore;
use crate::recv_queue::Recv;
use crate::regions::Place;

/// The acknowledgement that grants no credits because it counts none (IBTA vol. 1, 9.7.7.2.1).
const ACK: Syndrome = Syndrome::Ack(Credits::UNCOUNTED);

#[derive(Debug)]
pub(crate) struct Responder {
    /// Expected PSN.
    epsn: Psn,
    /// Path MTU in bytes.
    mtu: u32,
    /// Messages completed.
    msn: Msn,
    message: Incoming,
    recv: Recv,
    /// A NAK went out for the expected PSN: what comes beyond it is dropped until it arrives.
    nak_sent: bool,
    /// READs and atomics executed last, for duplicates; bounded by `max_dest_rd_atomic`.
    executed: VecDeque<Executed>,
    /// Answers to send, in order.
    out: VecDeque<Answer>,
    /// READs and atomics among the answers that were not asked for before.
    fresh: u32,
    /// Those that answer a duplicate.
    replays: u32,
    /// A request was refused: nothing more is executed.
    dead: bool,
}

/// The message that is arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    None,
    /// A SEND; so many bytes are in the receive.
    Send {
        received: u32,
    },
    /// A WRITE.
    Write {
        va: u64,
        rkey: u32,
        remaining: u32,
        length: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum Executed {
    Read { first: Psn, packets: u32, va: u64, length: u32 },
    Atomic { psn: Psn, original: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ack { psn: Psn, syndrome: Syndrome, msn: Msn },
    Read { psn: Psn, va: u64, rkey: u32, length: u32, sent: u32, msn: Msn, replay: bool },
    Atomic { psn: Psn, original: u64, msn: Msn, replay: bool },
}

// What a stranger can make a responder hold is bounded by these and by the agreed READs.
const _: () = assert!(size_of::<Executed>() <= 24 && size_of::<Answer>() <= 56);

/// What a request led to, for the QP or the DCT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Fine,
    /// The request was refused and the stream is dead.
    Fatal(NakCode),
}

/// A request that cannot be executed.
enum Fault {
    Nak(NakCode),
    NotReady,
}

impl From<NakCode> for Fault {
    fn from(code: NakCode) -> Fault {
        Fault::Nak(code)
    }
}

impl Responder {
    pub(crate) fn new(epsn: Psn, mtu: u32) -> Responder {
        Responder {
            epsn,
            mtu,
            msn: Msn::default(),
            message: Incoming::None,
            recv: Recv::default(),
            nak_sent: false,
            executed: VecDeque::new(),
            out: VecDeque::new(),
            fresh: 0,
            replays: 0,
            dead: false,
        }
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.out.is_empty()
    }

    /// Whether a SEND has begun and not ended; its receive is taken.
    pub(crate) fn holds_receive(&self) -> bool {
        matches!(self.message, Incoming::Send { .. })
    }

    /// Gives back the receive of a SEND that will never end.
    pub(crate) fn take_receive(&mut self) -> Option<&Recv> {
        if !self.holds_receive() {
            return None;
        }
        self.message = Incoming::None;
        Some(&self.recv)
    }

    /// Executes a request.
    pub(crate) fn request<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        source: u32,
        headers: &Headers,
        payload: &[u8],
    ) -> Handled {
        if self.dead {
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
            Err(Fault::NotReady) => {
                self.nak_sent = true;
                hw.counters.rnr_nak_sent += 1;
                let timer = RnrTimer::new(core.attr.min_rnr_timer);
                self.say(psn, Syndrome::RnrNak(timer.unwrap_or_else(|| RnrTimer::at_least_ns(0))));
                Handled::Fine
            }
            Err(Fault::Nak(code)) => {
                self.refuse(core, hw, psn, code);
                Handled::Fatal(code)
            }
        }
    }

    fn refuse<M: Memory>(&mut self, core: &QpCore, hw: &mut Hw<M>, psn: Psn, code: NakCode) {
        self.dead = true;
        hw.counters.nak_fatal_sent += 1;
        self.say(psn, Syndrome::Nak(code));
        let qp = Qp(core.qpn.get());
        hw.event(match code {
            NakCode::RemoteAccess => AsyncEvent::QpAccessErr(qp),
            _ => AsyncEvent::QpReqErr(qp),
        });
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
        if begins != (self.message == Incoming::None) {
            return Err(NakCode::InvalidRequest.into());
        }
        check_length(self.mtu, &message, payload.len() as u32)?;
        let mut psns = 1;
        match message {
            Message::SendFirst => self.send(core, hw, payload, None)?,
            Message::SendMiddle => self.send(core, hw, payload, None)?,
            Message::SendLast(tail) | Message::SendOnly(tail) => {
                let end = SendEnd { tail, solicited: headers.solicited, source };
                self.send(core, hw, payload, Some(end))?;
            }
            Message::WriteFirst(reth) => {
                self.begin_write(core, hw, &reth)?;
                self.write(core, hw, payload, false)?;
            }
            Message::WriteMiddle => self.write(core, hw, payload, false)?,
            Message::WriteOnly(reth, imm) => {
                self.begin_write(core, hw, &reth)?;
                let end = imm.map(|imm| (imm, headers.solicited, source));
                if let Err(fault) = self.end_write(core, hw, payload, end) {
                    self.message = Incoming::None;
                    return Err(fault);
                }
            }
            Message::WriteLast(imm) => {
                let end = imm.map(|imm| (imm, headers.solicited, source));
                self.end_write(core, hw, payload, end)?;
            }
            Message::ReadRequest(reth) => psns = self.read(core, hw, headers.psn, &reth)?,
            Message::CmpSwp(eth) => {
                let at = self.atomic(core, hw, &eth)?;
                let original = hw.regions.compare_swap(at, eth.compare, eth.swap_or_add);
                self.executed_atomic(core, headers.psn, original)?;
            }
            Message::FetchAdd(eth) => {
                let at = self.atomic(core, hw, &eth)?;
                let original = hw.regions.fetch_add(at, eth.swap_or_add);
                self.executed_atomic(core, headers.psn, original)?;
            }
            _ => return Err(NakCode::InvalidRequest.into()),
        }
        self.epsn = self.epsn.wrapping_add(psns);
        let answered =
            matches!(message, Message::ReadRequest(_) | Message::CmpSwp(_) | Message::FetchAdd(_));
        if headers.ack_req && !answered {
            self.say(headers.psn, ACK);
        }
        Ok(())
    }

    /// Queues an acknowledgement of either kind. It takes the place of one that still waits: each
    /// says all that those before it said, so the answers that wait stay bounded.
    fn say(&mut self, psn: Psn, syndrome: Syndrome) {
        let answer = Answer::Ack { psn, syndrome, msn: self.msn };
        match self.out.back_mut() {
            Some(last @ Answer::Ack { .. }) => *last = answer,
            _ => self.out.push_back(answer),
        }
    }

    fn next_message(&mut self) {
        self.msn = self.msn.next();
        self.message = Incoming::None;
    }

    // ---- SEND ----

    fn send<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        payload: &[u8],
        end: Option<SendEnd>,
    ) -> Result<(), Fault> {
        let received = match self.message {
            Incoming::None => {
                if !core.take_receive(hw, &mut self.recv) {
                    return Err(Fault::NotReady);
                }
                0
            }
            Incoming::Send { received } => received,
            Incoming::Write { .. } => return Err(NakCode::InvalidRequest.into()),
        };
        let total = received + payload.len() as u32;
        if u64::from(total) > self.recv.capacity {
            self.fail_receive(core, hw, WcStatus::LocLenErr);
            return Err(NakCode::InvalidRequest.into());
        }
        if hw.regions.scatter(core.pd, &self.recv.sges, received, payload).is_err() {
            self.fail_receive(core, hw, WcStatus::LocProtErr);
            return Err(NakCode::RemoteOperation.into());
        }
        let Some(end) = end else {
            self.message = Incoming::Send { received: total };
            return Ok(());
        };
        if let Tail::Inv(rkey) = end.tail
            && hw.regions.invalidate(core.pd, core.qpn.get(), rkey).is_err()
        {
            self.fail_receive(core, hw, WcStatus::LocAccessErr);
            return Err(NakCode::RemoteAccess.into());
        }
        let (flags, imm_data) = match end.tail {
            Tail::Plain => (WcFlags::empty(), 0),
            Tail::Imm(imm) => (WcFlags::WITH_IMM, imm),
            Tail::Inv(rkey) => (WcFlags::WITH_INV, rkey),
        };
        let wc = Wc {
            wr_id: self.recv.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            flags,
            byte_len: total,
            imm_data,
            qp_num: core.qpn.get(),
            src_qp: end.source,
            vendor_err: 0,
        };
        hw.complete(core.init.recv_cq.0, wc, end.solicited);
        self.next_message();
        Ok(())
    }

    fn fail_receive<M: Memory>(&mut self, core: &QpCore, hw: &mut Hw<M>, status: WcStatus) {
        let (cq, qpn) = (core.init.recv_cq.0, core.qpn.get());
        hw.complete_failed(cq, qpn, self.recv.wr_id, WcOpcode::Recv, status);
        self.message = Incoming::None;
    }

    // ---- WRITE ----

    fn begin_write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        reth: &Reth,
    ) -> Result<(), Fault> {
        if !core.attr.qp_access_flags.contains(AccessFlags::REMOTE_WRITE) {
            return Err(NakCode::RemoteAccess.into());
        }
        let (qpn, len) = (core.qpn.get(), u64::from(reth.len));
        hw.regions
            .remote(core.pd, qpn, reth.rkey, reth.va, len, AccessFlags::REMOTE_WRITE)
            .map_err(|_| NakCode::RemoteAccess)?;
        self.message =
            Incoming::Write { va: reth.va, rkey: reth.rkey, remaining: reth.len, length: reth.len };
        Ok(())
    }

    fn write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        payload: &[u8],
        last: bool,
    ) -> Result<(), Fault> {
        let Incoming::Write { va, rkey, remaining, length } = self.message else {
            return Err(NakCode::InvalidRequest.into());
        };
        let len = payload.len() as u32;
        if len > remaining || (last != (len == remaining)) {
            return Err(NakCode::InvalidRequest.into());
        }
        let place = hw
            .regions
            .remote(core.pd, core.qpn.get(), rkey, va, u64::from(len), AccessFlags::REMOTE_WRITE)
            .map_err(|_| NakCode::RemoteAccess)?;
        if let Some(place) = place {
            hw.regions.write(place, payload).map_err(|_| NakCode::RemoteOperation)?;
        }
        if last {
            self.next_message();
        } else {
            let va = va.wrapping_add(u64::from(len));
            self.message = Incoming::Write { va, rkey, remaining: remaining - len, length };
        }
        Ok(())
    }

    /// Writes the last packet of a message. With immediate data it needs a receive, before anything
    /// is written.
    fn end_write<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        payload: &[u8],
        imm: Option<(u32, bool, u32)>,
    ) -> Result<(), Fault> {
        let Incoming::Write { remaining, length, .. } = self.message else {
            return Err(NakCode::InvalidRequest.into());
        };
        if payload.len() as u32 != remaining {
            return Err(NakCode::InvalidRequest.into());
        }
        let Some((imm_data, solicited, source)) = imm else {
            return self.write(core, hw, payload, true);
        };
        if !core.take_receive(hw, &mut self.recv) {
            return Err(Fault::NotReady);
        }
        if let Err(fault) = self.write(core, hw, payload, true) {
            self.fail_receive(core, hw, WcStatus::LocAccessErr);
            return Err(fault);
        }
        let wc = Wc {
            wr_id: self.recv.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::RecvRdmaWithImm,
            flags: WcFlags::WITH_IMM,
            byte_len: length,
            imm_data,
            qp_num: core.qpn.get(),
            src_qp: source,
            vendor_err: 0,
        };
        hw.complete(core.init.recv_cq.0, wc, solicited);
        Ok(())
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
        self.check_outstanding(core)?;
        if !core.attr.qp_access_flags.contains(AccessFlags::REMOTE_READ) {
            return Err(NakCode::RemoteAccess.into());
        }
        if reth.len > core.max_message {
            return Err(NakCode::InvalidRequest.into());
        }
        let (qpn, len) = (core.qpn.get(), u64::from(reth.len));
        hw.regions
            .remote(core.pd, qpn, reth.rkey, reth.va, len, AccessFlags::REMOTE_READ)
            .map_err(|_| NakCode::RemoteAccess)?;
        let packets = reth.len.div_ceil(self.mtu).max(1);
        self.next_message();
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
        eth: &AtomicEth,
    ) -> Result<Place, Fault> {
        self.check_outstanding(core)?;
        if !core.attr.qp_access_flags.contains(AccessFlags::REMOTE_ATOMIC) {
            return Err(NakCode::RemoteAccess.into());
        }
        if !eth.va.is_multiple_of(8) {
            return Err(NakCode::InvalidRequest.into());
        }
        let place = hw
            .regions
            .remote(core.pd, core.qpn.get(), eth.rkey, eth.va, 8, AccessFlags::REMOTE_ATOMIC)
            .map_err(|_| NakCode::RemoteAccess)?;
        place.ok_or(NakCode::RemoteAccess.into())
    }

    fn executed_atomic(
        &mut self,
        core: &QpCore,
        psn: Psn,
        original: Result<u64, crate::regions::Refused>,
    ) -> Result<(), Fault> {
        let original = original.map_err(|_| NakCode::RemoteOperation)?;
        self.next_message();
        self.remember(core, Executed::Atomic { psn, original });
        self.fresh += 1;
        self.out.push_back(Answer::Atomic { psn, original, msn: self.msn, replay: false });
        Ok(())
    }

    /// An initiator that has more READs and atomics outstanding than was agreed is refused.
    fn check_outstanding(&self, core: &QpCore) -> Result<(), Fault> {
        if self.fresh >= u32::from(core.attr.max_dest_rd_atomic) {
            return Err(NakCode::InvalidRequest.into());
        }
        Ok(())
    }

    fn remember(&mut self, core: &QpCore, executed: Executed) {
        if self.executed.len() >= usize::from(core.attr.max_dest_rd_atomic) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }

    // ---- duplicates ----

    /// Answers a request that was executed before (IBTA vol. 1, 9.7.5.1.4), without executing it
    /// again: a SEND or WRITE is acknowledged, a READ reads again, an atomic gives what it gave.
    fn duplicate<M: Memory>(&mut self, core: &QpCore, hw: &Hw<M>, headers: &Headers) {
        let psn = headers.psn;
        match headers.message() {
            Message::ReadRequest(reth) => {
                let mtu = self.mtu;
                let known = self.executed.iter().any(|executed| match *executed {
                    Executed::Read { first, packets, va, length } => {
                        let at = psn.distance(first);
                        let offset = (at.max(0) as u32).saturating_mul(mtu);
                        at >= 0
                            && (at as u32) < packets
                            && reth.va == va.wrapping_add(u64::from(offset))
                            && reth.len <= length - offset
                    }
                    Executed::Atomic { .. } => false,
                });
                let (pd, qpn, len) = (core.pd, core.qpn.get(), u64::from(reth.len));
                let granted = hw
                    .regions
                    .remote(pd, qpn, reth.rkey, reth.va, len, AccessFlags::REMOTE_READ)
                    .is_ok();
                if known && granted && self.has_room_to_replay(core) {
                    self.replays += 1;
                    self.answer_read(psn, &reth, true);
                }
            }
            Message::CmpSwp(_) | Message::FetchAdd(_) => {
                let original = self.executed.iter().find_map(|executed| match *executed {
                    Executed::Atomic { psn: at, original } if at == psn => Some(original),
                    _ => None,
                });
                if let Some(original) = original
                    && self.has_room_to_replay(core)
                {
                    self.replays += 1;
                    let msn = self.msn;
                    self.out.push_back(Answer::Atomic { psn, original, msn, replay: true });
                }
            }
            _ => {
                let newest = self.epsn.wrapping_sub(1);
                if !self.covers_data(newest) {
                    self.say(newest, ACK);
                }
            }
        }
    }

    fn has_room_to_replay(&self, core: &QpCore) -> bool {
        self.replays < u32::from(core.attr.max_dest_rd_atomic)
    }

    /// Whether an acknowledgement of `psn` would name a READ or an atomic, whose response may be
    /// lost and which only its data acknowledges.
    fn covers_data(&self, psn: Psn) -> bool {
        self.executed.back().is_some_and(|executed| match *executed {
            Executed::Read { first, packets, .. } => first.wrapping_add(packets - 1) == psn,
            Executed::Atomic { psn: at, .. } => at == psn,
        })
    }

    // ---- answers ----

    /// The next answer's headers, with the bytes of a READ response already in `buf` behind where
    /// `place` says the payload begins. An error ends the stream: the region of a READ is gone.
    pub(crate) fn next_answer<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
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
                let access = AccessFlags::REMOTE_READ;
                let granted =
                    hw.regions.remote(core.pd, core.qpn.get(), rkey, at, u64::from(len), access);
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
                let filled = match granted {
                    Ok(Some(place)) => hw.regions.read(place, payload).is_ok(),
                    Ok(None) => true,
                    Err(_) => false,
                };
                if !filled {
                    self.out.clear();
                    self.fresh = 0;
                    self.replays = 0;
                    self.refuse(core, hw, packet, NakCode::RemoteAccess);
                    return self.next_answer(core, hw, buf, build);
                }
                if last {
                    self.out.pop_front();
                    self.answered(replay);
                } else if let Some(Answer::Read { sent, .. }) = self.out.front_mut() {
                    *sent += len;
                }
                Some((headers, len as usize))
            }
        }
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
        self.dead
    }
}

struct SendEnd {
    tail: Tail,
    solicited: bool,
    source: u32,
}

/// Checks a packet's payload against its place in the message (IBTA vol. 1, 9.7.4.1.6).
pub(crate) fn check_length(mtu: u32, message: &Message, len: u32) -> Result<(), NakCode> {
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
    if fits { Ok(()) } else { Err(NakCode::InvalidRequest) }
}
