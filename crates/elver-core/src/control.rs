//! Requests and answers between cores over UD, which loses, doubles and reorders: see [`Control`].

mod audit;
mod message;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use elver_verbs::{Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

pub use message::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, RcEnd, Refusal, Request,
};

use crate::rng::Rng;

/// Where a core takes control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlAddr {
    pub(crate) gid: Gid,
    pub(crate) qpn: u32,
}

/// Limits and times of a [`Control`].
#[derive(Clone, Debug)]
pub(crate) struct ControlConfig {
    /// Most requests that await an answer at once.
    pub(crate) calls_max: usize,
    /// Most requests that wait, for their turn or because the peer is busy.
    pub(crate) waiting_max: usize,
    /// Most requests of others that are worked on at once.
    pub(crate) serving_max: usize,
    /// Most answers kept for requests that come again.
    pub(crate) replies_max: usize,
}

/// First retransmission after this long, before jitter.
const RTO_NS: u64 = 1_000_000;
/// Longest time between retransmissions, before jitter.
const RTO_NS_MAX: u64 = 64_000_000;
/// A peer from which nothing came for this long is given up,
const PATIENCE_NS: u64 = 1_000_000_000;
/// and after this many tries: our own engine may have been the one that slept.
const TRIES_MIN: u32 = 8;
/// So is one that answered, but never finally, for this long.
const PATIENCE_NS_MAX: u64 = 16 * PATIENCE_NS;
/// An answer is kept for this long at least: by then its request comes no more.
const REPLY_NS: u64 = 2 * PATIENCE_NS;
/// What a busy core asks others to wait, in microseconds.
const RETRY_AFTER_US: u32 = 2_000;
/// Most that a busy peer makes us wait, in nanoseconds.
const REST_NS_MAX: u64 = 250_000_000;
/// Most datagrams that wait to be sent; more are lost, which UD may do.
const OUTGOING_MAX: usize = 1_024;

/// The control protocol as a state machine without IO.
///
/// Requests go out at most [`ControlConfig::calls_max`] at once, the others in their order, and
/// again at doubling distances with jitter until an answer comes. The answering side does each
/// request once: one that comes again gets the answer it got, or [`Answer::Working`] while there is
/// none; answers are kept until their request can come no more, and where that is too many, or too
/// many are worked on, newcomers get [`Answer::Busy`] and rest.
///
/// After each call: take [`Control::poll_transmit`] and [`Control::poll_done`] until they give
/// nothing, and call [`Control::handle_timeout`] at [`Control::poll_timeout`].
#[derive(Debug)]
pub(crate) struct Control {
    config: ControlConfig,
    calls: HashMap<u64, Call, FxBuildHasher>,
    /// Requests that have their turn next.
    waiting: VecDeque<u64>,
    flying: usize,
    timers: BTreeSet<(Time, u64)>,
    serving: BTreeSet<RequestKey>,
    replies: BTreeMap<RequestKey, Answer>,
    /// The keys of `replies`, oldest first.
    reply_order: VecDeque<(Time, RequestKey)>,
    outgoing: VecDeque<(ControlAddr, ControlMessage)>,
    done: VecDeque<Done>,
    stats: ControlStats,
}

/// What a control protocol did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlStats {
    /// Requests sent again.
    pub(crate) retransmitted: u64,
    /// Answers sent again.
    pub(crate) answered_again: u64,
    /// Requests of others turned away for now.
    pub(crate) busy: u64,
    /// Datagrams that were no message, or an answer to nothing.
    pub(crate) stray: u64,
}

/// The end of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// The token that it was made with.
    pub(crate) token: u64,
    /// The answer, or none if the peer gave none in time.
    pub(crate) answer: Option<Answer>,
}

/// A request of another core, to be answered with [`Control::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) ticket: Ticket,
    pub(crate) request: Request,
}

/// Whom an answer goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) from: ControlAddr,
    id: u64,
}

/// The sender's GID and QPN, and the request's id: what no two requests share.
type RequestKey = (Gid, u32, u64);

#[derive(Debug)]
struct Call {
    to: ControlAddr,
    request: Request,
    token: u64,
    state: CallState,
    /// Times that it was sent since the peer was last heard.
    tries: u32,
    /// Times that the peer was busy.
    rests: u32,
    /// When it was first sent.
    first: Option<Time>,
    /// When the peer was last heard; when it was first sent, if never.
    heard: Time,
    timer: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Waiting,
    Flying,
    Resting,
}

