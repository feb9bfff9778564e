//! The client's end of a connection.

mod arrivals;
mod slot;

use crate::status::{Code, Executed, Status};

pub use self::slot::Outcome;
use self::slot::{Download, Slot, Upload};
use super::flow::Outflow;
use super::frame::{FLAG_END, FLAG_STREAM, Header, NO_DEADLINE};
use super::greeting::Greeting;
use super::kind::{CallId, Kind};
use super::limits::Limits;
use super::outbox::{Outbox, Outlet, Step};

/// Capacity that a slot's buffer may keep.
const KEPT_BYTES: usize = 64 << 10;

/// Calls of one connection, as the client has them.
#[derive(Debug)]
pub struct Caller {
    limits: Limits,
    /// What the server said, once it has.
    server: Option<Greeting>,
    /// Why it is over.
    over: Option<Status>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    outbox: Outbox,
    held_bytes: u64,
    /// No deadline passes before.
    next_deadline: u64,
    counters: CallerCounters,
}

/// What a client's end did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerCounters {
    /// Calls that began.
    pub begun: u64,
    /// Calls that the server answered with success, in time.
    pub succeeded: u64,
    /// Calls that ended otherwise.
    pub failed: u64,
    /// Of these, those whose deadline passed here.
    pub expired: u64,
    /// Of these, those that this end cancelled.
    pub cancelled: u64,
    /// Answers that came when nobody waited any more.
    pub late: u64,
    /// Calls that were refused before anything was sent: too long, too many, too late.
    pub refused: u64,
    /// Answers that were too long for this end.
    pub too_long: u64,
    /// Frames of later versions, passed over.
    pub passed_over: u64,
    /// What the server sent that cannot be.
    pub faults: u64,
}

/// What a call is to be.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Its method.
    pub method: u32,
    /// When it is given up.
    pub deadline_us: Option<u64>,
    /// Bytes of its message.
    pub len: usize,
    /// A stream follows.
    pub uploads: bool,
    /// A stream may come back.
    pub downloads: bool,
}

impl Caller {
    /// A connection that says hello. A frame has at most `chunk` bytes behind its header.
    pub fn new(limits: Limits, chunk: usize) -> Caller {
        let mut outbox = Outbox::new(chunk);
        let hello = Greeting::new(limits.window, limits.message_bytes, 0);
        outbox.greet(Header::new(Kind::Hello, CallId::default()), &hello.encode());
        Caller {
            limits,
            server: None,
            over: None,
            slots: Vec::new(),
            free: Vec::new(),
            outbox,
            held_bytes: 0,
            next_deadline: NO_DEADLINE,
            counters: CallerCounters::default(),
        }
    }

    /// What the server said of itself, once it has.
    pub fn server(&self) -> Option<&Greeting> {
        self.server.as_ref()
    }

    /// What it did.
    pub fn counters(&self) -> &CallerCounters {
        &self.counters
    }

    /// Calls that are under way at the server.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Why no more calls are possible, if so.
    pub fn over(&self) -> Option<&Status> {
        self.over.as_ref()
    }

    /// Begins a call; `encode` fills its message.
    ///
    /// # Errors
    /// Inside, why it was not begun; outside, the outlet's.
    pub fn begin<O: Outlet>(
        &mut self,
        now_us: u64,
        call: Begun,
        encode: impl FnMut(&mut [u8]),
        outlet: &mut O,
    ) -> Result<Result<CallId, Status>, O::Error> {
        let slot = match self.admit(now_us, &call) {
            Ok(slot) => slot,
            Err(status) => {
                self.counters.refused += 1;
                return Ok(Err(status));
            }
        };
        let window = self.server.as_ref().map_or(0, |server| server.window);
        let at = &mut self.slots[slot as usize];
        // No call has turn 0, which slots have that were never used.
        at.turn = at.turn.wrapping_add(1).max(1);
        (at.owed, at.held, at.taken) = (true, true, true);
        (at.outcome, at.total, at.came) = (None, None, 0);
        at.deadline = call.deadline_us.unwrap_or(NO_DEADLINE);
        at.upload = call.uploads.then_some(Upload { flow: Outflow::new(window), ended: false });
        at.download = Some(Download::new(call.downloads, self.limits.window));
        self.next_deadline = self.next_deadline.min(at.deadline);
        self.counters.begun += 1;
        let id = CallId { slot, turn: at.turn };
        let flags = if call.uploads { FLAG_STREAM } else { 0 };
        let (method, value, total) = (call.method, at.deadline, call.len as u32);
        let header = Header { flags, method, value, total, ..Header::new(Kind::Request, id) };
        self.outbox.send(header, now_us, encode, outlet)?;
        Ok(Ok(id))
    }

