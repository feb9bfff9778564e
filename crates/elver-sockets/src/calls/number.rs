//! Calls by number (`syscall`), as libuv closes: those of descriptors are the same as by name.

use std::ffi::{c_int, c_long};

use super::{epoll, fork, input, output, sockets, table};
use crate::{fds, lock, real};

/// Numbers of what the function takes beside the call's own: those that a call does not have are whatever stands there,
/// which the kernel does not look at either.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn syscall(
    call: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller's promise is that of the call's own manual page, which takes these in this order.
    unsafe {
        match call {
            _ if is_kernels(call, fd, b as c_int) => real::syscall(call, a, b, c, d, e, f),
            libc::SYS_close => table::close(fd).into(),
            libc::SYS_close_range => table::close_range(a as u32, b as u32, c as c_int).into(),
            libc::SYS_dup => table::dup(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => table::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 => table::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_fcntl => table::fcntl(fd, b as c_int, c).into(),
            libc::SYS_read => input::read(fd, b as _, c) as c_long,
            libc::SYS_readv => input::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => {
                input::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long
            }
            libc::SYS_recvmsg => input::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_write => output::write(fd, b as _, c) as c_long,
            libc::SYS_writev => output::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendto => {
                output::sendto(fd, b as _, c, d as c_int, e as _, f as u32) as c_long
            }
            libc::SYS_sendmsg => output::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_shutdown => sockets::shutdown(fd, b as c_int).into(),
            libc::SYS_socket => sockets::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_connect => sockets::connect(fd, b as _, c as u32).into(),
            libc::SYS_accept => sockets::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => sockets::accept4(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_epoll_ctl => epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(fd, b as _, c as c_int, d as c_int).into(),
            libc::SYS_epoll_pwait => {
                epoll::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _).into()
            }
            _ if makes_child(call, a, b) => {
                fork::forks(|| lock::fork_unheard(|| real::syscall(call, a, b, c, d, e, f)))
            }
            _ => real::syscall(call, a, b, c, d, e, f),
        }
    }
}

/// Whether it has nothing to do with what is known here, or is the call of a library behind this one to which this one has
/// turned: that is not to be led around in a circle. Nor is it cancelled, as what is called by name may be.
fn is_kernels(call: c_long, fd: c_int, to: c_int) -> bool {
    let is_known = |fd| fds::is_ours(fd) || fds::is_own(fd);
    real::is_beneath()
        || match call {
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg => lock::conn(fd).is_none(),
            libc::SYS_close | libc::SYS_shutdown => !is_known(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => !is_known(fd) && !is_known(to),
            libc::SYS_dup3 => !is_known(fd) && !is_known(to),
            _ => false,
        }
}

/// Whether it makes a child that has a memory of its own, and goes on where this one does.
///
/// # Safety
/// The call's own manual page's contract.
unsafe fn makes_child(call: c_long, a: usize, b: usize) -> bool {
    const SHARES: usize = libc::CLONE_VM as usize;
    match call {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => a & SHARES == 0 && b == 0,
        libc::SYS_clone3 => {
            // SAFETY: the flags stand first there, as so many bytes.
            let flags = unsafe { (a as *const u64).as_ref() };
            flags.is_some_and(|flags| flags & SHARES as u64 == 0)
        }
        _ => false,
    }
}
