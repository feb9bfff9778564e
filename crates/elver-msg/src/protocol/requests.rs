//! What was asked for and has not been taken back: a table whose places are used again.

use super::memory::Held;
use super::request_id::RequestId;

/// A message, as who received or sent it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Rank of who sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Its bytes.
    pub len: u64,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer is not there any more.
    Peer {
        /// Its rank.
        rank: u32,
    },
    /// The message that fits is longer than the room. It stays, for a receive with more.
    Truncated {
        /// The message.
        status: Status,
        /// Bytes that there was room for.
        room: u64,
    },
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A send that waits for its turn.
    Queued,
    /// A send whose receiver was told of it, under a number.
    Offered(u32),
    /// A send that goes out in pieces, and how many bytes have.
    Sending(u32, u64),
    /// A receive that waits for a message.
    Posted,
    /// A receive whose message comes in pieces, under a number, and how many bytes have.
    Arriving(u32, u64),
    /// A receive whose message is READ; the offer's number.
    Reading(u32),
    /// A receive whose message could not be READ; it ends with its sender's loss.
    Unread,
    /// Over.
    Ended(Result<(), Failure>),
}

#[derive(Debug)]
pub(super) struct Request<M> {
    pub(super) phase: Phase,
    pub(super) memory: Held<M>,
    /// Of a send all is known; of a receive when it is matched.
    pub(super) status: Status,
    /// Of a send the receiver's rank.
    pub(super) to: u32,
    /// Of a receive.
    pub(super) room: u64,
    /// Nobody will ask how it ended.
    pub(super) abandoned: bool,
}

#[derive(Debug)]
pub(super) struct Requests<M> {
    slots: Vec<(u32, Option<Request<M>>)>,
    free: Vec<u32>,
}

impl<M> Default for Requests<M> {
    fn default() -> Requests<M> {
        Requests { slots: Vec::new(), free: Vec::new() }
    }
}

impl<M> Requests<M> {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn add(&mut self, request: Request<M>) -> RequestId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (turn, place) = &mut self.slots[slot as usize];
        *place = Some(request);
        RequestId { slot, turn: *turn }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request<M>> {
        let (turn, request) = self.slots.get(id.slot as usize)?;
        request.as_ref().filter(|_| *turn == id.turn)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request<M>> {
        let (turn, request) = self.slots.get_mut(id.slot as usize)?;
        request.as_mut().filter(|_| *turn == id.turn)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request<M>> {
        let (turn, request) = self.slots.get_mut(id.slot as usize)?;
        if *turn != id.turn {
            return None;
        }
        let request = request.take()?;
        *turn = turn.wrapping_add(1);
        self.free.push(id.slot);
        Some(request)
    }

    /// Notes how a request ended; one that nobody asks for any more goes.
    pub(super) fn end(&mut self, id: RequestId, how: Result<(), Failure>) {
        let Some(request) = self.get_mut(id) else { return };
        request.phase = Phase::Ended(how);
        if request.abandoned {
            self.remove(id);
        }
    }

    /// All that go on and fit.
    pub(super) fn going(&self, fits: impl Fn(&Request<M>) -> bool) -> Vec<RequestId> {
        let all = self.slots.iter().enumerate();
        all.filter_map(|(slot, (turn, request))| {
            let request = request.as_ref()?;
            let goes = !matches!(request.phase, Phase::Ended(_)) && fits(request);
            goes.then_some(RequestId { slot: slot as u32, turn: *turn })
        })
        .collect()
    }
}