impl Control {
    pub(crate) fn new(config: ControlConfig) -> Control {
        Control {
            config,
            calls: HashMap::default(),
            waiting: VecDeque::new(),
            flying: 0,
            timers: BTreeSet::new(),
            serving: BTreeSet::new(),
            replies: BTreeMap::new(),
            reply_order: VecDeque::new(),
            outgoing: VecDeque::new(),
            done: VecDeque::new(),
            stats: ControlStats::default(),
        }
    }

    /// Asks a peer. [`Control::poll_done`] tells the end with `token`. Returns the id of the call,
    /// or none when too many wait.
    pub(crate) fn call(
        &mut self,
        to: ControlAddr,
        request: Request,
        token: u64,
        rng: &mut Rng,
        now: Time,
    ) -> Option<u64> {
        if self.calls.len() >= self.config.calls_max + self.config.waiting_max {
            return None;
        }
        let mut id = rng.next_u64();
        while self.calls.contains_key(&id) {
            id = rng.next_u64();
        }
        let call = Call {
            to,
            request,
            token,
            state: CallState::Waiting,
            tries: 0,
            rests: 0,
            first: None,
            heard: now,
            timer: now,
        };
        self.calls.insert(id, call);
        self.waiting.push_back(id);
        self.launch(rng, now);
        Some(id)
    }

    /// Takes a datagram in. Returns a request to be answered, if it is one that was not seen yet.
    pub(crate) fn handle_datagram(
        &mut self,
        from: Gid,
        from_qpn: u32,
        bytes: &[u8],
        rng: &mut Rng,
        now: Time,
    ) -> Option<Served> {
        let Ok(message) = ControlMessage::decode(bytes) else {
            self.stats.stray += 1;
            return None;
        };
        let from = ControlAddr { gid: from, qpn: from_qpn };
        match message.body {
            ControlBody::Answer(answer) => {
                self.handle_answer(from, message.id, answer, rng, now);
                None
            }
            ControlBody::Request(request) => {
                self.handle_request(Ticket { from, id: message.id }, request, now)
            }
        }
    }

