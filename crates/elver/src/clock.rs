//! A clock that costs as good as nothing, also at its first use.

/// Nanoseconds of the monotonic clock as of the system's last tick, some milliseconds ago at most.
#[inline]
pub(crate) fn coarse_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call, which cannot fail: the clock is one that Linux has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
