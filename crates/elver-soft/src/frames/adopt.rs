//! Descriptors that this process was started with.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor by its number, and keeps it from programs that are started later.
///
/// # Safety
/// Nothing else in this process owns or closes the descriptor.
///
/// # Errors
/// The kernel's, if no descriptor has the number.
pub(crate) unsafe fn adopt(number: RawFd) -> rustix::io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    // SAFETY: by the caller's contract nothing closes it meanwhile; if it is not open, the kernel
    // says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and by the caller's contract it is ours from now on.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
