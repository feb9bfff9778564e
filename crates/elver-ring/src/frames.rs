//! Frames, for protocols over rings: a header and a body, one behind the other in one message.

use crate::carrier::Carrier;
use crate::{Error, Receiver, Sender};

/// The end of a ring that frames go in by.
#[derive(Debug)]
pub struct FrameSender<C: Carrier> {
    sender: Sender<C>,
    /// For frames that go on at the ring's beginning.
    scratch: Vec<u8>,
    /// Something was put there that may not have gone.
    unflushed: bool,
    in_doubt: bool,
}

/// The end that they come out by.
#[derive(Debug)]
pub struct FrameReceiver<C: Carrier> {
    receiver: Receiver<C>,
    frame: Vec<u8>,
}

impl<C: Carrier> FrameSender<C> {
    /// Of a ring that nothing else is sent by.
    pub fn new(sender: Sender<C>) -> FrameSender<C> {
        FrameSender { sender, scratch: Vec::new(), unflushed: false, in_doubt: false }
    }

    /// Bytes of the longest frame, its header included.
    pub fn frame_bytes_max(&self) -> usize {
        self.sender.shape().message_bytes_max() as usize
    }

    /// Puts a frame in, its body of so many bytes filled in place where it lies in one piece; false if there is no room.
    ///
    /// # Errors
    /// As [`Sender::try_reserve`], but for [`Error::Full`]. [`FrameSender::is_in_doubt`] tells whether the frame may go all
    /// the same.
    #[inline]
    pub fn put<const HEADER: usize>(
        &mut self,
        header: &[u8; HEADER],
        body: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<bool, Error> {
        let len = HEADER + body;
        let mut room = match self.sender.try_reserve(len) {
            Ok(room) => room,
            Err(Error::Full) => return Ok(false),
            Err(error) => return Err(error),
        };
        let write = |frame: &mut [u8]| {
            let (head, body) = frame.split_at_mut(HEADER);
            head.copy_from_slice(header);
            fill(body);
        };
        let [first, second] = room.parts();
        if second.is_empty() {
            write(first);
        } else {
            self.scratch.resize(len, 0);
            write(&mut self.scratch);
            room.fill(&self.scratch);
        }
        self.unflushed = true;
        let committed = room.commit();
        self.in_doubt |= committed.is_err();
        committed.map(|()| true)
    }

    /// Whether a frame failed that stands in the ring: some of it may be under way, or goes by a later call, the sender's
    /// end as well.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Lets go what waits for its batch to be full. Frames that find no room below, because there is none for long or what
    /// ends a wait of the session's came ([`elver::Error::Woken`], [`elver::Error::Interrupted`]), go by a later call.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.unflushed {
            self.unflushed = is_later(self.sender.flush())? || self.sender.is_held_up();
        }
        Ok(())
    }

    /// As [`FrameSender::flush`], but waits for no room below.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[inline]
    pub fn begin_flush(&mut self) -> Result<(), Error> {
        if self.unflushed {
            self.sender.begin_flush()?;
            self.unflushed = self.sender.is_held_up();
        }
        Ok(())
    }

    /// The ring, to end it.
    pub fn ring(&mut self) -> &mut Sender<C> {
        &mut self.sender
    }

    /// Whether something is due that found no room below, so that it waits for a later call.
    pub fn is_held_up(&self) -> bool {
        self.sender.is_held_up()
    }

    /// As [`Sender::flush_if_idle`]: what stays goes by a later call.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[inline]
    pub fn flush_if_idle(&mut self) -> Result<(), Error> {
        if self.unflushed {
            is_later(self.sender.flush_if_idle())?;
        }
        Ok(())
    }
}

impl<C: Carrier> FrameReceiver<C> {
    /// Of a ring that nothing else is taken from.
    pub fn new(receiver: Receiver<C>) -> FrameReceiver<C> {
        FrameReceiver { receiver, frame: Vec::new() }
    }

    /// Takes the next frame; how many bytes it has. It is copied out of the ring once: a peer can change what lies there.
    ///
    /// # Errors
    /// As [`Receiver::try_recv`].
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<usize>, Error> {
        let Some(message) = self.receiver.try_recv()? else { return Ok(None) };
        let len = message.len();
        if self.frame.len() < len {
            self.frame.resize(len, 0);
        }
        message.read(0, &mut self.frame[..len]);
        Ok(Some(len))
    }

    /// The frame that was taken last, of so many bytes.
    ///
    /// # Panics
    /// If none was ever as long.
    #[inline]
    pub fn frame(&self, len: usize) -> &[u8] {
        &self.frame[..len]
    }

    /// The ring, to end it.
    pub fn ring(&mut self) -> &mut Receiver<C> {
        &mut self.receiver
    }

    /// Whether the peer sends no more.
    pub fn is_ended(&self) -> bool {
        self.receiver.is_ended()
    }

    /// Most frames that may be there at a time.
    pub fn frames_max(&self) -> u32 {
        u32::try_from(self.receiver.shape().slots()).unwrap_or(u32::MAX)
    }

    /// What carries the ring.
    pub fn carrier(&self) -> &C {
        self.receiver.carrier()
    }
}

/// Whether a wait for room below was ended, of what is no failure.
fn is_later(flushed: Result<(), Error>) -> Result<bool, Error> {
    match flushed {
        Err(Error::Carrier(elver::Error::Interrupted | elver::Error::Woken)) => Ok(true),
        flushed => flushed.map(|()| false),
    }
}

/// The bytes of a greeting of words.
pub fn of_words<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The words of a greeting that has at least so many, little-endian.
pub fn words<const WORDS: usize>(bytes: &[u8]) -> Option<[u32; WORDS]> {
    let (chunks, _) = bytes.as_chunks::<4>();
    let mut words = [0; WORDS];
    for (word, from) in words.iter_mut().zip(chunks.get(..WORDS)?) {
        *word = u32::from_le_bytes(*from);
    }
    Some(words)
}

/// The version that a greeting says behind its magic number, major and minor, whatever else is in it; none if it begins
/// otherwise. So ends of different versions can tell each other.
pub fn version_of(magic: u32, greeting: &[u8]) -> Option<(u16, u16)> {
    let [first, version] = words(greeting)?;
    (first == magic).then_some((version as u16, (version >> 16) as u16))
}
