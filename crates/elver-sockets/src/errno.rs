//! Errors as the C library tells them.

use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::holder;

/// As pthread.h has it.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

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

/// What a call returns: a number of something, or -1 and errno is set.
pub(crate) fn tell<T: From<i8>>(result: Result<T, c_int>) -> T {
    match result {
        Ok(done) => done,
        Err(error) => {
            set(error);
            T::from(-1)
        }
    }
}

/// Runs what does not wait. Nothing unwinds into a program, and a thread that is cancelled meanwhile ends when it waits,
/// with nothing in its hands.
///
/// # Errors
/// Its own, and `EDEADLK` in a signal's handler that would wait for what it interrupts.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
    if holder::is_here() {
        return Err(libc::EDEADLK);
    }
    let before = set_cancel_state(PTHREAD_CANCEL_DISABLE);
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO));
    set_cancel_state(before);
    done
}

/// Runs a call that does not wait.
pub(crate) fn told<T: From<i8>>(body: impl FnOnce() -> Result<T, c_int>) -> T {
    tell(guarded(body))
}

/// Runs something beside a call whose errno stands.
pub(crate) fn beside(body: impl FnOnce()) {
    let before = get();
    // A panic was told of on the standard error, and the program goes on with TCP.
    let _ = guarded(|| {
        body();
        Ok(())
    });
    set(before);
}

/// Whether this thread may be cancelled; how it was before.
fn set_cancel_state(state: c_int) -> c_int {
    // One that may be cancelled at any time may be so when it may be again.
    unsafe extern "C-unwind" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = state;
    // SAFETY: it changes what is this thread's own, and the number stands here.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// What a TCP socket's user expects where a stream says this.
pub(crate) fn of_stream(error: &io::Error) -> c_int {
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        _ => libc::ECONNRESET,
    }
}
