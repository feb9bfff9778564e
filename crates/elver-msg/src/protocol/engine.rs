mod deliver;
mod incoming;
mod operations;
mod outgoing;
mod peer;

use std::collections::VecDeque;

use super::agreement::Agreement;
use super::frame::Remote;
use super::kind::Kind;
use super::limits::Limits;
use super::matching::{Matching, Wanted};
use super::memory::{Held, Lent, Memory};
use super::request_id::RequestId;
use super::requests::{Failure, Phase, Request, Requests, Status};
use super::tags;
use peer::Peer;

/// All requests of a rank, and what its peers have sent and are to be sent.
#[derive(Debug)]
pub struct Engine<M> {
    rank: u32,
    limits: Limits,
    requests_max: usize,
    peers: Vec<Peer>,
    matching: Matching,
    agreement: Agreement,
    requests: Requests<M>,
    reads: VecDeque<ReadOrder>,
    counters: EngineCounters,
}

/// What an engine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Messages that were sent whole.
    pub eager: u64,
    /// Messages that were offered.
    pub offered: u64,
    /// Messages that were received, whatever way they came.
    pub received: u64,
    /// Of those, the ones that nobody waited for when they came.
    pub unexpected: u64,
    /// Of the received ones, those that were READ from their sender's memory.
    pub read: u64,
    /// Receives that had too little room.
    pub truncated: u64,
    /// Peers that were lost since they sent what cannot be.
    pub faults: u64,
}

/// A READ that is to be done: all of the message, into the memory of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOrder {
    /// The receive. [`Engine::memory`] has its memory.
    pub request: RequestId,
    /// Whose memory is READ.
    pub peer: u32,
    /// Where the message begins.
    pub remote: Remote,
    /// Its bytes.
    pub len: u64,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as there may be.
    Full {
        /// How many that is.
        max: usize,
    },
    /// The receiver takes no message that is so long.
    TooLong {
        /// Its bytes.
        len: u64,
        /// Most that the receiver takes.
        max: u64,
    },
}

impl<M: Memory> Engine<M> {
    /// The engine of a rank. Of each rank, its own included, what it takes, and how many bytes of a body a frame
    /// to it has at most.
    pub fn new(
        rank: u32,
        limits: Limits,
        requests_max: usize,
        peers: impl Iterator<Item = (Limits, usize)>,
    ) -> Engine<M> {
        let peers: Vec<_> = peers.map(|(takes, body)| Peer::new(takes, limits, body)).collect();
        let matching = Matching::new(peers.len() as u32);
        let agreement = Agreement::new(peers.len());
        Engine {
            rank,
            limits,
            requests_max,
            peers,
            matching,
            agreement,
            requests: Requests::default(),
            reads: VecDeque::new(),
            counters: EngineCounters::default(),
        }
    }

    /// What it did.
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// Messages that wait for a receive, and bytes that they hold.
    pub fn waiting(&self) -> (usize, u64) {
        self.matching.waiting()
    }

    /// Requests that were not taken back.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Whether a message of so many bytes goes whole.
    pub fn is_eager(&self, to: u32, len: u64) -> bool {
        len <= self.peers[to as usize].eager_bytes
    }

