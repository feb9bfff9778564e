//! Both halves of the protocol over a network that is as unkind as RC allows: WRITEs land late, in pieces
//! and in any order within a WRITE, read their bytes from the sender's memory as late as that, and complete
//! later still. A model knows what was sent. `ELVER_RING_SEED=N` replays one run.

use crate::lossless::{Bug, Run};
use elver_random::Rng;
use elver_ring::protocol::Config;

/// Runs of a test.
const SEEDS: u64 = 400;

/// Any measures that fit.
fn config(rng: &mut Rng) -> Config {
    let slots = 1 << (1 + rng.next_u32() % 6);
    let slot_bytes = 64 + 8 * (rng.next_u32() % 17);
    let alpha = 1 + rng.next_u32() % slots;
    let beta = 1 + rng.next_u32() % alpha;
    let gamma = 1 + rng.next_u32() % slots;
    let linger_ns = rng.next_u32().is_multiple_of(2).then_some(1 + rng.next_u64() % 50);
    Config { slots, slot_bytes, alpha, beta, gamma, linger_ns }
}

/// How a run of a seed ends.
fn run(seed: u64, bug: Bug) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    Run::new(config, rng, bug).go(300).map_err(|wrong| {
        format!("{wrong}; seed {seed}: ELVER_RING_SEED={seed} replays it; {config:?}")
    })
}

fn seeds() -> std::ops::Range<u64> {
    let named = std::env::var("ELVER_RING_SEED").ok();
    let named: Option<u64> = named.map(|seed| seed.parse().expect("a seed is a number"));
    named.map_or(0..SEEDS, |seed| seed..seed + 1)
}

/// Everything arrives once, whole, unchanged while it is read, in order; and all of it, whatever the
/// measures are: α beyond what is sent, messages as long as the ring takes, one that does not fit behind a
/// batch that nobody has been told of.
#[test]
fn everything_arrives_once_whole_and_in_order() {
    for seed in seeds() {
        run(seed, Bug::None).unwrap();
    }
}

/// The canaries: each of these mistakes must be caught in some run, or the test above proves nothing.
#[test]
fn what_is_done_wrong_is_caught() {
    for bug in [Bug::TailFirst, Bug::TailInside, Bug::FreedBeforeRead, Bug::TailOfUnsent] {
        let caught = (0..SEEDS).filter(|seed| run(*seed, bug).is_err()).count();
        assert!(caught > SEEDS as usize / 50, "{bug:?} was caught in {caught} of {SEEDS} runs");
    }
}
