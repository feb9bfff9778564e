//! The server's end of a connection.

use crate::status::{Code, Executed, Status};

use super::fault::Fault;
use super::frame::{
    FLAG_END, FLAG_NOT_EXECUTED, FLAG_STREAM, HEADER_BYTES, Header, MAJOR, NO_DEADLINE,
};
use super::greeting::{Greeting, versions_differ};
use super::kind::{CallId, Kind};
use super::limits::Limits;
use super::outbox::{Outbox, Outlet, Step};
use super::share::{Bound, Held};

/// Capacity that a slot's buffer may keep.
const KEPT_BYTES: usize = 64 << 10;

/// Calls of one connection, as the server has them.
#[derive(Debug)]
pub struct Callee {
    limits: Limits,
    group: (u16, u16),
    /// What the client said of itself, once it has.
    client: Option<Greeting>,
    /// Nothing is taken in any more: it was refused, or broke the rules.
    over: bool,
    slots: Vec<Slot>,
    outbox: Outbox,
    held: Held,
    under_way: usize,
    /// No deadline passes before.
    next_deadline: u64,
    counters: CalleeCounters,
}

/// What a server's end did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CalleeCounters {
    /// Requests that came.
    pub requests: u64,
    /// Those that were handed on.
    pub handed_on: u64,
    /// Those that were answered with success.
    pub succeeded: u64,
    /// Those that were answered with a status.
    pub failed: u64,
    /// Of these, those whose deadline had passed, before they were handed on or after.
    pub expired: u64,
    /// Of these, those that the client cancelled.
    pub cancelled: u64,
    /// Of these, those beyond a limit of bytes.
    pub exhausted: u64,
    /// Answers to calls that had been answered: cancelled, or too late.
    pub answers_dropped: u64,
    /// Frames of calls that had been answered, passed over.
    pub late: u64,
    /// Frames of later versions, passed over.
    pub passed_over: u64,
    /// What the client sent that cannot be.
    pub faults: u64,
}

impl CalleeCounters {
    /// Adds another's.
    pub fn add(&mut self, other: &CalleeCounters) {
        let CalleeCounters { requests, handed_on, succeeded, failed, expired, .. } = *other;
        let CalleeCounters { cancelled, exhausted, answers_dropped, .. } = *other;
        self.requests += requests;
        self.handed_on += handed_on;
        self.succeeded += succeeded;
        self.failed += failed;
        self.expired += expired;
        self.cancelled += cancelled;
        self.exhausted += exhausted;
        self.answers_dropped += answers_dropped;
        self.late += other.late;
        self.passed_over += other.passed_over;
        self.faults += other.faults;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// Its message comes.
    Reading,
    /// It was handed on.
    Running,
    /// Its answer goes.
    Answering,
}

#[derive(Debug, Default)]
struct Slot {
    turn: u32,
    state: State,
    method: u32,
    deadline: u64,
    total: u32,
    /// The request's message, if it came in pieces.
    message: Vec<u8>,
    /// What `held` has of it.
    reserved: u64,
    upload: Option<Upload>,
    /// Bytes of a stream back that went, and that may go.
    streamed: u64,
    allowed: u64,
}

/// A stream from the client.
#[derive(Clone, Copy, Debug)]
struct Upload {
    came: u64,
    allowed: u64,
    ungranted: u64,
    ended: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call, with its whole message.
    Call {
        /// Which.
        call: CallId,
        /// Its method.
        method: u32,
        /// When nobody waits for it any more.
        deadline_us: Option<u64>,
        /// Whether a stream follows.
        uploads: bool,
        /// The message.
        message: &'a [u8],
    },
    /// Bytes of a call's stream.
    Piece {
        /// Which call.
        call: CallId,
        /// The bytes.
        bytes: &'a [u8],
        /// No more will come.
        ends: bool,
    },
    /// A call was cancelled, and has its answer: it may be forgotten.
    Cancelled(CallId),
}

/// How a call is answered.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// With a message of so many bytes.
    Message(usize),
    /// With a status.
    Failed(&'a Status, Executed),
}

impl Callee {
    /// A connection that waits for a hello. A frame has at most `chunk` bytes behind its header; `group`
    /// are the first of the server's ports, and how many there are.
    pub fn new(limits: Limits, chunk: usize, group: (u16, u16)) -> Callee {
        Callee {
            limits,
            group,
            client: None,
            over: false,
            slots: Vec::new(),
            outbox: Outbox::new(chunk),
            held: Held::new(limits.held_bytes),
            under_way: 0,
            next_deadline: NO_DEADLINE,
            counters: CalleeCounters::default(),
        }
    }

