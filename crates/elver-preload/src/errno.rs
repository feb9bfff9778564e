//! Errors as libibverbs tells them.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use elver_verbs::{PostError, VerbsError};

/// Runs a call of a program's; a panic becomes `failed`.
pub fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// Runs a call that returns 0 or an errno.
pub(crate) fn code(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    guard(libc::EIO, || body().err().unwrap_or(0))
}

/// Runs a call that returns 0, or -1 and sets errno.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match guard(Err(libc::EIO), body) {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}

/// Runs a call that returns an object, or null and sets errno.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, c_int>) -> *mut T {
    guard(Err(libc::EIO), body).unwrap_or_else(|error| {
        set(error);
        std::ptr::null_mut()
    })
}

/// Sets this thread's errno.
pub(crate) fn set(error: c_int) {
    // SAFETY: it is the address of this thread's own variable.
    unsafe { *libc::__errno_location() = error };
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
