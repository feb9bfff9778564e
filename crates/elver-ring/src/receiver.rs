use std::sync::atomic::AtomicU8;
use std::time::Duration;

use crate::Error;
use crate::carrier::{Carrier, Cell, Pause, ROOM_WAIT, Write};
use crate::protocol::{self, Config, Frame, ReceiverCounters, Shape, Span};

/// The end of a ring that messages come out of.
#[derive(Debug)]
pub struct Receiver<C: Carrier> {
    protocol: protocol::Receiver,
    carrier: C,
    /// A message that was read in part.
    left: Option<Piece>,
    abandoned: bool,
}

/// A message, of which so many bytes were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    frame: Frame,
    read: u64,
}

/// A message, where it lies in the ring. Dropped, it was read, and its place is free; or what is left of
/// one ([`Message::keep_from`]).
#[derive(Debug)]
pub struct Message<'a, C: Carrier> {
    receiver: &'a mut Receiver<C>,
    piece: Piece,
}

impl<C: Carrier> Receiver<C> {
    /// The receiver of a new ring over a carrier.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: Config, carrier: C) -> Result<Receiver<C>, Error> {
        let protocol = protocol::Receiver::new(config)?;
        Ok(Receiver { protocol, carrier, left: None, abandoned: false })
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
    pub fn counters(&self) -> &ReceiverCounters {
        self.protocol.counters()
    }

    /// The next message, if one is there. [`Receiver::is_ended`] says whether one may still come.
    ///
    /// # Errors
    /// [`Error::Fault`], and [`Error::Carrier`] if the peer or the node is gone: when all is read that
    /// it had told before.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Message<'_, C>>, Error> {
        Ok(self.next()?.map(|piece| self.message(piece)))
    }

    /// As [`Receiver::try_recv`], but waits for a message, at most so long. None if the sender has ended.
    ///
    /// # Errors
    /// As [`Receiver::try_recv`]; [`Error::TimedOut`].
    #[inline]
    pub fn recv(&mut self, at_most: Option<Duration>) -> Result<Option<Message<'_, C>>, Error> {
        let piece = match self.next()? {
            None if !self.is_ended() => self.wait(at_most)?,
            piece => piece,
        };
        Ok(piece.map(|piece| self.message(piece)))
    }

    pub(crate) fn message(&mut self, piece: Piece) -> Message<'_, C> {
        Message { receiver: self, piece }
    }

    /// Whether all is read, and no more will come.
    pub fn is_ended(&self) -> bool {
        self.protocol.is_ended()
    }

    /// Whether the sender has said that no message follows, also where not all of them were read.
    ///
    /// # Errors
    /// As [`Receiver::try_recv`], but also ahead of messages that were not read.
    pub fn has_heard_end(&mut self) -> Result<bool, Error> {
        self.listen()?;
        if !self.protocol.has_heard_end() {
            let polled = self.carrier.poll();
            self.listen()?;
            if !self.protocol.has_heard_end() {
                polled?;
            }
        }
        Ok(self.protocol.has_heard_end())
    }

    /// Slots that the sender has told of since the beginning, read or not: more of them are news.
    pub fn slots_told(&mut self) -> u64 {
        // What is wrong the next call for a message says.
        if !matches!(self.listen(), Ok(true)) {
            let _ = self.carrier.poll();
            let _ = self.listen();
        }
        self.protocol.tail()
    }

    /// Takes what the sender has told; whether that is more than before.
    #[inline]
    fn listen(&mut self) -> Result<bool, Error> {
        let is_news = self.protocol.tail_is(self.carrier.word(Cell::Tail))?;
        if is_news {
            self.heard();
        }
        Ok(is_news)
    }

    /// Reads no more: the sender hears it, at once, or as soon as there is room below and this end is used.
    ///
    /// # Errors
    /// [`Error::Carrier`].
    pub fn stop(&mut self) -> Result<(), Error> {
        self.protocol.stop();
        self.drive()?;
        // Nobody may come back to say it when there is room below. A peer that lets nothing through is not waited for.
        let mut pause = Pause::new(Some(ROOM_WAIT));
        while self.protocol.due().is_some() {
            match self.carrier.rest(&mut pause) {
                Err(Error::TimedOut) => break,
                rested => rested?,
            }
            self.carrier.poll()?;
            self.drive()?;
        }
        Ok(())
    }

    /// As [`Receiver::stop`], but waits for no room below: [`Receiver::poll`] says it when there is some.
    ///
    /// # Errors
    /// [`Error::Carrier`].
    pub fn begin_stop(&mut self) -> Result<(), Error> {
        self.protocol.stop();
        self.drive()
    }

    /// Whether something is due that found no room below.
    pub fn is_held_up(&self) -> bool {
        self.protocol.due().is_some()
    }

    /// Says nothing more, not even that it reads no more, when it is dropped.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Tells the sender of room that it does not know of, if that is due: for who waits for something else
    /// than a message. [`Receiver::try_recv`] does it as well, when nothing is there.
    ///
    /// # Errors
    /// [`Error::Carrier`].
    #[inline]
    pub fn poll(&mut self) -> Result<(), Error> {
        self.drive()
    }

    #[cold]
    fn wait(&mut self, at_most: Option<Duration>) -> Result<Option<Piece>, Error> {
        let mut pause = Pause::new(at_most);
        loop {
            self.carrier.rest(&mut pause)?;
            match self.next()? {
                None if !self.is_ended() => {}
                piece => return Ok(piece),
            }
        }
    }

    /// The next message's place, if one is there.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, Error> {
        if !self.carrier.is_here() {
            return Err(Error::Carrier(elver::Error::Forked));
        }
        if self.left.is_some() {
            return Ok(self.left);
        }
        if self.protocol.next_offset().is_none() {
            self.look()?;
        }
        let Some(offset) = self.protocol.next_offset() else { return Ok(None) };
        let header = self.carrier.incoming().word(offset);
        // Read once: a peer may change it.
        Ok(Some(Piece { frame: self.protocol.frame(header)?, read: 0 }))
    }

    /// All that is known of was read: is there more?
    #[inline]
    fn look(&mut self) -> Result<(), Error> {
        if self.listen()? || self.is_ended() {
            return Ok(());
        }
        // What was told before the peer went counts.
        let polled = self.carrier.poll();
        if self.listen()? {
            return Ok(());
        }
        polled?;
        self.drive()
    }

    /// The sender has told something. One that ends waits for the last word; if it did not, it is gone,
    /// and all was read.
    #[inline]
    fn heard(&mut self) {
        if self.is_ended() {
            self.protocol.push();
            let _ = self.drive();
        }
    }

    fn release(&mut self, frame: &Frame) {
        self.left = None;
        self.protocol.release(frame);
        if self.protocol.is_ended() {
            self.protocol.push();
        }
        // If the peer is gone, the next call says so.
        let _ = self.drive();
    }

    /// Posts the head if it is due; if there is no room below, the next call does.
    #[inline]
    fn drive(&mut self) -> Result<(), Error> {
        if let Some(head) = self.protocol.due()
            && self.carrier.post(&[Write::Head(head)])?
        {
            self.protocol.posted(head);
        }
        Ok(())
    }
}

