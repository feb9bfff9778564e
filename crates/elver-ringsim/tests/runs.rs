//! Whole runs: they replay, they pass, they do everything, and planted bugs are caught.

use std::collections::BTreeMap;

use elver_ringsim::{Canary, Options, Report, SWITCHED, run, run_under};
use elver_sim::Fault;

/// Seeds that every change must pass here; CI runs more by `elver sim ring`.
const SEEDS: u64 = 100;
/// Seeds that have each of the faults that a seed has or has not.
const SWITCHED_SEEDS: u64 = 100;
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
    assert!(Fault::ALL.iter().all(|fault| faults[fault] > 0), "{faults:?}");
}

/// Runs have each of them, or have it not: what is asked for alone is there alone.
#[test]
fn each_fault_that_is_switched_befalls_where_it_is_on() {
    for chosen in SWITCHED.iter().map(Some).chain([None]) {
        let only: Vec<Fault> = chosen.copied().into_iter().collect();
        let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
        for seed in 1..=SWITCHED_SEEDS {
            let report = run_under(seed, &Options::default(), &only);
            let injected = report.unwrap_or_else(|failure| panic!("{only:?}: {failure}")).faults;
            injected
                .into_iter()
                .for_each(|(fault, count)| *faults.entry(fault).or_default() += count);
        }
        for fault in SWITCHED {
            let befell = faults[&fault] > 0;
            assert_eq!(befell, only.contains(&fault), "{fault} in runs with {only:?}: {faults:?}");
        }
    }
}

#[test]
fn every_planted_bug_is_caught() {
    for &canary in Canary::ALL {
        let options = Options { canary: Some(canary), ..Options::default() };
        let caught = (1..=CANARY_SEEDS).find(|seed| run(*seed, &options).is_err());
        assert!(caught.is_some(), "{canary} was not caught within {CANARY_SEEDS} seeds");
    }
}
