//! Whether those that VQPs are connected to are still there, also those that nothing is sent to.
//!
//! A peer that VQPs are connected to and that nothing was heard of for a while is asked over its control
//! QP, once for all of them, again and again until it answers or is given up:
//!
//! ```text
//!   heard ── quiet ──▶ asked ── patience, unanswered ──▶ given up: its VQPs fail
//!     ▲                  │
//!     └── answer, or a VQP of it got on ──┘
//! ```
//!
//! What is asked is the node that a VQP was connected to, as it was then: one that has started anew since
//! takes control messages elsewhere, and does not answer for what it was. So a VQP keeps the tag of that
//! node's record.
//!
//! A question also names the ports that VQPs are connected to which have exchanged nothing: nobody would
//! tell these that the port's owner has gone ([`crate::messaging`] tells all others). An answer has a
//! number of each binding; another number, or none where there was one, is the end of who had the port.
//!
//! Time counts here only as far as the core was polled and had taken all that had arrived: who stands still
//! does not take others for dead. Nothing is kept of a VQP before it has stood for a moment, so that
//! connecting costs nothing here.

mod answer;
mod attend;
mod port;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::ops::Bound;

use crate::VqpId;
use crate::due::Alarm;
use crate::ids::PeerId;

use elver_control::{ControlAddr, PORTS_ASKED};
use elver_random::Rng;
use elver_verbs::Time;

use self::port::Port;

/// Of the time in which it must be told that a peer has gone, this part passes between two looks at what
/// is due,
const TICKS: u64 = 16;
/// this part in silence before the peer is asked,
const QUIET_TICKS: u64 = 4;
/// and this part until it is given up. The rest is what looks come late.
const PATIENCE_TICKS: u64 = 10;
/// The longest time between two looks, in nanoseconds.
const TICK_NS_MAX: u64 = 50_000_000;
/// Nobody is given up who was asked less often.
const TRIES_MIN: u32 = 4;
/// A peer of which nobody can tell where it takes questions is given up so much later: what meta servers
/// tell of it may be late.
const UNKNOWN_PATIENCE: u64 = 8;
/// VQPs of a peer whose getting on shows that it is there.
pub(crate) const SAMPLES: usize = 4;

/// A node as it was when VQPs were connected to it: the peer, and the tag of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeKey {
    pub(crate) peer: PeerId,
    pub(crate) tag: u16,
}

/// How a VQP is counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Watched {
    /// It is not, and it is not known what its peer was when it was connected.
    #[default]
    Unknown,
    /// It is not, yet.
    No,
    /// Its peer is asked for.
    Node,
    /// So is the port that it is connected to.
    Port,
}

/// What the core knows of a node that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Where it takes questions, if that is known.
    pub(crate) to: Option<ControlAddr>,
    /// It is said to be gone, or to have started anew.
    pub(crate) refuted: bool,
    /// It is this node.
    pub(crate) own: bool,
    /// Some of its VQPs, and how far each has got.
    pub(crate) samples: Samples,
}

/// The ports of one question, or the numbers of their bindings.
pub(crate) type PortsAsked = [Option<NonZeroU16>; PORTS_ASKED];

/// Ids of VQPs, and how far each has got.
pub(crate) type Samples = [Option<(VqpId, u32)>; SAMPLES];

/// What is to be done about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Rest,
    /// It is asked; and looked up, if it has not answered for long: it may be another by now.
    Ask { to: ControlAddr, id: u64, ports: PortsAsked, late: bool },
    /// It is looked up: nobody here knows where to ask.
    LookUp,
    /// Its VQPs fail.
    GiveUp,
}

/// A VQP that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    pub(crate) vqp: VqpId,
    /// The secret of its connection: of another one it is not meant.
    pub(crate) nonce: u32,
    pub(crate) loss: Loss,
}

/// What has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The node: it does not answer.
    Silent,
    /// The node, which has started anew.
    Past,
    /// Who had the port: somebody else has it, or nobody.
    Port,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    tick: u64,
    quiet: u64,
    retry: u64,
    patience: u64,
}

