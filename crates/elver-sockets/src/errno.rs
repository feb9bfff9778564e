//! Errors as the C library tells them.

use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sets this thread's errno.
pub(crate) fn set(error: c_int) {
    // SAFETY: it is the address of this thread's own variable.
    unsafe { *libc::__errno_location() = error };
}

/// This thread's errno.
pub(crate) fn get() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Runs a call that returns a number of something, or -1 and sets errno. Nothing unwinds into a program.
pub(crate) fn told<T: From<i8>>(body: impl FnOnce() -> Result<T, c_int>) -> T {
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO)) {
        Ok(done) => done,
        Err(error) => {
            set(error);
            T::from(-1)
        }
    }
}

/// Runs something beside a call whose errno stands.
pub(crate) fn beside(body: impl FnOnce()) {
    let before = get();
    // A panic was told of on the standard error, and the program goes on with TCP.
    let _ = catch_unwind(AssertUnwindSafe(body));
    set(before);
}

/// What a TCP socket's user expects where a stream says this.
pub(crate) fn of_stream(error: &io::Error) -> c_int {
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        _ => libc::ECONNRESET,
    }
}
