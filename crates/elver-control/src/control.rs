//! Requests and answers between cores over UD, which loses, doubles and reorders: see [`Control`].

mod address;
mod audit;
mod calls;
mod outgoing;
mod peer;
mod serving;
#[cfg(test)]
mod tests;

use elver_random::Rng;
use elver_verbs::{Gid, Time};

pub use self::address::ControlAddr;
use self::calls::Calls;
pub use self::calls::Done;
use self::outgoing::Outgoing;
pub use self::serving::Ticket;
use self::serving::{Serving, Taken};
use crate::message::{Answer, ControlBody, ControlMessage, Request};

/// Limits and times of a [`Control`].
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Most requests that await an answer at once.
    pub calls_max: usize,
    /// Most requests that wait, for their turn or because the peer is busy.
    pub waiting_max: usize,
    /// Most connects of others that are worked on at once.
    pub serving_max: usize,
    /// Most answers kept for requests that come again; the oldest give way.
    pub replies_max: usize,
}

/// What a busy core asks others to wait, in microseconds.
const RETRY_AFTER_US: u32 = 2_000;

/// The control protocol as a state machine without IO.
///
/// Requests go out at most [`ControlConfig::calls_max`] at once, peers in turn and those to one peer
/// in their order, and again at doubling distances with jitter until an answer comes. A peer that
/// does not answer keeps nobody else waiting: what is under way to it does not count, nothing more
/// goes there until it is heard, and when it is given up, so is all that waits for it. Nor does one that
/// only says that it works on what it was asked: after a second that does not count, and while there is
/// any, one other is under way to it at once.
///
/// The answering side does a request that comes again only once: it gets the answer it got, or
/// [`Answer::Working`] while there is none. Answers are kept until their request can come no more,
/// or until [`ControlConfig::replies_max`] newer ones are: so many connects a second that this
/// matters are no reason to turn any away. A request that comes again after that is done again,
/// which is why none may do harm then: what a second connect makes is never used, and closed.
///
/// After each call: take [`Control::poll_transmit`] and [`Control::poll_done`] until they give
/// nothing, and call [`Control::handle_timeout`] at [`Control::poll_timeout`].
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    calls: Calls,
    serving: Serving,
    outgoing: Outgoing,
    stats: ControlStats,
}

/// What a control protocol did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlStats {
    /// Requests sent again.
    pub retransmitted: u64,
    /// Answers sent again.
    pub answered_again: u64,
    /// Requests of others turned away for now.
    pub busy: u64,
    /// Datagrams that were no message, or an answer to nothing.
    pub stray: u64,
}

/// A request of another core, to be answered with [`Control::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whom the answer goes to.
    pub ticket: Ticket,
    /// What it asks.
    pub request: Request,
}

impl Control {
    /// One without calls.
    pub fn new(config: ControlConfig) -> Control {
        Control {
            calls: Calls::new(config.calls_max, config.waiting_max),
            config,
            serving: Serving::default(),
            outgoing: Outgoing::default(),
            stats: ControlStats::default(),
        }
    }

    /// Asks a peer. [`Control::poll_done`] tells the end with `token`. Returns the id of the call,
    /// or none when too many wait.
    pub fn call(
        &mut self,
        to: ControlAddr,
        request: Request,
        token: u64,
        rng: &mut Rng,
        now: Time,
    ) -> Option<u64> {
        self.calls.call(&mut self.outgoing, to, request, token, rng, now)
    }

    /// The message of a datagram; none if it is none.
    pub fn read(&mut self, bytes: &[u8]) -> Option<ControlMessage> {
        let message = ControlMessage::decode(bytes).ok();
        self.stats.stray += u64::from(message.is_none());
        message
    }

    /// Answers a request. The answer to one with an effect is kept.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer, now: Time) {
        self.serving.answered(&ticket, answer, self.config.replies_max, now);
        self.answer_once(ticket.from, ticket.id, answer);
    }

    /// Sends a request that is answered at most, and that nobody here waits for: who sends it does so again
    /// if he likes, and takes its answer before [`Control::handle_answer`] does.
    pub fn ask_once(&mut self, to: ControlAddr, id: u64, request: Request) {
        self.outgoing.send(to, id, ControlBody::Request(request));
    }

    /// Answers such a request.
    pub fn answer_once(&mut self, to: ControlAddr, id: u64, answer: Answer) {
        self.outgoing.send(to, id, ControlBody::Answer(answer));
    }

    /// The next message to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(ControlAddr, ControlMessage)> {
        self.outgoing.next()
    }

    /// The end of a request, in the order in which they ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.calls.next_done()
    }

    /// When [`Control::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.calls.poll_timeout()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, rng: &mut Rng, now: Time) {
        self.stats.retransmitted += self.calls.handle_timeout(&mut self.outgoing, rng, now);
    }

    /// An answer counts if it is to a call and comes from where the call went.
    pub fn handle_answer(
        &mut self,
        (gid, qpn): (Gid, u32),
        id: u64,
        answer: Answer,
        rng: &mut Rng,
        now: Time,
    ) {
        let counts = self.calls.handle_answer(&mut self.outgoing, (gid, qpn), id, answer, rng, now);
        self.stats.stray += u64::from(!counts);
    }

    /// Takes in a request of a node that is known to take answers there. Returns it if it is one that
    /// was not seen yet.
    pub fn handle_request(
        &mut self,
        from: ControlAddr,
        id: u64,
        request: Request,
    ) -> Option<Served> {
        let connect = matches!(request, Request::RcConnect { .. });
        let ticket = Ticket { from, id, connect };
        if matches!(request, Request::Meta | Request::Alive { .. }) {
            return Some(Served { ticket, request });
        }
        let answer = match self.serving.take(&ticket, self.config.serving_max) {
            Taken::New => return Some(Served { ticket, request }),
            Taken::Again(answer) => {
                self.stats.answered_again += 1;
                answer
            }
            Taken::Working => Answer::Working,
            Taken::Busy => {
                self.stats.busy += 1;
                Answer::Busy { retry_after_us: RETRY_AFTER_US }
            }
        };
        self.answer_once(from, id, answer);
        None
    }

    /// Requests of ours that have not ended, and how many there may be; those that end RC QPs do not count: they
    /// wait for nobody.
    pub fn load(&self) -> (u32, u32) {
        self.calls.load()
    }

    /// Requests of ours that have not ended.
    #[cfg(test)]
    pub fn calls(&self) -> usize {
        self.calls.calls()
    }

    /// What it did so far.
    pub fn stats(&self) -> &ControlStats {
        &self.stats
    }
}
