//! Processes that come from this one, and its end.

use std::ffi::c_int;

use libc::pid_t;

use crate::{errno, real, world};

/// Forks. Nobody else is at work here meanwhile, so that the child finds all as it should be.
fn forks<T>(fork: impl FnOnce() -> T) -> T {
    if world::is_interrupted() {
        return fork();
    }
    let mut world = world::lock();
    errno::beside(|| world.before_fork());
    let forked = fork();
    drop(world);
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
    forks(|| unsafe { real::daemon(stay, keep) })
}

/// Ends the process at once: what was written still arrives, as with TCP.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn _exit(code: c_int) -> ! {
    errno::beside(world::finish);
    // SAFETY: the caller's promise is the same.
    unsafe { real::_exit(code) }
}

/// As [`_exit`].
#[cfg_attr(not(test), unsafe(export_name = "_Exit"))]
pub(crate) unsafe extern "C-unwind" fn exit_at_once(code: c_int) -> ! {
    // SAFETY: the caller's promise is the same.
    unsafe { _exit(code) }
}
