//! `select`, by way of `poll`.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{
    FD_CLR, FD_ISSET, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, fd_set, pollfd, sigset_t,
    timespec, timeval,
};

use super::poll::duration;
use crate::polled::Polled;
use crate::{errno, fds, real, wait};

/// Which events stand for a set, and what is asked for it.
const SETS: [(i16, i16); 3] =
    [(POLLIN | POLLHUP | POLLERR, POLLIN), (POLLOUT | POLLERR, POLLOUT), (POLLPRI, POLLPRI)];

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
            events |= if !set.is_null() && unsafe { FD_ISSET(fd, set) } { asked } else { 0 };
        }
        if events != 0 {
            all.push(pollfd { fd, events, revents: 0 });
        }
    }
    wait::until(&mut Polled(&mut all), wait::deadline(at_most), mask)?;
    if all.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
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
                unsafe { FD_CLR(entry.fd, set) };
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
    (0..count.min(libc::FD_SETSIZE as c_int)).any(|fd| {
        // SAFETY: as in `selects`.
        fds::conn(fd).is_some()
            && sets.iter().any(|set| !set.is_null() && unsafe { FD_ISSET(fd, *set) })
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the manual's contract.
    let time = unsafe { timeout.as_mut() };
    let at_most =
        time.as_ref().map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
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
pub(crate) unsafe extern "C" fn pselect(
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
    errno::told(|| {
        // SAFETY: as above.
        let at_most = unsafe { timeout.as_ref() }.map(duration).transpose()?;
        // SAFETY: as above.
        unsafe { selects(count, sets, at_most, mask) }
    })
}