    /// Sends a message, behind all others to that rank that are of users as well, or of collective operations. Behind [`Engine::say_bye`] it fails.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn send(
        &mut self,
        to: u32,
        tag: u32,
        len: u64,
        memory: Held<M>,
    ) -> Result<RequestId, Refused> {
        let max = self.peers[to as usize].takes.message_bytes;
        if len > max {
            return Err(Refused::TooLong { len, max });
        }
        let status = Status { source: self.rank, tag, len };
        let (phase, room) = (Phase::Queued, 0);
        let request = Request { phase, memory, status, to, room, abandoned: false };
        let id = self.add(request)?;
        let peer = &mut self.peers[to as usize];
        if peer.is_gone || peer.was_told_bye {
            self.requests.end(id, Err(Failure::Peer { rank: to }));
        } else {
            peer.queue_of(tags::operation(tag).is_some()).push_back(id);
        }
        Ok(id)
    }

    /// Receives a message of at most so many bytes into memory of the request's.
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn receive(&mut self, wanted: Wanted, room: u64, memory: M) -> Result<RequestId, Refused> {
        let id = self.add_receive(room, Held::Own(memory))?;
        self.match_now(id, wanted, &mut Lent::none());
        Ok(id)
    }

    /// The same, into memory that the caller lends, now and with each further call.
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn receive_into(&mut self, wanted: Wanted, room: &mut [u8]) -> Result<RequestId, Refused> {
        let id = self.add_receive(room.len() as u64, Held::Lent)?;
        self.match_now(id, wanted, &mut Lent { send: None, receive: Some((id, room)) });
        Ok(id)
    }

    fn add_receive(&mut self, room: u64, memory: Held<M>) -> Result<RequestId, Refused> {
        let status = Status { source: self.rank, tag: 0, len: 0 };
        let (phase, to) = (Phase::Posted, self.rank);
        self.add(Request { phase, memory, status, to, room, abandoned: false })
    }

    fn add(&mut self, request: Request<M>) -> Result<RequestId, Refused> {
        if self.requests.len() >= self.requests_max {
            return Err(Refused::Full { max: self.requests_max });
        }
        Ok(self.requests.add(request))
    }

    /// Matches a new receive with what waits, or posts it.
    fn match_now(&mut self, id: RequestId, wanted: Wanted, lent: &mut Lent<'_>) {
        let room = self.requests.get(id).map_or(0, |request| request.room);
        match self.matching.find(&wanted) {
            Some(found) if found.status.len > room => {
                self.counters.truncated += 1;
                let failure = Failure::Truncated { status: found.status, room };
                self.requests.end(id, Err(failure));
            }
            Some(found) => {
                if let Some(message) = self.matching.take(&found) {
                    self.deliver_kept(id, found.status, message.what, lent);
                }
            }
            None => match self.who_is_missing(wanted.source) {
                Some(rank) => self.requests.end(id, Err(Failure::Peer { rank })),
                None => self.matching.post(id, wanted),
            },
        }
    }

    /// The lost rank for which a receive would wait.
    fn who_is_missing(&self, source: Option<u32>) -> Option<u32> {
        match source {
            Some(rank) => self.peers[rank as usize].is_gone.then_some(rank),
            None => {
                self.peers.iter().position(|peer| peer.is_gone && peer.fails_any).map(|r| r as u32)
            }
        }
    }

    /// The message that a receive would take now.
    pub fn probe(&self, wanted: &Wanted) -> Option<Status> {
        self.matching.find(wanted).map(|found| found.status)
    }

    /// The lost rank for which [`Engine::probe`] would never find anything.
    pub fn probe_fails(&self, wanted: &Wanted) -> Option<u32> {
        self.who_is_missing(wanted.source)
    }

    /// Whether a request is over.
    #[inline]
    pub fn is_over(&self, id: RequestId) -> bool {
        let phase = self.requests.get(id).map(|request| request.phase);
        matches!(phase, None | Some(Phase::Ended(_)))
    }

    /// How a request ended, and its memory; it is forgotten. None as long as it goes on.
    pub fn take(&mut self, id: RequestId) -> Option<(Result<Status, Failure>, Held<M>)> {
        let Phase::Ended(how) = self.requests.get(id)?.phase else { return None };
        let request = self.requests.remove(id)?;
        Some((how.map(|()| request.status), request.memory))
    }

    /// The memory of a request that has its own.
    pub fn memory(&self, id: RequestId) -> Option<&M> {
        match &self.requests.get(id)?.memory {
            Held::Own(memory) => Some(memory),
            Held::Lent => None,
        }
    }

    /// Whether a receive waits for a message, none of which has come.
    pub fn is_posted(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some_and(|request| matches!(request.phase, Phase::Posted))
    }

    /// Nobody asks for a request any more. A receive that has no message yet is withdrawn; one that has goes
    /// on, and its message is lost. A send goes on, with memory of its own if `memory` is given.
    pub fn abandon(&mut self, id: RequestId, memory: Option<M>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        match request.phase {
            Phase::Posted => {
                self.matching.withdraw(id);
                self.requests.remove(id);
            }
            Phase::Ended(_) => drop(self.requests.remove(id)),
            _ => {
                request.abandoned = true;
                if let Some(memory) = memory {
                    request.memory = Held::Own(memory);
                }
            }
        }
    }

    /// Whether a request waits for this rank alone: for a receive, or for a send, that only this rank could post.
    pub fn waits_for_itself(&self, id: RequestId) -> bool {
        let Some(request) = self.requests.get(id) else { return false };
        match request.phase {
            Phase::Queued | Phase::Offered(_) => request.to == self.rank,
            Phase::Posted => {
                let is_alone = self.is_own_alone(None);
                self.matching.is_posted_for(id, self.rank, is_alone)
            }
            _ => false,
        }
    }

    /// Whether nobody else could send what is received from a rank, or from any.
    pub fn is_own_alone(&self, source: Option<u32>) -> bool {
        let mut others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.rank);
        source.map_or_else(|| others.all(|(_, peer)| peer.is_gone), |rank| rank == self.rank)
    }

    /// The rank whose message a receive waits for that cannot send it: what this rank has not received of it is all that
    /// there may be, and nothing of that fits.
    pub fn waits_behind(&self, id: RequestId) -> Option<u32> {
        let is_posted = self.requests.get(id).is_some_and(|it| matches!(it.phase, Phase::Posted));
        let wanted = is_posted.then(|| self.matching.wanted(id)).flatten()?;
        self.is_behind(&wanted)
    }

    /// Messages of a rank's that wait for a receive.
    pub fn held_from(&self, rank: u32) -> u32 {
        self.peers[rank as usize].held()
    }

    /// The same of a probe that finds nothing.
    pub fn is_behind(&self, wanted: &Wanted) -> Option<u32> {
        if tags::operation(wanted.tag).is_some() {
            return None;
        }
        if let Some(rank) = wanted.source {
            return self.peers[rank as usize].is_crowded().then_some(rank);
        }
        let all = (0..).zip(&self.peers).filter(|(rank, peer)| *rank != self.rank && !peer.is_gone);
        let mut crowded = all.clone().filter(|(_, peer)| peer.is_crowded()).map(|(rank, _)| rank);
        let first = crowded.next()?;
        (crowded.count() + 1 == all.count()).then_some(first)
    }

    /// The next READ to be done, once.
    pub fn next_read(&mut self) -> Option<ReadOrder> {
        self.reads.pop_front()
    }

    /// A READ is done.
    pub fn read_done(&mut self, order: &ReadOrder) {
        let Some(request) = self.requests.get(order.request) else { return };
        let Phase::Reading(id) = request.phase else { return };
        if self.peers[order.peer as usize].is_gone {
            return self.read_ended(order);
        }
        self.counters.received += 1;
        self.counters.read += 1;
        self.peers[order.peer as usize].was_read(id);
        self.requests.end(order.request, Ok(()));
    }

    /// A READ that cannot begin here: its message comes in pieces.
    pub fn read_cannot_begin(&mut self, order: &ReadOrder) {
        if self.peers[order.peer as usize].is_gone {
            return self.read_ended(order);
        }
        let Some(request) = self.requests.get_mut(order.request) else { return };
        let Phase::Reading(id) = request.phase else { return };
        request.phase = Phase::Arriving(id, 0);
        self.peers[order.peer as usize].asks_for_pieces(id, order.request);
    }

    /// A READ is over without its message, and writes into the request's memory no more. The request fails, at once
    /// if the rank is lost, else when it is.
    pub fn read_ended(&mut self, order: &ReadOrder) {
        let Some(request) = self.requests.get_mut(order.request) else { return };
        let Phase::Reading(_) = request.phase else { return };
        request.phase = Phase::Unread;
        let rank = order.peer;
        if self.peers[rank as usize].is_gone {
            self.requests.end(order.request, Err(Failure::Peer { rank }));
        }
    }

    /// A rank is not there any more, and all requests that need it fail; those that wait for any rank too, if
    /// `fails_any`. A READ that was begun may still write into its request's memory, which is nobody else's until
    /// that is over: such a request fails by [`Engine::read_ended`].
    pub fn lose(&mut self, rank: u32, fails_any: bool) {
        debug_assert!(rank != self.rank, "a rank does not lose itself");
        let peer = &mut self.peers[rank as usize];
        if peer.is_gone {
            return;
        }
        peer.lose(fails_any);
        let not_begun: Vec<_> = self
            .reads
            .iter()
            .filter(|order| order.peer == rank)
            .map(|order| order.request)
            .collect();
        self.reads.retain(|order| order.peer != rank);
        self.matching.forget_offers(rank);
        let mut over = self.matching.posted_for(rank, fails_any);
        over.iter().for_each(|request| self.matching.withdraw(*request));
        over.extend(self.requests.going(|request| match request.phase {
            Phase::Queued | Phase::Offered(_) | Phase::Sending(..) => request.to == rank,
            Phase::Arriving(..) | Phase::Unread => request.status.source == rank,
            Phase::Posted | Phase::Reading(_) | Phase::Ended(_) => false,
        }));
        over.extend(not_begun);
        for request in over {
            self.requests.end(request, Err(Failure::Peer { rank }));
        }
    }

    /// Says to a rank that nothing more comes, behind all else.
    pub fn say_bye(&mut self, to: u32) {
        let peer = &mut self.peers[to as usize];
        if !(peer.is_gone || peer.was_told_bye) {
            peer.answers.push_back((Kind::Bye, 0));
            peer.was_told_bye = true;
        }
    }

    /// Whether a rank has said that nothing more comes.
    pub fn has_finished(&self, rank: u32) -> bool {
        self.peers[rank as usize].has_finished
    }

    /// Whether a rank was lost.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.peers[rank as usize].is_gone
    }

    /// Whether anything is left to be sent to a rank, or offered to it.
    pub fn owes(&self, rank: u32) -> bool {
        self.peers[rank as usize].owes()
    }
}
