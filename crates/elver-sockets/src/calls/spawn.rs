//! Programs that are started without `fork`: they have all sockets that do not close with `execve`, or that are copied for
//! them. What no stream carries yet stays with TCP from here on, in both.

use std::ffi::{c_char, c_int};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::{errno, fds, lock, real};

/// As before a fork.
fn before() {
    if lock::is_interrupted() {
        return;
    }
    fds::note_fork();
    errno::beside(|| {
        let mut world = lock::lock();
        // A child that shares this memory has nothing of its own here.
        if !world.is_borrowed() {
            world.leave_unbound_to_tcp();
        }
    });
}

fn starts<T>(start: impl FnOnce() -> T) -> T {
    before();
    let started = start();
    // Of sockets that other threads made meanwhile.
    fds::note_fork();
    started
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    starts(|| unsafe { real::posix_spawn(pid, path, actions, attributes, arguments, environment) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    starts(|| unsafe { real::posix_spawnp(pid, file, actions, attributes, arguments, environment) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise is the same.
    starts(|| unsafe { real::system(command) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    kind: *const c_char,
) -> *mut FILE {
    // SAFETY: the caller's promise is the same.
    starts(|| unsafe { real::popen(command, kind) })
}

/// Where the C library's own `vfork` stands, after what has to be done before it.
extern "C" fn before_vfork() -> usize {
    before();
    real::vfork()
}

/// The child goes on in the caller's frame and leaves it before the parent does: there can be no frame between, so that
/// this one is gone when the C library's own begins.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym before_vfork,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "bti c",
        "stp x29, x30, [sp, #-16]!",
        "bl {before}",
        "mov x16, x0",
        "ldp x29, x30, [sp], #16",
        "br x16",
        before = sym before_vfork,
    )
}
