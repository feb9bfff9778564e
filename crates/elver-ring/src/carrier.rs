use std::time::{Duration, Instant};

use crate::Error;
use crate::memory::Slots;
use crate::protocol::Span;

/// What carries a pair of rings, one each way, between two ends. A ring knows no more of it, so that it
/// runs unchanged over whatever moves bytes between the two. Clones are the same carrier: both halves of
/// an end have one.
pub trait Carrier: Clone {
    /// Posts WRITEs, which the peer's memory sees in this order; all of them, or none and false if there
    /// is no room now. Where room ends in the middle, the carrier posts the others before all that comes behind
    /// ([`Carrier::is_held_up`]). A peer that sleeps ([`Carrier::rest`]) is woken behind a pointer.
    ///
    /// # Errors
    /// The peer or the node is gone.
    fn post(&self, writes: &[Write]) -> Result<bool, Error>;

    /// The last that an end has to say, which nobody will post again: as soon as there is room, and before the carrier
    /// goes, if that comes within the time that it gives itself.
    fn leave(&self, writes: &[Write]) {
        // Whoever is gone needs not hear of it.
        let _ = self.post(writes);
    }

    /// Whether it has still to post what it took, for want of room: it goes by a later call that posts or polls.
    fn is_held_up(&self) -> bool {
        false
    }

    /// Whether this process may touch the slots. A child of `fork` has them with its parent, whose they are.
    fn is_here(&self) -> bool {
        true
    }

    /// Takes in what came from below.
    ///
    /// # Errors
    /// As [`Carrier::post`].
    fn poll(&self) -> Result<(), Error>;

    /// How many of [`Write::Tail`] have completed.
    fn advances(&self) -> u64;

    /// A word that the peer writes. What it wrote before this word is seen by whoever has seen it.
    fn word(&self, cell: Cell) -> u64;

    /// Slots that this end fills.
    fn outgoing(&self) -> &Slots;

    /// Slots that the peer fills.
    fn incoming(&self) -> &Slots;

    /// To be called when a look found nothing: spins, lets others run, or sleeps until the peer has
    /// written a pointer or something else came.
    ///
    /// # Errors
    /// As [`Carrier::post`]; [`Error::TimedOut`] when the pause is over.
    fn rest(&self, pause: &mut Pause) -> Result<(), Error>;
}

/// A WRITE to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Bytes of [`Carrier::outgoing`], to the same place of the peer's [`Carrier::incoming`].
    Slots(Span),
    /// The peer's [`Cell::Tail`], as a whole.
    Tail(u64),
    /// The peer's [`Cell::Head`], as a whole.
    Head(u64),
}

/// Most WRITEs of one [`Carrier::post`].
pub const WRITES_MAX: usize = 3;

/// How long room below is waited for by who would have to come back otherwise. An honest peer's node makes some within
/// microseconds, or as soon as it runs; one that lets nothing through may keep a thread no longer.
pub(crate) const ROOM_WAIT: Duration = Duration::from_millis(20);

/// A word that the peer writes: each has a cache line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `local_tail` of the incoming ring.
    Tail,
    /// `local_head` of the outgoing ring.
    Head,
}

/// A wait that is going on.
#[derive(Debug)]
pub struct Pause {
    pub(crate) looks: u32,
    pub(crate) began: Option<Instant>,
    deadline: Option<Instant>,
    /// Something else is due then, so that no sleep lasts longer.
    pub(crate) due: Option<Instant>,
    /// When the peer was told that this end sleeps.
    pub(crate) told: Option<Instant>,
    pub(crate) slice: Duration,
    /// Wakings that this end has had.
    pub(crate) rung: u64,
}

impl Pause {
    /// A wait of at most so long.
    pub fn new(at_most: Option<Duration>) -> Pause {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        let slice = Duration::ZERO;
        Pause { looks: 0, began: None, deadline, due: None, told: None, slice, rung: 0 }
    }

    /// How much of it is left; none without an end.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if nothing is.
    pub fn left(&self, now: Instant) -> Result<Option<Duration>, Error> {
        match self.deadline {
            Some(deadline) if now >= deadline => Err(Error::TimedOut),
            deadline => Ok(deadline.map(|deadline| deadline - now)),
        }
    }
}
