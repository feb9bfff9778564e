//! The nodes of the demonstration.

use std::time::Duration;

use elver_testbed::seat::Seat;

/// Nodes by their numbers.
pub(super) const META: usize = 0;
pub(super) const A: usize = 1;
pub(super) const B: usize = 2;

/// Node a, whose connects are timed, has a core; the others, and all processes, have what is left.
pub(super) const CORE_OF_A: usize = 1;
pub(super) const BESIDE_A: Seat = Seat::Off(CORE_OF_A);

/// Milliseconds, to a tenth.
pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
