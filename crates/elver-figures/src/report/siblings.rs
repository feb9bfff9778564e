//! Whether the two cores are two threads of one: sums that fill a core take much longer beside sums on its other
//! thread, and no longer beside sums on another core. How long a cache line takes between the two does not tell: 45 ns
//! there and back are two cores of an AMD EPYC 9005 that share a cache, or two threads of one core of a Xeon.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elver_testbed::seat::pin;

/// Sums take this much longer, or more, beside others on their own core.
pub(super) const FACTOR: f64 = 1.25;
/// Rounds of sums in one measurement: about a millisecond.
const ROUNDS: u64 = 1 << 18;
/// Measurements, of which the fastest counts: nobody came between.
const TRIES: usize = 8;

/// How many times as long sums on one core take beside others on the other.
pub(super) fn slowed_beside() -> f64 {
    let alone = thread::scope(|scope| scope.spawn(fastest).join());
    let (begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !is_over.load(Ordering::Relaxed) {
                sums();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            spin_loop();
        }
        let beside = scope.spawn(fastest).join();
        is_over.store(true, Ordering::Relaxed);
        beside
    });
    match (alone, beside) {
        (Ok(alone), Ok(beside)) => beside.as_secs_f64() / alone.as_secs_f64(),
        _ => f64::NAN,
    }
}

fn fastest() -> Duration {
    pin(0);
    let time = || {
        let start = Instant::now();
        sums();
        start.elapsed()
    };
    (0..TRIES).map(|_| time()).min().unwrap_or_default()
}

/// Eight chains side by side, more than a core can work on at a time.
fn sums() {
    let mut chains: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..ROUNDS {
        for chain in &mut chains {
            *chain ^= *chain << 13;
            *chain ^= *chain >> 7;
            *chain ^= *chain << 17;
        }
    }
    black_box(chains);
}