/// All nodes that VQPs are connected to, and when each is looked at.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    /// None: it is off.
    times: Option<Times>,
    nodes: BTreeMap<NodeKey, Watch>,
    /// By the time that counts, which [`KeepAlive::tick`] tells.
    due: BTreeSet<(u64, NodeKey)>,
    /// VQPs that were connected since the last look.
    newcomers: VecDeque<VqpId>,
    failing: VecDeque<Failing>,
    /// Nanoseconds that count.
    awake: u64,
    /// Up to when time was counted, and when the next look is.
    last: Time,
    next: Option<Time>,
    /// When there is something to do next: the one number that each poll looks at.
    wake: Alarm,
}

/// A node that VQPs are connected to.
#[derive(Debug)]
struct Watch {
    vqps: u32,
    /// When it was known to be there.
    heard: u64,
    asked: Option<Round>,
    /// Rounds of questions so far.
    rounds: u32,
    /// Whether it turns by itself, as it said when it answered last.
    turns: Option<bool>,
    /// Since when nobody tells where it takes questions.
    unknown: Option<u64>,
    given_up: bool,
    samples: Samples,
    ports: BTreeMap<NonZeroU16, Port>,
    /// The last port that was asked about in this turn.
    port_asked: Option<NonZeroU16>,
    due: u64,
}

/// A question that has no answer.
#[derive(Clone, Copy, Debug)]
struct Round {
    to: ControlAddr,
    /// Drawn at random: who answers has seen the question.
    id: u64,
    since: u64,
    tries: u32,
    ports: PortsAsked,
}

impl KeepAlive {
    /// It is told within so many nanoseconds that a peer has gone; 0: never.
    pub(crate) fn new(tell_ns: u64) -> KeepAlive {
        let times = (tell_ns > 0).then(|| {
            let tick = (tell_ns / TICKS).clamp(1, TICK_NS_MAX);
            let part = |ticks| (tell_ns / TICKS).max(1) * ticks;
            Times { tick, quiet: part(QUIET_TICKS), retry: part(1), patience: part(PATIENCE_TICKS) }
        });
        KeepAlive {
            times,
            nodes: BTreeMap::new(),
            due: BTreeSet::new(),
            newcomers: VecDeque::new(),
            failing: VecDeque::new(),
            awake: 0,
            last: Time::ZERO,
            next: None,
            wake: Alarm::NEVER,
        }
    }

