//! What waits for memory that is not at hand.
//!
//! A copy by a [`Memory`] may have to wait for somebody else: for a page that another process owns,
//! say. It then answers [`elver_verbs::MemoryError::Later`], and what was going on is undone, as if
//! its turn had not come: a packet as if it had not arrived yet, a WR as if it could not be sent yet.
//! The copy becomes an [`Errand`], which the driver has done elsewhere and brings back; then the turn
//! is taken again, and finds what was done for it. What it does to memory that is at hand, and to the
//! device, it does then, all at once, so that it is executed once.
//!
//! One stream waits, and no other: the requests of one initiator, the READs that it is sent, a lane's
//! WRs, or a lane's responses. Packets that come for the stream meanwhile are put aside in order. If
//! there are too many, they are lost; their sender sends them again.
//!
//! A WR is told of when nothing more is written for it: if it ends while an errand writes to its own
//! memory, because its QP fails, its completion waits, and so do those behind it; the QP cannot be
//! reset or destroyed before. What was begun within the device is executed to its end. A peer's WRITE
//! that is being written when the QP fails counts as executed or not when the errand has ended
//! ([`elver_verbs::QpAttr::rq_waiting`]). A region is deregistered when no errand is under way to it.
//!
//! A stream that is reset forgets what it waited for. A WRITE may then still be done by the driver,
//! who lets nobody reach memory to which an errand is under way but by another errand, in order, so
//! that it cannot undo what is written later.

mod turn;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use elver_verbs::{Memory, MemoryError};
use elver_wire::Headers;

use crate::RxMeta;
use crate::ledger::{Ledger, Room};
use crate::place::{Place, Refused};

/// Bytes that an errand carries at most. One that reads fetches so much ahead.
pub(crate) const ERRAND_BYTES_MAX: u32 = 64 * 1024;
/// Packets that a stream puts aside at most. What all streams' packets and errands may take is the
/// ledger's ([`crate::ledger`]).
const PARKED_MAX: usize = 256;

/// A copy to or from memory that is not at hand, for the driver to have done.
///
/// Errands to the same memory must be done in the order in which [`crate::Rnic::poll_errand`] gives
/// them.
#[derive(Debug)]
pub struct Errand<M> {
    /// The memory, and where in it the copy begins.
    pub memory: M,
    /// Offset of the first byte.
    pub offset: u64,
    /// What is to be written, or room for what is to be read: all of it.
    pub bytes: Vec<u8>,
    /// Whether it is a write.
    pub writes: bool,
    len: usize,
    place: Place,
    ticket: Ticket,
    /// Held while it is under way.
    _room: Room,
}

/// Who waits for an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) qpn: u32,
    pub(crate) part: Part,
    pub(crate) serial: u64,
}

/// A part of a QP that waits by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Requests that came; of a DCT, to one of its contexts.
    Requests(u32),
    /// Answers to READs, likewise.
    Answers(u32),
    /// A lane's WRs.
    Sends(u32),
    /// Responses to a lane.
    Responses(u32),
    /// No part of a QP: whoever had bytes written to a region, and is told in a CQ.
    Region { cq: u32, wr_id: u64 },
}

/// What a stream that waits has kept.
#[derive(Debug)]
pub(crate) struct Aside {
    serial: u64,
    /// It was done.
    pub(crate) ready: bool,
    /// Its errand writes.
    writes: bool,
    /// The WR must not be told before it has ended: it writes to the WR's own memory, whose owner has
    /// it back with the completion, or the WR is copied within the device and has begun.
    pub(crate) lands: bool,
    /// What was done for the turn so far.
    done: Vec<Done>,
    /// Packets that came, the one that waits first.
    pub(crate) parked: VecDeque<Parked>,
    /// Whose memory it waits for.
    payer: u64,
    /// Whose turn it is, of a lane.
    pub(crate) tag: Tag,
    /// What an atomic has found that was executed, and whose result waits for its place.
    pub(crate) original: Option<u64>,
}

/// A WQE: its slot and its first PSN.
pub(crate) type Tag = (u32, u32);

/// An errand that was done, or failed.
#[derive(Debug)]
pub(crate) struct Done {
    place: Place,
    len: usize,
    writes: bool,
    failed: bool,
    /// What was read or written, if it did not fail.
    bytes: Vec<u8>,
    _room: Room,
}

