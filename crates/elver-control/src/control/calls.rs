//! Requests to other cores: whose turn it is, when one is sent again, and when its peer is given up.

use alloc::collections::{BTreeSet, VecDeque};

use elver_random::Rng;
use elver_verbs::{Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::address::ControlAddr;
use super::outgoing::Outgoing;
use super::peer::{PATIENCE_NS, Peer};
use crate::message::{Answer, ControlBody, Request};

/// First retransmission after this long, before jitter.
pub(super) const RTO_NS: u64 = 1_000_000;
/// Longest time between retransmissions, before jitter.
pub(super) const RTO_NS_MAX: u64 = 64_000_000;
/// A peer is given up only after this many tries: our own engine may have been the one that slept.
const TRIES_MIN: u32 = 8;
/// One that answered, but never finally, for this long is given up too.
pub(super) const PATIENCE_NS_MAX: u64 = 16 * PATIENCE_NS;
/// One that is worked on for this long leaves its turn to others, and is asked on.
pub(super) const TURN_NS: u64 = PATIENCE_NS;
/// Most that a busy peer makes us wait, in nanoseconds.
const REST_NS_MAX: u64 = 250_000_000;

#[derive(Debug, Default)]
pub(super) struct Calls {
    /// How many may await an answer at once, and wait.
    pub(super) calls_max: usize,
    waiting_max: usize,
    pub(super) calls: HashMap<u64, Call, FxBuildHasher>,
    /// Of these, such as end RC QPs.
    pub(super) closes: usize,
    /// Peers that there are calls to.
    pub(super) peers: HashMap<ControlAddr, Peer, FxBuildHasher>,
    /// Peers with calls that wait, the one that has its turn next first.
    turns: VecDeque<ControlAddr>,
    /// Calls under way to peers that are not silent.
    pub(super) flying: usize,
    pub(super) timers: BTreeSet<(Time, u64)>,
    done: VecDeque<Done>,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) to: ControlAddr,
    pub(super) request: Request,
    pub(super) token: u64,
    pub(super) state: CallState,
    /// Times that it was sent since the peer was last heard.
    pub(super) tries: u32,
    /// Times that the peer was busy.
    pub(super) rests: u32,
    /// When it was first sent.
    pub(super) first: Option<Time>,
    /// When the peer was last heard; when it was first sent, if never.
    pub(super) heard: Time,
    /// When it last had its turn.
    pub(super) turned: Time,
    /// When it was last sent.
    pub(super) sent: Time,
    pub(super) timer: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    Waiting,
    Flying,
    Resting,
    /// The peer says that it works on it, and has for long: it is asked on, and others take its turn.
    Slow,
    /// The end of an RC QP: it goes at once, and counts for nothing. Its peer may be waiting for it to make room
    /// for what takes all turns here.
    Apart,
}

/// Whether a request ends an RC QP: of these there are two for each at most.
pub(super) fn closes(request: &Request) -> bool {
    matches!(request, Request::RcClose { .. } | Request::RcFate { .. })
}

/// The end of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The token that it was made with.
    pub token: u64,
    /// The answer, or none if the peer gave none in time.
    pub answer: Option<Answer>,
}

impl Calls {
    pub(super) fn new(calls_max: usize, waiting_max: usize) -> Calls {
        Calls { calls_max, waiting_max, ..Calls::default() }
    }

