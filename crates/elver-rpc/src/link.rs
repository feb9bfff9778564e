//! Frames through a pair of rings.

use elver_ring::frames::{FrameReceiver, FrameSender};
use elver_ring::{Ends, Error, Wire, parting};

use crate::protocol::{BODY_MIN, HEADER_BYTES, Header, Outlet};

/// Most bytes of a frame's body: what one call may take of the ring at a time.
const BODY_MAX: usize = 16 << 10;

/// A pair of rings that frames go through.
pub(crate) struct Link {
    pub(crate) incoming: FrameReceiver<Wire>,
    pub(crate) outgoing: Outgoing,
}

/// The ring to the peer.
pub(crate) struct Outgoing(FrameSender<Wire>);

impl Link {
    pub(crate) fn new(ends: Ends) -> Link {
        let Ends { sender, receiver, .. } = ends;
        let outgoing = Outgoing(FrameSender::new(sender));
        Link { incoming: FrameReceiver::new(receiver), outgoing }
    }

    /// Most bytes of a frame's body; none if the ring is too short for any.
    pub(crate) fn body_max(&self) -> Option<usize> {
        let body = self.outgoing.0.frame_bytes_max().checked_sub(HEADER_BYTES)?.min(BODY_MAX);
        (body >= BODY_MIN).then_some(body)
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.incoming.carrier()
    }

    /// Ends both directions, and waits for nothing: [`Link::is_settled`] goes on with it.
    pub(crate) fn begin_close(&mut self) {
        parting::begin_close(self.outgoing.0.ring(), self.incoming.ring());
    }

    /// Whether all has arrived, as far as it will: dropped before, what has not is lost, and nobody waits for it.
    pub(crate) fn is_settled(&mut self) -> bool {
        parting::is_settled(self.outgoing.0.ring(), self.incoming.ring())
    }

    /// The frame that came last, and the way back.
    pub(crate) fn parts(&mut self, len: usize) -> (&[u8], &mut Outgoing) {
        (self.incoming.frame(len), &mut self.outgoing)
    }
}

impl Outgoing {
    /// Lets go what waits for its batch to be full.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.0.flush()
    }

    /// As [`Outgoing::flush`], but waits for no room below.
    #[inline]
    pub(crate) fn begin_flush(&mut self) -> Result<(), Error> {
        self.0.begin_flush()
    }

    /// Whether something waits for room below.
    pub(crate) fn is_held_up(&self) -> bool {
        self.0.is_held_up()
    }
}

impl Outlet for Outgoing {
    type Error = Error;

    #[inline]
    fn put(&mut self, header: &Header, fill: impl FnMut(&mut [u8])) -> Result<bool, Error> {
        self.0.put(&header.encode(), header.len as usize, fill)
    }

    fn is_in_doubt(&self) -> bool {
        self.0.is_in_doubt()
    }
}
