//! Closing and copying descriptors.

use std::ffi::{c_char, c_int};

use libc::{F_DUPFD, F_DUPFD_CLOEXEC, FILE};

use crate::{errno, fds, lock, real, tcp};

/// A descriptor is about to be closed. In a child that shares this memory until it runs another program, that is the
/// child's copy alone.
pub(super) fn closing(fd: c_int) {
    if !fds::is_ours(fd) {
        return;
    }
    if lock::is_interrupted() {
        // By a signal's handler, or one that this library has opened in the middle of the call, and that is none of what
        // its number says.
        fds::lose(fd);
    } else {
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
    if to < 0 || to == from {
        return to;
    }
    if !fds::is_ours(from) {
        // What had its number may have been closed by a call that is not known.
        closing(to);
        return to;
    }
    if lock::is_interrupted() {
        fds::share(from);
        fds::lose(to);
    } else {
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
    real::beneath(|| unsafe { real::close(fd) })
}

/// The C library is about to close a file's descriptor, by a call of its own.
///
/// # Safety
/// The file is open.
unsafe fn closing_file(file: *mut FILE) {
    let before = errno::get();
    // SAFETY: the caller's promise. Some have none.
    let fd = unsafe { libc::fileno(file) };
    errno::set(before);
    if !fds::is_own(fd) {
        closing(fd);
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe {
        closing_file(file);
        real::fclose(file)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise is the same.
    unsafe {
        closing_file(file);
        real::freopen(path, mode, file)
    }
}

/// Its name in programs for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise is the same.
    unsafe {
        closing_file(file);
        real::freopen64(path, mode, file)
    }
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
    if let Err(error) = may_copy(fd) {
        return errno::tell(Err(error));
    }
    // SAFETY: the caller's promise is the same.
    copied(fd, unsafe { real::dup(fd) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if let Err(error) = replaces(fd, to) {
        return errno::tell(Err(error));
    }
    // SAFETY: the caller's promise is the same.
    copied(fd, real::beneath(|| unsafe { real::dup2(fd, to) }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if let Err(error) = replaces(fd, to) {
        return errno::tell(Err(error));
    }
    // SAFETY: the caller's promise is the same.
    copied(fd, real::beneath(|| unsafe { real::dup3(fd, to, flags) }))
}

/// A descriptor is about to be replaced by a copy of another, if one can be made.
///
/// # Errors
/// `EBUSY` where this library has the number, as the kernel says of one that another thread is just opening.
fn replaces(fd: c_int, to: c_int) -> Result<(), c_int> {
    if fd == to || rustix::io::fcntl_getfd(tcp::fd(fd)).is_err() {
        return Ok(());
    }
    may_copy(fd)?;
    if fds::is_own(to) {
        return Err(libc::EBUSY);
    }
    closing(to);
    Ok(())
}

/// Whether a copy can be made, of which all is to be known that is known of the descriptor.
///
/// # Errors
/// `EDEADLK` in a signal's handler that would wait for what it interrupts.
fn may_copy(fd: c_int) -> Result<(), c_int> {
    let is_known = fds::conn(fd).is_some() || fds::epoll(fd).is_some();
    if is_known && lock::is_interrupted() { Err(libc::EDEADLK) } else { Ok(()) }
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC)
        && let Err(error) = may_copy(fd)
    {
        return errno::tell(Err(error));
    }
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