    /// Holds what it holds within bounds that others have as well.
    pub fn share(&mut self, common: Vec<Bound>) {
        self.held.share(common);
    }

    /// What it did.
    pub fn counters(&self) -> &CalleeCounters {
        &self.counters
    }

    /// Whether the client has said hello.
    pub fn is_greeted(&self) -> bool {
        self.client.is_some()
    }

    /// Whether nothing more is taken, and what was to be told has gone.
    pub fn is_over(&self) -> bool {
        self.over && self.outbox.is_idle()
    }

    /// Calls that are not answered, or not wholly.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Takes no client.
    pub fn refuse(&mut self, status: &Status) {
        self.over = true;
        let header =
            Header { code: status.code as u8, ..Header::new(Kind::Refused, CallId::default()) };
        self.outbox.greet(header, status.sent_message(self.outbox.chunk()).as_bytes());
    }

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
        let window = u64::from(self.limits.window);
        let upload = Upload { came: 0, allowed: window, ungranted: 0, ended: false };
        slot.upload = (header.flags & FLAG_STREAM != 0).then_some(upload);
        let back = self.client.as_ref().map_or(0, |client| client.window);
        (slot.streamed, slot.allowed) = (0, back.into());
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
        upload.came += u64::from(header.len);
        let (bytes, allowed) = (upload.came, upload.allowed);
        if bytes > allowed || upload.ended {
            return Err(Fault::Credit { bytes, allowed });
        }
        upload.ended = header.flags & FLAG_END != 0;
        Ok(Some(Taken::Piece(header.call, upload.ended)))
    }

