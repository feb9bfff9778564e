//! The server's end of a connection.

mod arrivals;
mod counters;
mod event;
mod slot;

use crate::status::{Code, Executed, Status};

pub use self::counters::CalleeCounters;
pub use self::event::Event;
use self::slot::{Slot, State};
use super::frame::{FLAG_NOT_EXECUTED, Header, NO_DEADLINE};
use super::greeting::Greeting;
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

    /// Answers with a status, in its turn.
    pub(super) fn fail(&mut self, call: CallId, status: &Status, executed: Executed) {
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
        let upload = &mut self.slots[call.slot as usize].upload;
        let more = upload.as_mut().and_then(|it| it.read(bytes, self.limits.window, true));
        if let Some(bytes) = more {
            self.outbox.credit(call, bytes);
        }
    }

    /// How many bytes of a stream back may be sent for a call now.
    pub fn stream_room(&self, call: CallId) -> usize {
        if !self.is_running(call) || !self.outbox.is_free(call.slot) {
            return 0;
        }
        self.slots[call.slot as usize].back.room(self.outbox.chunk())
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
        self.slots[call.slot as usize].back.send(len);
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
