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
mod watch;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use elver_random::Rng;
use elver_verbs::Time;

use self::watch::{Facts, PortsAsked, Step, Times, Watch};
use crate::VqpId;
use crate::due::Alarm;
use crate::ids::PeerId;

/// Of the time in which it must be told that a peer has gone, this part passes between two looks at what
/// is due,
const TICKS: u64 = 16;
/// this part in silence before the peer is asked,
const QUIET_TICKS: u64 = 4;
/// and this part until it is given up. The rest is what looks come late.
const PATIENCE_TICKS: u64 = 10;
/// The longest time between two looks, in nanoseconds.
const TICK_NS_MAX: u64 = 50_000_000;

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

/// All nodes that VQPs are connected to, and when each is looked at.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    /// The core turns by itself, and not only when its owner calls.
    pub(crate) drives_itself: bool,
    /// None: it is off.
    times: Option<Times>,
    nodes: BTreeMap<NodeKey, Watch>,
    /// By the time that counts, which [`KeepAlive::tick`] tells.
    due: BTreeSet<(u64, NodeKey)>,
    /// VQPs that were connected since the last look, each of them once.
    newcomers: VecDeque<VqpId>,
    /// Of these, such as have gone since. Their ids may have come again.
    newcomers_gone: usize,
    failing: VecDeque<Failing>,
    /// Nanoseconds that count.
    awake: u64,
    /// Up to when time was counted, and when the next look is.
    last: Time,
    next: Option<Time>,
    /// When there is something to do next: the one number that each poll looks at.
    wake: Alarm,
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
            drives_itself: true,
            times,
            nodes: BTreeMap::new(),
            due: BTreeSet::new(),
            newcomers: VecDeque::new(),
            newcomers_gone: 0,
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

    /// A VQP was connected that does not wait for its turn already.
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

    /// One goes before its turn.
    pub(crate) fn newcomer_goes(&mut self) {
        self.newcomers_gone += usize::from(self.times.is_some());
    }

    /// One had its turn that has gone.
    fn pass_over(&mut self) {
        count_off!(self.newcomers_gone, 1);
    }

    /// Checks that so many VQPs wait for their turn, each once, if anybody is looked at at all. `waits` tells which say so.
    pub(crate) fn audit_newcomers(
        &self,
        count: usize,
        waits: impl Fn(&VqpId) -> bool,
    ) -> Result<(), String> {
        if self.times.is_none() {
            return Ok(());
        }
        let (all, gone) = (self.newcomers.len(), self.newcomers_gone);
        let waiting: BTreeSet<&VqpId> = self.newcomers.iter().filter(|id| waits(id)).collect();
        if waiting.len() != count || all != count + gone {
            let waiting = waiting.len();
            return Err(format!(
                "{count} VQPs wait to be looked after: {waiting} do, at {all} places, {gone} of such as have gone"
            ));
        }
        Ok(())
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
        if watch.enroll(vqp, port, awake) {
            self.reschedule(key, awake);
        }
    }

    /// A VQP is not connected to a node any longer.
    pub(crate) fn leave(&mut self, key: NodeKey, vqp: VqpId, port: Option<NonZeroU16>) {
        let Some(watch) = self.nodes.get_mut(&key) else {
            return bug!("a VQP leaves a node that nobody looks at");
        };
        if watch.leave(vqp, port) {
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
        let (&key, watch) =
            self.nodes.range_mut(all).find(|(_, watch)| watch.has_asked(qpn, id))?;
        let (parted, due) = watch.answered(turns, bound, times, awake);
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
        self.nodes.iter().map(|(key, watch)| (*key, watch.vqps()))
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
