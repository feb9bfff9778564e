use thiserror::Error;

use super::config::{Config, ConfigError};
use super::fault::Fault;
use super::shape::{ENDED, Frame, Shape, Span};

/// The sender's half of a ring (Algorithm 1, WRITEMSG).
///
/// 1. [`Sender::reserve`], fill the [`Frame`], [`Sender::commit`];
/// 2. while [`Sender::due`] gives something, do it and tell so by [`Sender::posted`];
/// 3. now and then, and whenever a message does not fit: [`Sender::head_is`] with the word that the
///    receiver writes, [`Sender::advanced`] with the completions, and 2 again.
///
/// Its pointers stand together in one cache line, since one thread alone uses them; what the peer writes
/// has a line of its own where the caller keeps it.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Sender {
    /// The slot that is filled next.
    tail: u64,
    /// Slots before it were transmitted.
    esc_tail: u64,
    /// What the receiver was told.
    synced_tail: u64,
    /// What the receiver has told.
    local_head: u64,
    /// Advancements that were posted, and those that have completed.
    advances: u64,
    completed: u64,
    /// Somebody wants it out, whatever is under way.
    flush: bool,
    /// A message did not fit: what is there counts as a batch.
    pressed: bool,
    ending: bool,
    end_told: bool,
    /// The receiver reads no more.
    deaf: bool,
    fault: Option<Fault>,
    /// When the first slot was committed that was not told, in nanoseconds.
    since_ns: u64,
    shape: Shape,
    config: Config,
    counters: SenderCounters,
}

/// What a sender did, in numbers since the ring's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Messages that were committed.
    pub messages: u64,
    /// Transmissions of slots, those with the tail behind them included.
    pub transmissions: u64,
    /// Advancements of the tail.
    pub advances: u64,
    /// Commits at which the tail was due and its previous advancement was under way (elastic threshold).
    pub deferred: u64,
    /// Batches that went out because their time had come.
    pub lingered: u64,
    /// Reservations that found no room.
    pub full: u64,
    /// Words of the receiver's that cannot be.
    pub faults: u64,
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no room until the receiver has read more.
    #[error("the ring is full")]
    Full,
    /// No room will ever be enough.
    #[error("a message of {len} bytes does not fit: the ring takes {max} at most")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Most that fit.
        max: u32,
    },
    /// This end has ended.
    #[error("the ring was ended by this end")]
    Ended,
    /// The receiver reads no more.
    #[error("the receiver reads no more")]
    Deaf,
    /// The receiver wrote what cannot be.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// WRITEs to do, in this order: slots to the same place at the receiver, and then the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// Slots, as bytes; none, one piece or two.
    pub slots: [Span; 2],
    /// The word for the receiver's `local_tail`, little-endian, written as a whole.
    pub tail: Option<u64>,
    to: u64,
}

impl Sender {
    /// A sender at the beginning of an empty ring.
    ///
    /// # Errors
    /// [`ConfigError`] if a measure does not fit.
    pub fn new(config: Config) -> Result<Sender, ConfigError> {
        Ok(Sender {
            tail: 0,
            esc_tail: 0,
            synced_tail: 0,
            local_head: 0,
            advances: 0,
            completed: 0,
            flush: false,
            pressed: false,
            ending: false,
            end_told: false,
            deaf: false,
            fault: None,
            since_ns: 0,
            shape: config.check()?,
            config,
            counters: SenderCounters::default(),
        })
    }

