//! What comes from the client.

use super::Callee;
use super::event::Event;
use super::slot::{Slot, State};
use crate::protocol::fault::Fault;
use crate::protocol::flow::{Inflow, Outflow};
use crate::protocol::frame::{FLAG_END, FLAG_STREAM, HEADER_BYTES, Header, MAJOR, NO_DEADLINE};
use crate::protocol::greeting::{Greeting, versions_differ};
use crate::protocol::kind::{CallId, Kind};
use crate::protocol::limits::Limits;
use crate::status::{Code, Executed, Status};

/// What a frame led to.
enum Taken {
    /// A call; whether its message is the frame's.
    Call(CallId, bool),
    Piece(CallId, bool),
    Cancelled(CallId),
}

impl Callee {
    /// Takes a frame in.
    ///
    /// # Errors
    /// [`Fault`]: the connection is over.
    pub fn handle<'a>(
        &'a mut self,
        now_us: u64,
        frame: &'a [u8],
    ) -> Result<Option<Event<'a>>, Fault> {
        if self.over {
            return Ok(None);
        }
        match self.take(now_us, frame) {
            Ok(taken) => Ok(taken.map(|taken| self.event(taken, frame))),
            Err(fault) => {
                self.counters.faults += 1;
                self.over = true;
                Err(fault)
            }
        }
    }

    fn take(&mut self, now_us: u64, frame: &[u8]) -> Result<Option<Taken>, Fault> {
        if self.client.is_none() && frame.len() >= HEADER_BYTES && frame[0] != MAJOR {
            // Of another version: what its greeting begins with is the same in all of them.
            let version = frame[0];
            if frame[1] != Kind::Hello as u8 {
                return Err(Fault::Version { version });
            }
            self.refuse_version(&frame[HEADER_BYTES..])?;
            return Ok(None);
        }
        let Some(header) = Header::decode(frame)? else {
            self.counters.passed_over += 1;
            return Ok(None);
        };
        let body = &frame[HEADER_BYTES..];
        let unexpected = Fault::Unexpected { kind: header.kind };
        match (header.kind, &self.client) {
            (Kind::Hello, None) => self.hello(body).map(|()| None),
            (_, None) => Err(unexpected),
            (Kind::Request, Some(_)) => self.request(now_us, &header, body),
            (Kind::Piece, Some(_)) => self.piece(now_us, &header, body),
            (Kind::Stream, Some(_)) => self.stream(&header),
            (Kind::Credit, Some(_)) => self.credit(&header).map(|()| None),
            (Kind::Cancel, Some(_)) => self.cancelled(&header),
            _ => Err(unexpected),
        }
    }

    fn event<'a>(&'a self, taken: Taken, frame: &'a [u8]) -> Event<'a> {
        let body = &frame[HEADER_BYTES..];
        match taken {
            Taken::Call(call, is_whole) => {
                let slot = &self.slots[call.slot as usize];
                Event::Call {
                    call,
                    method: slot.method,
                    deadline_us: Some(slot.deadline).filter(|deadline| *deadline != NO_DEADLINE),
                    uploads: slot.upload.is_some(),
                    message: if is_whole { body } else { &slot.message },
                }
            }
            Taken::Piece(call, ends) => Event::Piece { call, bytes: body, ends },
            Taken::Cancelled(call) => Event::Cancelled(call),
        }
    }

    fn hello(&mut self, body: &[u8]) -> Result<(), Fault> {
        if Greeting::version_of(body)?.0 != u16::from(MAJOR) {
            return self.refuse_version(body);
        }
        self.client = Some(Greeting::decode(body)?);
        let Limits { calls, message_bytes, window, .. } = self.limits;
        self.slots.resize_with(calls as usize, Slot::default);
        self.outbox.set_slots(calls);
        let welcome = Greeting { group: self.group, ..Greeting::new(window, message_bytes, calls) };
        self.outbox.greet(Header::new(Kind::Welcome, CallId::default()), &welcome.encode());
        Ok(())
    }

    fn refuse_version(&mut self, body: &[u8]) -> Result<(), Fault> {
        let theirs = Greeting::version_of(body)?;
        let why = versions_differ(theirs, Greeting::new(0, 0, 0).version);
        self.refuse(&Status::new(Code::FailedPrecondition, why));
        Ok(())
    }

    fn request(
        &mut self,
        now_us: u64,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Taken>, Fault> {
        let (call, slots) = (header.call, self.slots.len() as u32);
        let out_of_range = Fault::Slot { slot: call.slot, slots };
        let slot = self.slots.get_mut(call.slot as usize).ok_or(out_of_range)?;
        // Turns of calls that the client gave up before it sent them are left out.
        let is_later = (1..1 << 31).contains(&call.turn.wrapping_sub(slot.turn));
        if slot.state != State::Free || !is_later || call.turn == 0 {
            return Err(Fault::Turn { call, turn: slot.turn });
        }
        self.counters.requests += 1;
        self.under_way += 1;
        let is_whole = header.len == header.total;
        (slot.turn, slot.state) = (call.turn, State::Reading);
        (slot.method, slot.total) = (header.method, header.total);
        slot.deadline = match header.value {
            NO_DEADLINE => NO_DEADLINE,
            left => now_us.saturating_add(left),
        };
        let upload = Inflow::new(self.limits.window);
        slot.upload = (header.flags & FLAG_STREAM != 0).then_some(upload);
        slot.back = Outflow::new(self.client.as_ref().map_or(0, |client| client.window));
        self.next_deadline = self.next_deadline.min(slot.deadline);

        let total = u64::from(header.total);
        if header.value == 0 {
            return self.too_late(call);
        }
        let max = self.limits.message_bytes;
        if header.total > max {
            self.counters.exhausted += 1;
            let why = format!("a request of {total} bytes is longer than the {max} that are taken");
            self.answer_unheard(call, &Status::new(Code::ResourceExhausted, why));
            return Ok(None);
        }
        if is_whole {
            self.hand_on(call);
            return Ok(Some(Taken::Call(call, true)));
        }
        if let Err(full) = self.held.take(total) {
            self.counters.exhausted += 1;
            self.answer_unheard(call, &Status::new(Code::ResourceExhausted, full.to_string()));
            return Ok(None);
        }
        let slot = &mut self.slots[call.slot as usize];
        slot.reserved = total;
        slot.message.extend_from_slice(body);
        Ok(None)
    }

    fn hand_on(&mut self, call: CallId) {
        self.slots[call.slot as usize].state = State::Running;
        self.counters.handed_on += 1;
    }

    fn too_late(&mut self, call: CallId) -> Result<Option<Taken>, Fault> {
        self.counters.expired += 1;
        let why = "the deadline had passed before the call was begun";
        self.answer_unheard(call, &Status::new(Code::DeadlineExceeded, why));
        Ok(None)
    }

    /// The slot of a call; none if it has been answered.
    fn current(&mut self, header: &Header) -> Result<Option<&mut Slot>, Fault> {
        let CallId { slot, turn } = header.call;
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        let at = self.slots.get_mut(slot as usize).ok_or(no_call)?;
        // Before its first turn a slot has none.
        if at.turn != turn || turn == 0 && at.state == State::Free {
            return Err(no_call);
        }
        if matches!(at.state, State::Free | State::Answering) {
            self.counters.late += 1;
            return Ok(None);
        }
        Ok(Some(at))
    }

    fn piece(&mut self, now_us: u64, header: &Header, body: &[u8]) -> Result<Option<Taken>, Fault> {
        let Some(slot) = self.current(header)? else { return Ok(None) };
        let bytes = slot.message.len() as u64 + body.len() as u64;
        if slot.state != State::Reading || bytes > u64::from(slot.total) {
            return Err(Fault::TooMuch { total: slot.total, bytes });
        }
        slot.message.extend_from_slice(body);
        if bytes < u64::from(slot.total) {
            return Ok(None);
        }
        if slot.deadline <= now_us {
            return self.too_late(header.call);
        }
        self.hand_on(header.call);
        Ok(Some(Taken::Call(header.call, false)))
    }

    fn stream(&mut self, header: &Header) -> Result<Option<Taken>, Fault> {
        let Some(slot) = self.current(header)? else { return Ok(None) };
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        let is_running = slot.state == State::Running;
        let upload = slot.upload.as_mut().filter(|_| is_running).ok_or(no_call)?;
        let ends = header.flags & FLAG_END != 0;
        upload.take(header.len, ends)?;
        Ok(Some(Taken::Piece(header.call, ends)))
    }

    fn credit(&mut self, header: &Header) -> Result<(), Fault> {
        let Some(slot) = self.current(header)? else { return Ok(()) };
        slot.back.grant(header.value)
    }

    fn cancelled(&mut self, header: &Header) -> Result<Option<Taken>, Fault> {
        let call = header.call;
        let Some(slot) = self.current(header)? else { return Ok(None) };
        let was_running = slot.state == State::Running;
        self.counters.cancelled += 1;
        let status = Status::new(Code::Cancelled, "the client cancelled it");
        if was_running {
            self.fail(call, &status, Executed::Maybe);
            return Ok(Some(Taken::Cancelled(call)));
        }
        self.answer_unheard(call, &status);
        Ok(None)
    }

    fn answer_unheard(&mut self, call: CallId, status: &Status) {
        self.fail(call, status, Executed::No);
    }
}