    fn admit(&mut self, now_us: u64, call: &Begun) -> Result<u32, Status> {
        if let Some(status) = &self.over {
            return Err(status.clone());
        }
        let Some(server) = &self.server else {
            return Err(Status::new(Code::Unavailable, "the server has not answered yet"));
        };
        let (len, max) = (call.len, server.message_max);
        if len > max as usize {
            let why = format!(
                "a request of {len} bytes is longer than the {max} that the server takes: send it as a stream"
            );
            return Err(Status::new(Code::ResourceExhausted, why));
        }
        if call.deadline_us.is_some_and(|deadline| deadline <= now_us) {
            let why = "the deadline had passed before the call began";
            return Err(Status::new(Code::DeadlineExceeded, why));
        }
        self.free.pop().ok_or_else(|| {
            let why = format!(
                "{} calls are under way, as many as the server takes: wait for one of them",
                self.slots.len()
            );
            Status::new(Code::ResourceExhausted, why)
        })
    }

    /// The server has answered; whoever gave up before has his outcome already.
    pub(super) fn ended(&mut self, call: CallId, outcome: Outcome) {
        let slot = &mut self.slots[call.slot as usize];
        slot.owed = false;
        self.outbox.forget(call.slot);
        if slot.outcome.is_some() || !slot.held {
            self.counters.late += 1;
        } else {
            match outcome {
                Outcome::Answered => self.counters.succeeded += 1,
                Outcome::Failed(..) => self.counters.failed += 1,
            }
            slot.outcome = Some(outcome);
        }
        self.release(call.slot);
    }

    /// This end waits no longer for an answer.
    pub(super) fn give_up(&mut self, call: CallId, status: Status) {
        let slot = &mut self.slots[call.slot as usize];
        if !slot.owed || slot.outcome.is_some() {
            return;
        }
        let mut executed = Executed::Maybe;
        if self.outbox.is_unasked(call.slot) {
            slot.owed = false;
            executed = Executed::No;
            self.outbox.forget(call.slot);
        } else {
            self.outbox.withdraw(call.slot);
            self.outbox.cancel(call);
        }
        self.counters.failed += 1;
        slot.outcome = Some(Outcome::Failed(status, executed));
        self.release(call.slot);
    }

    /// Gives back what a slot does not need, and the slot itself when nobody does.
    fn release(&mut self, slot: u32) {
        let at = &mut self.slots[slot as usize];
        if !at.held || matches!(at.outcome, Some(Outcome::Failed(..))) {
            self.held_bytes -= std::mem::take(&mut at.reserved);
            at.message.clear();
            at.message.shrink_to(KEPT_BYTES);
            if let Some(download) = &mut at.download {
                download.forget();
            }
        }
        if !at.held && !at.owed && at.taken {
            at.taken = false;
            self.free.push(slot);
        }
    }

    /// Gives calls up whose deadline has passed.
    pub fn handle_time(&mut self, now_us: u64) {
        if now_us < self.next_deadline {
            return;
        }
        let mut next = NO_DEADLINE;
        for slot in 0..self.slots.len() as u32 {
            let at = &self.slots[slot as usize];
            if !at.owed || at.outcome.is_some() {
                continue;
            }
            if at.deadline > now_us {
                next = next.min(at.deadline);
                continue;
            }
            self.counters.expired += 1;
            let status = Status::new(Code::DeadlineExceeded, "no answer came in time");
            self.give_up(CallId { slot, turn: self.slots[slot as usize].turn }, status);
        }
        self.next_deadline = next;
    }

