//! Rings over a VQP.
//!
//! Each end has a VQP by which all goes that it writes; a listener's may have another one for the messages that wake who
//! connected ([`crate::side`]). It keeps three words for its peer, each in a cache line of its
//! own unless both rings are packed ([`crate::Config::is_packed`]): the tail of the ring that comes in, the head of the one that goes out, and the peer's nap.
//!
//! # Sleeping
//! A WRITE makes no completion at the peer, so that one who sleeps must be woken by a message. Who is about
//! to sleep writes a new number into the peer's nap word. The peer looks at that word whenever it writes a
//! pointer, and again when a tail has completed; when the number is one that it has not seen, it sends a
//! message: to who connected one of one byte on the VQP, or on the one back to it where the rings have another
//! ([`crate::side`]), and to a listener's end one to its port ([`crate::ringer`]). A pointer that was under way while the word was written may be missed by both; the
//! first sleep is therefore short, and each one twice as long as the one before, up to a quarter of a
//! second. Then, and when it was woken and finds nothing, it writes the word anew. That shows at the same
//! time whether the peer is there; who looks without sleeping writes the old number as often, for this alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elver::{
    Completed, Gid, Mr, Origin, Payload, RecvWr, SendFlags, SendOp, SendWr, Session, Sge, Vqp, Wc,
    WcOpcode, WcStatus,
};

use crate::Error;
use crate::carrier::{self, Carrier, Pause, WRITES_MAX, Write};
use crate::greeting::{Place, WAKING};
use crate::inbox::Bell;
use crate::memory::Slots;
use crate::ringer::Ringer;
use crate::shares::Share;
use crate::side::Side;

/// Bytes of the words that a peer writes.
pub(crate) const CELLS_BYTES: u64 = 3 * LINE;
const LINE: u64 = 64;
const WORD: u64 = 8;
/// The words, in their order.
const TAIL: u64 = 0;
const HEAD: u64 = 1;
const NAP: u64 = 2;

/// Send WRs that are outstanding at most; a greeting comes on top.
pub(crate) const SENDS_MAX: u32 = 127;
/// Of so many WRs one at least is signalled, so that the send queue never fills with those of which nobody
/// hears.
const UNSIGNALLED_MAX: u64 = 32;
/// Receives for wakings.
pub(crate) const BELLS: u32 = 8;
/// Bytes of each, which a greeting fits too.
pub(crate) const BELL_BYTES: u32 = 128;

/// Ends of this process, which number their WRs from different beginnings: a VQP back to a peer lives as long
/// as the listener's, and may have completions of an end that is gone for the next one.
static ENDS: AtomicU64 = AtomicU64::new(0);
/// How many WRs lie between two beginnings, and how many beginnings there are.
const WRS_BITS: u32 = 40;
const BEGINNINGS: u64 = 1 << 20;

/// Looks without letting other threads run, where this thread may run on a core for each of the two ends and
/// for the node. With fewer, who looks on keeps that from running which it looks for.
const EAGER_LOOKS: u32 = 64;
const CORES_FOR_EAGER: usize = 3;
/// Looks for one at the clock.
const LOOKS_PER_CLOCK: u32 = 256;
/// The first sleep, and the longest.
const NAP_FIRST: Duration = Duration::from_millis(1);
const NAP_LONGEST: Duration = Duration::from_millis(250);
/// How long an end that is dropped waits for what it has posted.
const SETTLE: Duration = Duration::from_secs(1);

/// What a carrier did beside carrying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Times that this end told the peer that it sleeps.
    pub naps: u64,
    /// Times that the peer told this end that it sleeps.
    pub peer_naps: u64,
    /// Times that this end woke it.
    pub wakings: u64,
    /// Of these, and of those that did not go, times that a waking is not known to have come, so that it goes again: the
    /// listener's node held more messages for the port than it may, or took no VQP for it.
    pub wakings_lost: u64,
}

/// A VQP that carries a pair of rings.
#[derive(Clone)]
pub struct Wire(pub(crate) Rc<Shared>);