    /// When there is something to do next: a look, or VQPs fail.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.wake.get()
    }

    /// Whether there is something to do.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.wake.is_due(now)
    }

    /// What was due is done.
    pub(crate) fn attended(&mut self) {
        let now = !self.failing.is_empty() || self.next.is_none() && !self.newcomers.is_empty();
        let next = if now { Some(Time::ZERO) } else { self.next };
        self.wake = next.map_or(Alarm::NEVER, Alarm::from);
    }

    /// A VQP was connected.
    #[inline]
    pub(crate) fn connected(&mut self, vqp: VqpId) {
        if self.wake.get().is_some() || self.begins() {
            self.newcomers.push_back(vqp);
        }
    }

    /// Nobody was looked at: whether that begins.
    #[cold]
    fn begins(&mut self) -> bool {
        if self.times.is_some() {
            self.wake = Time::ZERO.into();
        }
        self.times.is_some()
    }

    /// Counts time, and says when the next look is. All that had arrived by `heard` was taken. Returns whether it is time for a look.
    pub(crate) fn tick(&mut self, now: Time, heard: Time) -> bool {
        let Some(times) = self.times else { return false };
        let Some(due) = self.next else {
            if !self.newcomers.is_empty() {
                (self.last, self.next) = (heard, Some(now.saturating_add_ns(times.tick)));
            }
            return false;
        };
        if now < due {
            return false;
        }
        self.awake += heard.ns_since(self.last).min(2 * times.tick);
        self.last = heard.max(self.last);
        self.next = Some(now.saturating_add_ns(times.tick));
        true
    }

    /// The look is over: without anybody to look at there is no next one.
    pub(crate) fn looked(&mut self) {
        if self.nodes.is_empty() && self.newcomers.is_empty() {
            self.next = None;
        }
    }

    /// How many VQPs were connected and did not have their turn.
    pub(crate) fn newcomers(&self) -> usize {
        self.newcomers.len()
    }

    /// The next of them.
    pub(crate) fn next_newcomer(&mut self) -> Option<VqpId> {
        self.newcomers.pop_front()
    }

    /// A VQP that is connected to a node counts; so does the port, if it is to be asked about.
    pub(crate) fn enroll(&mut self, key: NodeKey, vqp: VqpId, port: Option<NonZeroU16>) {
        let awake = self.awake;
        let watch = self.nodes.entry(key).or_insert_with(|| {
            self.due.insert((awake, key));
            Watch::new(awake)
        });
        watch.vqps += 1;
        if let Some(port) = port {
            watch.ports.entry(port).or_default().enroll(vqp, watch.rounds);
        }
        // Who connects to one that was given up has it asked anew; a port is asked about at once.
        if core::mem::take(&mut watch.given_up) {
            (watch.heard, watch.asked, watch.unknown) = (awake, None, None);
            self.reschedule(key, awake);
        } else if port.is_some() && watch.asked.is_none() {
            self.reschedule(key, awake);
        }
    }

    /// A VQP is not connected to a node any longer.
    pub(crate) fn leave(&mut self, key: NodeKey, vqp: VqpId, port: Option<NonZeroU16>) {
        let Some(watch) = self.nodes.get_mut(&key) else {
            return bug!("a VQP leaves a node that nobody looks at");
        };
        if let Some(port) = port
            && let Some(entry) = watch.ports.get_mut(&port)
        {
            entry.leave(vqp);
            if entry.is_empty() {
                watch.ports.remove(&port);
            }
        }
        count_off!(watch.vqps, 1);
        if watch.vqps == 0 {
            self.due.remove(&(watch.due, key));
            self.nodes.remove(&key);
        }
    }

    /// The next node that is to be looked at.
    pub(crate) fn next_due(&self) -> Option<NodeKey> {
        self.due.first().filter(|(due, _)| *due <= self.awake).map(|(_, key)| *key)
    }

    /// Looks at a node that is due.
    pub(crate) fn look(&mut self, key: NodeKey, facts: &Facts, rng: &mut Rng) -> Step {
        let (Some(times), awake) = (self.times, self.awake) else { return Step::Rest };
        let Some(watch) = self.nodes.get_mut(&key) else {
            bug!("a node is due that nobody looks at");
            return Step::Rest;
        };
        let (step, due) = watch.look(facts, times, awake, rng);
        match due {
            Some(due) => self.reschedule(key, due.max(awake + 1)),
            None => {
                self.due.remove(&(watch.due, key));
            }
        }
        step
    }

    /// A node has answered a question of ours, and from where it was sent. Returns the VQPs whose ports are
    /// others' by now; none if there was no such question.
    pub(crate) fn answered(
        &mut self,
        (peer, qpn): (PeerId, u32),
        id: u64,
        turns: bool,
        bound: &PortsAsked,
    ) -> Option<(NodeKey, Vec<VqpId>)> {
        let (times, awake) = (self.times?, self.awake);
        let all = NodeKey { peer, tag: 0 }..=NodeKey { peer, tag: u16::MAX };
        let asked = |watch: &Watch| watch.asked.is_some_and(|at| at.id == id && at.to.qpn == qpn);
        let (&key, watch) = self.nodes.range_mut(all).find(|(_, watch)| asked(watch))?;
        let parted = watch.answered(turns, bound, awake);
        let asks_on = watch.port_asked.is_some() && watch.ports_left().next().is_some();
        let due = awake + if asks_on { 1 } else { times.quiet };
        self.reschedule(key, due);
        Some((key, parted))
    }

    /// VQPs are to fail.
    pub(crate) fn fail_all(&mut self, failing: impl Iterator<Item = Failing>) {
        self.failing.extend(failing);
        self.attended();
    }

    /// The next VQP that is to fail.
    pub(crate) fn next_failing(&mut self) -> Option<Failing> {
        self.failing.pop_front()
    }

    /// For [`crate::Core::audit`]: how many VQPs count for each node.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (NodeKey, u32)> {
        self.nodes.iter().map(|(key, watch)| (*key, watch.vqps))
    }

    fn reschedule(&mut self, key: NodeKey, due: u64) {
        let Some(watch) = self.nodes.get_mut(&key) else {
            return bug!("a node is to be looked at that is gone");
        };
        self.due.remove(&(watch.due, key));
        watch.due = due;
        self.due.insert((due, key));
    }
}

