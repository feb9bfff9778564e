//! Frames through a pair of rings, and to oneself.

use std::collections::VecDeque;
use std::convert::Infallible;

use elver_ring::{Ends, Error, Pause, Receiver, Sender, Wire};

use crate::protocol::{HEADER_BYTES, Header, Outlet};

/// A pair of rings to another rank.
pub(crate) struct Link {
    receiver: Receiver<Wire>,
    pub(crate) out: Outgoing,
    frame: Vec<u8>,
    /// A wait that goes on.
    pub(crate) pause: Option<Pause>,
}

/// The ring to the peer.
pub(crate) struct Outgoing {
    sender: Sender<Wire>,
    /// For frames that go on at the ring's beginning.
    scratch: Vec<u8>,
    /// Something was put there that may not have gone.
    unflushed: bool,
}

impl Link {
    pub(crate) fn new(ends: Ends) -> Link {
        let Ends { sender, receiver, .. } = ends;
        let out = Outgoing { sender, scratch: Vec::new(), unflushed: false };
        Link { receiver, out, frame: Vec::new(), pause: None }
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.receiver.carrier()
    }

    /// Most bytes of a frame's body. A ring of the least size has room for a greeting and an offer.
    pub(crate) fn body_max(&self) -> usize {
        let most = self.out.sender.shape().message_bytes_max() as usize;
        most.saturating_sub(HEADER_BYTES)
    }

    /// Takes the next frame; its bytes. It is copied out of the ring once: a peer can change what lies there.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<usize>, Error> {
        let Some(message) = self.receiver.try_recv()? else { return Ok(None) };
        let len = message.len();
        if self.frame.len() < len {
            self.frame.resize(len, 0);
        }
        message.read(0, &mut self.frame[..len]);
        drop(message);
        Ok(Some(len))
    }

    /// The frame that was taken last, of so many bytes.
    pub(crate) fn frame(&self, len: usize) -> &[u8] {
        &self.frame[..len]
    }

    /// Whether the peer sends no more.
    pub(crate) fn is_ended(&self) -> bool {
        self.receiver.is_ended()
    }
}

impl Outgoing {
    /// Lets go what waits for its batch to be full.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.unflushed) { later(self.sender.flush()) } else { Ok(()) }
    }

    /// The same, unless a batch is on its way: what is there then goes by a later call.
    #[inline]
    pub(crate) fn flush_if_idle(&mut self) -> Result<(), Error> {
        if self.unflushed { later(self.sender.flush_if_idle()) } else { Ok(()) }
    }
}

/// What ends a wait for room of the session's leaves the frames where they are: they go out later.
fn later(flushed: Result<(), Error>) -> Result<(), Error> {
    match flushed {
        Err(Error::Carrier(elver::Error::Interrupted | elver::Error::Woken)) => Ok(()),
        flushed => flushed,
    }
}

impl Outlet for Outgoing {
    type Error = Error;

    #[inline]
    fn put(
        &mut self,
        header: &Header,
        body: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Error> {
        let len = HEADER_BYTES + body;
        let mut room = match self.sender.try_reserve(len) {
            Ok(room) => room,
            Err(Error::Full) => return Ok(false),
            Err(error) => return Err(error),
        };
        let [first, second] = room.parts();
        if second.is_empty() {
            let (head, body) = first.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&header.encode());
            fill(body);
        } else {
            self.scratch.resize(len, 0);
            let (head, body) = self.scratch.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&header.encode());
            fill(body);
            room.fill(&self.scratch);
        }
        room.commit()?;
        self.unflushed = true;
        Ok(true)
    }
}

/// Most frames of a rank's to itself.
const OWN_FRAMES_MAX: usize = 64;
/// Most bytes of their bodies.
pub(crate) const OWN_BODY_MAX: usize = 64 << 10;

/// Frames of a rank's to itself.
#[derive(Default)]
pub(crate) struct Loopback {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Loopback {
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Takes the memory of a frame back.
    pub(crate) fn give_back(&mut self, frame: Vec<u8>) {
        self.spare.push(frame);
    }
}

impl Outlet for Loopback {
    type Error = Infallible;

    fn put(
        &mut self,
        header: &Header,
        body: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Infallible> {
        if self.frames.len() >= OWN_FRAMES_MAX {
            return Ok(false);
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend(header.encode());
        frame.resize(HEADER_BYTES + body, 0);
        fill(&mut frame[HEADER_BYTES..]);
        self.frames.push_back(frame);
        Ok(true)
    }
}
