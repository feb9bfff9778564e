//! What is to be sent: for each call one thing at a time, in turns of a frame, so that a long message keeps
//! no short one from its turn for longer than a frame of each call takes.

use std::collections::VecDeque;

use super::frame::Header;
use super::frame::{FLAG_END, NO_DEADLINE};
use super::kind::{CallId, Kind};

/// What takes frames.
pub trait Outlet {
    /// Why it does not any more.
    type Error;

    /// Takes a frame with a body of `header.len` bytes, which `fill` writes; false if there is no room now.
    ///
    /// # Errors
    /// It takes no more.
    fn put(&mut self, header: &Header, fill: impl FnMut(&mut [u8])) -> Result<bool, Self::Error>;

    /// Whether a frame for which it failed may go all the same.
    fn is_in_doubt(&self) -> bool;
}

/// The longest body of a frame is no shorter, so that greetings fit.
pub const BODY_MIN: usize = 64;

/// Capacity that an empty buffer may keep.
const KEPT_BYTES: usize = 64 << 10;

/// What one slot has to send.
#[derive(Debug, Default)]
struct Out {
    /// The header of what is sent, whose body is `bytes`.
    pending: Option<Header>,
    /// Bytes of it that have gone.
    at: usize,
    begun: bool,
    bytes: Vec<u8>,
    call: CallId,
    credit: u64,
    cancel: bool,
    queued: bool,
}

#[derive(Debug)]
pub(super) struct Outbox {
    outs: Vec<Out>,
    ready: VecDeque<u32>,
    greeting: Option<(Header, Vec<u8>)>,
    /// Most bytes of a body.
    chunk: usize,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There was nothing to send.
    Idle,
    /// There is no room.
    Full,
    /// A frame went, and with it, if there is a kind, the last of what that kind began.
    Sent(u32, Option<Kind>),
}

impl Outbox {
    pub(super) fn new(chunk: usize) -> Outbox {
        assert!(chunk >= BODY_MIN, "a frame has room for a greeting");
        Outbox { outs: Vec::new(), ready: VecDeque::new(), greeting: None, chunk }
    }

    /// As many slots as are asked for, which costs no allocation later.
    pub(super) fn set_slots(&mut self, slots: u32) {
        self.outs.resize_with(slots as usize, Out::default);
        self.ready.reserve(slots as usize);
    }

    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// A greeting goes ahead of everything.
    pub(super) fn greet(&mut self, header: Header, body: &[u8]) {
        let header = Header { len: body.len() as u32, ..header };
        self.greeting = Some((header, body.to_vec()));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.greeting.is_none()
    }

