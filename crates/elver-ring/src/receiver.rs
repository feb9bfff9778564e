use std::sync::atomic::AtomicU8;
use std::time::Duration;

use crate::Error;
use crate::carrier::{Carrier, Cell, Pause, Write};
use crate::protocol::{self, Config, Frame, ReceiverCounters, Shape, Span};

/// The end of a ring that messages come out of.
#[derive(Debug)]
pub struct Receiver<C: Carrier> {
    protocol: protocol::Receiver,
    carrier: C,
}

/// A message, where it lies in the ring. Dropped, it was read, and its place is free.
#[derive(Debug)]
pub struct Message<'a, C: Carrier> {
    receiver: &'a mut Receiver<C>,
    frame: Frame,
}

impl<C: Carrier> Receiver<C> {
    /// The receiver of a new ring over a carrier.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: Config, carrier: C) -> Result<Receiver<C>, Error> {
        Ok(Receiver { protocol: protocol::Receiver::new(config)?, carrier })
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
        Ok(self.next()?.map(|frame| self.message(frame)))
    }

    /// As [`Receiver::try_recv`], but waits for a message, at most so long. None if the sender has ended.
    ///
    /// # Errors
    /// As [`Receiver::try_recv`]; [`Error::TimedOut`].
    #[inline]
    pub fn recv(&mut self, at_most: Option<Duration>) -> Result<Option<Message<'_, C>>, Error> {
        let frame = match self.next()? {
            None if !self.is_ended() => self.wait(at_most)?,
            frame => frame,
        };
        Ok(frame.map(|frame| self.message(frame)))
    }

    pub(crate) fn message(&mut self, frame: Frame) -> Message<'_, C> {
        Message { receiver: self, frame }
    }

    /// Whether all is read, and no more will come.
    pub fn is_ended(&self) -> bool {
        self.protocol.is_ended()
    }

    /// Reads no more: the sender hears it.
    ///
    /// # Errors
    /// [`Error::Carrier`].
    pub fn stop(&mut self) -> Result<(), Error> {
        self.protocol.stop();
        self.drive()
    }

    #[cold]
    fn wait(&mut self, at_most: Option<Duration>) -> Result<Option<Frame>, Error> {
        let mut pause = Pause::new(at_most);
        loop {
            self.carrier.rest(&mut pause)?;
            match self.next()? {
                None if !self.is_ended() => {}
                frame => return Ok(frame),
            }
        }
    }

    /// The next message's place, if one is there.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Error> {
        if self.protocol.next_offset().is_none() {
            self.look()?;
        }
        let Some(offset) = self.protocol.next_offset() else { return Ok(None) };
        let header = self.carrier.incoming().word(offset);
        Ok(Some(self.protocol.frame(header)?))
    }

    /// All that is known of was read: is there more?
    #[inline]
    fn look(&mut self) -> Result<(), Error> {
        if self.protocol.tail_is(self.carrier.word(Cell::Tail))? {
            return self.heard();
        }
        if self.is_ended() {
            return Ok(());
        }
        // What was told before the peer went counts.
        let polled = self.carrier.poll();
        if self.protocol.tail_is(self.carrier.word(Cell::Tail))? {
            return self.heard();
        }
        polled?;
        self.drive()
    }

    /// The sender has told something. One that ends waits for the last word; if it did not, it is gone,
    /// and all was read.
    #[inline]
    fn heard(&mut self) -> Result<(), Error> {
        if self.is_ended() {
            self.protocol.push();
            let _ = self.drive();
        }
        Ok(())
    }

    fn release(&mut self, frame: &Frame) {
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
        // Whoever is gone needs not hear of it.
        let _ = self.stop();
    }
}

impl<C: Carrier> Message<'_, C> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.frame.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// The bytes where they lie, in two parts: the message may go on at the ring's beginning. The peer
    /// can change them at any time, though one that keeps to the protocol does not.
    pub fn parts(&self) -> [&[AtomicU8]; 2] {
        self.frame.spans().map(|span| self.receiver.carrier.incoming().bytes(span))
    }

    /// As [`Message::parts`], as plain bytes, for who trusts the peer.
    ///
    /// # Safety
    /// The peer keeps to the protocol: it does not write slots that were not given back to it.
    pub unsafe fn trusted_parts(&self) -> [&[u8]; 2] {
        let slots = self.receiver.carrier.incoming();
        // SAFETY: the message is not released while it is borrowed, and the caller promises that the
        // peer writes nothing that is not.
        self.frame.spans().map(|span| unsafe { slots.trusted(span) })
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
        let [first, second] = self.frame.spans();
        let skip = (offset as u64).min(first.len);
        let from_first = (first.len - skip).min(dst.len() as u64);
        let (one, other) = dst.split_at_mut(from_first as usize);
        slots.copy_out(Span { offset: first.offset + skip, len: from_first }, one);
        let skip = offset as u64 - skip;
        slots.copy_out(Span { offset: second.offset + skip, len: other.len() as u64 }, other);
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
        let frame = self.frame;
        self.receiver.release(&frame);
    }
}
