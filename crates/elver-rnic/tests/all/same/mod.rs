//! What two queue pairs do to each other must not depend on whether they are of one device, which
//! copies from region to region, or of two, which exchange packets: one drawn plan, both ways, and
//! completions, events, states, receives and memory compared after each step.
//!
//! `ELVER_SAME_SEED=n ELVER_SAME_RUNS=m cargo test -p elver-rnic --test all same` runs others.

mod plan;
mod ways;

use elver_verbs::SendOpcode::{self, *};
use elver_verbs::WcStatus::{self, *};

use self::plan::{Action, Plan, Transport};
use self::ways::{Seen, Way, run};

/// Plans that are drawn.
const RUNS: u64 = 1_500;

/// What they must have had, so that it was compared: operations of a transport, and each of these ends of them.
const DRAWN: &[(Transport, &[SendOpcode], &[WcStatus])] = &[
    (Transport::Rc, &[Send, SendWithImm, Write, WriteWithImm, Read, CompareSwap, FetchAdd], ANY),
    (Transport::Rc, &[Send, SendWithImm, SendWithInv], &[RemInvReqErr, RemOpErr, RnrRetryExcErr]),
    (Transport::Rc, &[Write, WriteWithImm, SendWithInv], &[RemAccessErr, RemOpErr, RetryExcErr]),
    (Transport::Rc, &[Read, CompareSwap, FetchAdd], &[RemAccessErr, RemInvReqErr, LocQpOpErr]),
    (Transport::Rc, &[BindMw], &[Success, WrFlushErr, MwBindErr]),
    (Transport::Rc, &[LocalInv, SendWithInv], ANY),
    (Transport::Uc, &[Send, SendWithImm, Write, WriteWithImm, LocalInv], ANY),
    (Transport::Uc, &[BindMw], &[Success, WrFlushErr, MwBindErr]),
    (Transport::Ud, &[Send, SendWithImm], ANY),
    (Transport::Dc, &[Send, SendWithImm, Write, WriteWithImm, Read, CompareSwap, FetchAdd], ANY),
    (
        Transport::Dc,
        &[Send, SendWithImm, SendWithInv],
        &[RemInvReqErr, RetryExcErr, RnrRetryExcErr],
    ),
    (Transport::Dc, &[Write, WriteWithImm, SendWithInv], &[RemAccessErr, RemOpErr]),
    (Transport::Dc, &[Read, CompareSwap, FetchAdd], &[RemAccessErr, LocQpOpErr]),
    (Transport::Dc, &[CompareSwap, FetchAdd], &[RemInvReqErr]),
];
/// How a WR of any kind may end.
const ANY: &[WcStatus] = &[Success, LocProtErr, WrFlushErr];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// It fails on a device whose local copies check an atomic's alignment before its rights, keep the
/// receive of a UC WRITE into memory that is gone, do not ask `max_dest_rd_atomic` or
/// `max_rd_atomic`, stop a READ with bad local memory before its peer has seen it, count a UC
/// message without a receive as an RNR NAK, or blame the peer for memory of the WR's own.
#[test]
fn one_device_does_what_two_do() {
    let first = from_environment("ELVER_SAME_SEED").unwrap_or(1);
    let runs = from_environment("ELVER_SAME_RUNS").unwrap_or(RUNS);
    let seen: Seen = (first..first + runs).flat_map(does_the_same_both_ways).collect();
    if (first, runs) == (1, RUNS) {
        for (transport, opcodes, statuses) in DRAWN {
            for (opcode, status) in
                opcodes.iter().flat_map(|of| statuses.iter().map(move |to| (*of, *to)))
            {
                let ended = (*transport, opcode, status);
                assert!(seen.contains(&ended), "no plan had {ended:?}");
            }
        }
    }
}

/// A local copy that had found no receive did not go on in SQD: a peer that went away then was never
/// missed, and the QP never drained.
#[test]
fn what_was_begun_goes_on_while_the_queue_drains() {
    does_the_same_both_ways(2_005_997);
}

/// A READ of memory that is gone, into memory that takes nothing, was told to have failed for the latter:
/// nobody had looked at the former.
#[test]
fn memory_that_is_gone_is_missed_before_its_bytes_have_no_place() {
    does_the_same_both_ways(2_008_586);
}

/// An XRC pair does what an RC pair with an SRQ does, both ways. Its target posts nothing, and is not told that no
/// more receives are taken from the SRQ, which is not its own.
#[test]
fn xrc_does_what_rc_does() {
    let first = from_environment("ELVER_SAME_SEED").unwrap_or(1);
    let runs = from_environment("ELVER_SAME_RUNS").unwrap_or(RUNS);
    let mut compared = 0;
    for seed in first..first + runs {
        let mut plan = Plan::draw(seed);
        if plan.transport != Transport::Rc {
            continue;
        }
        compared += 1;
        plan.srq = true;
        plan.actions.retain(|action| !matches!(action, Action::Bind | Action::Invalidate));
        let (rc, _) = run(Way::Packets, &plan);
        let rc: Vec<String> = rc.into_iter().map(without_last_wqe).collect();
        plan.transport = Transport::Xrc;
        for way in [Way::Packets, Way::Local, Way::Steps] {
            the_same(seed, &plan, [("XRC", &run(way, &plan).0), ("RC ", &rc)]);
        }
    }
    assert!(compared > 0);
}

fn without_last_wqe(line: String) -> String {
    line.replace(", \"last WQE\"", "").replace("\"last WQE\"", "")
}

/// Returns how WRs ended.
fn does_the_same_both_ways(seed: u64) -> Seen {
    let plan = Plan::draw(seed);
    let [(local, seen), (steps, _), (packets, _)] =
        [Way::Local, Way::Steps, Way::Packets].map(|way| run(way, &plan));
    the_same(seed, &plan, [("within a device", &local), ("over packets   ", &packets)]);
    the_same(seed, &plan, [("in steps       ", &steps), ("over packets   ", &packets)]);
    seen
}

fn the_same(seed: u64, plan: &Plan, [one, two]: [(&str, &[String]); 2]) {
    for (at, (a, b)) in one.1.iter().zip(two.1).enumerate() {
        assert!(
            a == b,
            "seed {seed} differs:\n  {} {a}\n  {} {b}\nbefore it\n  {}\nof {plan:#?}",
            one.0,
            two.0,
            two.1[..at].join("\n  ")
        );
    }
    assert_eq!(one.1.len(), two.1.len(), "seed {seed}: {plan:#?}");
}
