//! Frames through a pair of rings, and to oneself.

use std::collections::VecDeque;
use std::convert::Infallible;

use elver_ring::frames::{FrameReceiver, FrameSender};
use elver_ring::{Ends, Error, Pause, Wire, parting};

use crate::protocol::{HEADER_BYTES, Header, Outlet};

/// A pair of rings to another rank.
pub(crate) struct Link {
    pub(crate) incoming: FrameReceiver<Wire>,
    pub(crate) out: Outgoing,
    /// A wait that goes on.
    pub(crate) pause: Option<Pause>,
}

/// The ring to the peer.
pub(crate) struct Outgoing(FrameSender<Wire>);

impl Link {
    pub(crate) fn new(ends: Ends) -> Link {
        let Ends { sender, receiver, .. } = ends;
        let out = Outgoing(FrameSender::new(sender));
        Link { incoming: FrameReceiver::new(receiver), out, pause: None }
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.incoming.carrier()
    }

    /// Ends both directions, and waits for nothing: [`Link::is_settled`] goes on with it.
    pub(crate) fn begin_close(&mut self) {
        parting::begin_close(self.out.0.ring(), self.incoming.ring());
    }

    /// Whether all has arrived, as far as it will. Dropped from then on, it waits for nothing.
    pub(crate) fn is_settled(&mut self) -> bool {
        parting::is_settled(self.out.0.ring(), self.incoming.ring())
    }

    /// Most bytes of a frame's body. A ring of the least size has room for a greeting and an offer.
    pub(crate) fn body_max(&self) -> usize {
        self.out.0.frame_bytes_max().saturating_sub(HEADER_BYTES)
    }
}

impl Outgoing {
    /// Lets go what waits for its batch to be full.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.0.flush()
    }

    /// The same as [`Outgoing::flush`], unless a batch is on its way: what is there then goes by a later call.
    #[inline]
    pub(crate) fn flush_if_idle(&mut self) -> Result<(), Error> {
        self.0.flush_if_idle()
    }
}

impl Outlet for Outgoing {
    type Error = Error;

    #[inline]
    fn put(
        &mut self,
        header: &Header,
        body: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Error> {
        self.0.put(&header.encode(), body, fill)
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
