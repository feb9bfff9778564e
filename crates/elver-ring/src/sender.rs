use std::time::{Duration, Instant};

use crate::Error;
use crate::carrier::{Carrier, Cell, Pause, ROOM_WAIT, WRITES_MAX, Write};
use crate::protocol::{self, Config, Frame, Refused, SenderCounters, Shape, Transmission};

/// The end of a ring that messages go in by.
///
/// Messages go out in batches ([`Config`]). Who sends no more for now calls [`Sender::flush`], or the last
/// ones may stay here; with [`Config::linger_ns`], calls [`Sender::poll`] from time to time.
///
/// Dropped, it ends the ring. The last of an end's two halves to go waits, a second at most, until what was
/// sent has arrived; what has not by then is lost. Only [`Sender::finish`] tells whether everything was read.
#[derive(Debug)]
pub struct Sender<C: Carrier> {
    protocol: protocol::Sender,
    carrier: C,
    /// From when times are counted, if messages have a deadline.
    clock: Option<Instant>,
    /// Room below was waited for in vain, and there was none since.
    is_stuck: bool,
    abandoned: bool,
}

/// Room for a message, in the ring itself. Dropped, it is forgotten.
#[derive(Debug)]
#[must_use = "nothing is sent without `commit`"]
pub struct Room<'a, C: Carrier> {
    sender: &'a mut Sender<C>,
    frame: Frame,
}

