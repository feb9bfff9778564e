use elver_control::{ControlAddr, PORTS_ASKED};

use super::watch::{Samples, TRIES_MIN, UNKNOWN_PATIENCE};
use super::*;
use crate::VqpId;

const TELL: u64 = 1_600;
const TICK: u64 = TELL / TICKS;
const KEY: NodeKey = NodeKey { peer: PeerId::numbered(3), tag: 9 };
const NO_PORTS: PortsAsked = [None; PORTS_ASKED];

/// A keep-alive under a clock of its own.
struct Rig {
    keep_alive: KeepAlive,
    rng: Rng,
    now: u64,
    facts: Facts,
}

fn facts() -> Facts {
    let to = ControlAddr { gid: elver_verbs::Gid([1; 16]), qpn: 77, qkey: 5 };
    Facts { to: Some(to), refuted: false, own: false, samples: Samples::default() }
}

impl Rig {
    fn new() -> Rig {
        let keep_alive = KeepAlive::new(TELL);
        Rig { keep_alive, rng: Rng::new(1), now: 1_000, facts: facts() }
    }

    /// With a VQP that is connected.
    fn with(port: Option<u16>) -> Rig {
        let port = port.and_then(NonZeroU16::new);
        let mut rig = Rig::new();
        rig.keep_alive.connected(VqpId(1));
        assert_eq!(rig.keep_alive.poll_timeout(), Some(Time::ZERO));
        assert!(!rig.keep_alive.tick(Time(rig.now), Time(rig.now)));
        rig.keep_alive.attended();
        assert_eq!(rig.keep_alive.poll_timeout(), Some(Time(rig.now + TICK)));
        assert_eq!(
            (rig.keep_alive.next_newcomer(), rig.keep_alive.newcomers()),
            (Some(VqpId(1)), 0)
        );
        rig.keep_alive.enroll(KEY, VqpId(1), port);
        rig
    }

    /// Lets so much time pass, and looks; what is to be done.
    fn pass(&mut self, ns: u64) -> Vec<Step> {
        self.now += ns;
        self.look(self.now)
    }

    /// The same, with all taken that had arrived by a moment.
    fn look(&mut self, heard: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.keep_alive.tick(Time(self.now), Time(heard)) {
            while let Some(key) = self.keep_alive.next_due() {
                steps.push(self.keep_alive.look(key, &self.facts, &mut self.rng));
            }
            self.keep_alive.looked();
        }
        self.keep_alive.attended();
        steps
    }

    /// Looks at each tick until somebody is asked; the id, and the ports.
    fn asked(&mut self) -> (u64, PortsAsked) {
        for _ in 0..2 * TICKS {
            if let Some(Step::Ask { id, ports, .. }) = self.pass(TICK).pop() {
                return (id, ports);
            }
        }
        panic!("nobody is asked");
    }

    fn answer(&mut self, id: u64, turns: bool, bound: &[u16]) -> Option<Vec<u32>> {
        let mut all = NO_PORTS;
        for (into, number) in all.iter_mut().zip(bound) {
            *into = NonZeroU16::new(*number);
        }
        let parted = self.keep_alive.answered((KEY.peer, 77), id, turns, &all);
        parted.map(|(_, parted)| parted.into_iter().map(|vqp| vqp.0).collect())
    }

    /// How long it takes until the node is given up; none if it is not.
    fn given_up_after(&mut self) -> Option<u64> {
        let began = self.now;
        let gone = (0..10 * TICKS).any(|_| self.pass(TICK).contains(&Step::GiveUp));
        gone.then_some(self.now - began)
    }
}

#[test]
fn a_node_that_falls_silent_is_told_of_in_time() {
    // Whenever that is after an answer.
    for later in 0..QUIET_TICKS {
        let mut rig = Rig::with(None);
        let (id, ports) = rig.asked();
        assert_eq!((rig.answer(id, true, &[]), ports), (Some(Vec::new()), NO_PORTS));
        for _ in 0..later {
            assert!(!rig.pass(TICK).contains(&Step::GiveUp));
        }
        let after = rig.given_up_after().unwrap();
        assert!(after + later * TICK <= TELL, "{after}");
        assert_eq!(rig.given_up_after(), None, "it is told once");
    }
}

