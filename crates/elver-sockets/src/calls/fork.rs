//! Processes that come from this one, and its end.

use std::ffi::c_int;

use libc::pid_t;

use super::table::closing;
use crate::{errno, lock, real};

/// Forks.
pub(super) fn forks<T: PartialEq + From<i8>>(fork: impl FnOnce() -> T) -> T {
    if lock::is_interrupted() {
        return fork();
    }
    errno::beside(|| lock::lock().leave_unbound_to_tcp());
    let forked = fork();
    if forked == T::from(0) {
        // What is the parent's goes before the child may give its descriptors' numbers to files of its own.
        errno::beside(|| drop(lock::lock()));
    }
    forked
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fork() -> pid_t {
    // SAFETY: the caller's promise is the same.
    forks(|| unsafe { real::fork() })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn daemon(stay: c_int, keep: c_int) -> c_int {
    // SAFETY: the caller's promise is the same.
    let done = forks(|| unsafe { real::daemon(stay, keep) });
    if done == 0 && keep == 0 {
        // The C library has put others there, by calls of its own.
        (0..3).for_each(closing);
    }
    done
}

/// Ends the process at once: what was written still arrives, as with TCP.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn _exit(code: c_int) -> ! {
    errno::beside(lock::finish);
    // SAFETY: the caller's promise is the same.
    unsafe { real::_exit(code) }
}

/// As [`_exit`].
#[cfg_attr(not(test), unsafe(export_name = "_Exit"))]
pub(crate) unsafe extern "C-unwind" fn exit_at_once(code: c_int) -> ! {
    // SAFETY: the caller's promise is the same.
    unsafe { _exit(code) }
}