    fn credit(&mut self, header: &Header) -> Result<(), Fault> {
        let Some(slot) = self.current(header)? else { return Ok(()) };
        let allowed = slot.allowed.checked_add(header.value);
        slot.allowed = allowed.ok_or(Fault::Field { kind: Kind::Credit })?;
        Ok(())
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

    /// Answers with a status, in its turn.
    fn fail(&mut self, call: CallId, status: &Status, executed: Executed) {
        self.counters.failed += 1;
        self.done(call);
        let message = status.sent_message(self.outbox.chunk()).as_bytes();
        let flags = if executed == Executed::No { FLAG_NOT_EXECUTED } else { 0 };
        let (code, total) = (status.code as u8, message.len() as u32);
        let header = Header { flags, code, total, ..Header::new(Kind::Response, call) };
        self.outbox.forget(call.slot);
        self.outbox.queue(header, |into| into.extend_from_slice(message));
    }

    /// The request is needed no more.
    fn done(&mut self, call: CallId) {
        let slot = &mut self.slots[call.slot as usize];
        slot.state = State::Answering;
        self.held.give_back(std::mem::take(&mut slot.reserved));
        slot.message.clear();
        slot.message.shrink_to(KEPT_BYTES);
    }

    /// Answers a call, with a message that `encode` fills or with a status. False if it has been
    /// answered: it was cancelled, or it was too late.
    ///
    /// # Errors
    /// The outlet's.
    pub fn answer<O: Outlet>(
        &mut self,
        now_us: u64,
        call: CallId,
        reply: Reply<'_>,
        encode: impl FnMut(&mut [u8]),
        outlet: &mut O,
    ) -> Result<bool, O::Error> {
        if !self.is_running(call) {
            self.counters.answers_dropped += 1;
            return Ok(false);
        }
        let len = match reply {
            Reply::Failed(status, executed) => {
                self.fail(call, status, executed);
                return Ok(true);
            }
            Reply::Message(len) => len,
        };
        let max = self.client.as_ref().map_or(0, |client| client.message_max);
        let chunk = self.outbox.chunk();
        let held = if len > chunk { len as u64 } else { 0 };
        let why = if len > max as usize {
            Some(format!("an answer of {len} bytes is longer than the {max} that the client takes"))
        } else {
            let full = self.held.take(held).err();
            full.map(|full| format!("an answer of {len} bytes cannot be held: {full}"))
        };
        if let Some(why) = why {
            self.counters.exhausted += 1;
            let status =
                Status::new(Code::ResourceExhausted, format!("{why}: send it as a stream"));
            self.fail(call, &status, Executed::Maybe);
            return Ok(true);
        }
        self.counters.succeeded += 1;
        self.done(call);
        self.slots[call.slot as usize].reserved = held;
        let header = Header { total: len as u32, ..Header::new(Kind::Response, call) };
        if self.outbox.send(header, now_us, encode, outlet)? {
            self.free(call.slot);
        }
        Ok(true)
    }

    /// Whether a call has been handed on, and not been answered.
    pub fn is_running(&self, call: CallId) -> bool {
        let slot = self.slots.get(call.slot as usize);
        slot.is_some_and(|slot| slot.turn == call.turn && slot.state == State::Running)
    }

    /// Whether all that the call has to send by now has gone.
    pub fn is_sent(&self, call: CallId) -> bool {
        self.outbox.is_sent(call.slot)
    }

    fn free(&mut self, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        slot.state = State::Free;
        self.held.give_back(std::mem::take(&mut slot.reserved));
        self.under_way -= 1;
    }

    /// Bytes of a call's stream were read: as many may come.
    pub fn consumed(&mut self, call: CallId, bytes: usize) {
        if !self.is_running(call) {
            return;
        }
        let window = u64::from(self.limits.window);
        let slot = &mut self.slots[call.slot as usize];
        let Some(upload) = &mut slot.upload else { return };
        upload.ungranted += bytes as u64;
        if upload.ungranted >= window.div_ceil(2) && !upload.ended {
            let bytes = std::mem::take(&mut upload.ungranted);
            upload.allowed += bytes;
            self.outbox.credit(call, bytes);
        }
    }

    /// How many bytes of a stream back may be sent for a call now.
    pub fn stream_room(&self, call: CallId) -> usize {
        if !self.is_running(call) || !self.outbox.is_free(call.slot) {
            return 0;
        }
        let slot = &self.slots[call.slot as usize];
        let allowed = slot.allowed - slot.streamed;
        usize::try_from(allowed).map_or(self.outbox.chunk(), |most| most.min(self.outbox.chunk()))
    }

    /// Sends bytes of a stream back, no more than [`Callee::stream_room`]: `fill` adds them to an empty
    /// buffer.
    pub fn stream_back(&mut self, call: CallId, fill: impl FnOnce(&mut Vec<u8>)) {
        let room = self.stream_room(call);
        let mut len = 0;
        self.outbox.queue(Header::new(Kind::Stream, call), |into| {
            fill(into);
            len = into.len();
        });
        assert!(len <= room, "a stream keeps to its room");
        self.slots[call.slot as usize].streamed += len as u64;
    }

    /// Answers calls whose deadline has passed, and tells of those that were handed on.
    pub fn handle_time(&mut self, now_us: u64, mut expired: impl FnMut(CallId)) {
        if now_us < self.next_deadline {
            return;
        }
        let mut next = NO_DEADLINE;
        for slot in 0..self.slots.len() as u32 {
            let at = &self.slots[slot as usize];
            if !matches!(at.state, State::Reading | State::Running) {
                continue;
            }
            if at.deadline > now_us {
                next = next.min(at.deadline);
                continue;
            }
            let (call, was_running) = (CallId { slot, turn: at.turn }, at.state == State::Running);
            self.counters.expired += 1;
            let why = "the deadline passed before there was an answer";
            let executed = if was_running { Executed::Maybe } else { Executed::No };
            self.fail(call, &Status::new(Code::DeadlineExceeded, why), executed);
            if was_running {
                expired(call);
            }
        }
        self.next_deadline = next;
    }

    /// When [`Callee::handle_time`] has something to do, at the earliest.
    pub fn next_deadline(&self) -> Option<u64> {
        Some(self.next_deadline).filter(|deadline| *deadline != NO_DEADLINE)
    }

    /// Sends what there is to send, as far as there is room; false if there is none for all of it.
    ///
    /// # Errors
    /// The outlet's.
    pub fn transmit<O: Outlet>(&mut self, now_us: u64, outlet: &mut O) -> Result<bool, O::Error> {
        loop {
            match self.outbox.step(now_us, outlet)? {
                Step::Idle => return Ok(true),
                Step::Full => return Ok(false),
                Step::Sent(slot, Some(Kind::Response)) => self.free(slot),
                Step::Sent(..) => {}
            }
        }
    }
}

/// What a frame led to.
enum Taken {
    /// A call; whether its message is the frame's.
    Call(CallId, bool),
    Piece(CallId, bool),
    Cancelled(CallId),
}