/// A packet that was put aside.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) meta: RxMeta,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// Held while it waits.
    _room: Room,
}

/// The copies of the turn that is taken.
#[derive(Debug)]
pub(crate) struct Desk<M> {
    inner: RefCell<Turn<M>>,
    /// Something was done for it, which is not to be done again.
    laid: Cell<bool>,
    ledger: Ledger,
}

#[derive(Debug)]
struct Turn<M> {
    done: Vec<Done>,
    wanted: Option<Wanted<M>>,
    /// Bytes that will be read behind those that are read now.
    ahead: u32,
    /// A piece was longer than an errand may be.
    too_long: bool,
}

/// A copy that the turn could not make.
#[derive(Debug)]
struct Wanted<M> {
    memory: M,
    place: Place,
    bytes: Vec<u8>,
    writes: bool,
    /// What it takes, if there was room for it.
    room: Option<Room>,
}

/// The errands of a device.
#[derive(Debug)]
pub(crate) struct Errands<M> {
    waiting: VecDeque<Errand<M>>,
    serial: u64,
}

impl<M> Default for Desk<M> {
    fn default() -> Desk<M> {
        let turn = Turn { done: Vec::new(), wanted: None, ahead: 0, too_long: false };
        Desk { inner: RefCell::new(turn), laid: Cell::new(false), ledger: Ledger::default() }
    }
}

impl<M: Memory> Desk<M> {
    /// A turn begins for which this was done.
    pub(crate) fn lay_out(&self, done: Vec<Done>) {
        let mut turn = self.inner.borrow_mut();
        self.laid.set(!done.is_empty());
        turn.done = done;
        turn.wanted = None;
    }

    /// The turn is over; what was done for it.
    pub(crate) fn clear(&self) -> Vec<Done> {
        let mut turn = self.inner.borrow_mut();
        self.laid.set(false);
        (turn.wanted, turn.ahead, turn.too_long) = (None, 0, false);
        core::mem::take(&mut turn.done)
    }

    /// What is read next is followed by so many bytes in the same region.
    pub(crate) fn expect(&self, ahead: u32) {
        self.inner.borrow_mut().ahead = ahead;
    }

    /// A piece is too long for an errand.
    pub(crate) fn refuse_length(&self) -> Refused {
        self.inner.borrow_mut().too_long = true;
        Refused::Later
    }

    /// Whether a piece was too long for an errand.
    pub(crate) fn was_too_long(&self) -> bool {
        self.inner.borrow().too_long
    }

    /// Whether a turn that has only begun may wait for the copy that it wants: whose memory it is has
    /// no more waiting than he may. It is forgotten if not.
    pub(crate) fn may_wait(&self) -> bool {
        let mut turn = self.inner.borrow_mut();
        let begun = !turn.done.is_empty();
        let may = begun || turn.wanted.as_ref().is_none_or(|wanted| wanted.room.is_some());
        if !may {
            turn.wanted = None;
        }
        may
    }

