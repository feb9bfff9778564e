use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use elver_ring::protocol::{ReceiverCounters, SenderCounters};
use elver_ring::{Carrier as _, Ends, Error, Pause, Receiver, Sender, Wire, WireCounters, parting};

/// What a stream did since it was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written: taken over by the stream.
    pub bytes_written: u64,
    /// Times that nothing was there to be read.
    pub empty: u64,
    /// Times that there was no room to write.
    pub full: u64,
    /// What its sending ring did; a message is a write, or a part of one.
    pub sent: SenderCounters,
    /// What its receiving ring did.
    pub received: ReceiverCounters,
    /// Sleeps and wakings.
    pub wire: WireCounters,
}

/// A stream without waiting: bytes to messages, and messages to bytes.
#[derive(Debug)]
pub(crate) struct State {
    sender: Sender<Wire>,
    receiver: Receiver<Wire>,
    pub(crate) nodelay: bool,
    /// Longest part of a write that is a message of its own: as long as what goes out at once.
    piece_bytes_max: usize,
    reads_no_more: bool,
    is_abandoned: bool,
    is_closing: bool,
    /// Of waits by the session's descriptor.
    pause: Pause,
    counters: StreamCounters,
}

impl State {
    pub(crate) fn new(ends: Ends, nodelay: bool) -> State {
        let Ends { sender, receiver, .. } = ends;
        let most = sender.shape().message_bytes_max() as usize;
        // An eighth of the ring, header included, as β is by default.
        let piece_bytes_max =
            (sender.shape().bytes() as usize / 8).saturating_sub(8).clamp(1, most);
        State {
            sender,
            receiver,
            nodelay,
            piece_bytes_max,
            reads_no_more: false,
            is_abandoned: false,
            is_closing: false,
            pause: Pause::new(None),
            counters: StreamCounters::default(),
        }
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.sender.carrier()
    }

    pub(crate) fn counters(&self) -> StreamCounters {
        StreamCounters {
            sent: *self.sender.counters(),
            received: *self.receiver.counters(),
            wire: self.wire().counters(),
            ..self.counters
        }
    }

    /// Reads what is there, as much as fits; 0 at the end, none if nothing is there yet.
    #[inline]
    pub(crate) fn try_read(&mut self, bufs: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Error> {
        if self.reads_no_more || bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(Some(0));
        }
        let mut read = 0;
        for buf in bufs {
            let taken = match self.take(buf) {
                // What was read counts, and the next call says it again.
                Err(_) if read > 0 => break,
                taken => taken?,
            };
            read += taken;
            if taken < buf.len() {
                break;
            }
        }
        self.counters.bytes_read += read as u64;
        if read > 0 || self.receiver.is_ended() {
            return Ok(Some(read));
        }
        self.counters.empty += 1;
        Ok(None)
    }

    /// Fills a buffer with what is there.
    #[inline]
    fn take(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < buf.len() {
            let message = match self.receiver.try_recv() {
                Err(_) if filled > 0 => break,
                message => message?,
            };
            let Some(message) = message else { break };
            // No stream writes such a one: a peer that does must not keep a reader here.
            if message.is_empty() {
                break;
            }
            let len = message.len().min(buf.len() - filled);
            message.read(0, &mut buf[filled..filled + len]);
            message.keep_from(len);
            filled += len;
        }
        Ok(filled)
    }