#[test]
fn who_answers_is_asked_again_only_after_a_while() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    let asks = (0..QUIET_TICKS - 1).flat_map(|_| rig.pass(TICK)).count();
    assert_eq!(asks, 0);
    for _ in 0..100 {
        let (id, _) = rig.asked();
        // Late, but it comes.
        for _ in 0..PATIENCE_TICKS - 1 {
            assert!(!rig.pass(TICK).contains(&Step::GiveUp));
        }
        assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    }
}

#[test]
fn only_who_was_asked_can_answer_and_once() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id ^ 1, true, &[]), None, "another id");
    let elsewhere = rig.keep_alive.answered((KEY.peer, 78), id, true, &NO_PORTS);
    assert_eq!(elsewhere, None, "another queue pair");
    assert_eq!(
        rig.keep_alive.answered((PeerId::numbered(4), 77), id, true, &NO_PORTS),
        None,
        "another node"
    );
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    assert_eq!(rig.answer(id, true, &[]), None);
}

#[test]
fn a_vqp_that_gets_on_is_proof_enough() {
    let mut rig = Rig::with(None);
    rig.facts.samples[0] = Some((VqpId(1), 0));
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    for done in 1..100 {
        rig.facts.samples[0] = Some((VqpId(1), done));
        assert!(rig.pass(TICK).iter().all(|step| *step == Step::Rest));
    }
    assert!(rig.given_up_after().is_some());
}

#[test]
fn another_vqp_in_its_place_proves_nothing() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    let gone = (1..=TICKS as u32).any(|other| {
        rig.facts.samples[0] = Some((VqpId(10 + other), other));
        rig.pass(TICK).contains(&Step::GiveUp)
    });
    assert!(gone);
}

#[test]
fn time_in_which_nobody_polled_does_not_count() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    assert!(!rig.pass(100 * TELL).contains(&Step::GiveUp));
    let (id, _) = rig.asked();
    assert!(!rig.pass(100 * TELL).contains(&Step::GiveUp), "nor while it was asked");
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
}

#[test]
fn time_in_which_what_arrives_is_not_taken_does_not_count() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    let taken = rig.now;
    for _ in 0..10 * TICKS {
        rig.now += TICK;
        assert!(!rig.look(taken).contains(&Step::GiveUp));
    }
}

#[test]
fn who_never_answered_or_turns_only_when_called_is_given_up_on_other_news_alone() {
    for first in [None, Some(false)] {
        let mut rig = Rig::with(None);
        if let Some(turns) = first {
            let (id, _) = rig.asked();
            assert_eq!(rig.answer(id, turns, &[]), Some(Vec::new()));
        }
        assert_eq!(rig.given_up_after(), None);
        rig.facts.refuted = true;
        assert!(rig.given_up_after().is_some());
    }
}

#[test]
fn of_whom_nobody_knows_where_to_ask_is_looked_up_and_given_up_late() {
    let mut rig = Rig::with(None);
    rig.facts.to = None;
    assert_eq!(rig.pass(TICK), [Step::LookUp]);
    assert_eq!(rig.given_up_after(), None);
    rig.facts.refuted = true;
    assert!(rig.given_up_after().is_some());
    let mut rig = Rig::with(None);
    (rig.facts.to, rig.facts.refuted) = (None, true);
    assert!(rig.given_up_after().unwrap() >= UNKNOWN_PATIENCE * PATIENCE_TICKS * TICK);
}

#[test]
fn who_connects_to_one_that_was_given_up_has_it_asked_anew() {
    let mut rig = Rig::with(None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    assert!(rig.given_up_after().is_some());
    rig.keep_alive.enroll(KEY, VqpId(2), None);
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[]), Some(Vec::new()));
    assert!(rig.given_up_after().is_some());
}

