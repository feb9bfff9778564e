//! Whole runs: they replay, they pass, they do everything, and planted bugs are caught.

use std::collections::BTreeMap;

use elver_nodesim::{Canary, Forgers, Lapses, Options, Suspends, run};
use elver_sim::Fault;

/// Seeds that every change must pass here; CI runs more by `elver sim node`.
const SEEDS: u64 = 60;
/// Seeds within which each canary must have been caught, as CI runs them. A region that is given
/// back early is seldom used in the moment that is left: one seed in twelve shows it.
const CANARY_SEEDS: u64 = 100;

/// Seeds that found something, and what, with nobody who forges. They stay what they are as long as a
/// run's plan does.
const FOUND: [(u64, &str); 40] = [
    (956, "what was told to a node that had started anew broke a lane in peace"),
    (1_004, "a READ that waits for memory was blamed for what was refused behind it"),
    (1_083, "a request for credit that was flushed was taken for a peer that does not answer"),
    (1_094, "that a long message was read was flushed, and not told again"),
    (1_896, "as 1083, over DC"),
    (30_001_347, "as 1094, and the message never came"),
    (30_005_662, "a connect joined a look-up that had begun before its peer was registered"),
    (40_000_577, "what each of two ends had refused was posted again for ever"),
    (40_000_943, "a region was looked up in the table of a node that had started anew"),
    (40_003_046, "a long message was refused since no meta server could be asked for its sender"),
    (40_004_963, "as 40000943"),
    (40_005_695, "the refusal of a DC target was lost, and it was taken for gone"),
    (41_000_973, "a SEND was not acknowledged again, since a READ had been executed behind it"),
    (41_002_872, "packets that come for long were taken for an engine that never rests"),
    (43_000_038, "that a receiver had no room was told when it had room again"),
    (
        43_006_627,
        "receives were sought for a VQP that had failed, until its node had no region left",
    ),
    (44_010_407, "a refusal was told to nobody, since nobody could be asked where its sender is"),
    (
        45_005_283,
        "a look-up at a meta server that had started anew was not made again at the new one",
    ),
    (
        45_007_473,
        "a READ of memory that is gone, of which nobody waits for the end, broke a lane in peace",
    ),
    (
        48_017_844,
        "a meta server's nearness was measured at the table that it had before it started anew",
    ),
    (
        48_030_774,
        "a duplicate of a READ that was answered ended the stream when its memory was gone",
    ),
    (49_008_009, "receives were flushed of a VQP that was connected anew before that was told"),
    (41_007_409, "a VQP that had failed before it was connected got no receives"),
    (51_015_542, "messages had to arrive of which the last one found no room"),
    (51_016_690, "as 51015542, and the sender had failed before it completed"),
    (54_011_171, "a region's second key was kept that the device had taken back before the first"),
    (81_000_280, "a WR whose own memory was not at hand was blamed for its peer's that was gone"),
    (82_000_076, "a message was refused since one before it was still written to its receive"),
    (60_006_766, "a look-up did not wait for the link that follows the one to the meta server"),
    (60_008_984, "what was read ahead for a WR was taken for a later one's bytes"),
    (60_017_694, "an answer that had been under way undid what the registry had told since"),
    (60_024_082, "as 60017694"),
    (61_018_067, "a node held another for what it had been, whose table was ahead of the registry"),
    (62_001_656, "a look-up failed since too much else was asked for at once for its link to be"),
    (
        62_003_658,
        "a WR outlived its lease while its device stood still, and that was held for a fault",
    ),
    (66_070_568, "a look-up that was answered was blamed for what was refused behind it"),
    (66_156_540, "a link was not asked for again whose peer still had those that had broken"),
    (69_260_075, "a VQP that had left a broken link did not take the other one that there was"),
    (69_243_344, "what was refused was held against the time at which it was seen"),
    (61_030_741, "a VQP that was to move twice left its second lane with WRs on it"),
];

/// Eight of the first 20,000 seeds that had never run before: RC queue pairs made or closed for good, a flush
/// without a failure, a failure in peace, an index that counted wrong.
const FOUND_FIRST: [u64; 8] =
    [7_001_929, 7_008_742, 7_013_160, 7_014_286, 7_014_974, 7_015_477, 7_016_070, 7_019_427];