    /// Answers a request. The answer to one with an effect is kept.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer, now: Time) {
        let key = ticket.key();
        if self.serving.remove(&key) {
            self.replies.insert(key, answer);
            self.reply_order.push_back((now, key));
        }
        self.send(ticket.from, ticket.id, ControlBody::Answer(answer));
    }

    /// The next message to send, and where to.
    pub(crate) fn poll_transmit(&mut self) -> Option<(ControlAddr, ControlMessage)> {
        self.outgoing.pop_front()
    }

    /// The end of a request, in the order in which they ended.
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// When [`Control::handle_timeout`] must be called next.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, rng: &mut Rng, now: Time) {
        while let Some(&(time, id)) = self.timers.first() {
            if time > now {
                break;
            }
            self.timers.pop_first();
            let call = self.calls.get_mut(&id).expect("a timer is of a call");
            let given_up = call.first.is_some_and(|first| now.ns_since(first) >= PATIENCE_NS_MAX)
                || call.state == CallState::Flying
                    && call.tries >= TRIES_MIN
                    && now.ns_since(call.heard) >= PATIENCE_NS;
            if given_up {
                self.finish(id, None, rng, now);
            } else if call.state == CallState::Resting {
                call.state = CallState::Waiting;
                self.waiting.push_back(id);
                self.launch(rng, now);
            } else {
                self.stats.retransmitted += 1;
                self.transmit(id, rng, now);
            }
        }
    }

    /// Requests of ours that have not ended.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn stats(&self) -> &ControlStats {
        &self.stats
    }

    /// Sends what has its turn.
    fn launch(&mut self, rng: &mut Rng, now: Time) {
        while self.flying < self.config.calls_max {
            let Some(id) = self.waiting.pop_front() else { return };
            let call = self.calls.get_mut(&id).expect("who waits is a call");
            call.state = CallState::Flying;
            call.first.get_or_insert(now);
            call.heard = now;
            call.tries = 0;
            self.flying += 1;
            self.transmit(id, rng, now);
        }
    }

    /// Sends a flying call and sets its timer.
    fn transmit(&mut self, id: u64, rng: &mut Rng, now: Time) {
        let call = self.calls.get_mut(&id).expect("who is sent is a call");
        let rto = jittered((RTO_NS << call.tries.min(16)).min(RTO_NS_MAX), rng);
        call.tries += 1;
        call.timer = now.saturating_add_ns(rto);
        self.timers.insert((call.timer, id));
        let (to, body) = (call.to, ControlBody::Request(call.request));
        self.send(to, id, body);
    }

    fn finish(&mut self, id: u64, answer: Option<Answer>, rng: &mut Rng, now: Time) {
        let call = self.calls.remove(&id).expect("who ends is a call");
        self.timers.remove(&(call.timer, id));
        self.done.push_back(Done { token: call.token, answer });
        match call.state {
            CallState::Flying => {
                self.flying -= 1;
                self.launch(rng, now);
            }
            CallState::Resting => {}
            CallState::Waiting => self.waiting.retain(|other| *other != id),
        }
    }

    /// An answer counts if it is to a call and comes from where the call went.
    fn handle_answer(
        &mut self,
        from: ControlAddr,
        id: u64,
        answer: Answer,
        rng: &mut Rng,
        now: Time,
    ) {
        let known = |call: &Call| call.to.gid == from.gid && call.to.qpn == from.qpn;
        let Some(call) = self.calls.get_mut(&id).filter(|call| known(call)) else {
            self.stats.stray += 1;
            return;
        };
        call.heard = now;
        match answer {
            Answer::Working => call.tries = 0,
            // The answer to a retransmission, on top of one that made it rest.
            Answer::Busy { .. } if call.state != CallState::Flying => {}
            Answer::Busy { retry_after_us } => {
                call.state = CallState::Resting;
                call.rests += 1;
                let rest = (u64::from(retry_after_us) * 1_000) << (call.rests - 1).min(6);
                self.timers.remove(&(call.timer, id));
                call.timer = now.saturating_add_ns(jittered(rest.min(REST_NS_MAX), rng));
                self.timers.insert((call.timer, id));
                self.flying -= 1;
                self.launch(rng, now);
            }
            answer => self.finish(id, Some(answer), rng, now),
        }
    }

    fn handle_request(&mut self, ticket: Ticket, request: Request, now: Time) -> Option<Served> {
        if request == Request::Meta {
            return Some(Served { ticket, request });
        }
        let key = ticket.key();
        if let Some(&answer) = self.replies.get(&key) {
            self.stats.answered_again += 1;
            self.send(ticket.from, ticket.id, ControlBody::Answer(answer));
            return None;
        }
        if self.serving.contains(&key) {
            self.send(ticket.from, ticket.id, ControlBody::Answer(Answer::Working));
            return None;
        }
        self.forget_replies(now);
        let kept = self.replies.len() + self.serving.len();
        if self.serving.len() >= self.config.serving_max || kept >= self.config.replies_max {
            self.stats.busy += 1;
            let busy = Answer::Busy { retry_after_us: RETRY_AFTER_US };
            self.send(ticket.from, ticket.id, ControlBody::Answer(busy));
            return None;
        }
        self.serving.insert(key);
        Some(Served { ticket, request })
    }

    /// Drops answers whose requests can come no more.
    fn forget_replies(&mut self, now: Time) {
        while let Some(&(time, key)) = self.reply_order.front() {
            if now.ns_since(time) < REPLY_NS {
                break;
            }
            self.reply_order.pop_front();
            self.replies.remove(&key);
        }
    }

    fn send(&mut self, to: ControlAddr, id: u64, body: ControlBody) {
        if self.outgoing.len() < OUTGOING_MAX {
            let message = ControlMessage { id, body };
            self.outgoing.push_back((to, message));
        }
    }
}

impl Ticket {
    fn key(&self) -> RequestKey {
        (self.from.gid, self.from.qpn, self.id)
    }
}

/// A time from three to five quarters of `ns`, so that those that began together do not stay so.
fn jittered(ns: u64, rng: &mut Rng) -> u64 {
    let spread = (u128::from(ns / 2) * u128::from(rng.next_u64())) >> 64;
    ns - ns / 4 + spread as u64
}
