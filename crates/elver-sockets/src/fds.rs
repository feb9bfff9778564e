//! What stands behind a descriptor, without a lock: nearly all descriptors of a program are none of ours.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors above it are left to the kernel.
const FDS_MAX: usize = 1 << 16;
/// An epoll that has connections of ours.
const EPOLL: u32 = u32::MAX;

static FDS: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];

/// The last one that may be ours.
pub(crate) const LAST: u32 = FDS_MAX as u32 - 1;

fn entry(fd: RawFd) -> Option<&'static AtomicU32> {
    FDS.get(usize::try_from(fd).ok()?)
}

/// The number of the connection that a descriptor is of, if it is one of ours.
#[inline]
pub(crate) fn conn(fd: RawFd) -> Option<u32> {
    let number = entry(fd)?.load(Ordering::Acquire);
    (number != 0 && number != EPOLL).then_some(number)
}

/// Whether a descriptor is of an epoll that has connections of ours.
#[inline]
pub(crate) fn is_epoll(fd: RawFd) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == EPOLL)
}

/// Whether it is anything of ours.
#[inline]
pub(crate) fn is_ours(fd: RawFd) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) != 0)
}

/// Notes that a descriptor is a connection's; whether there is room for that.
pub(crate) fn set_conn(fd: RawFd, number: u32) -> bool {
    entry(fd).map(|entry| entry.store(number, Ordering::Release)).is_some()
}

/// Notes that a descriptor is such an epoll's; whether there is room for that.
pub(crate) fn set_epoll(fd: RawFd) -> bool {
    set_conn(fd, EPOLL)
}

/// It is the kernel's alone.
pub(crate) fn clear(fd: RawFd) {
    set_conn(fd, 0);
}