#[test]
fn the_end_of_a_ports_owner_is_told_to_those_that_had_him() {
    let mut rig = Rig::with(Some(7));
    let (id, ports) = rig.asked();
    assert_eq!(ports[..2], [NonZeroU16::new(7), None]);
    assert_eq!(rig.answer(id, true, &[4]), Some(Vec::new()));
    // Also if the node itself is known to be there.
    rig.facts.samples[0] = Some((VqpId(1), 1));
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[4]), Some(Vec::new()));
    rig.keep_alive.enroll(KEY, VqpId(2), NonZeroU16::new(7));
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[5]), Some(alloc::vec![1]));
    let (id, _) = rig.asked();
    assert_eq!(rig.answer(id, true, &[0]), Some(alloc::vec![2]));
    for vqp in [1, 2] {
        rig.keep_alive.leave(KEY, VqpId(vqp), NonZeroU16::new(7));
    }
    assert_eq!(rig.pass(TICK), []);
    assert_eq!(rig.keep_alive.poll_timeout(), None, "nobody is looked at any longer");
}

#[test]
fn many_ports_are_asked_about_in_turn() {
    let mut rig = Rig::with(None);
    let ports: Vec<u16> = (1..=20).map(|n| n * 3_276).chain([u16::MAX]).collect();
    for (vqp, port) in (2..).zip(&ports) {
        rig.keep_alive.enroll(KEY, VqpId(vqp), NonZeroU16::new(*port));
    }
    for _ in 0..2 {
        let mut all = Vec::new();
        let began = rig.now;
        while all.len() < ports.len() {
            let (id, some) = rig.asked();
            all.extend(some.into_iter().flatten().map(NonZeroU16::get));
            assert_eq!(rig.answer(id, true, &[1; PORTS_ASKED]), Some(Vec::new()));
        }
        assert_eq!(all, ports);
        assert!(rig.now - began <= (QUIET_TICKS + 3) * TICK, "one question a tick");
    }
}

/// One that stood twice passed for one that stood once.
#[test]
fn a_vqp_that_stands_twice_is_found() {
    let mut keep_alive = KeepAlive::new(TELL);
    let audit = |keep_alive: &KeepAlive, count| keep_alive.audit_newcomers(count, |_| true);
    keep_alive.connected(VqpId(1));
    keep_alive.connected(VqpId(2));
    assert_eq!(audit(&keep_alive, 2), Ok(()));
    keep_alive.connected(VqpId(1));
    assert!(audit(&keep_alive, 2).is_err());
    // It may be another's id that has come again.
    keep_alive.newcomer_goes();
    assert_eq!(audit(&keep_alive, 2), Ok(()));
    assert!(keep_alive.next_newcomer().is_some());
    keep_alive.pass_over();
    assert_eq!(audit(&keep_alive, 2), Ok(()));
}

#[test]
fn off_it_does_nothing() {
    let mut keep_alive = KeepAlive::new(0);
    keep_alive.connected(VqpId(1));
    assert_eq!(keep_alive.poll_timeout(), None);
    assert!(!keep_alive.tick(Time(5), Time(5)) && keep_alive.newcomers() == 0);
}

#[test]
fn the_longest_and_the_shortest_times_work() {
    for tell in [1, 10, 3_600_000_000_000, u64::MAX] {
        let times = KeepAlive::new(tell).times.unwrap();
        assert!((1..=TICK_NS_MAX).contains(&times.tick) && times.patience >= times.retry);
    }
}

/// It may have started anew, and nobody here have heard of that: its old record was held on to for ever.
#[test]
fn who_never_answers_is_looked_up_once_it_is_late() {
    let mut rig = Rig::with(None);
    let steps: Vec<Step> = (0..3 * TICKS).flat_map(|_| rig.pass(TICK)).collect();
    let late: Vec<bool> =
        steps.iter().map(|step| matches!(step, Step::Ask { late, .. } if *late)).collect();
    assert!(!late[..TRIES_MIN as usize].contains(&true), "{steps:?}");
    assert_eq!(late.last(), Some(&true), "{steps:?}");
    assert!(!steps.contains(&Step::GiveUp), "nobody knows that it turns by itself");
}