    /// Where slots are.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What it did.
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// Takes room for a message of `len` bytes, which is sent by [`Sender::commit`] and forgotten without.
    ///
    /// # Errors
    /// [`Refused::Full`] passes when the receiver has read; the others stay.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Frame, Refused> {
        let max = self.shape.message_bytes_max();
        let fits = u32::try_from(len).ok().filter(|len| *len <= max);
        let Some(bytes) = fits else { return Err(Refused::TooLong { len, max }) };
        if self.ending || self.deaf || self.fault.is_some() {
            return Err(self.over());
        }
        let frame = self.shape.frame(self.tail, bytes);
        if self.tail + frame.slots - self.local_head > self.shape.slots() {
            self.pressed = self.tail != self.synced_tail;
            self.counters.full += 1;
            return Err(Refused::Full);
        }
        Ok(frame)
    }

    /// The message is filled: it goes out with its batch. `now_ns` is any clock that does not go back.
    ///
    /// # Panics
    /// With a frame that is not the one reserved last.
    #[inline]
    pub fn commit(&mut self, frame: &Frame, now_ns: u64) {
        assert_eq!(frame.at, self.tail, "a message is committed once, in its turn");
        if self.tail == self.synced_tail {
            self.since_ns = now_ns;
        }
        self.tail += frame.slots;
        self.counters.messages += 1;
        self.counters.deferred += u64::from(self.is_deferred());
    }

    /// Has all that was committed told at once.
    #[inline]
    pub fn flush(&mut self) {
        self.flush = self.tail != self.synced_tail;
    }

    /// No message follows: the receiver hears it behind the last one.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// Whether it sends no more.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// When a batch must go out that is not full: [`Sender::handle_time`] then. None without such, or
    /// without [`Config::linger_ns`].
    pub fn deadline_ns(&self) -> Option<u64> {
        let waits = self.tail != self.synced_tail && !self.flush;
        let linger_ns = self.config.linger_ns.filter(|_| waits)?;
        Some(self.since_ns.saturating_add(linger_ns))
    }

    /// Lets a batch go whose time has come.
    #[inline]
    pub fn handle_time(&mut self, now_ns: u64) {
        if self.deadline_ns().is_some_and(|deadline_ns| now_ns >= deadline_ns) {
            self.flush = true;
            self.counters.lingered += 1;
        }
    }

    /// Takes the word that the receiver writes. Whether there is more room than before.
    ///
    /// # Errors
    /// [`Fault::Head`] and [`Fault::AfterEnd`], with which the ring is over.
    #[inline]
    pub fn head_is(&mut self, word: u64) -> Result<bool, Fault> {
        let (head, deaf) = (word & !ENDED, word & ENDED != 0);
        if head == self.local_head && deaf == self.deaf {
            return self.fault.map_or(Ok(false), Err);
        }
        let (least, most) = (self.local_head, self.synced_tail);
        let fault = match () {
            () if self.fault.is_some() => self.fault,
            () if self.deaf => Some(Fault::AfterEnd),
            () if head < least || head > most => Some(Fault::Head { claimed: head, least, most }),
            () => None,
        };
        if let Some(fault) = fault {
            self.counters.faults += u64::from(self.fault.is_none());
            self.fault = Some(fault);
            return Err(fault);
        }
        (self.local_head, self.deaf) = (head, deaf);
        Ok(head > least)
    }

    /// So many advancements have completed since the ring's beginning.
    ///
    /// # Panics
    /// If they are more than were posted.
    #[inline]
    pub fn advanced(&mut self, completed: u64) {
        assert!(completed <= self.advances, "what completes was posted");
        self.completed = completed;
    }

    /// What is to be written now; the same until [`Sender::posted`] says that it is under way.
    #[inline]
    pub fn due(&self) -> Option<Transmission> {
        if self.deaf || self.fault.is_some() {
            return None;
        }
        let (staged, untold) = (self.tail - self.esc_tail, self.tail - self.synced_tail);
        let is_batch = untold >= u64::from(self.config.alpha) || self.pressed;
        let tells_end = self.ending && !self.end_told;
        let advances = self.flush || tells_end || is_batch && !self.is_in_flight();
        if !advances && staged < u64::from(self.config.beta) {
            return None;
        }
        let slots = self.shape.slot_spans(self.esc_tail, self.tail);
        let ended = if self.ending { ENDED } else { 0 };
        Some(Transmission { slots, tail: advances.then_some(self.tail | ended), to: self.tail })
    }

    /// What [`Sender::due`] gave is under way; if it has a tail, its completion will be told by
    /// [`Sender::advanced`].
    #[inline]
    pub fn posted(&mut self, transmission: &Transmission) {
        debug_assert!(transmission.to <= self.tail && transmission.to >= self.esc_tail);
        self.counters.transmissions += u64::from(transmission.to > self.esc_tail);
        self.esc_tail = transmission.to;
        if let Some(word) = transmission.tail {
            self.end_told = word & ENDED != 0;
            self.synced_tail = transmission.to;
            (self.flush, self.pressed) = (false, false);
            self.advances += 1;
            self.counters.advances += 1;
        }
    }

    /// Whether a batch is there whose tail waits for the previous one's completion (elastic threshold).
    #[inline]
    pub fn is_deferred(&self) -> bool {
        self.tail - self.synced_tail >= u64::from(self.config.alpha) && self.is_in_flight()
    }

    /// Whether the receiver has read all that was sent.
    pub fn is_drained(&self) -> bool {
        self.local_head == self.tail
    }

    /// Bytes of the longest message that there is room for, as far as the receiver has told; none if there is
    /// no slot.
    #[inline]
    pub fn room_bytes(&self) -> u32 {
        self.shape.fits(self.shape.slots() - (self.tail - self.local_head))
    }

    /// Whether an advancement is under way.
    #[inline]
    pub fn is_in_flight(&self) -> bool {
        self.completed != self.advances
    }

    #[cold]
    fn over(&self) -> Refused {
        match self.fault {
            Some(fault) => Refused::Fault(fault),
            None if self.deaf => Refused::Deaf,
            None => Refused::Ended,
        }
    }
}
