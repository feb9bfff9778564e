//! Requests and answers between cores over UD, which loses, doubles and reorders: see [`Control`].

mod audit;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use elver_random::Rng;
use elver_verbs::{Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::message::{Answer, ControlBody, ControlMessage, Request};

/// Where a core takes control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControlAddr {
    /// The node.
    pub gid: Gid,
    /// Its UD QP.
    pub qpn: u32,
    /// Without it nothing gets there.
    pub qkey: u32,
}

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
/// One that is worked on for this long leaves its turn to others, and is asked on.
const TURN_NS: u64 = PATIENCE_NS;
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
    calls: HashMap<u64, Call, FxBuildHasher>,
    /// Of these, such as end RC QPs.
    closes: usize,
    /// Peers that there are calls to.
    peers: HashMap<ControlAddr, Peer, FxBuildHasher>,
    /// Peers with calls that wait, the one that has its turn next first.
    turns: VecDeque<ControlAddr>,
    /// Calls under way to peers that are not silent.
    flying: usize,
    timers: BTreeSet<(Time, u64)>,
    serving: BTreeSet<RequestKey>,
    /// Of these, connects.
    connects: usize,
    replies: BTreeMap<RequestKey, Answer>,
    /// The keys of `replies`, oldest first.
    reply_order: VecDeque<(Time, RequestKey)>,
    outgoing: VecDeque<(ControlAddr, ControlMessage)>,
    done: VecDeque<Done>,
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

/// The end of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The token that it was made with.
    pub token: u64,
    /// The answer, or none if the peer gave none in time.
    pub answer: Option<Answer>,
}

/// A request of another core, to be answered with [`Control::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whom the answer goes to.
    pub ticket: Ticket,
    /// What it asks.
    pub request: Request,
}

/// Whom an answer goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The core that asked.
    pub from: ControlAddr,
    id: u64,
    /// It counts among the connects that are worked on.
    connect: bool,
}

/// Calls to one peer.
#[derive(Debug, Default)]
struct Peer {
    /// All of them.
    calls: usize,
    /// Those that have not had their turn, in order. An id whose call does not wait means nothing.
    waiting: VecDeque<u64>,
    /// Those that it turned away for now, in order. An id whose call does not rest means nothing.
    resting: VecDeque<u64>,
    /// Those under way.
    flying: usize,
    /// Those that it has worked on for long. While there are any, one other is under way to it at once.
    slow: usize,
    /// When it was last heard.
    heard: Time,
    /// It let a call come to its timer and was not heard meanwhile.
    silent: bool,
    /// It stands among the turns.
    enlisted: bool,
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
    /// When it last had its turn.
    turned: Time,
    /// When it was last sent.
    sent: Time,
    timer: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Waiting,
    Flying,
    Resting,
    /// The peer says that it works on it, and has for long: it is asked on, and others take its turn.
    Slow,
    /// The end of an RC QP: it goes at once, and counts for nothing. Its peer may be waiting for it to make room
    /// for what takes all turns here.
    Apart,
}

impl Peer {
    /// Whether one more call to it may be under way.
    fn may_fly(&self) -> bool {
        !self.silent && (self.slow == 0 || self.flying == 0)
    }
}

/// Whether a request ends an RC QP: of these there are two for each at most.
fn closes(request: &Request) -> bool {
    matches!(request, Request::RcClose { .. } | Request::RcFate { .. })
}

impl Control {
    /// One without calls.
    pub fn new(config: ControlConfig) -> Control {
        Control {
            config,
            calls: HashMap::default(),
            closes: 0,
            peers: HashMap::default(),
            turns: VecDeque::new(),
            flying: 0,
            timers: BTreeSet::new(),
            serving: BTreeSet::new(),
            connects: 0,
            replies: BTreeMap::new(),
            reply_order: VecDeque::new(),
            outgoing: VecDeque::new(),
            done: VecDeque::new(),
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
        let close = closes(&request);
        let (waiting, limit) = self.load();
        if !close && waiting >= limit {
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
            state: if close { CallState::Apart } else { CallState::Waiting },
            tries: 0,
            rests: 0,
            first: close.then_some(now),
            heard: now,
            turned: now,
            sent: now,
            timer: now,
        };
        self.calls.insert(id, call);
        self.closes += usize::from(close);
        let peer = self.peers.entry(to).or_default();
        peer.calls += 1;
        if close {
            self.transmit(id, rng, now);
            return Some(id);
        }
        peer.waiting.push_back(id);
        self.enlist(to);
        self.launch(rng, now);
        Some(id)
    }

    /// The message of a datagram; none if it is none.
    pub fn read(&mut self, bytes: &[u8]) -> Option<ControlMessage> {
        let message = ControlMessage::decode(bytes).ok();
        self.stats.stray += u64::from(message.is_none());
        message
    }

    /// Answers a request. The answer to one with an effect is kept.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer, now: Time) {
        let key = ticket.key();
        if self.serving.remove(&key) {
            self.connects -= usize::from(ticket.connect);
            self.forget_replies(now);
            self.replies.insert(key, answer);
            self.reply_order.push_back((now, key));
        }
        self.send(ticket.from, ticket.id, ControlBody::Answer(answer));
    }

