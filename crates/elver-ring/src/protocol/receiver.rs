use super::config::{Config, ConfigError};
use super::fault::Fault;
use super::shape::{ENDED, Frame, Shape};

/// The receiver's half of a ring (Algorithm 1, READMSG).
///
/// 1. [`Receiver::tail_is`] with the word that the sender writes;
/// 2. while [`Receiver::next_offset`] gives a place: [`Receiver::frame`] with the header that stands there,
///    read the message, [`Receiver::release`];
/// 3. when [`Receiver::due`] gives a word, write it to the sender and tell so by [`Receiver::posted`].
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Receiver {
    /// The slot that is read next.
    head: u64,
    /// What the sender was told.
    synced_head: u64,
    /// What the sender has told.
    local_tail: u64,
    /// The sender tells no more.
    ended: bool,
    /// Somebody wants the head out.
    push: bool,
    stopping: bool,
    stop_told: bool,
    fault: Option<Fault>,
    gamma: u64,
    shape: Shape,
    counters: ReceiverCounters,
}

/// What a receiver did, in numbers since the ring's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Messages that were read.
    pub messages: u64,
    /// Times that the head was told.
    pub pushes: u64,
    /// Words and headers of the sender's that cannot be.
    pub faults: u64,
}

impl Receiver {
    /// A receiver at the beginning of an empty ring.
    ///
    /// # Errors
    /// [`ConfigError`] if a measure does not fit.
    pub fn new(config: Config) -> Result<Receiver, ConfigError> {
        Ok(Receiver {
            head: 0,
            synced_head: 0,
            local_tail: 0,
            ended: false,
            push: false,
            stopping: false,
            stop_told: false,
            fault: None,
            gamma: u64::from(config.gamma),
            shape: config.check()?,
            counters: ReceiverCounters::default(),
        })
    }

    /// Where slots are.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What it did.
    pub fn counters(&self) -> &ReceiverCounters {
        &self.counters
    }

    /// Slots that the sender has told of since the beginning.
    pub fn tail(&self) -> u64 {
        self.local_tail
    }

    /// Takes the word that the sender writes. Whether there is more than before.
    ///
    /// # Errors
    /// [`Fault::Tail`] and [`Fault::AfterEnd`], with which the ring is over.
    #[inline]
    pub fn tail_is(&mut self, word: u64) -> Result<bool, Fault> {
        let (tail, ended) = (word & !ENDED, word & ENDED != 0);
        if tail == self.local_tail && ended == self.ended {
            return self.fault.map_or(Ok(false), Err);
        }
        // A sender does not know of slots that were freed and not told.
        let (least, most) = (self.local_tail, self.synced_head + self.shape.slots());
        if self.ended {
            return Err(self.fails(Fault::AfterEnd));
        }
        if tail < least || tail > most {
            return Err(self.fails(Fault::Tail { claimed: tail, least, most }));
        }
        (self.local_tail, self.ended) = (tail, ended);
        self.fault.map_or(Ok(true), Err)
    }

    /// Where the next message's header stands, if one is there.
    #[inline]
    pub fn next_offset(&self) -> Option<u64> {
        let is_there = self.head != self.local_tail && self.fault.is_none();
        is_there.then(|| self.shape.offset(self.head))
    }

    /// The next message, by its header, little-endian.
    ///
    /// # Errors
    /// [`Fault::Length`] and [`Fault::Stale`], with which the ring is over.
    #[inline]
    pub fn frame(&mut self, header: u64) -> Result<Frame, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let frame = self.shape.parse(self.head, header, self.local_tail - self.head);
        frame.map_err(|fault| self.fails(fault))
    }

    /// The message was read: its slots are free.
    ///
    /// # Panics
    /// With a frame that is not the next one.
    #[inline]
    pub fn release(&mut self, frame: &Frame) {
        assert_eq!(frame.at, self.head, "a message is released once, in its turn");
        self.head += frame.slots;
        self.counters.messages += 1;
    }

    /// Whether all is read, and nothing follows.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.ended && self.head == self.local_tail
    }

    /// Whether the sender has said that nothing follows, also where not all of it was read.
    #[inline]
    pub fn has_heard_end(&self) -> bool {
        self.ended
    }

    /// Has the head told though fewer than γ slots were read.
    pub fn push(&mut self) {
        self.push = self.head != self.synced_head;
    }

    /// Reads no more: the sender hears it.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The word for the sender's `local_head`, little-endian, if it is to be written now.
    #[inline]
    pub fn due(&self) -> Option<u64> {
        if self.stop_told {
            return None;
        }
        let is_due = self.push || self.head - self.synced_head >= self.gamma;
        let stopped = if self.stopping { ENDED } else { 0 };
        (self.stopping || is_due && self.fault.is_none()).then_some(self.head | stopped)
    }

    /// What [`Receiver::due`] gave is under way.
    #[inline]
    pub fn posted(&mut self, word: u64) {
        self.synced_head = word & !ENDED;
        self.stop_told = word & ENDED != 0;
        self.push = false;
        self.counters.pushes += 1;
    }

    #[cold]
    fn fails(&mut self, fault: Fault) -> Fault {
        self.counters.faults += u64::from(self.fault.is_none());
        *self.fault.get_or_insert(fault)
    }
}
