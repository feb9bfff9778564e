//! Whole runs: they replay, they pass, they do everything, and planted bugs are caught.

use std::collections::BTreeMap;

use elver_ringsim::{Canary, Options, Report, run};
use elver_sim::Fault;

/// Seeds that every change must pass here; CI runs more by `elver sim ring`.
const SEEDS: u64 = 100;
/// Seeds within which each canary must have been caught.
const CANARY_SEEDS: u64 = 60;

/// What must have been done in so many runs.
const NEEDED: [&str; 7] =
    ["burst", "end over", "ended", "flush", "node crashed", "pair made", "stopped"];
/// What cores must have counted.
const COUNTED: [&str; 3] = ["transfers_to_dc", "transfers_to_rc", "wrs_reposted"];

fn good(seed: u64) -> Report {
    run(seed, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in [3, 17, 92] {
        assert_eq!(good(seed), good(seed));
    }
    assert_ne!(good(3).trace_hash, good(4).trace_hash);
}

#[test]
fn no_seed_breaks_a_rule_and_all_is_done() {
    let (mut acts, mut counters) = (BTreeMap::new(), BTreeMap::new());
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    let (mut sent, mut read) = (0, 0);
    for seed in 1..=SEEDS {
        let report = good(seed);
        (sent, read) = (sent + report.sent, read + report.read);
        report.acts.into_iter().for_each(|(act, count)| *acts.entry(act).or_insert(0) += count);
        let counted = report.counters.into_iter();
        counted.for_each(|(name, count)| *counters.entry(name).or_insert(0) += count);
        let injected = report.faults.into_iter();
        injected.for_each(|(fault, count)| *faults.entry(fault).or_default() += count);
    }
    assert!(read > 10_000 && read * 10 > sent * 7, "{read} read of {sent}");
    assert!(NEEDED.iter().all(|act| acts.contains_key(act)), "{acts:?}");
    assert!(COUNTED.iter().all(|name| counters[name] > 0), "{counters:?}");
    let met = [Fault::Loss, Fault::Duplicate, Fault::Partition, Fault::SlowEngine, Fault::Crash];
    assert!(met.iter().all(|fault| faults[fault] > 0), "{faults:?}");
}

#[test]
fn every_planted_bug_is_caught() {
    for &canary in Canary::ALL {
        let options = Options { canary: Some(canary), ..Options::default() };
        let caught = (1..=CANARY_SEEDS).find(|seed| run(*seed, &options).is_err());
        assert!(caught.is_some(), "{canary} was not caught within {CANARY_SEEDS} seeds");
    }
}
