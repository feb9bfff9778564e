//! `poll`.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{POLLNVAL, nfds_t, pollfd, sigset_t, timespec};

use super::input::fits;
use crate::conn::ALWAYS;
use crate::polled::Polled;
use crate::signals::Signals;
use crate::{errno, fds, real, wait};

/// Polls.
///
/// # Safety
/// The manual's contract.
unsafe fn polls(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let len = if fds.is_null() { 0 } else { count as usize };
    let start = if len == 0 { ptr::dangling_mut() } else { fds };
    // SAFETY: so many entries stand there.
    let all = unsafe { std::slice::from_raw_parts_mut(start, len) };
    if all.iter().all(|entry| fds::conn(entry.fd).is_none()) {
        // SAFETY: the caller's promise is the same.
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: the manual's contract.
    let at_most = unsafe { timeout.as_ref() }.map(duration).transpose();
    let mut polled = Polled::new(all, means);
    let told =
        at_most.and_then(|it| wait::until(&mut polled, wait::deadline(it), &mut Signals::by(mask)));
    errno::tell(told.map(|_| polled.told() as c_int))
}

/// What is told of who asks for these events.
fn means(asked: i16) -> i16 {
    asked | ALWAYS | POLLNVAL
}

/// A time of the kernel's.
pub(super) fn duration(time: &timespec) -> Result<Duration, c_int> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000);
    match (u64::try_from(time.tv_sec), nanos) {
        (Ok(seconds), Some(nanos)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(libc::EINVAL),
    }
}

/// Milliseconds; none if there are less than none, which is for ever.
pub(super) fn milliseconds(timeout: c_int) -> Option<timespec> {
    let timeout = i64::from(timeout);
    (timeout >= 0).then(|| timespec { tv_sec: timeout / 1000, tv_nsec: timeout % 1000 * 1_000_000 })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    let time = milliseconds(timeout);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's promise is the same.
    unsafe { polls(fds, count, time, ptr::null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe { polls(fds, count, timeout, mask) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    fits(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the caller's promise is the same.
    unsafe { poll(fds, count, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    fits(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the caller's promise is the same.
    unsafe { ppoll(fds, count, timeout, mask) }
}
