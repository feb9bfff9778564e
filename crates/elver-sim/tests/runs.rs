//! Whole runs: they replay, they pass, they cover everything, and planted bugs are caught.

use elver_sim::{Canary, Coverage, Fault, Options, Transport, run};

/// Seeds that every change must pass here; CI runs thousands by `elver sim rnic`.
const SEEDS: u64 = 200;
/// Seeds within which each canary must have been caught.
const CANARY_SEEDS: u64 = 40;
/// Seeds that failed once, and what was wrong.
const FOUND: [(u64, &str); 13] = [
    (9_005_571, "a DCI's work never completed"),
    (9_023_345, "a DCI's work never completed"),
    (660_001_190, "who had failed while a request waited asked for it again"),
    (660_008_446, "a lane that waited to invalidate a window forgot its timer"),
    (660_024_796, "a lane that waited to invalidate a window forgot its timer"),
    (660_099_456, "the model forgot that a copy within a device may end in the middle"),
    (660_215_936, "as 660099456, over UC"),
    (660_256_287, "a path stayed full of packets that nobody was asked to acknowledge"),
    (660_310_927, "as 660256287"),
    (663_303_717, "messages within a device were held for lost, since their sender was gone"),
    (665_139_895, "a WRITE that its window no longer allowed took a receive with it"),
    (1_100_432_473, "the model connected QPs anew whose CQ had overflowed while it took them down"),
    (1_100_498_120, "as 1100432473"),
];
/// As above, with hosts that forge.
const FOUND_BESIDE_FORGERS: [(u64, &str); 1] = [(
    3_000_682_433,
    "time in which a driver slept again and again counted as silence of who had sent meanwhile",
)];

#[test]
fn runs_pass_and_cover_all_operations_and_faults() {
    let mut coverage = Coverage::default();
    for seed in 0..SEEDS {
        match run(seed, &Options::default()) {
            Ok(report) => coverage.add(&report),
            Err(failure) => panic!("{failure}\n{}", failure.trace.join("\n")),
        }
    }
    assert_eq!(coverage.missing(&Transport::ALL), []);
    for fault in Fault::ALL {
        assert!(coverage.faults()[&fault] > 0, "{fault} never happened");
    }
}

#[test]
fn seeds_that_failed_once_pass() {
    let before = Options { forger: false, ..Options::default() };
    let found = FOUND.map(|(seed, what)| (seed, what, &before));
    let now = Options::default();
    for (seed, what, options) in
        found.into_iter().chain(FOUND_BESIDE_FORGERS.map(|(seed, what)| (seed, what, &now)))
    {
        let Err(failure) = run(seed, options) else { continue };
        panic!("{what}? {failure}\n{}", failure.trace.join("\n"));
    }
}

#[test]
fn a_seed_always_does_the_same() {
    for seed in 0..20 {
        let first = run(seed, &Options::default()).unwrap();
        assert_eq!(run(seed, &Options::default()).unwrap(), first);
        let other = run(seed + 1_000, &Options::default()).unwrap();
        assert_ne!(other.trace_hash, first.trace_hash);
    }
}

#[test]
fn keeping_the_whole_trace_changes_nothing() {
    let whole = Options { trace: true, ..Options::default() };
    assert_eq!(run(3, &whole).unwrap(), run(3, &Options::default()).unwrap());
}

#[test]
fn every_canary_is_caught_and_replays() {
    for &canary in Canary::ALL {
        let options = Options { canary: Some(canary), ..Options::default() };
        let caught = (0..CANARY_SEEDS).find_map(|seed| run(seed, &options).err());
        let failure = caught.unwrap_or_else(|| panic!("{canary} was never caught"));
        assert!(failure.canary_strikes > 0, "{canary} was blamed without a strike: {failure}");
        assert!(!failure.trace.is_empty());
        assert_eq!(run(failure.seed, &options).unwrap_err(), failure);
    }
}

#[test]
fn a_run_uses_the_transports_that_it_may() {
    for transport in Transport::ALL {
        let options = Options { transports: vec![transport], ..Options::default() };
        let report = run(5, &options).unwrap();
        assert!(report.total().posted > 0);
        assert!(report.ops.keys().all(|(used, _)| *used == transport));
    }
}

/// Clocks that jump, as after a suspend, while packets wait. A device that counts that time as the
/// silence of its initiators forgets what it executed for them, and executes it again: with the last
/// two seeds it did.
#[test]
fn nothing_is_executed_twice_after_a_suspend() {
    let mut jumps = 0;
    let options = Options { forger: false, ..Options::default() };
    for seed in (1..200).chain([70_007_059, 70_008_257]) {
        let report = run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
        jumps += report.faults[&Fault::ClockJump];
    }
    assert!(jumps > 0);
}