impl<C: Carrier> Sender<C> {
    /// The sender of a new ring over a carrier.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: Config, carrier: C) -> Result<Sender<C>, Error> {
        let clock = config.linger_ns.map(|_| Instant::now());
        let protocol = protocol::Sender::new(config)?;
        Ok(Sender { protocol, carrier, clock, is_stuck: false, abandoned: false })
    }

    /// Its measures.
    pub fn shape(&self) -> &Shape {
        self.protocol.shape()
    }

    /// What carries it.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// What it did.
    pub fn counters(&self) -> &SenderCounters {
        self.protocol.counters()
    }

    /// Sends a message that is copied into the ring.
    ///
    /// # Errors
    /// As [`Sender::try_reserve`].
    #[inline]
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut room = self.try_reserve(bytes.len())?;
        room.fill(bytes);
        room.commit()
    }

    /// As [`Sender::try_send`], but waits for room, at most so long.
    ///
    /// # Errors
    /// As [`Sender::reserve`].
    #[inline]
    pub fn send(&mut self, bytes: &[u8], at_most: Option<Duration>) -> Result<(), Error> {
        let mut room = self.reserve(bytes.len(), at_most)?;
        room.fill(bytes);
        room.commit()
    }

    /// Takes room for a message, to be filled in place.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::Ended`], [`Error::Deaf`], [`Error::Fault`], and
    /// [`Error::Carrier`] if the peer or the node is gone.
    #[inline]
    pub fn try_reserve(&mut self, len: usize) -> Result<Room<'_, C>, Error> {
        let frame = self.frame(len)?;
        Ok(self.room(frame))
    }

    /// As [`Sender::try_reserve`], but waits for room, at most so long.
    ///
    /// # Errors
    /// As [`Sender::try_reserve`], but [`Error::TimedOut`] instead of [`Error::Full`].
    #[inline]
    pub fn reserve(&mut self, len: usize, at_most: Option<Duration>) -> Result<Room<'_, C>, Error> {
        let frame = match self.frame(len) {
            Err(Error::Full) => self.wait_for(len, at_most)?,
            frame => frame?,
        };
        Ok(self.room(frame))
    }

    pub(crate) fn room(&mut self, frame: Frame) -> Room<'_, C> {
        Room { sender: self, frame }
    }

    /// Room, if it is there.
    #[inline]
    pub(crate) fn frame(&mut self, len: usize) -> Result<Frame, Error> {
        if !self.carrier.is_here() {
            return Err(Error::Carrier(elver::Error::Forked));
        }
        match self.protocol.reserve(len) {
            // What is known of the head may be old.
            Err(Refused::Full) => {
                self.poll()?;
                Ok(self.protocol.reserve(len)?)
            }
            frame => Ok(frame?),
        }
    }

    #[cold]
    fn wait_for(&mut self, len: usize, at_most: Option<Duration>) -> Result<Frame, Error> {
        let mut pause = Pause::new(at_most);
        loop {
            self.carrier.rest(&mut pause)?;
            match self.frame(len) {
                Err(Error::Full) => {}
                frame => return frame,
            }
        }
    }

    /// Sends what is in the ring now, without waiting for a batch to be full. If the peer lets nothing through, it
    /// goes out later, by any call that polls: for that alone nobody is kept here longer than 20 ms.
    ///
    /// # Errors
    /// [`Error::Fault`] and [`Error::Carrier`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.protocol.flush();
        self.post_all()
    }

    /// As [`Sender::flush`], but waits for no room below: what finds none goes by a later call that polls
    /// ([`Sender::is_held_up`]).
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[inline]
    pub fn begin_flush(&mut self) -> Result<(), Error> {
        self.protocol.flush();
        self.drive().map(drop)
    }

    /// As [`Sender::flush`], unless a batch is on its way: what is there then joins the next one, which goes out
    /// by a later call, when that one has arrived, or is full.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[inline]
    pub fn flush_if_idle(&mut self) -> Result<(), Error> {
        if self.is_idle()? { self.flush() } else { Ok(()) }
    }

    /// Whether no batch is on its way.
    #[inline]
    fn is_idle(&mut self) -> Result<bool, Error> {
        if self.protocol.is_in_flight() {
            self.carrier.poll()?;
            self.protocol.advanced(self.carrier.advances());
        }
        Ok(!self.protocol.is_in_flight())
    }

    /// Takes in what the receiver has told of the ring, without a look at anything else: that it reads no more, above all.
    ///
    /// # Errors
    /// [`Error::Fault`].
    #[inline]
    pub fn hear(&mut self) -> Result<(), Error> {
        self.protocol.head_is(self.carrier.word(Cell::Head))?;
        Ok(())
    }

    /// Bytes of the longest message that there is room for now; none if the ring is full.
    ///
    /// # Errors
    /// As [`Sender::poll`].
    #[inline]
    pub fn room_bytes(&mut self) -> Result<usize, Error> {
        if self.protocol.room_bytes() == 0 {
            // What is known of the head may be old.
            self.poll()?;
        }
        Ok(self.protocol.room_bytes() as usize)
    }

    /// Sends no more: the receiver reads what was sent, and hears that it was all.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn end(&mut self) -> Result<(), Error> {
        self.protocol.end();
        self.post_all()
    }

    /// As [`Sender::end`], but waits for no room below: what finds none goes by a later call that polls
    /// ([`Sender::is_held_up`]).
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn begin_end(&mut self) -> Result<(), Error> {
        self.protocol.end();
        self.drive().map(drop)
    }

    /// Ends, and waits until the receiver has read everything and the end is on its way, at most so long.
    ///
    /// # Errors
    /// As [`Sender::flush`]; [`Error::Deaf`] if it stopped reading before; [`Error::TimedOut`].
    pub fn finish(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        self.begin_end()?;
        let mut pause = Pause::new(at_most);
        while !self.has_finished()? {
            self.carrier.rest(&mut pause)?;
        }
        Ok(())
    }

    /// Whether the receiver has read everything and the end is on its way, for who has ended ([`Sender::begin_end`]) and does
    /// not wait.
    ///
    /// # Errors
    /// As [`Sender::finish`], but for the time; [`Error::Ended`] of one that was not ended.
    pub fn has_finished(&mut self) -> Result<bool, Error> {
        // A receiver that has read the end may be gone right behind its last word.
        let polled = self.poll();
        // What the other half has still to say then goes to nobody.
        let is_told = !self.is_held_up() || (polled.is_err() && self.protocol.due().is_none());
        if self.protocol.is_drained() && is_told {
            return Ok(true);
        }
        polled?;
        match self.protocol.reserve(0) {
            Err(Refused::Ended) => Ok(false),
            refused => Err(refused.err().map_or(Error::Ended, Error::from)),
        }
    }

    /// Takes in what the receiver has told, and sends what is due: a batch that was put off, or whose time
    /// has come.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn poll(&mut self) -> Result<(), Error> {
        let polled = self.carrier.poll();
        self.protocol.advanced(self.carrier.advances());
        self.protocol.head_is(self.carrier.word(Cell::Head))?;
        polled?;
        if self.clock.is_some() {
            self.protocol.handle_time(self.now_ns());
        }
        self.drive().map(drop)
    }

    /// When what is sent in part goes out ([`Config::linger_ns`]), at a call of [`Sender::poll`]; none if nothing
    /// waits for that.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        let (clock, deadline_ns) = (self.clock?, self.protocol.deadline_ns()?);
        clock.checked_add(Duration::from_nanos(deadline_ns))
    }

    /// Whether something is due that found no room below, so that it waits for a later call.
    pub fn is_held_up(&self) -> bool {
        self.protocol.due().is_some() || self.carrier.is_held_up()
    }

    /// Says nothing more, not even that it has ended, when it is dropped: the peer hears that this end is gone.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Posts all that is due, waiting for room below.
    #[inline]
    fn post_all(&mut self) -> Result<(), Error> {
        if self.drive()? {
            self.is_stuck = false;
            return Ok(());
        }
        self.wait_below()
    }

    /// Waits for room below, for some time, and once until there was some. What is due stays so.
    #[cold]
    fn wait_below(&mut self) -> Result<(), Error> {
        let mut pause = Pause::new(Some(ROOM_WAIT));
        while !self.is_stuck {
            match self.carrier.rest(&mut pause) {
                Err(Error::TimedOut) => self.is_stuck = true,
                rested => rested?,
            }
            self.poll()?;
            if self.drive()? {
                break;
            }
        }
        Ok(())
    }

    /// Posts what is due; false if there is no room below for all of it.
    #[inline]
    fn drive(&mut self) -> Result<bool, Error> {
        while let Some(mut due) = self.protocol.due() {
            if due.tail.is_none() && self.protocol.is_deferred() {
                // The elastic threshold: is the previous advancement still under way?
                self.carrier.poll()?;
                self.protocol.advanced(self.carrier.advances());
                due = self.protocol.due().unwrap_or(due);
            }
            let (writes, count) = writes(&due);
            if !self.carrier.post(&writes[..count])? {
                return Ok(false);
            }
            self.protocol.posted(&due);
        }
        if self.carrier.is_held_up() {
            self.carrier.poll()?;
        }
        Ok(!self.carrier.is_held_up())
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.map_or(0, |clock| clock.elapsed().as_nanos() as u64)
    }
}

