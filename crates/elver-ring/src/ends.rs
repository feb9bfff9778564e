//! One end of a pair of rings, and the memory that it is made of.

use std::time::Duration;

use elver::{AccessFlags, Mr, Numa, Placement, Session};

use crate::carrier::{Carrier, Pause};
use crate::greeting::{GREETING_BYTES, Place};
use crate::protocol::Config;
use crate::receiver::Piece;
use crate::wire::{CELLS_BYTES, Parts, Wire};
use crate::{Error, Message, Receiver, Sender};

/// One end of a pair of rings.
#[derive(Debug)]
pub struct Ends {
    /// Sends to the peer.
    pub sender: Sender<Wire>,
    /// Receives from it.
    pub receiver: Receiver<Wire>,
    /// What who connected said of the pair.
    pub token: u64,
}

impl Ends {
    /// As [`Receiver::recv`], and lets what was sent in part go out when its time has come
    /// ([`Config::linger_ns`]): for who waits for an answer.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub fn recv(&mut self, at_most: Option<Duration>) -> Result<Option<Message<'_, Wire>>, Error> {
        let mut pause = Pause::new(at_most);
        loop {
            match self.next(&mut pause)? {
                None if !self.receiver.is_ended() => self.receiver.carrier().rest(&mut pause)?,
                piece => return Ok(piece.map(|piece| self.receiver.message(piece))),
            }
        }
    }

    /// A look at both halves; the next message, if one is there.
    pub(crate) fn next(&mut self, pause: &mut Pause) -> Result<Option<Piece>, Error> {
        // Also what its time has come for, and what found no room below then.
        let waits = self.sender.deadline().is_some() || self.sender.is_held_up();
        let polled = if waits { self.sender.poll() } else { Ok(()) };
        pause.due = self.sender.deadline();
        // What came before the peer went is read first, and its end counts.
        match self.receiver.next() {
            Ok(None) if !self.receiver.is_ended() => polled.map(|()| None),
            next => next,
        }
    }
}

/// The memory of an end.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) cells: Mr,
    pub(crate) outgoing: Mr,
    pub(crate) incoming: Mr,
}

/// What an end's memory is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where {
    /// Huge pages, for the slots.
    pub(crate) huge: bool,
    /// The peer is at this node: what it writes has files of its own, so that it can do so itself.
    pub(crate) here: bool,
    /// At which NUMA node.
    pub(crate) numa: Numa,
}

impl Memory {
    pub(crate) fn new(
        session: &Session,
        out: Config,
        into: Config,
        place: Where,
    ) -> Result<Memory, Error> {
        inline_fits(session)?;
        let Where { huge, here, numa } = place;
        let alloc = |bytes, access: AccessFlags, huge| {
            let apart = here && access.contains(AccessFlags::REMOTE_WRITE);
            session.alloc_placed(bytes, access, Placement { huge, apart, numa })
        };
        let written = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let max = session.limits().message_bytes;
        let slots = |config: Config, access| {
            let bytes = config.check()?.bytes();
            if bytes > max {
                return Err(Error::Transfer { bytes, max });
            }
            Ok(alloc(bytes, access, huge)?)
        };
        Ok(Memory {
            cells: alloc(CELLS_BYTES, written, false)?,
            // Peers have no business here.
            outgoing: slots(out, AccessFlags::empty())?,
            incoming: slots(into, written)?,
        })
    }

    pub(crate) fn place(&self) -> Place {
        Place { cells: self.cells.remote(0), slots: self.incoming.remote(0) }
    }
}

pub(crate) fn ends(parts: Parts, out: Config, into: Config, token: u64) -> Result<Ends, Error> {
    let wire = Wire::new(parts);
    let (sender, receiver) = (Sender::new(out, wire.clone())?, Receiver::new(into, wire)?);
    Ok(Ends { sender, receiver, token })
}

/// Pointers and greetings are written inline.
pub(crate) fn inline_fits(session: &Session) -> Result<(), Error> {
    let (max, needed) = (session.limits().max_inline, GREETING_BYTES as u32);
    if max < needed { Err(Error::Inline { max, needed }) } else { Ok(()) }
}
