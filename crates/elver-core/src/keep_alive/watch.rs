//! A node that VQPs are connected to: what it is asked, and when it is given up.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::ops::Bound;

use elver_control::{ControlAddr, PORTS_ASKED};
use elver_random::Rng;

use super::port::Port;
use crate::VqpId;

/// Nobody is given up who was asked less often.
pub(super) const TRIES_MIN: u32 = 4;
/// A peer of which nobody can tell where it takes questions is given up so much later: what meta servers
/// tell of it may be late.
pub(super) const UNKNOWN_PATIENCE: u64 = 8;
/// VQPs of a peer whose getting on shows that it is there.
pub(crate) const SAMPLES: usize = 4;

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

/// What passes, in nanoseconds: between looks, in silence before a question, between two of them, and until a node
/// that does not answer is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) tick: u64,
    pub(super) quiet: u64,
    pub(super) retry: u64,
    pub(super) patience: u64,
}

/// A node that VQPs are connected to.
#[derive(Debug)]
pub(super) struct Watch {
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
    /// When it is looked at again, by the time that counts: [`super::KeepAlive`]'s list has it too.
    pub(super) due: u64,
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

impl Watch {
    pub(super) fn new(awake: u64) -> Watch {
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

    /// VQPs that are connected to it.
    pub(super) fn vqps(&self) -> u32 {
        self.vqps
    }

    /// A VQP that is connected to it counts; so does the port, if it is to be asked about. Returns whether it is looked at
    /// at once.
    pub(super) fn enroll(&mut self, vqp: VqpId, port: Option<NonZeroU16>, awake: u64) -> bool {
        self.vqps += 1;
        if let Some(port) = port {
            self.ports.entry(port).or_default().enroll(vqp, self.rounds);
        }
        // Who connects to one that was given up has it asked anew; a port is asked about at once.
        if core::mem::take(&mut self.given_up) {
            (self.heard, self.asked, self.unknown) = (awake, None, None);
            return true;
        }
        port.is_some() && self.asked.is_none()
    }

    /// A VQP is not connected to it any longer. Returns whether none is.
    pub(super) fn leave(&mut self, vqp: VqpId, port: Option<NonZeroU16>) -> bool {
        if let Some(port) = port
            && let Some(entry) = self.ports.get_mut(&port)
        {
            entry.leave(vqp);
            if entry.is_empty() {
                self.ports.remove(&port);
            }
        }
        count_off!(self.vqps, 1);
        self.vqps == 0
    }

    /// Whether it was asked this, at this QP, and has not answered.
    pub(super) fn has_asked(&self, qpn: u32, id: u64) -> bool {
        self.asked.is_some_and(|at| at.id == id && at.to.qpn == qpn)
    }

    /// What is to be done, and when it is looked at again.
    pub(super) fn look(
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

    /// Takes an answer; returns the VQPs whose ports are others' by now, and when it is looked at again.
    pub(super) fn answered(
        &mut self,
        turns: bool,
        bound: &PortsAsked,
        times: Times,
        awake: u64,
    ) -> (Vec<VqpId>, u64) {
        let mut parted = Vec::new();
        match self.asked.take() {
            Some(round) => self.hear(&round, bound, &mut parted),
            None => bug!("an answer is to no question"),
        }
        (self.heard, self.turns) = (awake, Some(turns));
        let asks_on = self.port_asked.is_some() && self.ports_left().next().is_some();
        (parted, awake + if asks_on { 1 } else { times.quiet })
    }

    /// Takes what was told of the ports of a question.
    fn hear(&mut self, round: &Round, bound: &PortsAsked, parted: &mut Vec<VqpId>) {
        for (port, bound) in round.ports.into_iter().zip(bound) {
            if let Some(port) = port
                && let Some(entry) = self.ports.get_mut(&port)
            {
                entry.hear(*bound, self.rounds, parted);
                if entry.is_empty() {
                    self.ports.remove(&port);
                }
            }
        }
    }
}