impl Watch {
    fn new(awake: u64) -> Watch {
        Watch {
            vqps: 0,
            heard: awake,
            asked: None,
            rounds: 0,
            turns: None,
            unknown: None,
            given_up: false,
            samples: Samples::default(),
            ports: BTreeMap::new(),
            port_asked: None,
            due: awake,
        }
    }

    /// What is to be done, and when it is looked at again.
    fn look(
        &mut self,
        facts: &Facts,
        times: Times,
        awake: u64,
        rng: &mut Rng,
    ) -> (Step, Option<u64>) {
        let got_on = self.take_samples(facts.samples);
        if got_on || facts.own {
            self.heard = awake;
        }
        let Some(to) = facts.to else { return self.look_unknown(facts, times, awake) };
        self.unknown = None;
        let Some(round) = &mut self.asked else {
            // The first question tells whether it turns by itself.
            let is_quiet = awake - self.heard >= times.quiet || self.turns.is_none();
            if facts.own && self.ports.is_empty() || !is_quiet && self.ports.is_empty() {
                return (Step::Rest, Some(self.heard + times.quiet));
            }
            return (self.ask(to, awake, rng), Some(awake + times.retry));
        };
        if got_on {
            (round.since, round.tries) = (awake, 0);
        }
        let late = awake - round.since >= times.patience && round.tries >= TRIES_MIN;
        if late && (self.turns == Some(true) || facts.refuted) {
            (self.given_up, self.asked) = (true, None);
            return (Step::GiveUp, None);
        }
        round.tries = round.tries.saturating_add(1);
        let Round { id, ports, .. } = *round;
        let again = if late { times.quiet } else { times.retry };
        (Step::Ask { to, id, ports, late }, Some(awake + again))
    }

    /// The same of one that is known by another record, or by none.
    fn look_unknown(&mut self, facts: &Facts, times: Times, awake: u64) -> (Step, Option<u64>) {
        self.asked = None;
        let since = *self.unknown.get_or_insert(awake);
        if facts.refuted && awake - since >= UNKNOWN_PATIENCE * times.patience {
            self.given_up = true;
            return (Step::GiveUp, None);
        }
        (Step::LookUp, Some(awake + times.quiet))
    }

    /// Whether a VQP has got on since they were looked at last.
    fn take_samples(&mut self, samples: Samples) -> bool {
        let before = core::mem::replace(&mut self.samples, samples);
        let got_on = |(id, count): &(VqpId, u32)| {
            before.iter().flatten().any(|(known, then)| id == known && count != then)
        };
        samples.iter().flatten().any(got_on)
    }

    /// Asks anew, about the ports that have their turn.
    fn ask(&mut self, to: ControlAddr, awake: u64, rng: &mut Rng) -> Step {
        self.rounds += 1;
        let mut ports = [None; PORTS_ASKED];
        if self.ports_left().next().is_none() {
            self.port_asked = None;
        }
        for (into, port) in ports.iter_mut().zip(self.ports_left()) {
            *into = Some(port);
        }
        self.port_asked = ports.into_iter().flatten().max();
        let id = rng.next_u64();
        self.asked = Some(Round { to, id, since: awake, tries: 1, ports });
        Step::Ask { to, id, ports, late: false }
    }

    /// The ports behind the one that was asked about last.
    fn ports_left(&self) -> impl Iterator<Item = NonZeroU16> {
        let behind = (self.port_asked.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.ports.range(behind).map(|(port, _)| *port)
    }

    /// Takes an answer; returns the VQPs whose ports are others' by now.
    fn answered(&mut self, turns: bool, bound: &PortsAsked, awake: u64) -> Vec<VqpId> {
        let Some(round) = self.asked.take() else {
            bug!("an answer is to no question");
            return Vec::new();
        };
        (self.heard, self.turns) = (awake, Some(turns));
        let mut parted = Vec::new();
        for (port, bound) in round.ports.into_iter().zip(bound) {
            if let Some(port) = port
                && let Some(entry) = self.ports.get_mut(&port)
            {
                entry.hear(*bound, self.rounds, &mut parted);
                if entry.is_empty() {
                    self.ports.remove(&port);
                }
            }
        }
        parted
    }
}