    /// Sends a request that is answered at most, and that nobody here waits for: who sends it does so again
    /// if he likes, and takes its answer before [`Control::handle_answer`] does.
    pub fn ask_once(&mut self, to: ControlAddr, id: u64, request: Request) {
        self.send(to, id, ControlBody::Request(request));
    }

    /// Answers such a request.
    pub fn answer_once(&mut self, to: ControlAddr, id: u64, answer: Answer) {
        self.send(to, id, ControlBody::Answer(answer));
    }

    /// The next message to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(ControlAddr, ControlMessage)> {
        self.outgoing.pop_front()
    }

    /// The end of a request, in the order in which they ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// When [`Control::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, rng: &mut Rng, now: Time) {
        while let Some(&(time, id)) = self.timers.first() {
            if time > now {
                break;
            }
            self.timers.pop_first();
            let Some(call) = self.calls.get_mut(&id) else {
                bug!("a timer is of a call that has ended");
                continue;
            };
            let (to, sent, state) = (call.to, call.sent, call.state);
            let unheard = matches!(state, CallState::Flying | CallState::Slow | CallState::Apart)
                && call.tries >= TRIES_MIN
                && now.ns_since(call.heard) >= PATIENCE_NS;
            let late = call.first.is_some_and(|first| now.ns_since(first) >= PATIENCE_NS_MAX);
            if unheard || late {
                if unheard {
                    self.give_up_waiting(to, now);
                }
                self.finish(id, None, rng, now);
            } else if call.state == CallState::Resting {
                call.state = CallState::Waiting;
                self.peers.entry(to).or_default().waiting.push_back(id);
                self.enlist(to);
                self.launch(rng, now);
            } else {
                self.stats.retransmitted += 1;
                self.transmit(id, rng, now);
                if state == CallState::Flying {
                    self.suspect(to, sent, rng, now);
                    self.set_aside(id, rng, now);
                }
            }
        }
    }

    /// Requests of ours that have not ended, and how many there may be; those that end RC QPs do not count: they
    /// wait for nobody.
    pub fn load(&self) -> (u32, u32) {
        let limit = self.config.calls_max + self.config.waiting_max;
        let waiting = self.calls.len() - self.closes;
        (waiting as u32, u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Requests of ours that have not ended.
    #[cfg(test)]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// What it did so far.
    pub fn stats(&self) -> &ControlStats {
        &self.stats
    }

    /// Has a peer take turns, if calls to it wait and it is not silent.
    fn enlist(&mut self, to: ControlAddr) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return bug!("a peer without calls takes turns");
        };
        if !peer.waiting.is_empty() && peer.may_fly() && !peer.enlisted {
            peer.enlisted = true;
            self.turns.push_back(to);
        }
    }

    /// Sends what has its turn.
    fn launch(&mut self, rng: &mut Rng, now: Time) {
        while self.flying < self.config.calls_max {
            let Some(to) = self.turns.pop_front() else { return };
            let Some(peer) = self.peers.get_mut(&to) else { continue };
            peer.enlisted = false;
            if !peer.may_fly() {
                continue;
            }
            let id = peer.waiting.pop_front();
            let call = id.and_then(|id| Some((id, self.calls.get_mut(&id)?)));
            if let Some((id, call)) = call.filter(|(_, call)| call.state == CallState::Waiting) {
                call.state = CallState::Flying;
                call.first.get_or_insert(now);
                call.heard = now;
                call.turned = now;
                call.tries = 0;
                peer.flying += 1;
                self.flying += 1;
                self.transmit(id, rng, now);
            }
            self.enlist(to);
        }
    }

    /// A peer let a call that was sent then come to its timer. If it was not heard since, others go
    /// first.
    fn suspect(&mut self, to: ControlAddr, sent: Time, rng: &mut Rng, now: Time) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return bug!("a call that was sent is to no peer");
        };
        if !peer.silent && peer.heard < sent {
            peer.silent = true;
            count_off!(self.flying, peer.flying);
            self.launch(rng, now);
        }
    }

    /// Has others take the turn of a call that its peer has worked on for long: who only says so would have all
    /// turns until it is given up.
    fn set_aside(&mut self, id: u64, rng: &mut Rng, now: Time) {
        let Some(call) = self.calls.get_mut(&id) else {
            return bug!("a call that is under way has ended");
        };
        if now.ns_since(call.turned) < TURN_NS || call.heard <= call.turned {
            return;
        }
        call.state = CallState::Slow;
        let to = call.to;
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.slow += 1;
        }
        self.landed(to);
        self.launch(rng, now);
    }

    /// A peer has answered something.
    fn heard(&mut self, from: ControlAddr, now: Time) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard = now;
        if core::mem::take(&mut peer.silent) {
            self.flying += peer.flying;
            self.enlist(from);
        }
    }

    /// A peer is given up: what has waited for as long as that takes need not be sent to it. Who came
    /// later has a try of its own, for the peer may be back.
    fn give_up_waiting(&mut self, to: ControlAddr, now: Time) {
        let Some(peer) = self.peers.get_mut(&to).filter(|peer| peer.silent) else { return };
        while let Some(&id) = peer.waiting.front() {
            let waits = self.calls.get(&id).filter(|call| call.state == CallState::Waiting);
            if waits.is_some_and(|call| now.ns_since(call.heard) < PATIENCE_NS) {
                break;
            }
            peer.waiting.pop_front();
            if waits.is_some()
                && let Some(call) = self.calls.remove(&id)
            {
                peer.calls -= 1;
                self.done.push_back(Done { token: call.token, answer: None });
            }
        }
    }

    /// A call to a peer is not under way any longer.
    fn landed(&mut self, to: ControlAddr) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return bug!("a call that was under way is to no peer");
        };
        count_off!(peer.flying, 1);
        if !peer.silent {
            count_off!(self.flying, 1);
        } else if peer.flying == 0 {
            // Nothing would tell that it is back.
            peer.silent = false;
        }
        self.enlist(to);
    }

    /// Sends a flying call and sets its timer.
    fn transmit(&mut self, id: u64, rng: &mut Rng, now: Time) {
        let Some(call) = self.calls.get_mut(&id) else {
            return bug!("a call that has ended is sent");
        };
        let rto = jittered((RTO_NS << call.tries.min(16)).min(RTO_NS_MAX), rng);
        call.tries += 1;
        call.sent = now;
        call.timer = now.saturating_add_ns(rto);
        self.timers.insert((call.timer, id));
        let (to, body) = (call.to, ControlBody::Request(call.request));
        self.send(to, id, body);
    }

    fn finish(&mut self, id: u64, answer: Option<Answer>, rng: &mut Rng, now: Time) {
        let Some(call) = self.calls.remove(&id) else {
            return bug!("a call ends that has ended");
        };
        if closes(&call.request) {
            count_off!(self.closes, 1);
        }
        self.timers.remove(&(call.timer, id));
        self.done.push_back(Done { token: call.token, answer });
        if call.state == CallState::Flying {
            self.landed(call.to);
        }
        let Some(peer) = self.peers.get_mut(&call.to) else {
            return bug!("a call that has ended was to no peer");
        };
        count_off!(peer.calls, 1);
        if call.state == CallState::Slow {
            count_off!(peer.slow, 1);
        }
        if peer.calls == 0 {
            self.peers.remove(&call.to);
        } else {
            self.enlist(call.to);
        }
        self.launch(rng, now);
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
        let known = |call: &Call| call.to.gid == gid && call.to.qpn == qpn;
        let Some(call) = self.calls.get_mut(&id).filter(|call| known(call)) else {
            self.stats.stray += 1;
            return;
        };
        let from = call.to;
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
                match self.peers.get_mut(&from) {
                    Some(peer) => peer.resting.push_back(id),
                    None => bug!("a call that rests is to no peer"),
                }
                self.landed(from);
            }
            answer => {
                self.wake_one(from);
                self.finish(id, Some(answer), rng, now);
            }
        }
        self.heard(from, now);
        self.launch(rng, now);
    }

    /// A peer has done something for us, so that it has room for what it turned away longest ago:
    /// how long a crowd takes is then up to the work that it makes, and not to timers.
    fn wake_one(&mut self, from: ControlAddr) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return bug!("a call that was answered is to no peer");
        };
        while let Some(id) = peer.resting.pop_front() {
            let call = self.calls.get_mut(&id);
            if let Some(call) = call.filter(|call| call.state == CallState::Resting) {
                self.timers.remove(&(call.timer, id));
                call.state = CallState::Waiting;
                peer.waiting.push_front(id);
                return self.enlist(from);
            }
        }
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
        // There is at most one close for each RC QP, and it makes room.
        if ticket.connect && self.connects >= self.config.serving_max {
            self.stats.busy += 1;
            let busy = Answer::Busy { retry_after_us: RETRY_AFTER_US };
            self.send(ticket.from, ticket.id, ControlBody::Answer(busy));
            return None;
        }
        self.connects += usize::from(ticket.connect);
        self.serving.insert(key);
        Some(Served { ticket, request })
    }

    /// Drops answers whose requests can come no more, and makes room for one.
    fn forget_replies(&mut self, now: Time) {
        while let Some(&(time, key)) = self.reply_order.front() {
            let full = self.reply_order.len() >= self.config.replies_max;
            if !full && now.ns_since(time) < REPLY_NS {
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