pub(crate) struct Shared {
    session: Session,
    origin: Origin,
    vqp: Vqp,
    role: Role,
    cells: Mr,
    /// Bytes from one word to the next, at both ends.
    stride: u64,
    outgoing: Slots,
    outgoing_lkey: u32,
    incoming: Slots,
    peer: Place,
    spin: Duration,
    eager_looks: u32,
    /// WRs have the numbers behind it.
    beginning: u64,
    posted: Cell<u64>,
    completed: Cell<u64>,
    signalled: Cell<u64>,
    advances: Cell<u64>,
    /// The number of this end's last nap, and of the peer's last that it was woken from.
    nap: Cell<u64>,
    woken: Cell<u64>,
    wakings: Cell<u64>,
    /// Wakings that came, to this end or for it to its listener.
    rung: Rc<Cell<u64>>,
    /// Looks, and when the peer was asked whether it is there.
    looks: Cell<u32>,
    probed: Cell<Instant>,
    /// The completion that the VQP failed with.
    failed: Cell<Option<Wc>>,
    /// What ends that have gone had still to say.
    left: RefCell<VecDeque<Write>>,
    /// Dropped, it waits for nothing.
    hurries: Cell<bool>,
}

/// Which end it is.
pub(crate) enum Role {
    /// A listener's, with what wakes it, what it takes of its peer's share, and by what it wakes who connected, if that
    /// is not the ring's VQP.
    Accepted { bell: Bell, share: Share, side: Option<Side> },
    /// The other one, with the receives of what wakes it, and how it wakes the listener's.
    Connected { bells: Mr, ringer: Ringer },
}

/// What a WR was for: the lowest bits of its `wr_id`, above which its number stands.
const OTHER: u64 = 0;
const ADVANCE: u64 = 1;
/// A `wr_id` of a receive.
pub(crate) const BELL: u64 = 2;

/// What an end is made of.
pub(crate) struct Parts {
    pub(crate) vqp: Vqp,
    pub(crate) role: Role,
    pub(crate) cells: Mr,
    pub(crate) outgoing: Mr,
    pub(crate) incoming: Mr,
    pub(crate) peer: Place,
    /// Whether both rings are packed.
    pub(crate) packed: bool,
    pub(crate) spin: Duration,
}

impl Wire {
    pub(crate) fn new(parts: Parts) -> Wire {
        let Parts { vqp, role, cells, outgoing, incoming, peer, packed, spin } = parts;
        let outgoing_lkey = outgoing.lkey();
        let rung = match &role {
            Role::Accepted { bell, .. } => bell.rung.clone(),
            Role::Connected { .. } => Rc::default(),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let beginning = (ENDS.fetch_add(1, Ordering::Relaxed) % BEGINNINGS) << WRS_BITS;
        Wire(Rc::new(Shared {
            session: vqp.session().clone(),
            origin: vqp.session().origin(),
            vqp,
            role,
            cells,
            stride: if packed { WORD } else { LINE },
            outgoing: slots(outgoing),
            outgoing_lkey,
            incoming: slots(incoming),
            peer,
            spin,
            eager_looks: if cores >= CORES_FOR_EAGER { EAGER_LOOKS } else { 0 },
            beginning,
            posted: Cell::new(beginning),
            completed: Cell::new(beginning),
            signalled: Cell::new(beginning),
            advances: Cell::new(0),
            nap: Cell::new(0),
            woken: Cell::new(0),
            wakings: Cell::new(0),
            rung,
            looks: Cell::new(0),
            probed: Cell::new(Instant::now()),
            failed: Cell::new(None),
            left: RefCell::default(),
            hurries: Cell::new(false),
        }))
    }

    /// The VQP below, to ask how it is.
    pub fn vqp(&self) -> &Vqp {
        &self.0.vqp
    }

    /// For who waits by the session's descriptor ([`Session::arm`]): tells the peer that this end sleeps,
    /// and how long it may sleep until it looks again. Nothing, once, if a greeting came that was not looked for
    /// since, at a listener's end: look for that first. `pause` is kept from one wait to the next, and the rings are looked at
    /// behind this, before the wait.
    ///
    /// # Errors
    /// As [`Carrier::post`].
    pub fn lie_down(&self, pause: &mut Pause) -> Result<Option<Duration>, Error> {
        let shared = &*self.0;
        // Also of one whose peer is gone: what came by the port is the others'.
        shared.look_around()?;
        if shared.is_greeted() {
            return Ok(None);
        }
        shared.poll()?;
        let now = Instant::now();
        // Whoever comes back when the time has passed was not woken.
        if pause.began.is_some_and(|began| now - began >= pause.slice) {
            pause.slice = (pause.slice * 2).min(NAP_LONGEST);
        }
        pause.began = Some(now);
        shared.lie_down(pause, now).map(Some)
    }

    /// The node that the other end is at, at a listener's end.
    pub fn peer(&self) -> Option<Gid> {
        match &self.0.role {
            Role::Accepted { share, .. } => Some(share.gid()),
            Role::Connected { .. } => None,
        }
    }

    /// Times that this end told the peer that it sleeps.
    pub fn naps(&self) -> u64 {
        self.0.nap.get()
    }

    /// For who has nothing to say to its peer any more: dropped, it waits for nothing.
    pub fn hurry(&self) {
        self.0.hurries.set(true);
    }

    /// For who drops it last and waits for nothing: whether all that was posted has arrived, as far as it will. Until
    /// then the VQP stands, and dropped before, it goes at once.
    pub fn is_settled(&self) -> bool {
        self.hurry();
        let shared = &*self.0;
        let _ = shared.say_left();
        if shared.signalled.get() < shared.posted.get() {
            // Signalled, and no news for the peer.
            let _ = shared.post(&[], Some(shared.nap.get()));
        }
        shared.poll().is_err() || shared.has_arrived()
    }

    /// What it did beside carrying.
    pub fn counters(&self) -> WireCounters {
        let (naps, wakings) = (self.naps(), self.0.wakings.get());
        let wakings_lost = self.0.ringer().map_or(0, Ringer::lost);
        WireCounters { naps, peer_naps: self.0.word(NAP), wakings, wakings_lost }
    }
}

/// A region as slots. It is the value's alone, so that no other writes a sender's: peers have no right to.
fn slots(region: Mr) -> Slots {
    let (start, len) = (region.as_ptr(), region.len());
    let start = NonNull::new(start).expect("a region has an address");
    // SAFETY: a region that the session has allocated is mapped while it lives and aligned to a cache
    // line. It was made for this and is moved in here, so that nothing else in the process knows of it.
    unsafe { Slots::new(start, len, Box::new(region)) }
}

impl Carrier for Wire {
    #[inline]
    fn post(&self, writes: &[Write]) -> Result<bool, Error> {
        self.0.post(writes, None)
    }