impl<C: Carrier> Drop for Sender<C> {
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        self.protocol.end();
        if let Ok(false) = self.drive()
            && let Some(due) = self.protocol.due()
        {
            let (writes, count) = writes(&due);
            self.carrier.leave(&writes[..count]);
        }
    }
}

/// A transmission as WRITEs, and how many they are.
#[inline]
fn writes(due: &Transmission) -> ([Write; WRITES_MAX], usize) {
    let mut writes = [Write::Tail(0); WRITES_MAX];
    let mut count = 0;
    for span in due.slots {
        if span.len > 0 {
            writes[count] = Write::Slots(span);
            count += 1;
        }
    }
    if let Some(tail) = due.tail {
        writes[count] = Write::Tail(tail);
        count += 1;
    }
    (writes, count)
}

impl<C: Carrier> Room<'_, C> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.frame.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// The message's bytes, in two parts: it may go on at the ring's beginning. They hold what the ring
    /// held before.
    #[inline]
    pub fn parts(&mut self) -> [&mut [u8]; 2] {
        let slots = self.sender.carrier.outgoing();
        // SAFETY: the slots are the sender's, this is the only room of it, since it borrows it, and the
        // two spans of a frame do not overlap; both references end before `self` is used again.
        self.frame.spans().map(|span| unsafe { slots.fill(span) })
    }

    /// Copies the message in.
    ///
    /// # Panics
    /// If it is not as long as the room.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) {
        self.fill_from(&[bytes]);
    }

    /// Copies the message in from pieces that lie elsewhere, one behind another.
    ///
    /// # Panics
    /// If they are not as long together as the room.
    #[inline]
    pub fn fill_from(&mut self, pieces: &[&[u8]]) {
        let [mut part, mut next] = self.parts();
        for mut piece in pieces.iter().copied() {
            if piece.len() > part.len() {
                let (fits, rest) = piece.split_at(part.len());
                part.copy_from_slice(fits);
                (part, next, piece) = (next, &mut [], rest);
            }
            let (into, left) = part.split_at_mut(piece.len());
            into.copy_from_slice(piece);
            part = left;
        }
        assert!(part.is_empty() && next.is_empty(), "the pieces are shorter than the room");
    }

    /// Sends it, with its batch.
    ///
    /// # Errors
    /// [`Error::Carrier`]: the peer or the node is gone.
    #[inline]
    pub fn commit(self) -> Result<(), Error> {
        let Room { sender, frame } = self;
        sender.carrier.outgoing().set_word(frame.header_offset(), frame.header());
        let now_ns = sender.now_ns();
        sender.protocol.commit(&frame, now_ns);
        sender.drive().map(drop)
    }
}
