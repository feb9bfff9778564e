//! What the machine is like while it is measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::pair::pin;

/// Round trips of a cache line below this are those of two threads of one core.
const SIBLINGS_NS: f64 = 75.0;
/// Cache line round trips that a probe takes.
const LINE_TRIPS: u64 = 200_000;

/// Whether two probes were of two threads of one core.
pub(crate) fn siblings(before_ns: f64, after_ns: f64) -> bool {
    before_ns.min(after_ns) < SIBLINGS_NS
}

/// Nanoseconds that a cache line takes to the other core and back.
pub(crate) fn line_round_trip_ns() -> f64 {
    let line = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for trip in 0..LINE_TRIPS {
                while line.load(Ordering::Acquire) != 2 * trip + 1 {
                    std::hint::spin_loop();
                }
                line.store(2 * trip + 2, Ordering::Release);
            }
        });
        let timed = scope.spawn(|| {
            pin(0);
            let start = Instant::now();
            for trip in 0..LINE_TRIPS {
                line.store(2 * trip + 1, Ordering::Release);
                while line.load(Ordering::Acquire) != 2 * trip + 2 {
                    std::hint::spin_loop();
                }
            }
            start.elapsed().as_nanos() as f64 / LINE_TRIPS as f64
        });
        timed.join().unwrap_or(f64::NAN)
    })
}