    /// Writes what there is room for; none if there is none.
    #[inline]
    pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        // That the peer reads no more is known where it has told so, and not only once the ring is full.
        self.sender.hear()?;
        let mut source = Source { bufs, at: 0 };
        let mut written = 0;
        while written < wanted {
            match self.put(&mut source, wanted - written) {
                Ok(0) => break,
                Ok(taken) => written += taken,
                // What was written counts, and the next call says it again.
                Err(_) if written > 0 => break,
                Err(error) => return Err(self.reason(error)),
            }
        }
        self.counters.bytes_written += written as u64;
        if written == 0 && wanted > 0 {
            self.counters.full += 1;
            return Ok(None);
        }
        let told = if self.nodelay { self.sender.flush() } else { self.sender.flush_if_idle() };
        match told {
            // It was taken all the same, and goes out later.
            Err(Error::Carrier(elver::Error::Interrupted | elver::Error::Woken)) => {}
            told => told.map_err(|error| self.reason(error))?,
        }
        Ok(Some(written))
    }

    /// Makes a message of the next bytes; of how many, none if there is no room.
    #[inline]
    fn put(&mut self, source: &mut Source<'_>, wanted: usize) -> Result<usize, Error> {
        let room = self.sender.room_bytes()?.max(1);
        let len = room.min(wanted).min(self.piece_bytes_max);
        let mut room = match self.sender.try_reserve(len) {
            Err(Error::Full) => return Ok(0),
            room => room?,
        };
        for part in room.parts() {
            source.copy_to(part);
        }
        room.commit()?;
        Ok(len)
    }

    /// A peer that reads no more, and is gone by now, has said the former first.
    #[cold]
    fn reason(&mut self, error: Error) -> Error {
        if !matches!(error, Error::Carrier(_)) {
            return error;
        }
        // It fails as well, behind a look at what the peer has told.
        let _ = self.sender.poll();
        match self.sender.try_reserve(0) {
            Err(Error::Deaf) => Error::Deaf,
            _ => error,
        }
    }

    /// Waits until something is there to be read, or the end.
    pub(crate) fn wait_readable(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        let mut pause = Pause::new(at_most);
        while !self.is_readable() {
            // What there was no room for below is let out as well: it may be what the peer waits for.
            self.send_all();
            self.wire().rest(&mut pause)?;
        }
        Ok(())
    }

    /// Waits until there is room to write.
    pub(crate) fn wait_writable(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        self.send_all();
        let mut pause = Pause::new(at_most);
        while !self.is_writable() {
            self.tell_room()?;
            let rested = self.wire().rest(&mut pause);
            rested.map_err(|error| self.reason(error))?;
        }
        Ok(())
    }

    /// Before a wait for room to write: the peer may wait for room of which it was not told, and read nothing before.
    pub(crate) fn tell_room(&mut self) -> Result<(), Error> {
        self.receiver.poll().map_err(|error| self.reason(error))
    }

    /// Who waits lets out what was written; whatever is wrong, the wait says it.
    ///
    /// It waits for no room below: who waits comes by again.
    pub(crate) fn send_all(&mut self) {
        let _ = self.sender.begin_flush();
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.sender.flush().map_err(|error| self.reason(error))
    }

    /// As [`State::flush`], for who comes by until nothing is held up.
    #[cfg(feature = "tokio")]
    pub(crate) fn begin_flush(&mut self) -> Result<(), Error> {
        self.sender.begin_flush().map_err(|error| self.reason(error))
    }

    /// Whether something that was let out finds no room below, and goes by a later call.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_held_up(&self) -> bool {
        self.sender.is_held_up()
    }

    /// Whether a read would not wait.
    pub(crate) fn is_readable(&mut self) -> bool {
        match self.receiver.try_recv() {
            Ok(Some(message)) => {
                message.keep_from(0);
                return true;
            }
            Ok(None) => {}
            Err(_) => return true,
        }
        self.reads_no_more || self.receiver.is_ended()
    }

    /// Whether a write would not wait.
    pub(crate) fn is_writable(&mut self) -> bool {
        !matches!(self.sender.try_reserve(1), Err(Error::Full))
    }

    /// What grows when bytes come.
    pub(crate) fn arrived(&mut self) -> u64 {
        self.receiver.slots_told()
    }

    /// Whether the peer has said that it writes no more, also where not all of it was read.
    pub(crate) fn has_peer_ended(&mut self) -> Result<bool, Error> {
        self.receiver.has_heard_end()
    }

    /// Says nothing more: the peer hears that this end is gone.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
        self.sender.abandon();
        self.receiver.abandon();
    }

    /// Tells the peer that this end sleeps; for how long at most, or none if there is news.
    pub(crate) fn lie_down(&mut self) -> Result<Option<Duration>, Error> {
        self.send_all();
        self.receiver.poll()?;
        let State { sender, pause, .. } = self;
        sender.carrier().lie_down(pause)
    }

    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.sender.end().map_err(|error| self.reason(error))
    }

    /// As [`State::end`], for who comes by until nothing is held up.
    #[cfg(feature = "tokio")]
    pub(crate) fn begin_end(&mut self) -> Result<(), Error> {
        self.sender.begin_end().map_err(|error| self.reason(error))
    }

    /// Ends both directions, and waits for no room below: [`State::is_settled`] goes on with it.
    pub(crate) fn begin_close(&mut self) {
        if self.is_abandoned {
            self.wire().hurry();
            return;
        }
        self.is_closing = true;
        parting::begin_close(&mut self.sender, &mut self.receiver);
    }

    /// Whether all has arrived, as far as it will.
    pub(crate) fn is_settled(&mut self) -> bool {
        if self.is_abandoned {
            return self.wire().is_settled();
        }
        parting::is_settled(&mut self.sender, &mut self.receiver)
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.reads_no_more = true;
        self.receiver.stop()
    }

    pub(crate) fn finish(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        self.sender.begin_end().map_err(|error| self.reason(error))?;
        let mut pause = Pause::new(at_most);
        while !self.sender.has_finished().map_err(|error| self.reason(error))? {
            // The peer may wait for room of which it was not told, and read nothing before. What is wrong with what comes is
            // no matter of what goes.
            let _ = self.receiver.poll();
            let rested = self.wire().rest(&mut pause);
            rested.map_err(|error| self.reason(error))?;
        }
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.is_abandoned || self.is_closing {
            return;
        }
        // All that was written goes out, and the end behind it; whoever is gone needs not hear of it.
        let _ = self.sender.end();
    }
}

/// Bytes of several buffers, one after the other.
struct Source<'a> {
    bufs: &'a [IoSlice<'a>],
    /// How much of the first one is gone.
    at: usize,
}

impl Source<'_> {
    #[inline]
    fn copy_to(&mut self, mut part: &mut [u8]) {
        while !part.is_empty() {
            let Some((first, others)) = self.bufs.split_first() else { return };
            let left = &first[self.at..];
            let len = left.len().min(part.len());
            let (now, later) = part.split_at_mut(len);
            now.copy_from_slice(&left[..len]);
            part = later;
            self.at += len;
            if self.at == first.len() {
                (self.bufs, self.at) = (others, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_taken_one_after_the_other() {
        let bufs = [&b"ab"[..], b"", b"cdef", b"g"].map(IoSlice::new);
        for cut in 0..=7 {
            let mut source = Source { bufs: &bufs, at: 0 };
            let (mut one, mut other) = (vec![0; cut], vec![0; 7 - cut]);
            source.copy_to(&mut one);
            source.copy_to(&mut other);
            assert_eq!([one, other].concat(), b"abcdefg");
        }
    }
}