    fn leave(&self, writes: &[Write]) {
        self.0.left.borrow_mut().extend(writes);
        // If the peer is gone, whoever still uses this hears of it.
        let _ = self.0.say_left();
    }

    #[inline]
    fn is_here(&self) -> bool {
        self.0.origin.is_here()
    }

    #[inline]
    fn poll(&self) -> Result<(), Error> {
        self.0.poll()
    }

    #[inline]
    fn advances(&self) -> u64 {
        self.0.advances.get()
    }

    #[inline]
    fn word(&self, cell: carrier::Cell) -> u64 {
        self.0.word(match cell {
            carrier::Cell::Tail => TAIL,
            carrier::Cell::Head => HEAD,
        })
    }

    #[inline]
    fn outgoing(&self) -> &Slots {
        &self.0.outgoing
    }

    #[inline]
    fn incoming(&self) -> &Slots {
        &self.0.incoming
    }

    fn rest(&self, pause: &mut Pause) -> Result<(), Error> {
        self.0.rest(pause)
    }
}

impl Shared {
    /// A word that the peer writes; acquire, as [`Mr::read_u64`] is.
    #[inline]
    fn word(&self, cell: u64) -> u64 {
        let offset = cell * self.stride;
        u64::from_le(self.cells.read_u64(offset).expect("the words lie in their region"))
    }

