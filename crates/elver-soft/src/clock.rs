//! The clock of everything that is decided in real time.

use elver_verbs::Time;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started, those in which it was suspended included.
///
/// Rules that count seconds so that nothing is executed twice hold between two machines: a target
/// forgets an initiator that was silent for so long, an initiator sends nothing again after half of
/// that, a lease ends, a node that is not heard of is gone. CLOCK_MONOTONIC, and with it
/// [`std::time::Instant`], stands still in suspend. An initiator that slept by that clock would wake
/// and send again what its peer has executed and forgotten; CLOCK_BOOTTIME tells it that it is too
/// late. What waits for a time (poll, epoll, parked threads) may still wake late after a suspend, by
/// as long as it had been told to wait; it then asks this clock.
///
/// It costs what CLOCK_MONOTONIC does: the kernel's vDSO serves both without a system call.
#[inline]
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