impl<C: Carrier> Drop for Receiver<C> {
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        self.protocol.stop();
        if let Some(head) = self.protocol.due() {
            self.carrier.leave(&[Write::Head(head)]);
        }
    }
}

impl Piece {
    fn len(&self) -> u64 {
        u64::from(self.frame.len()) - self.read
    }

    /// Where what is not read stands, in two parts.
    #[inline]
    fn spans(&self) -> [Span; 2] {
        let [first, second] = self.frame.spans();
        let of_first = self.read.min(first.len);
        let of_second = self.read - of_first;
        [(first, of_first), (second, of_second)]
            .map(|(Span { offset, len }, read)| Span { offset: offset + read, len: len - read })
    }
}

impl<C: Carrier> Message<'_, C> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.piece.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.piece.len() == 0
    }

    /// The bytes where they lie, in two parts: the message may go on at the ring's beginning. The peer
    /// can change them at any time, though one that keeps to the protocol does not.
    pub fn parts(&self) -> [&[AtomicU8]; 2] {
        self.piece.spans().map(|span| self.receiver.carrier.incoming().bytes(span))
    }

    /// As [`Message::parts`], as plain bytes, for who trusts the peer.
    ///
    /// # Safety
    /// The peer keeps to the protocol: it does not write slots that were not given back to it.
    pub unsafe fn trusted_parts(&self) -> [&[u8]; 2] {
        let slots = self.receiver.carrier.incoming();
        // SAFETY: the message is not released while it is borrowed, and the caller promises that the
        // peer writes nothing that is not.
        self.piece.spans().map(|span| unsafe { slots.trusted(span) })
    }

    /// Copies bytes of the message out, from `offset` on.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        let end = offset.checked_add(dst.len());
        assert!(end.is_some_and(|end| end <= self.len()), "the bytes are of the message");
        let slots = self.receiver.carrier.incoming();
        let [first, second] = self.piece.spans();
        let skip = (offset as u64).min(first.len);
        let from_first = (first.len - skip).min(dst.len() as u64);
        let (one, other) = dst.split_at_mut(from_first as usize);
        slots.copy_out(Span { offset: first.offset + skip, len: from_first }, one);
        let skip = offset as u64 - skip;
        slots.copy_out(Span { offset: second.offset + skip, len: other.len() as u64 }, other);
    }

    /// Lets the bytes from `from` on be the next message: those before it were read. The place in the ring
    /// is free when all of it is.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn keep_from(self, from: usize) {
        assert!(from <= self.len(), "the bytes are of the message");
        let Piece { frame, read } = self.piece;
        if from < self.len() {
            self.receiver.left = Some(Piece { frame, read: read + from as u64 });
            // It is not free yet.
            std::mem::forget(self);
        }
    }

    /// The message, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }
}

impl<C: Carrier> Drop for Message<'_, C> {
    #[inline]
    fn drop(&mut self) {
        let frame = self.piece.frame;
        self.receiver.release(&frame);
    }
}