    /// Posts WRITEs, and the number of a nap.
    #[inline]
    fn post(&self, writes: &[Write], nap: Option<u64>) -> Result<bool, Error> {
        const WRS_MAX: usize = WRITES_MAX + 2;
        let points = writes.iter().any(|write| !matches!(write, Write::Slots(_)));
        let naps = self.peer_naps().filter(|_| points);
        let wakes = naps.filter(|_| self.wakes_itself());
        let count = writes.len() + usize::from(nap.is_some()) + usize::from(wakes.is_some());
        if !self.has_room(count as u64) {
            self.poll()?;
            if !self.has_room(count as u64) {
                return Ok(false);
            }
        }
        let mut sges = [[Sge::default(); 1]; WRITES_MAX];
        let mut words = [[0; 8]; WRITES_MAX];
        let nap_word = nap.unwrap_or(0).to_le_bytes();
        for ((write, sge), word) in writes.iter().zip(&mut sges).zip(&mut words) {
            match *write {
                Write::Slots(span) => {
                    let length = u32::try_from(span.len).expect("a ring is no longer than a WRITE");
                    let addr = self.outgoing.addr() + span.offset;
                    sge[0] = Sge { addr, length, lkey: self.outgoing_lkey };
                }
                Write::Tail(value) | Write::Head(value) => *word = value.to_le_bytes(),
            }
        }
        let mut number = self.posted.get();
        let mut signalled = self.signalled.get();
        let wrs: [SendWr<'_>; WRS_MAX] = std::array::from_fn(|at| {
            let write = writes.get(at);
            let (kind, op, payload) = match write {
                Some(Write::Slots(span)) => {
                    let remote = beyond(self.peer.slots, span.offset);
                    (OTHER, SendOp::Write(remote), Payload::Sges(&sges[at][..]))
                }
                Some(Write::Tail(_)) => {
                    let remote = beyond(self.peer.cells, TAIL * self.stride);
                    (ADVANCE, SendOp::Write(remote), Payload::Inline(&words[at][..]))
                }
                Some(Write::Head(_)) => {
                    let remote = beyond(self.peer.cells, HEAD * self.stride);
                    (OTHER, SendOp::Write(remote), Payload::Inline(&words[at][..]))
                }
                None if nap.is_some() && at == writes.len() => {
                    let remote = beyond(self.peer.cells, NAP * self.stride);
                    (OTHER, SendOp::Write(remote), Payload::Inline(&nap_word[..]))
                }
                // The others are not posted.
                None => (OTHER, SendOp::Send, Payload::Inline(WAKING)),
            };
            let mut flags = SendFlags::empty();
            if at < count {
                number += 1;
                let is_nap = nap.is_some() && at == writes.len();
                if kind == ADVANCE || is_nap || number - signalled >= UNSIGNALLED_MAX {
                    flags = SendFlags::SIGNALED;
                    signalled = number;
                }
            }
            SendWr { wr_id: number << 2 | kind, op, flags, payload, dest: None }
        });
        if let Err(failed) = self.vqp.post_send(&wrs[..count]) {
            return Err(self.reason(failed.into()));
        }
        self.posted.set(number);
        self.signalled.set(signalled);
        if let Some(nap) = wakes {
            self.woken.set(nap);
            self.wakings.set(self.wakings.get() + 1);
        } else if let Some(nap) = naps {
            self.ring(nap);
        }
        Ok(true)
    }

    #[inline]
    fn ringer(&self) -> Option<&Ringer> {
        match &self.role {
            Role::Accepted { .. } => None,
            Role::Connected { ringer, .. } => Some(ringer),
        }
    }

    #[inline]
    fn side(&self) -> Option<&Side> {
        match &self.role {
            Role::Accepted { side, .. } => side.as_ref(),
            Role::Connected { .. } => None,
        }
    }

    /// Whether wakings go by the VQP that carries the rings, behind what they tell of.
    #[inline]
    fn wakes_itself(&self) -> bool {
        matches!(self.role, Role::Accepted { side: None, .. })
    }

    /// Wakes a peer by a VQP that is not the rings'; one that is not woken now stays to be.
    #[cold]
    fn ring(&self, nap: u64) {
        let rung = match &self.role {
            Role::Accepted { side, .. } => side.as_ref().is_some_and(Side::ring),
            Role::Connected { ringer, .. } => ringer.ring(),
        };
        if rung {
            self.woken.set(nap);
            self.wakings.set(self.wakings.get() + 1);
        }
    }

    /// Takes in what came beside the VQP: at a listener's end by the port, at the other one what became of wakings.
    #[cold]
    fn look_around(&self) -> Result<(), Error> {
        match &self.role {
            Role::Accepted { bell, .. } => bell.inbox.drain(),
            Role::Connected { ringer, .. } => {
                if ringer.tend() {
                    // From no nap: the peer is to be woken again.
                    self.woken.set(0);
                }
                if ringer.is_owed()
                    && let Some(nap) = self.peer_naps()
                {
                    self.ring(nap);
                }
                Ok(())
            }
        }
    }

    /// Whether a greeting waits that was not looked for.
    fn is_greeted(&self) -> bool {
        match &self.role {
            Role::Accepted { bell, .. } => bell.inbox.has_news(),
            Role::Connected { .. } => false,
        }
    }

    #[inline]
    fn has_room(&self, count: u64) -> bool {
        self.posted.get() - self.completed.get() + count <= u64::from(SENDS_MAX)
    }

    /// Whether all has arrived that was posted, as far as completions tell.
    fn has_arrived(&self) -> bool {
        let is_said = self.left.borrow().is_empty();
        is_said
            && self.completed.get() == self.posted.get()
            && self.side().is_none_or(Side::has_arrived)
    }

