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
//! A stream that is reset forgets what it waited for. A WRITE may then still be done by the driver,
//! who keeps the order of errands to the same memory, so that it cannot undo what is written later.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::Memory;
use elver_wire::Headers;

use crate::hw::Hw;
use crate::qp::QueuePair;
use crate::regions::{Place, Refused};
use crate::{Rnic, RxMeta, Time};

/// Bytes that an errand carries at most. One that reads fetches so much ahead.
pub(crate) const ERRAND_BYTES_MAX: u32 = 64 * 1024;
/// Packets that a stream puts aside at most, and what all streams' packets may take, in bytes.
const PARKED_MAX: usize = 256;
const PARKED_BYTES_MAX: u64 = 32 << 20;

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
    place: Place,
    ticket: Ticket,
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
}

/// What a stream that waits has kept.
#[derive(Debug)]
pub(crate) struct Aside {
    serial: u64,
    /// It was done.
    pub(crate) ready: bool,
    /// What was done for the turn so far.
    done: Vec<Done>,
    /// Packets that came, the one that waits first.
    pub(crate) parked: VecDeque<Parked>,
    /// Whose turn it is, of a lane.
    pub(crate) tag: Tag,
    /// What an atomic has found that was executed, and whose result waits for its place.
    pub(crate) original: Option<u64>,
}

/// A WQE: its slot and its first PSN.
pub(crate) type Tag = (u32, u32);

/// An errand that was done. One that failed fails its turn.
#[derive(Debug)]
pub(crate) struct Done {
    place: Place,
    writes: bool,
    failed: bool,
    bytes: Vec<u8>,
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

/// What packets that are put aside take of the device, in bytes.
#[derive(Debug)]
struct Room(Arc<AtomicU64>, u64);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The copies of the turn that is taken.
#[derive(Debug)]
pub(crate) struct Desk<M> {
    inner: RefCell<Turn<M>>,
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
}

/// The errands of a device.
#[derive(Debug)]
pub(crate) struct Errands<M> {
    waiting: VecDeque<Errand<M>>,
    serial: u64,
    parked_bytes: Arc<AtomicU64>,
}

impl<M> Default for Desk<M> {
    fn default() -> Desk<M> {
        let turn = Turn { done: Vec::new(), wanted: None, ahead: 0, too_long: false };
        Desk { inner: RefCell::new(turn) }
    }
}

impl<M: Memory> Desk<M> {
    /// A turn begins for which this was done.
    pub(crate) fn lay_out(&self, done: Vec<Done>) {
        let mut turn = self.inner.borrow_mut();
        turn.done = done;
        turn.wanted = None;
    }