    /// Whether the slot may be given something.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.outs[slot as usize].pending.is_none()
    }

    /// Sends a message of `header.total` bytes: at once if that may be and is possible, else in its turn.
    /// True if it has gone.
    pub(super) fn send<O: Outlet>(
        &mut self,
        header: Header,
        now_us: u64,
        mut encode: impl FnMut(&mut [u8]),
        outlet: &mut O,
    ) -> Result<bool, O::Error> {
        let total = header.total as usize;
        if self.is_idle() && total <= self.chunk {
            let mut whole = stamped(header, now_us);
            whole.len = header.total;
            if outlet.put(&whole, &mut encode)? {
                return Ok(true);
            }
        }
        self.queue(header, |bytes| {
            bytes.resize(total, 0);
            encode(bytes);
        });
        Ok(false)
    }

    /// Something to send, whose bytes are filled into an empty buffer. What the slot had goes.
    pub(super) fn queue(&mut self, header: Header, fill: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.outs[header.call.slot as usize];
        out.bytes.clear();
        fill(&mut out.bytes);
        (out.pending, out.at, out.begun, out.call) = (Some(header), 0, false, header.call);
        self.ready(header.call.slot);
    }

    pub(super) fn credit(&mut self, call: CallId, bytes: u64) {
        let out = &mut self.outs[call.slot as usize];
        (out.call, out.credit) = (call, out.credit + bytes);
        self.ready(call.slot);
    }

    pub(super) fn cancel(&mut self, call: CallId) {
        let out = &mut self.outs[call.slot as usize];
        (out.call, out.cancel) = (call, true);
        self.ready(call.slot);
    }

    /// Whether the slot has a request of which nothing has gone, nor can go without this.
    pub(super) fn is_unasked(&self, slot: u32) -> bool {
        let out = &self.outs[slot as usize];
        !out.begun && out.pending.is_some_and(|pending| pending.kind == Kind::Request)
    }

    /// Whether there is such a slot, and it has nothing to send.
    pub(super) fn is_sent(&self, slot: u32) -> bool {
        self.outs.get(slot as usize).is_some_and(|out| out.pending.is_none())
    }

    /// Takes back what the slot had to send.
    pub(super) fn withdraw(&mut self, slot: u32) {
        let out = &mut self.outs[slot as usize];
        (out.pending, out.credit) = (None, 0);
        out.empty();
    }

    /// Nothing of the slot's call is sent any more.
    pub(super) fn forget(&mut self, slot: u32) {
        self.withdraw(slot);
        self.outs[slot as usize].cancel = false;
    }

    fn ready(&mut self, slot: u32) {
        let out = &mut self.outs[slot as usize];
        if !std::mem::replace(&mut out.queued, true) {
            self.ready.push_back(slot);
        }
    }

    /// Sends one frame.
    pub(super) fn step<O: Outlet>(
        &mut self,
        now_us: u64,
        outlet: &mut O,
    ) -> Result<Step, O::Error> {
        if let Some((header, body)) = &self.greeting {
            if !outlet.put(header, |room| room.copy_from_slice(body))? {
                return Ok(Step::Full);
            }
            self.greeting = None;
        }
        while let Some(slot) = self.ready.pop_front() {
            let out = &mut self.outs[slot as usize];
            out.queued = false;
            match out.step(now_us, self.chunk, outlet) {
                Ok(Step::Idle) => {}
                Ok(Step::Full) => {
                    out.queued = true;
                    self.ready.push_front(slot);
                    return Ok(Step::Full);
                }
                Ok(Step::Sent(_, finished)) => {
                    if out.has_more() {
                        self.ready(slot);
                    }
                    return Ok(Step::Sent(slot, finished));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Step::Idle)
    }
}

impl Out {
    fn has_more(&self) -> bool {
        self.pending.is_some() || self.credit > 0 || self.cancel
    }

    fn empty(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }

    fn step<O: Outlet>(
        &mut self,
        now_us: u64,
        chunk: usize,
        outlet: &mut O,
    ) -> Result<Step, O::Error> {
        let slot = self.call.slot;
        if self.credit > 0 {
            let header = Header { value: self.credit, ..Header::new(Kind::Credit, self.call) };
            if !outlet.put(&header, |_| {})? {
                return Ok(Step::Full);
            }
            self.credit = 0;
            return Ok(Step::Sent(slot, None));
        }
        if let Some(pending) = self.pending {
            let (mut header, left) = (pending, self.bytes.len() - self.at);
            if self.begun && pending.kind != Kind::Stream {
                header = Header::new(Kind::Piece, self.call);
            }
            let len = left.min(chunk);
            header.len = len as u32;
            if len < left {
                header.flags &= !FLAG_END;
            }
            let body = &self.bytes[self.at..self.at + len];
            match outlet.put(&stamped(header, now_us), |room| room.copy_from_slice(body)) {
                Ok(true) => {}
                Ok(false) => return Ok(Step::Full),
                Err(error) => {
                    self.begun |= outlet.is_in_doubt();
                    return Err(error);
                }
            }
            (self.at, self.begun) = (self.at + len, true);
            if len < left {
                return Ok(Step::Sent(slot, None));
            }
            self.pending = None;
            self.empty();
            return Ok(Step::Sent(slot, Some(pending.kind)));
        }
        if self.cancel {
            if !outlet.put(&Header::new(Kind::Cancel, self.call), |_| {})? {
                return Ok(Step::Full);
            }
            self.cancel = false;
            return Ok(Step::Sent(slot, None));
        }
        Ok(Step::Idle)
    }
}

/// A request's deadline goes as the time that is left.
fn stamped(header: Header, now_us: u64) -> Header {
    if header.kind != Kind::Request || header.value == NO_DEADLINE {
        return header;
    }
    Header { value: header.value.saturating_sub(now_us), ..header }
}