/// The same, of runs with forgers and keep-alive.
const FOUND_SINCE: [(u64, &str); 7] = [
    (
        1_700_141_580,
        "an atomic that a QP had executed within its device was flushed, and executed again",
    ),
    (1_700_056_523, "as 1700141580"),
    (1_700_181_627, "that no meta server knew a message's sender yet was held for a fault"),
    (1_700_035_160, "as 1700181627"),
    (
        1_700_196_406,
        "a node that had started anew was connected to as what it had been, 170 ms later",
    ),
    (1_700_059_542, "a node was said to do nothing that its clients called for ten seconds"),
    (1_700_072_820, "a meta server read its own table behind what it sent to nodes that had gone"),
];

/// The same, of runs with suspends.
const FOUND_SUSPENDED: [(u64, &str); 10] = [
    (
        812_026_821,
        "who was held without knowing it read what stood where a message had been that was given up",
    ),
    (813_008_021, "as 812026821"),
    (
        812_015_957,
        "who was a meta server before it started anew was connected to as what it had been",
    ),
    (812_005_568, "all slept between two READs of a message, whose time went by"),
    (
        429,
        "a node that did not reach itself kept one end of a link to itself, in the way of another",
    ),
    (691_933_311_397, "who was a meta server no longer believed its own table, which was late"),
    (100_000, "who had started anew was asked for a minute to leave links of what it had been"),
    (
        300_207,
        "who slept and was given up had links to who had left them, and looked peers up over one",
    ),
    (
        310_054,
        "a look-up was given up for the time that its node slept, though the answer lay before it",
    ),
    (610_192, "as 300207, and a VQP was connected over one"),
];

/// The same, of runs in which what was executed is heard of late.
const FOUND_LAPSED: [(u64, &str); 4] = [
    (
        1_000,
        "an answer that had waited for memory while its device slept was taken for new, and what had been executed since \
         it was sent was repeated though its target had forgotten who asked",
    ),
    (
        835_000_014,
        "an end of an RC QP stayed when the other had gone while their nodes had lost each other",
    ),
    (835_001_027, "as 835000014, and a member gone bad never said that it had heard of it"),
    (835_001_099, "as 835000014, and a WR was posted on it in peace"),
];

/// The same, of runs that have suspends besides.
const FOUND_LAPSED_SUSPENDED: [(u64, &str); 2] = [
    (836_000_020, "as 835000014, of nodes that slept"),
    (836_000_326, "as 835000014, of a VQP alone"),
];

/// The same, of runs as they are drawn.
const FOUND_DRAWN: [(u64, &str); 9] = [
    (
        861_001_246,
        "a meta server that was said to be gone was not told of an end that had, and looked peers up over its own",
    ),
    (
        890_016_166,
        "two nodes that asked each other for their records at once answered when they had them: never",
    ),
    (890_012_727, "that a node could not look up who asked it was held for a fault"),
    (910_052_653, "that no more messages could be open to their readers was held for a fault"),
    (
        910_105_461,
        "a WRITE that had waited for longer than its lease, since all slept, broke a queue pair, which was held for a \
         fault",
    ),
    (910_090_565, "what was sent to a node that stood still broke a queue pair in peace"),
    (
        1_400_003_738,
        "what a meta server had been before it started anew was believed of it, once it had been on the list",
    ),
    (
        1_500_012_202,
        "a node without DC asked itself for one RC QP too many, was refused, and asked again at once, for ever",
    ),
    (
        1_600_002_316,
        "that a node which had stood still read a message that was taken back meanwhile was held for a fault",
    ),
];

#[test]
fn what_was_found_is_not_there_any_more() {
    let since = Options { suspends: Suspends::None, lapses: Lapses::None, ..Options::default() };
    let before = Options { forgers: Forgers::None, no_keep_alive: true, ..since.clone() };
    let suspended = Options { suspends: Suspends::Always, ..since.clone() };
    let drawn = Options::default();
    let lapsed = Options { lapses: Lapses::Always, ..Options::default() };
    let both = Options { suspends: Suspends::Always, ..lapsed.clone() };
    let first = FOUND_FIRST.map(|seed| (seed, "one of the first that were found"));
    let all = (first.iter().chain(&FOUND).map(|found| (found, &before)))
        .chain(first.iter().chain(&FOUND_SINCE).map(|found| (found, &since)))
        .chain(FOUND_SUSPENDED.iter().map(|found| (found, &suspended)))
        .chain(FOUND_LAPSED.iter().map(|found| (found, &lapsed)))
        .chain(FOUND_LAPSED_SUSPENDED.iter().map(|found| (found, &both)))
        .chain(FOUND_DRAWN.iter().map(|found| (found, &drawn)));
    for ((seed, what), options) in all {
        let seed = *seed;
        if let Err(failure) = run(seed, options) {
            panic!("{what}: {failure}\n{}", failure.trace.join("\n"));
        }
    }
}