    /// Asks a peer. [`Calls::next_done`] tells the end with `token`. Returns the id of the call,
    /// or none when too many wait.
    pub(super) fn call(
        &mut self,
        out: &mut Outgoing,
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
            self.transmit(out, id, rng, now);
            return Some(id);
        }
        peer.waiting.push_back(id);
        self.enlist(to);
        self.launch(out, rng, now);
        Some(id)
    }

    /// The end of a request, in the order in which they ended.
    pub(super) fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// When [`Calls::handle_timeout`] must be called next.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Does what is due; says how many calls it sent again.
    pub(super) fn handle_timeout(&mut self, out: &mut Outgoing, rng: &mut Rng, now: Time) -> u64 {
        let mut again = 0;
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
                self.finish(out, id, None, rng, now);
            } else if call.state == CallState::Resting {
                call.state = CallState::Waiting;
                self.peers.entry(to).or_default().waiting.push_back(id);
                self.enlist(to);
                self.launch(out, rng, now);
            } else {
                again += 1;
                self.transmit(out, id, rng, now);
                if state == CallState::Flying {
                    self.suspect(out, to, sent, rng, now);
                    self.set_aside(out, id, rng, now);
                }
            }
        }
        again
    }

    /// Requests of ours that have not ended, and how many there may be; those that end RC QPs do not count: they
    /// wait for nobody.
    pub(super) fn load(&self) -> (u32, u32) {
        let limit = self.calls_max + self.waiting_max;
        let waiting = self.calls.len() - self.closes;
        (waiting as u32, u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Requests of ours that have not ended.
    #[cfg(test)]
    pub(super) fn calls(&self) -> usize {
        self.calls.len()
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
    fn launch(&mut self, out: &mut Outgoing, rng: &mut Rng, now: Time) {
        while self.flying < self.calls_max {
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
                self.transmit(out, id, rng, now);
            }
            self.enlist(to);
        }
    }

    /// A peer let a call that was sent then come to its timer. If it was not heard since, others go
    /// first.
    fn suspect(
        &mut self,
        out: &mut Outgoing,
        to: ControlAddr,
        sent: Time,
        rng: &mut Rng,
        now: Time,
    ) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return bug!("a call that was sent is to no peer");
        };
        if !peer.silent && peer.heard < sent {
            peer.silent = true;
            count_off!(self.flying, peer.flying);
            self.launch(out, rng, now);
        }
    }

    /// Has others take the turn of a call that its peer has worked on for long: who only says so would have all
    /// turns until it is given up.
    fn set_aside(&mut self, out: &mut Outgoing, id: u64, rng: &mut Rng, now: Time) {
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
        self.launch(out, rng, now);
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
    fn transmit(&mut self, out: &mut Outgoing, id: u64, rng: &mut Rng, now: Time) {
        let Some(call) = self.calls.get_mut(&id) else {
            return bug!("a call that has ended is sent");
        };
        let rto = jittered((RTO_NS << call.tries.min(16)).min(RTO_NS_MAX), rng);
        call.tries += 1;
        call.sent = now;
        call.timer = now.saturating_add_ns(rto);
        self.timers.insert((call.timer, id));
        let (to, body) = (call.to, ControlBody::Request(call.request));
        out.send(to, id, body);
    }

    fn finish(
        &mut self,
        out: &mut Outgoing,
        id: u64,
        answer: Option<Answer>,
        rng: &mut Rng,
        now: Time,
    ) {
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
        self.launch(out, rng, now);
    }

    /// An answer counts if it is to a call and comes from where the call went. Whether it does.
    pub(super) fn handle_answer(
        &mut self,
        out: &mut Outgoing,
        (gid, qpn): (Gid, u32),
        id: u64,
        answer: Answer,
        rng: &mut Rng,
        now: Time,
    ) -> bool {
        let known = |call: &Call| call.to.gid == gid && call.to.qpn == qpn;
        let Some(call) = self.calls.get_mut(&id).filter(|call| known(call)) else {
            return false;
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
                self.finish(out, id, Some(answer), rng, now);
            }
        }
        self.heard(from, now);
        self.launch(out, rng, now);
        true
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
}

/// A time from three to five quarters of `ns`, so that those that began together do not stay so.
fn jittered(ns: u64, rng: &mut Rng) -> u64 {
    let spread = (u128::from(ns / 2) * u128::from(rng.next_u64())) >> 64;
    ns - ns / 4 + spread as u64
}
