use elver_verbs::Time;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock: what everything here that takes a [`Time`] is given.
#[inline]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
