//! Closing and copying descriptors.

use std::ffi::c_int;

use libc::{F_DUPFD, F_DUPFD_CLOEXEC};

use crate::{errno, fds, lock, real, tcp};

/// A descriptor is about to be closed. In a child that shares this memory until it runs another program, that is the
/// child's copy alone.
fn closing(fd: c_int) {
    // One that this library has in the middle of a call, and has made: what its number was is gone.
    let is_own = || lock::is_interrupted() && !tcp::is_tcp(tcp::fd(fd));
    if fds::is_ours(fd) && !is_own() {
        errno::beside(|| {
            let mut world = lock::lock();
            if !world.is_borrowed() {
                world.close(fd);
            }
        });
    }
}

/// A descriptor is a copy of another from here on.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from && fds::is_ours(from) {
        errno::beside(|| {
            let mut world = lock::lock();
            if !world.is_borrowed() {
                world.copied(from, to);
            }
        });
    }
    to
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if fds::is_own(fd) {
        // The program has opened none of that number.
        return errno::tell(Err(libc::EBADF));
    }
    closing(fd);
    // SAFETY: the caller's promise is the same.
    unsafe { real::close(fd) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let close = |first: u32, last: u32| {
        // SAFETY: the call has no memory to do with.
        unsafe {
            let (first, last, flags) = (first as usize, last as usize, flags as usize);
            real::syscall(libc::SYS_close_range, first, last, flags, 0, 0, 0) as c_int
        }
    };
    if flags as u32 & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return close(first, last);
    }
    let mut from = first;
    for fd in first..=last.min(fds::LAST) {
        if !fds::is_own(fd as c_int) {
            closing(fd as c_int);
            continue;
        }
        if from < fd && close(from, fd - 1) != 0 {
            return -1;
        }
        from = fd + 1;
    }
    if from > last { 0 } else { close(from, last) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: as above.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's promise is the same.
    copied(fd, unsafe { real::dup(fd) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if let Err(error) = replaces(fd, to) {
        return errno::tell(Err(error));
    }
    // SAFETY: the caller's promise is the same.
    copied(fd, unsafe { real::dup2(fd, to) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if let Err(error) = replaces(fd, to) {
        return errno::tell(Err(error));
    }
    // SAFETY: the caller's promise is the same.
    copied(fd, unsafe { real::dup3(fd, to, flags) })
}

/// A descriptor is about to be replaced by a copy of another, if one can be made.
///
/// # Errors
/// `EBUSY` where this library has the number, as the kernel says of one that another thread is just opening.
fn replaces(fd: c_int, to: c_int) -> Result<(), c_int> {
    if fd == to || rustix::io::fcntl_getfd(tcp::fd(fd)).is_err() {
        return Ok(());
    }
    if fds::is_own(to) {
        return Err(libc::EBUSY);
    }
    closing(to);
    Ok(())
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's caller's promise is the same: what a command takes, it gives.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => copied(fd, result),
        _ => result,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument)
}

/// The name of `fcntl` in programs for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    control(fd, command, argument)
}