    /// The turn is over; what was done for it.
    pub(crate) fn clear(&self) -> Vec<Done> {
        let mut turn = self.inner.borrow_mut();
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

    /// Reads from memory that is not at hand what an errand has read.
    #[cold]
    pub(crate) fn read(&self, memory: &M, place: Place, dst: &mut [u8]) -> Result<(), Refused> {
        let mut turn = self.inner.borrow_mut();
        let covers = |done: &&Done| {
            let skip = place.offset.checked_sub(done.place.offset);
            let end = skip.and_then(|skip| skip.checked_add(dst.len() as u64));
            let inside = end.is_some_and(|end| end <= done.bytes.len() as u64);
            !done.writes && done.place.region == place.region && inside
        };
        if turn.done.iter().any(|done| done.failed) {
            return Err(Refused::Access);
        }
        if let Some(done) = turn.done.iter().find(covers) {
            let skip = (place.offset - done.place.offset) as usize;
            dst.copy_from_slice(&done.bytes[skip..skip + dst.len()]);
            return Ok(());
        }
        if dst.len() > ERRAND_BYTES_MAX as usize {
            drop(turn);
            return Err(self.refuse_length());
        }
        let room = u64::from(ERRAND_BYTES_MAX).min(memory.size().saturating_sub(place.offset));
        let len = (dst.len() as u64 + u64::from(turn.ahead)).min(room).max(dst.len() as u64);
        let (memory, bytes) = (memory.clone(), alloc::vec![0; len as usize]);
        turn.wanted = Some(Wanted { memory, place, bytes, writes: false });
        Err(Refused::Later)
    }

    /// Writes to memory that is not at hand, if an errand has done it.
    #[cold]
    pub(crate) fn write(&self, memory: &M, place: Place, src: &[u8]) -> Result<(), Refused> {
        let mut turn = self.inner.borrow_mut();
        let same = |done: &&Done| done.writes && done.place == place && done.bytes == src;
        if turn.done.iter().any(|done| done.failed) {
            return Err(Refused::Access);
        }
        if turn.done.iter().any(|done| same(&done)) {
            return Ok(());
        }
        if src.len() > ERRAND_BYTES_MAX as usize {
            drop(turn);
            return Err(self.refuse_length());
        }
        let (memory, bytes) = (memory.clone(), src.to_vec());
        turn.wanted = Some(Wanted { memory, place, bytes, writes: true });
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
        Errands { waiting: VecDeque::new(), serial: 0, parked_bytes: Arc::default() }
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

impl<M: Memory> Hw<M> {
    /// Lets a stream wait for what its turn could not copy.
    #[cold]
    pub(crate) fn put_aside(&mut self, qpn: u32, part: Part) -> Box<Aside> {
        self.counters.waits_for_memory += 1;
        let errands = &mut self.errands;
        errands.serial += 1;
        let serial = errands.serial;
        let (done, wanted) = self.regions.desk.take();
        if let Some(Wanted { memory, place, bytes, writes }) = wanted {
            let ticket = Ticket { qpn, part, serial };
            let offset = place.offset;
            self.regions.count_errand(place.region, true);
            errands.waiting.push_back(Errand { memory, offset, bytes, writes, place, ticket });
        }
        let (parked, tag) = (VecDeque::new(), (0, 0));
        Box::new(Aside { serial, ready: false, done, parked, tag, original: None })
    }

    /// Puts a packet aside until its stream goes on; one for which there is no room is lost.
    #[cold]
    pub(crate) fn park(
        &mut self,
        aside: &mut Aside,
        meta: &RxMeta,
        headers: &Headers,
        payload: &[u8],
    ) {
        let bytes = (size_of::<Parked>() + payload.len()) as u64;
        let room = Room(self.errands.parked_bytes.clone(), bytes);
        let before = room.0.fetch_add(bytes, Ordering::Relaxed);
        if aside.parked.len() >= PARKED_MAX || before + bytes > PARKED_BYTES_MAX {
            self.counters.drop_waiting += 1;
            return;
        }
        let (meta, headers, payload) = (*meta, *headers, payload.to_vec());
        aside.parked.push_back(Parked { meta, headers, payload, _room: room });
    }
}

impl<M: Memory> Rnic<M> {
    /// Takes a copy that is to be made elsewhere, for [`Rnic::errand_done`]. Errands to the same
    /// memory must be done in this order.
    #[inline]
    pub fn poll_errand(&mut self) -> Option<Errand<M>> {
        self.hw.errands.pop()
    }

    /// Whether [`Rnic::poll_errand`] has one.
    #[inline]
    pub fn has_errands(&self) -> bool {
        self.hw.errands.any()
    }

    /// Takes an errand back: its bytes were read or written, or else, if not `done`, the memory does not
    /// take or give them; then the bytes do not matter. Whoever waited for it goes on; if nobody does any more, nothing happens.
    pub fn errand_done(&mut self, now: Time, errand: Errand<M>, done: bool) {
        let Ticket { qpn, part, .. } = errand.ticket;
        self.hw.regions.count_errand(errand.place.region, false);
        let Some(queue_pair) = self.qps.get_mut(qpn) else { return };
        let Some(held) = queue_pair.aside(part) else { return };
        let Some(aside) = held.as_mut().filter(|aside| aside.waits_for(errand.ticket)) else {
            return;
        };
        aside.fulfil(errand, done);
        match part {
            Part::Answers(context) => {
                if let Some(dct) = &mut queue_pair.dct {
                    dct.go_on(context);
                }
            }
            Part::Sends(lane) => {
                queue_pair.with_lane(lane as usize, &mut self.hw, now, |lane, env| {
                    lane.has_memory(env);
                });
            }
            Part::Requests(_) | Part::Responses(_) => self.replay(now, qpn, part),
        }
        self.schedule(qpn);
    }

    /// Takes the packets of a stream that waited: the first with what was done for it.
    fn replay(&mut self, now: Time, qpn: u32, part: Part) {
        let Some(mut aside) = self.qps.get_mut(qpn).and_then(|qp| qp.resume(part)) else { return };
        self.hw.regions.desk.lay_out(aside.take_done());
        while let Some(packet) = aside.parked.pop_front() {
            self.dispatch(now, &packet.meta, &packet.headers, &packet.payload);
            self.hw.regions.desk.clear();
            let again = self.qps.get_mut(qpn).and_then(|qp| qp.aside(part));
            if let Some(again) = again.and_then(Option::as_mut) {
                again.parked.append(&mut aside.parked);
            }
        }
        self.hw.regions.desk.clear();
        self.stop_failed_cqs(now);
    }
}

impl QueuePair {
    /// Where a part of it waits.
    fn aside(&mut self, part: Part) -> Option<&mut Option<Box<Aside>>> {
        match part {
            Part::Requests(context) | Part::Answers(context) => {
                let responder = match &mut self.dct {
                    Some(dct) => dct.responder(context)?,
                    None => &mut self.responder,
                };
                let [requests, answers] = responder.asides();
                Some(if matches!(part, Part::Requests(_)) { requests } else { answers })
            }
            Part::Sends(lane) => Some(&mut self.lanes.get_mut(lane as usize)?.sending),
            Part::Responses(lane) => Some(&mut self.lanes.get_mut(lane as usize)?.taking),
        }
    }

    /// Ends the wait of packets that came.
    fn resume(&mut self, part: Part) -> Option<Box<Aside>> {
        match part {
            Part::Requests(context) => match &mut self.dct {
                Some(dct) => dct.responder(context)?.resume(),
                None => self.responder.resume(),
            },
            _ => self.aside(part)?.take(),
        }
    }
}

impl Aside {
    /// What was read ahead for a lane's WQE.
    pub(crate) fn kept(tag: Tag, done: Vec<Done>) -> Box<Aside> {
        let parked = VecDeque::new();
        let none = Vec::new();
        let mut aside = Aside { serial: 0, ready: true, done: none, parked, tag, original: None };
        aside.keep(done);
        Box::new(aside)
    }

    /// Whether it waits for this errand.
    pub(crate) fn waits_for(&self, ticket: Ticket) -> bool {
        self.serial == ticket.serial && !self.ready
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
        let Errand { place, bytes, writes, .. } = errand;
        self.done.push(Done { place, writes, failed: !done, bytes });
        self.ready = true;
    }
}
