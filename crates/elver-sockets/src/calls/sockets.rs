//! Making connections, and what is set and asked of them.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::net::{Ipv4Addr, Ipv6Addr};

use elver_stream::Shutdown;
use libc::{
    AF_INET, AF_INET6, SHUT_RD, SHUT_WR, SOCK_STREAM, sockaddr, sockaddr_in, sockaddr_in6,
    socklen_t,
};

use super::table::closing;
use crate::log::Why;
use crate::tuple::{Side, Tuple};
use crate::{errno, fds, lock, real, tcp};

/// What of a socket's type is no flag, as the kernel has it.
const SOCK_TYPES: c_int = 0xf;

/// Whoever has a socket that was copied before it was connected would write to it beside the stream: so those that are
/// this process's alone are known from when they are made.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    let forks = fds::forks();
    // SAFETY: the caller's promise is the same.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    let may_be_ours = matches!(domain, AF_INET | AF_INET6) && kind & SOCK_TYPES == SOCK_STREAM;
    if fd >= 0 && may_be_ours && lock::is_interrupted() {
        // A signal's handler may make sockets in the middle of any call: this one stays with TCP.
        fds::clear(fd);
    } else if fd >= 0 && may_be_ours {
        errno::beside(|| {
            let mut world = lock::lock();
            if !world.is_borrowed() {
                world.close(fd);
                fds::set_sole(fd, forks);
            }
        });
    } else if fd >= 0 {
        closing(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    let connected = unsafe { real::connect(fd, address, len) };
    if connected == 0 || errno::get() == libc::EINPROGRESS {
        errno::beside(|| {
            // SAFETY: the manual's contract.
            let peer = unsafe { peer(address, len) };
            if let Some(peer) = peer
                && let Some(tuple) = Tuple::of(tcp::fd(fd), Side::Connector, Some(peer))
            {
                let mut world = lock::lock();
                let known = fds::conn(fd).and_then(|id| world.conn(id));
                // Asked again, it is the same connection.
                if known.is_none_or(|known| known.tuple != tuple) {
                    world.add(fd, tuple, Side::Connector);
                }
            }
        });
    }
    connected
}

/// An address of TCP's.
///
/// # Safety
/// The manual's contract.
unsafe fn peer(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    // SAFETY: a family stands there at least, and the rest if its length says so.
    unsafe {
        match c_int::from(address.as_ref()?.sa_family) {
            AF_INET if len >= size_of::<sockaddr_in>() => {
                let at = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(at.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(at.sin_port)))
            }
            AF_INET6 if len >= size_of::<sockaddr_in6>() => {
                let at = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(at.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(at.sin6_port)))
            }
            _ => None,
        }
    }
}

/// What is to be let out, or answered, goes on before a wait that is the kernel's.
fn before_wait() {
    errno::beside(|| {
        let mut world = lock::lock();
        if !world.is_borrowed() {
            world.progress(None);
        }
    });
}

/// A connection was accepted, or not.
fn accepted(fd: c_int) -> c_int {
    if fd >= 0 && lock::is_interrupted() {
        // In a signal's handler: it stays with TCP.
        fds::lose_former(fd);
    } else if fd >= 0 {
        errno::beside(|| {
            match Tuple::of(tcp::fd(fd), Side::Acceptor, None) {
                Some(tuple) => lock::lock().add(fd, tuple, Side::Acceptor),
                // What had its number may have been closed by a call that is not known.
                None => closing(fd),
            }
        });
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    before_wait();
    // SAFETY: the caller's promise is the same.
    accepted(unsafe { real::accept(fd, address, len) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    before_wait();
    // SAFETY: the caller's promise is the same.
    accepted(unsafe { real::accept4(fd, address, len, flags) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let ended = fds::conn(fd).map(|id| {
        errno::told(|| {
            let how = match how {
                SHUT_RD => Shutdown::Read,
                SHUT_WR => Shutdown::Write,
                libc::SHUT_RDWR => Shutdown::Both,
                _ => return Err(libc::EINVAL),
            };
            let mut world = lock::lock();
            let kernels = world.conn(id).map_or(Ok(true), |conn| conn.shutdown(how))?;
            // Others may wait for what there is no more.
            world.wake_all();
            Ok(c_int::from(kernels))
        })
    });
    match ended {
        Some(0) => 0,
        Some(-1) => -1,
        // SAFETY: the caller's promise is the same.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// What the kernel puts above a connection, TLS above all, sees TCP's bytes alone, and so does what tells that it needs a
/// program's memory no more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let why = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Why::Protocol),
        // SAFETY: the manual's contract.
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if unsafe { is_on(value, len) } => {
            Some(Why::ZeroCopy)
        }
        _ => None,
    };
    if let Some(why) = why
        && let Some(id) = fds::conn(fd)
        && errno::guarded(|| Ok(lock::lock().may_stay(id, why, ""))) != Ok(true)
    {
        return errno::tell(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// Whether an option is switched on.
///
/// # Safety
/// The manual's contract.
unsafe fn is_on(value: *const c_void, len: socklen_t) -> bool {
    let has_number = !value.is_null() && len as usize >= size_of::<c_int>();
    // SAFETY: the caller's promise: so many bytes stand there.
    has_number && unsafe { value.cast::<c_int>().read_unaligned() } != 0
}

/// The kernel knows nothing of what a stream failed with.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    let told = unsafe { real::getsockopt(fd, level, name, value, len) };
    if told == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(id) = fds::conn(fd)
    {
        errno::beside(|| {
            // SAFETY: the kernel has put a number there, of so many bytes.
            let (error, len) = unsafe { (value.cast::<c_int>(), *len as usize) };
            if len == size_of::<c_int>()
                && let Some(failed) = lock::lock().conn(id).and_then(|conn| conn.take_failure())
            {
                // SAFETY: as above.
                unsafe { error.write_unaligned(failed) };
            }
        });
    }
    told
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: libc::c_ulong,
    argument: usize,
) -> c_int {
    if request == libc::FIONREAD
        && let Some(id) = fds::conn(fd)
        && let Ok(Some(bytes)) =
            errno::guarded(|| Ok(lock::lock().conn(id).and_then(|conn| conn.ready_bytes())))
    {
        // SAFETY: the manual's contract.
        if let Some(told) = unsafe { (argument as *mut c_int).as_mut() } {
            *told = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            return 0;
        }
        return errno::tell(Err(libc::EFAULT));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { real::ioctl(fd, request, argument) }
}

/// The C library reads and writes a file of stdio by calls of its own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    fds::share(fd);
    if let Some(id) = fds::conn(fd)
        && errno::guarded(|| Ok(lock::lock().may_stay(id, Why::Stdio, ""))) != Ok(true)
    {
        errno::set(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise is the same.
    unsafe { real::fdopen(fd, mode) }
}
