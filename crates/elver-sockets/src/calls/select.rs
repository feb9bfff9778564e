//! `select`, by way of `poll`.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_ulong, fd_set, pollfd, sigset_t,
    timespec, timeval,
};

use super::poll::duration;
use crate::polled::Polled;
use crate::signals::Signals;
use crate::{errno, fds, real, wait};

/// Which events stand for a set, and what is asked for it.
const SETS: [(i16, i16); 3] =
    [(POLLIN | POLLHUP | POLLERR, POLLIN), (POLLOUT | POLLERR, POLLOUT), (POLLPRI, POLLPRI)];

/// What the sets mean that ask for these events, and what refuses them all.
fn means(asked: i16) -> i16 {
    let meant = SETS.iter().filter(|(_, set)| asked & set != 0).map(|(means, _)| means);
    meant.fold(POLLNVAL, |all, means| all | means)
}

/// Where a descriptor's bit is in a set, which may be larger than the C library's.
fn place(fd: c_int, set: *mut fd_set) -> (*mut c_ulong, c_ulong) {
    let (word, bit) = (fd as usize / c_ulong::BITS as usize, fd as u32 % c_ulong::BITS);
    (set.cast::<c_ulong>().wrapping_add(word), 1 << bit)
}

/// Whether a set has a descriptor.
///
/// # Safety
/// It is null, or the program's, and has room for the descriptor.
unsafe fn has(fd: c_int, set: *mut fd_set) -> bool {
    let (word, bit) = place(fd, set);
    // SAFETY: the caller's promise.
    !set.is_null() && unsafe { word.read_unaligned() } & bit != 0
}

/// Takes a descriptor out of a set.
///
/// # Safety
/// It is the program's, and has room for the descriptor.
unsafe fn clear(fd: c_int, set: *mut fd_set) {
    let (word, bit) = place(fd, set);
    // SAFETY: the caller's promise.
    unsafe { word.write_unaligned(word.read_unaligned() & !bit) };
}

/// Selects among descriptors of which one at least is a connection of ours.
///
/// # Safety
/// The manual's contract.
unsafe fn selects(
    count: c_int,
    sets: [*mut fd_set; 3],
    at_most: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, c_int> {
    let mut all = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        for (set, (_, asked)) in sets.into_iter().zip(SETS) {
            // SAFETY: a set is the program's or null, and the descriptor is below its size.
            events |= if unsafe { has(fd, set) } { asked } else { 0 };
        }
        if events != 0 {
            all.push(pollfd { fd, events, revents: 0 });
        }
    }
    let mut polled = Polled::new(&mut all, means);
    wait::until(&mut polled, wait::deadline(at_most), &mut Signals::by(mask))?;
    if all.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut told = 0;
    for entry in all {
        for (set, (means, asked)) in sets.into_iter().zip(SETS) {
            if set.is_null() || entry.events & asked == 0 {
                continue;
            }
            if entry.revents & means != 0 {
                told += 1;
            } else {
                // SAFETY: as above.
                unsafe { clear(entry.fd, set) };
            }
        }
    }
    Ok(told)
}

/// Whether one of the sets has a connection of ours.
///
/// # Safety
/// The manual's contract.
unsafe fn has_ours(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    // SAFETY: as in `selects`.
    let is_in = |fd, set: &*mut fd_set| unsafe { has(fd, *set) };
    (0..count).any(|fd| fds::conn(fd).is_some() && sets.iter().any(|set| is_in(fd, set)))
}

/// A time of `select`, which may have more microseconds than a second; one below zero stays what it is, and is refused.
fn whole(time: &timeval) -> timespec {
    const SECOND: i64 = 1_000_000;
    let (seconds, micros) = match (time.tv_sec, time.tv_usec) {
        (seconds, micros) if seconds < 0 || micros < 0 => (-1, 0),
        (seconds, micros) => (seconds.saturating_add(micros / SECOND), micros % SECOND),
    };
    timespec { tv_sec: seconds, tv_nsec: micros * 1_000 }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the manual's contract.
    let time = unsafe { timeout.as_mut() };
    let at_most = time.as_ref().map(|time| whole(time));
    let began = Instant::now();
    let at = at_most.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's promise is the same.
    let told = unsafe { pselect(count, read, write, except, at, ptr::null()) };
    // As Linux does: what is left.
    if let Some((time, at_most)) = time.zip(at_most.as_ref().and_then(|it| duration(it).ok())) {
        let left = at_most.saturating_sub(began.elapsed());
        (time.tv_sec, time.tv_usec) = (left.as_secs() as i64, left.subsec_micros().into());
    }
    told
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's promise is the same.
    if !unsafe { has_ours(count, sets) } {
        // SAFETY: as above.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    }
    // SAFETY: as above.
    let at_most = unsafe { timeout.as_ref() }.map(duration).transpose();
    // SAFETY: as above.
    errno::tell(at_most.and_then(|at_most| unsafe { selects(count, sets, at_most, mask) }))
}