    /// When [`Caller::handle_time`] has something to do, at the earliest.
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
                Step::Sent(..) => {}
            }
        }
    }

    /// The connection is over, if it is not: what is under way may have been done.
    pub fn disconnect(&mut self, why: &Status) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(why.clone());
        for slot in 0..self.slots.len() as u32 {
            let at = &mut self.slots[slot as usize];
            if !std::mem::take(&mut at.owed) {
                continue;
            }
            if at.outcome.is_none() {
                let executed = match self.outbox.is_unasked(slot) {
                    true => Executed::No,
                    false => Executed::Maybe,
                };
                self.counters.failed += 1;
                at.outcome = Some(Outcome::Failed(why.clone(), executed));
            }
            self.outbox.forget(slot);
            self.release(slot);
        }
    }

    /// How a call ended, if it has.
    pub fn outcome(&self, call: CallId) -> Option<&Outcome> {
        self.held(call).outcome.as_ref()
    }

    /// The message of a call that was answered.
    pub fn message(&self, call: CallId) -> &[u8] {
        &self.held(call).message
    }

    /// Nobody waits for the call any more; one that is under way is cancelled. Each call is dropped once.
    pub fn drop_call(&mut self, call: CallId) {
        if self.held(call).outcome.is_none() {
            self.counters.cancelled += 1;
            self.cancel(call);
        }
        self.slots[call.slot as usize].held = false;
        self.release(call.slot);
    }

    /// Gives a call up: its outcome is [`Code::Cancelled`], if it has none yet.
    pub fn cancel(&mut self, call: CallId) {
        self.held(call);
        self.give_up(call, Status::new(Code::Cancelled, "who called gave it up"));
    }

    /// How many bytes of a call's stream may be sent now; none if it has ended.
    pub fn upload_room(&self, call: CallId) -> Option<usize> {
        let slot = self.held(call);
        let upload = slot.upload.filter(|upload| !upload.ended && slot.outcome.is_none())?;
        if !self.outbox.is_free(call.slot) {
            return Some(0);
        }
        Some(upload.flow.room(self.outbox.chunk()))
    }

    /// Sends bytes of a call's stream, no more than [`Caller::upload_room`]; `ends`: the last ones, of
    /// which there may be none.
    pub fn upload(&mut self, call: CallId, bytes: &[u8], ends: bool) {
        let room = self.upload_room(call);
        assert!(room.is_some_and(|room| bytes.len() <= room), "a stream keeps to its room");
        assert!(self.outbox.is_free(call.slot), "a stream's pieces go one by one");
        let slot = &mut self.slots[call.slot as usize];
        let Some(upload) = &mut slot.upload else { return };
        upload.flow.send(bytes.len());
        upload.ended = ends;
        let flags = if ends { FLAG_END } else { 0 };
        let header = Header { flags, ..Header::new(Kind::Stream, call) };
        self.outbox.queue(header, |into| into.extend_from_slice(bytes));
    }

    /// Whether all that the call has to send has gone.
    pub fn is_sent(&self, call: CallId) -> bool {
        self.held(call);
        self.outbox.is_free(call.slot)
    }

    /// Reads bytes of a call's stream: how many; none if it has ended, and all were read.
    pub fn download(&mut self, call: CallId, into: &mut [u8]) -> Option<usize> {
        self.held(call);
        let slot = &mut self.slots[call.slot as usize];
        let is_over = slot.outcome.is_some() || slot.total.is_some();
        let download = slot.download.as_mut().filter(|download| download.wanted)?;
        if download.is_read() && (download.flow.has_ended() || is_over) {
            return None;
        }
        let len = download.read(into);
        let listens = slot.owed && !is_over;
        if let Some(bytes) = download.flow.read(len, self.limits.window, listens) {
            self.outbox.credit(call, bytes);
        }
        Some(len)
    }

    fn held(&self, call: CallId) -> &Slot {
        let slot = &self.slots[call.slot as usize];
        assert!(slot.held && slot.turn == call.turn, "a call is used until it is dropped");
        slot
    }
}
