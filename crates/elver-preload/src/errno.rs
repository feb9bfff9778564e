//! Errors as libibverbs tells them.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use elver_verbs::{PostError, VerbsError};

/// Runs a call of a program's; a panic becomes `failed`.
pub fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLED: c_int = 1;

/// As [`guard`], and what cancels the thread waits until it is over: some calls of libc's that the body makes are
/// cancellation points, and could not give up its frames.
pub(crate) fn whole<T>(failed: T, body: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: it takes and tells a number.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let done = guard(failed, body);
    // SAFETY: as above; null is for who does not ask.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    done
}

/// Runs a call that returns 0 or an errno. It sets errno as well, as the system call that it is elsewhere does: programs
/// look there.
pub(crate) fn code(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let error = whole(Err(libc::EIO), body).err().unwrap_or(0);
    if error != 0 {
        set(error);
    }
    error
}

/// Runs a call that returns 0, or -1 and sets errno.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match whole(Err(libc::EIO), body) {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}

/// Runs a call that returns an object, or null and sets errno.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, c_int>) -> *mut T {
    whole(Err(libc::EIO), body).unwrap_or_else(|error| {
        set(error);
        std::ptr::null_mut()
    })
}

/// Sets this thread's errno.
pub(crate) fn set(error: c_int) {
    // SAFETY: it is the address of this thread's own variable.
    unsafe { *libc::__errno_location() = error };
}

/// This thread's errno.
pub(crate) fn last() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// The errno that the kernel's drivers give for this.
pub(crate) fn of_verbs(error: VerbsError) -> c_int {
    match error {
        VerbsError::InUse { .. } => libc::EBUSY,
        VerbsError::Limit { .. } => libc::ENOMEM,
        VerbsError::Unsupported { .. } => libc::EOPNOTSUPP,
        VerbsError::Post(error) => of_post(error),
        _ => libc::EINVAL,
    }
}

/// The errno that rdma-core's drivers give for this.
pub(crate) fn of_post(error: PostError) -> c_int {
    match error {
        PostError::QueueFull { .. } => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}