#[test]
fn runs_pass_and_do_everything() {
    let mut acts = BTreeMap::new();
    let mut counters = BTreeMap::new();
    let mut faults = BTreeMap::new();
    for seed in 0..SEEDS {
        match run(seed, &Options::default()) {
            Ok(report) => {
                for (act, count) in report.acts {
                    *acts.entry(act).or_insert(0) += count;
                }
                for (counter, count) in report.counters {
                    *counters.entry(counter).or_insert(0) += count;
                }
                for (fault, count) in report.faults {
                    *faults.entry(fault).or_insert(0) += count;
                }
            }
            Err(failure) => panic!("{failure}\n{}", failure.trace.join("\n")),
        }
    }
    for act in [
        "node crashed",
        "meta server lost",
        "client died",
        "collision",
        "answers lost",
        "answers late",
        "region dropped",
        "region vanished",
        "VQP accepted",
        "all suspended",
        "node suspended",
        "others suspended",
        "sleeper given up",
    ] {
        assert!(acts.get(act).is_some_and(|count| *count > 0), "no {act}: {acts:?}");
    }
    // What the cores have for bad times was needed.
    let needed = [
        "connects_busy",
        "fates_asked",
        "lanes_reset",
        "links_reclaimed",
        "low_held",
        "messages_held",
        "mr_refusals",
        "peers_answered",
        "peers_given_up",
        "transfers_to_dc",
        "transfers_to_rc",
        "vqps_forsaken",
    ];
    for counter in needed {
        assert!(counters[counter] > 0, "{counter} never counted: {counters:?}");
    }
    for fault in [
        Fault::Loss,
        Fault::Reorder,
        Fault::Partition,
        Fault::SlowEngine,
        Fault::Crash,
        Fault::ClockJump,
    ] {
        assert!(faults[&fault] > 0, "{fault} never happened");
    }
}

/// Time passes at a node that its peers did not see pass, or that it slept through: nothing is executed twice
/// for that, no peer that answers is taken for gone, and all that was under way ends.
#[test]
fn nothing_is_done_twice_after_a_suspend() {
    let mut jumps = 0;
    for seed in 0..SEEDS {
        let options = Options { suspends: Suspends::Always, ..Options::default() };
        match run(seed, &options) {
            Ok(report) => jumps += report.faults[&Fault::ClockJump],
            Err(failure) => panic!("{failure}\n{}", failure.trace.join("\n")),
        }
    }
    assert!(jumps > SEEDS / 2, "{jumps} jumps");
}

/// What was executed is heard of when nobody may know it any more: neither the peer that was asked what it did, nor
/// a DC target that had room for others meanwhile.
#[test]
fn nothing_is_done_twice_that_was_forgotten() {
    let mut acts = BTreeMap::new();
    for seed in 0..SEEDS {
        let options = Options { lapses: Lapses::Always, ..Options::default() };
        match run(seed, &options) {
            Ok(report) => {
                for (act, count) in report.acts {
                    *acts.entry(act).or_insert(0) += count;
                }
            }
            Err(failure) => panic!("{failure}\n{}", failure.trace.join("\n")),
        }
    }
    let needed =
        ["RC lapse", "fate unknown", "DC lapse, asleep", "DC lapse, jump", "initiators forgotten"];
    for act in needed {
        assert!(acts.get(act).is_some_and(|count| *count > 2), "too few {act}: {acts:?}");
    }
}

#[test]
fn a_seed_always_does_the_same() {
    for seed in 0..10 {
        let first = run(seed, &Options::default()).unwrap();
        assert_eq!(run(seed, &Options::default()).unwrap(), first);
        let other = run(seed + 1_000, &Options::default()).unwrap();
        assert_ne!(other.trace_hash, first.trace_hash);
    }
}

#[test]
fn keeping_the_whole_trace_changes_nothing() {
    let whole = Options { trace: true, ..Options::default() };
    assert_eq!(run(3, &whole).unwrap().acts, run(3, &Options::default()).unwrap().acts);
}

#[test]
fn every_canary_is_caught_and_replays() {
    for &canary in Canary::ALL {
        let options = Options { canary: Some(canary), ..Options::default() };
        let caught = (0..CANARY_SEEDS).find_map(|seed| run(seed, &options).err());
        let failure = caught.unwrap_or_else(|| panic!("{canary} was never caught"));
        assert!(failure.canary_strikes > 0, "{canary} was blamed without a strike: {failure}");
        assert_eq!(run(failure.seed, &options).unwrap_err(), failure);
    }
}