    /// Bytes that wait.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.ledger.bytes()
    }

    /// Whether something was done for the turn.
    #[inline]
    pub(crate) fn is_laid(&self) -> bool {
        self.laid.get()
    }

    /// Reads what an errand has read; if none has, from the memory, or else one is wanted.
    #[cold]
    pub(crate) fn read(&self, memory: &M, place: Place, dst: &mut [u8]) -> Result<(), Refused> {
        let mut turn = self.inner.borrow_mut();
        let covers = |done: &&Done| {
            let skip = place.offset.checked_sub(done.place.offset);
            let end = skip.and_then(|skip| skip.checked_add(dst.len() as u64));
            let inside = end.is_some_and(|end| end <= done.len as u64);
            !done.writes && done.place.region == place.region && inside
        };
        if let Some(done) = turn.done.iter().find(covers) {
            if done.failed {
                return Err(Refused::Access);
            }
            let skip = (place.offset - done.place.offset) as usize;
            dst.copy_from_slice(&done.bytes[skip..skip + dst.len()]);
            return Ok(());
        }
        match memory.read(place.offset, dst) {
            Ok(()) => return Ok(()),
            Err(MemoryError::Later) => {}
            Err(_) => return Err(Refused::Access),
        }
        if dst.len() > ERRAND_BYTES_MAX as usize {
            drop(turn);
            return Err(self.refuse_length());
        }
        let room = u64::from(ERRAND_BYTES_MAX).min(memory.size().saturating_sub(place.offset));
        let most = (dst.len() as u64 + u64::from(turn.ahead)).min(room).max(dst.len() as u64);
        // Without room for what is behind it, it carries what its turn needs.
        let whole = self.ledger.ask(memory.payer(), most as usize);
        let len = if whole.is_some() { most as usize } else { dst.len() };
        let room = whole.or_else(|| self.ledger.ask(memory.payer(), len));
        let (memory, bytes) = (memory.clone(), alloc::vec![0; len]);
        turn.wanted = Some(Wanted { memory, place, bytes, writes: false, room });
        Err(Refused::Later)
    }

    /// Writes, unless an errand has done that: to the memory, or else one is wanted. What an errand
    /// wrote is not written again, since somebody may have seen it and written over it. It need not
    /// be the same bytes: who copies from memory that changes meanwhile has read it when the errand
    /// was sent, and would else go on for ever.
    #[cold]
    pub(crate) fn write(&self, memory: &M, place: Place, src: &[u8]) -> Result<(), Refused> {
        let mut turn = self.inner.borrow_mut();
        let same = |done: &&Done| done.writes && done.place == place && done.len == src.len();
        if let Some(done) = turn.done.iter().find(same) {
            return if done.failed { Err(Refused::Access) } else { Ok(()) };
        }
        match memory.write(place.offset, src) {
            Ok(()) => return Ok(()),
            Err(MemoryError::Later) => {}
            Err(_) => return Err(Refused::Access),
        }
        if src.len() > ERRAND_BYTES_MAX as usize {
            drop(turn);
            return Err(self.refuse_length());
        }
        let room = self.ledger.ask(memory.payer(), src.len());
        let (memory, bytes) = (memory.clone(), src.to_vec());
        turn.wanted = Some(Wanted { memory, place, bytes, writes: true, room });
        Err(Refused::Later)
    }

    fn take(&self) -> (Vec<Done>, Option<Wanted<M>>) {
        let mut turn = self.inner.borrow_mut();
        let wanted = turn.wanted.take();
        drop(turn);
        (self.clear(), wanted)
    }
}

impl<M> Default for Errands<M> {
    fn default() -> Errands<M> {
        Errands { waiting: VecDeque::new(), serial: 0 }
    }
}

impl<M> Errands<M> {
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Errand<M>> {
        self.waiting.pop_front()
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Aside {
    /// What was read ahead for a lane's WQE.
    pub(crate) fn kept(tag: Tag, done: Vec<Done>) -> Box<Aside> {
        let parked = VecDeque::new();
        let none = Vec::new();
        let (ready, writes, lands, original) = (true, false, false, None);
        let mut aside =
            Aside { serial: 0, ready, writes, lands, done: none, parked, payer: 0, tag, original };
        aside.keep(done);
        Box::new(aside)
    }

    /// Whether it waits for this errand.
    pub(crate) fn waits_for(&self, ticket: Ticket) -> bool {
        self.serial == ticket.serial && !self.ready
    }

    /// Whether something is being written for it.
    pub(crate) fn is_writing(&self) -> bool {
        self.writes && !self.ready
    }

    /// Whether the WR must not be told.
    pub(crate) fn is_landing(&self) -> bool {
        self.lands && !self.ready
    }

    /// What was done for its turn.
    pub(crate) fn take_done(&mut self) -> Vec<Done> {
        core::mem::take(&mut self.done)
    }

    /// Keeps what was read last, and further than the turn needed.
    pub(crate) fn keep(&mut self, mut done: Vec<Done>) {
        self.done.extend(done.pop().filter(|done| !done.writes));
    }

    /// Its errand was done.
    pub(crate) fn fulfil<M>(&mut self, errand: Errand<M>, done: bool) {
        let Errand { place, len, bytes, writes, _room, .. } = errand;
        let failed = !done || bytes.len() != len;
        self.done.push(Done { place, len, writes, failed, bytes, _room });
        self.ready = true;
    }
}
