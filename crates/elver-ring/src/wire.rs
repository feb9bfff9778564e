//! Rings over a VQP.
//!
//! Each end has a VQP by which all goes that it writes; a listener's may have another one for the messages that wake who
//! connected ([`crate::side`]). It keeps three words for its peer, each in a cache line of its
//! own unless both rings are packed ([`crate::Config::is_packed`]): the tail of the ring that comes in, the head of the one that goes out, and the peer's nap.

pub(crate) mod progress;
mod sleep;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elver::{Gid, Mr, Origin, Session, SessionCell, Vqp, Wc};

use crate::Error;
use crate::carrier::{self, Carrier, Pause, Write};
use crate::greeting::Place;
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
/// The longest sleep.
const NAP_LONGEST: Duration = Duration::from_millis(250);

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
    /// Borrowed while something is posted: what a post wakes may post as well, and comes behind it in the numbers too.
    posting: SessionCell<()>,
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
    /// What ends that have gone had still to say, and the rest of what was posted in part; whether there is any, and whether
    /// it is being said.
    left: RefCell<VecDeque<Write>>,
    leaves: Cell<bool>,
    says: Cell<bool>,
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
            posting: SessionCell::new(vqp.session(), ()),
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
            leaves: Cell::new(false),
            says: Cell::new(false),
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
        if self.0.leaves.get() && !self.0.say_left()? {
            return Ok(false);
        }
        self.0.post(writes, None)
    }

    fn leave(&self, writes: &[Write]) {
        self.0.left.borrow_mut().extend(writes);
        self.0.leaves.set(true);
        // If the peer is gone, whoever still uses this hears of it.
        let _ = self.0.say_left();
    }

    #[inline]
    fn is_held_up(&self) -> bool {
        self.0.leaves.get()
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

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("vqp", &self.0.vqp.id()).finish_non_exhaustive()
    }
}