    /// The number of the peer's nap, if it has not been woken from it.
    #[inline]
    fn peer_naps(&self) -> Option<u64> {
        Some(self.word(NAP)).filter(|nap| *nap != self.woken.get())
    }

    /// Why the VQP takes nothing: the completion that it failed with says more than that it has failed.
    #[cold]
    fn reason(&self, error: Error) -> Error {
        match self.take() {
            Err(reason) => reason,
            Ok(()) => error,
        }
    }

    /// Posts what ends that have gone had still to say, as far as there is room; whether that is all.
    fn say_left(&self) -> Result<bool, Error> {
        loop {
            let Some(write) = self.left.borrow().front().copied() else { return Ok(true) };
            // With a waking. Looked for here, since a poll may come back to this.
            if !self.has_room(2) {
                self.take()?;
            }
            if !self.has_room(2) || !self.post(&[write], None)? {
                return Ok(false);
            }
            self.left.borrow_mut().pop_front();
        }
    }

    /// Asks whether the peer is still there, if it was not asked for long: its node may be gone, and then
    /// nobody tells.
    #[cold]
    fn probe(&self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.probed.get() >= NAP_LONGEST && self.has_room(2) {
            self.probed.set(now);
            // The same number: it does not sleep.
            self.post(&[], Some(self.nap.get()))?;
        }
        Ok(())
    }

    #[inline]
    fn poll(&self) -> Result<(), Error> {
        let looks = self.looks.get().wrapping_add(1);
        self.looks.set(looks);
        if looks.is_multiple_of(LOOKS_PER_CLOCK) {
            if self.ringer().is_some() {
                self.look_around()?;
            }
            self.say_left()?;
            self.probe()?;
        }
        self.take()
    }

    /// Takes what the node told.
    #[inline]
    fn take(&self) -> Result<(), Error> {
        const AT_ONCE: usize = 8;
        let mut told = false;
        loop {
            let mut wcs = [Wc::default(); AT_ONCE];
            let taken = self.vqp.poll_cq(&mut wcs)?;
            for wc in &wcs[..taken] {
                told |= self.complete(wc)?;
            }
            if taken < AT_ONCE {
                break;
            }
        }
        // Before this one's failure: the two may fail together, and what is left untold ends every wait.
        let beside = self.side().map_or(Ok(()), Side::tend);
        // What was flushed does not say why.
        if let Some(wc) = self.failed.get().filter(|wc| wc.status != WcStatus::WrFlushErr) {
            wc.succeeded()?;
        }
        if let Some(failure) = self.vqp.failure() {
            return Err(failure.into());
        }
        if let Some(wc) = self.failed.get() {
            wc.succeeded()?;
        }
        beside?;
        // A peer that lay down while a tail was under way.
        if told && self.peer_naps().is_some() {
            self.wake()?;
        }
        Ok(())
    }

    /// Takes a completion in; whether it was a tail's.
    #[inline]
    fn complete(&self, wc: &Wc) -> Result<bool, Error> {
        if wc.status != WcStatus::Success {
            self.failed.set(self.failed.get().or(Some(*wc)));
            return Ok(false);
        }
        if wc.opcode == WcOpcode::Recv {
            self.bell(wc.wr_id)?;
            return Ok(false);
        }
        let number = wc.wr_id >> 2;
        if number <= self.beginning || number > self.posted.get() {
            // The greeting's, or of an end that is gone.
            return Ok(false);
        }
        self.completed.set(self.completed.get().max(number));
        let is_advance = wc.wr_id & 3 == ADVANCE;
        self.advances.set(self.advances.get() + u64::from(is_advance));
        Ok(is_advance)
    }

    /// A waking came: its receive is posted again.
    #[cold]
    fn bell(&self, wr_id: u64) -> Result<(), Error> {
        self.rung.set(self.rung.get() + 1);
        let Role::Connected { bells, .. } = &self.role else { return Ok(()) };
        post_bell(&self.vqp, bells, wr_id >> 2)
    }

    #[cold]
    fn wake(&self) -> Result<(), Error> {
        let nap = self.word(NAP);
        if !self.wakes_itself() {
            self.ring(nap);
            return Ok(());
        }
        if !self.has_room(1) {
            // Whoever makes room comes by again.
            return Ok(());
        }
        let number = self.posted.get() + 1;
        let flags = SendFlags::SIGNALED;
        let payload = Payload::Inline(WAKING);
        let wr_id = number << 2 | OTHER;
        let wr = SendWr { wr_id, op: SendOp::Send, flags, payload, dest: None };
        self.vqp.post_send(&[wr])?;
        self.posted.set(number);
        self.signalled.set(number);
        self.woken.set(nap);
        self.wakings.set(self.wakings.get() + 1);
        Ok(())
    }

