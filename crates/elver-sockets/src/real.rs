//! The C library's own functions, which the ones of this library stand before.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

thread_local! {
    static BENEATH: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function behind this library whose own work this library has done, and may be asked for by number.
pub(crate) fn beneath<T>(call: impl FnOnce() -> T) -> T {
    let outer = BENEATH.replace(true);
    let result = call();
    BENEATH.set(outer);
    result
}

/// Whether this thread is in one.
pub(crate) fn is_beneath() -> bool {
    BENEATH.get()
}

/// A symbol of the libraries behind this one.
fn next(name: &'static [u8], kept: &AtomicPtr<c_void>) -> *mut c_void {
    let known = kept.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero, and the handle is the one for what comes behind this library.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
    assert!(!found.is_null(), "the C library has no {}", String::from_utf8_lossy(name));
    kept.store(found, Ordering::Relaxed);
    found
}

// A thread that is cancelled unwinds through these and what calls them (`errno::guarded` says what does not let it).
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The C library's own.
        ///
        /// # Safety
        /// As its manual page says.
        pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            static KEPT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let found = next(concat!(stringify!($name), "\0").as_bytes(), &KEPT);
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // SAFETY: a function of that name has this type in the C library, whose manual page says so; and the
            // caller's promise is what that page asks for.
            unsafe { std::mem::transmute::<*mut c_void, Function>(found)($($arg),*) }
        }
    )*};
}

real! {
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fclose(file: *mut libc::FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: u32) -> ssize_t;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fork() -> pid_t;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE;
    daemon(stay: c_int, keep: c_int) -> c_int;
    syscall(call: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    _exit(code: c_int) -> !;
}

/// Where the C library's own `vfork` stands, which returns twice into who calls it.
pub(crate) fn vfork() -> usize {
    static KEPT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    next(b"vfork\0", &KEPT).addr()
}
