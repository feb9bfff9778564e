//! Frames through a pair of rings.

use elver_ring::{Ends, Error, Receiver, Sender, Wire};

use crate::protocol::{BODY_MIN, HEADER_BYTES, Header, Outlet};

/// Most bytes of a frame's body: what one call may take of the ring at a time.
const BODY_MAX: usize = 16 << 10;

/// A pair of rings that frames go through.
pub(crate) struct Link {
    receiver: Receiver<Wire>,
    pub(crate) outgoing: Outgoing,
    frame: Vec<u8>,
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
        let outgoing = Outgoing { sender, scratch: Vec::new(), unflushed: false };
        Link { receiver, outgoing, frame: Vec::new() }
    }

    /// Most bytes of a frame's body; none if the ring is too short for any.
    pub(crate) fn body_max(&self) -> Option<usize> {
        let most = self.outgoing.sender.shape().message_bytes_max() as usize;
        let body = most.checked_sub(HEADER_BYTES)?.min(BODY_MAX);
        (body >= BODY_MIN).then_some(body)
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.receiver.carrier()
    }

    /// The next frame, copied out of the ring once: a peer can change what lies there.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        let Some(message) = self.receiver.try_recv()? else { return Ok(None) };
        let len = message.len();
        if self.frame.len() < len {
            self.frame.resize(len, 0);
        }
        message.read(0, &mut self.frame[..len]);
        drop(message);
        Ok(Some(&self.frame[..len]))
    }

    /// The frame that came last, and the way back.
    pub(crate) fn parts(&mut self, len: usize) -> (&[u8], &mut Outgoing) {
        (&self.frame[..len], &mut self.outgoing)
    }

    /// Most frames that may be there at a time.
    pub(crate) fn frames_max(&self) -> u32 {
        u32::try_from(self.receiver.shape().slots()).unwrap_or(u32::MAX)
    }

    /// Whether the peer sends no more.
    pub(crate) fn is_ended(&self) -> bool {
        self.receiver.is_ended()
    }
}

impl Outgoing {
    /// Lets go what waits for its batch to be full.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.unflushed) { self.sender.flush() } else { Ok(()) }
    }
}

impl Outlet for Outgoing {
    type Error = Error;

    #[inline]
    fn put(&mut self, header: &Header, mut fill: impl FnMut(&mut [u8])) -> Result<bool, Error> {
        let len = HEADER_BYTES + header.len as usize;
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