    #[cold]
    fn rest(&self, pause: &mut Pause) -> Result<(), Error> {
        let Some(slice) = self.before_sleep(pause)? else { return Ok(()) };
        let slept = self.session.wait_ready(Some(slice)).map(drop);
        self.after_sleep(pause, slept)
    }

    /// How long to sleep before the next look, when the peer knows of it; nothing as long as this end
    /// looks on.
    pub(crate) fn before_sleep(&self, pause: &mut Pause) -> Result<Option<Duration>, Error> {
        pause.looks = pause.looks.saturating_add(1);
        if pause.looks < self.eager_looks {
            std::hint::spin_loop();
            return Ok(None);
        }
        let now = Instant::now();
        let left = pause.left(now)?;
        let looked_for = now - *pause.began.get_or_insert(now);
        if looked_for < self.spin && self.session.look_on(now, self.spin) {
            return Ok(None);
        }
        let told = pause.told;
        let slice = self.lie_down(pause, now)?;
        if pause.told != told {
            // What came before the peer knew of it is looked for once more.
            return Ok(None);
        }
        let due = pause.due.map(|due| due.saturating_duration_since(now));
        Ok(Some([left, due].into_iter().flatten().fold(slice, Duration::min)))
    }

    /// Tells the peer that this end sleeps, unless it knows; how long to sleep at most.
    fn lie_down(&self, pause: &mut Pause, now: Instant) -> Result<Duration, Error> {
        // One that was woken, by a pointer that it knew maybe, is not woken again from the same nap.
        let rung = self.rung.get();
        let is_awake = std::mem::replace(&mut pause.rung, rung) != rung;
        if is_awake || pause.told.is_none_or(|told| now - told >= NAP_LONGEST) {
            let nap = self.nap.get() + 1;
            if self.post(&[], Some(nap))? {
                self.nap.set(nap);
                pause.told = Some(now);
                pause.slice = NAP_FIRST;
            }
        }
        Ok(pause.slice.max(NAP_FIRST))
    }

    /// Whether this end was woken since it lay down.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_roused(&self, pause: &Pause) -> bool {
        self.rung.get() != pause.rung
    }

    /// What woke this end: the next sleep is longer if nothing did.
    pub(crate) fn after_sleep(
        &self,
        pause: &mut Pause,
        slept: Result<(), elver::Error>,
    ) -> Result<(), Error> {
        match slept {
            Ok(()) => {}
            Err(elver::Error::TimedOut) => pause.slice = (pause.slice * 2).min(NAP_LONGEST),
            Err(error) => return Err(error.into()),
        }
        self.look_around()
    }
}

impl Drop for Shared {
    /// Lets what was posted arrive, the end of a ring above all, for a short time: with the VQP it would go.
    fn drop(&mut self) {
        if self.hurries.get() {
            return;
        }
        let (began, mut is_told) = (Instant::now(), false);
        loop {
            if self.poll().is_err() {
                return;
            }
            if !is_told {
                // Behind what the ends had still to say; where there is no room for it, behind what has arrived.
                let Ok(is_said) = self.say_left() else { return };
                // Signalled, and no news for the peer.
                let told = is_said.then(|| self.post(&[], Some(self.nap.get())));
                let Ok(told) = told.unwrap_or(Ok(false)) else { return };
                is_told = told;
            }
            if is_told && self.has_arrived() || began.elapsed() >= SETTLE {
                return;
            }
            let _ = self.session.wait_ready(Some(NAP_FIRST));
        }
    }
}

/// Posts a receive for wakings.
pub(crate) fn post_bell(vqp: &Vqp, bells: &Mr, index: u64) -> Result<(), Error> {
    let sges = [bells.sge(index * u64::from(BELL_BYTES), BELL_BYTES)];
    Ok(vqp.post_recv(&[RecvWr { wr_id: index << 2 | BELL, sges: &sges }])?)
}

fn beyond(remote: elver::RemoteAddr, offset: u64) -> elver::RemoteAddr {
    elver::RemoteAddr { addr: remote.addr.wrapping_add(offset), ..remote }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("vqp", &self.0.vqp.id()).finish_non_exhaustive()
    }
}
