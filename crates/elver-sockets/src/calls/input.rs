//! Reading.

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use libc::{
    MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLIN, iovec, mmsghdr, msghdr, size_t, sockaddr,
    socklen_t, ssize_t, timespec,
};
use rustix::net::{RecvFlags, sockopt};

use crate::carried::Done;
use crate::polled::Polled;
use crate::{errno, fds, real, tcp, wait, world};

/// Flags of a call that are handed on.
const KNOWN: c_int = MSG_PEEK | libc::MSG_TRUNC;

/// Whether a descriptor's calls do not wait.
pub(super) fn is_nonblocking(fd: RawFd) -> bool {
    rustix::fs::fcntl_getfl(tcp::fd(fd))
        .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Reads, if the descriptor is a connection of ours; else none.
fn read_conn(fd: RawFd, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> Option<Result<usize, c_int>> {
    let (mut bufs, mut read) = (bufs, 0);
    let done = read_some(fd, &mut bufs, &mut read, flags);
    // It became the kernel's alone when a part was read.
    if done.is_none() && read > 0 { Some(Ok(read + rest(fd, bufs, flags))) } else { done }
}

/// What the kernel has for the rest of a call's buffers; what it says instead of bytes the next call hears.
fn rest(fd: RawFd, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> usize {
    // SAFETY: one of no buffers and no address is a message.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (bufs.as_mut_ptr().cast(), bufs.len());
    // SAFETY: buffers of this type are laid out as the call's are, and live as long.
    let more = unsafe { real::recvmsg(fd, &mut message, flags) };
    usize::try_from(more).unwrap_or_default()
}

/// Reads until there is something to tell; none from when the connection is the kernel's alone. What was read into them
/// is gone from the buffers.
fn read_some(
    fd: RawFd,
    bufs: &mut &mut [IoSliceMut<'_>],
    read: &mut usize,
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let known = RecvFlags::from_bits_retain((flags & KNOWN) as u32);
    let mut deadline = None;
    loop {
        let id = fds::conn(fd)?;
        let mut world = world::lock();
        if flags & libc::MSG_OOB != 0 && world.may_stay(id, crate::log::Why::OutOfBand, "") {
            return None;
        }
        world.touch(id);
        world.progress();
        let done = world.read(id, bufs, known)?;
        world.tried(id, true);
        drop(world);
        match done {
            Done::Bytes(0) => return Some(Ok(*read)),
            Done::Bytes(more) => {
                *read += more;
                if flags & MSG_WAITALL == 0 || flags & MSG_PEEK != 0 {
                    return Some(Ok(*read));
                }
                IoSliceMut::advance_slices(bufs, more);
                if bufs.is_empty() {
                    return Some(Ok(*read));
                }
            }
            Done::Failed(_) if *read > 0 => return Some(Ok(*read)),
            Done::Failed(error) => return Some(Err(error)),
            Done::Wait => {
                if flags & MSG_DONTWAIT != 0 || is_nonblocking(fd) {
                    return Some(if *read > 0 { Ok(*read) } else { Err(libc::EAGAIN) });
                }
                let time = || sockopt::socket_timeout(tcp::fd(fd), sockopt::Timeout::Recv).ok()?;
                let until = *deadline.get_or_insert_with(|| wait::deadline(time()));
                match wait_for(fd, POLLIN, until) {
                    Ok(true) => {}
                    Ok(false) | Err(_) if *read > 0 => return Some(Ok(*read)),
                    Ok(false) => return Some(Err(libc::EAGAIN)),
                    Err(error) => return Some(Err(error)),
                }
            }
        }
    }
}

/// Waits for one descriptor; false when the time has passed.
pub(super) fn wait_for(
    fd: RawFd,
    events: i16,
    deadline: Option<std::time::Instant>,
) -> Result<bool, c_int> {
    wait::until(&mut Polled(&mut [wait::asked(fd, events)]), deadline, ptr::null())
}

/// A program's buffer.
///
/// # Safety
/// The manual's contract for buffers that are read into; at most as long as an address space.
unsafe fn buffer<'a>(buf: *mut c_void, len: size_t) -> IoSliceMut<'a> {
    let (buf, len) = if len == 0 { (ptr::dangling_mut(), 0) } else { (buf.cast::<u8>(), len) };
    // SAFETY: the caller's promise; one of no bytes may be anywhere.
    IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(buf, len) })
}

/// A program's buffers.
///
/// # Safety
/// The manual's contract.
unsafe fn buffers<'a>(iov: *const iovec, count: usize) -> Vec<IoSliceMut<'a>> {
    // SAFETY: so many stand there.
    let all = (0..count).map(|at| unsafe { *iov.add(at) });
    // SAFETY: and each names memory that may be written.
    all.map(|one| unsafe { buffer(one.iov_base, one.iov_len) }).collect()
}

fn told(result: Result<usize, c_int>) -> ssize_t {
    errno::told(|| result.map(|read| read as isize))
}

macro_rules! or_real {
    ($fd:ident, $bufs:expr, $flags:expr, $real:expr) => {{
        if fds::conn($fd).is_none() {
            // SAFETY: the caller's promise is the same.
            return unsafe { $real };
        }
        // SAFETY: the manual's contract.
        let mut bufs = unsafe { $bufs };
        let guarded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read_conn($fd, &mut bufs, $flags)
        }));
        match guarded.unwrap_or(Some(Err(libc::EIO))) {
            Some(result) => result,
            // SAFETY: as above.
            None => return unsafe { $real },
        }
    }};
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    told(or_real!(fd, [buffer(buf, len)], 0, real::read(fd, buf, len)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    told(or_real!(fd, buffers(iov, count.max(0) as usize), 0, real::readv(fd, iov, count)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn recv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(discarded) = discard(fd, len, flags) {
        return told(discarded);
    }
    told(or_real!(fd, [buffer(buf, len)], flags, real::recv(fd, buf, len, flags)))
}

/// Reads bytes that nobody wants (`MSG_TRUNC`, as tcp(7) has it), which need no buffer: some of them, as any read may.
/// None if none are to be discarded here.
fn discard(fd: RawFd, len: size_t, flags: c_int) -> Option<Result<usize, c_int>> {
    const MOST: usize = 1 << 16;
    if flags & libc::MSG_TRUNC == 0 || fds::conn(fd).is_none() {
        return None;
    }
    let mut bytes = vec![0; len.min(MOST)];
    let read = || read_conn(fd, &mut [IoSliceMut::new(&mut bytes)], flags & !libc::MSG_TRUNC);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or(Some(Err(libc::EIO)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let read = match discard(fd, len, flags) {
        Some(discarded) => discarded,
        None => or_real!(
            fd,
            [buffer(buf, len)],
            flags,
            real::recvfrom(fd, buf, len, flags, from, from_len)
        ),
    };
    // SAFETY: the manual's contract. A connection's bytes have no address of their own.
    if let Some(from_len) = unsafe { from_len.as_mut() } {
        *from_len = 0;
    }
    told(read)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let read = or_real!(
        fd,
        buffers((*message).msg_iov, (*message).msg_iovlen),
        flags,
        real::recvmsg(fd, message, flags)
    );
    // SAFETY: the manual's contract.
    let message = unsafe { &mut *message };
    (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
    told(read)
}

/// As [`recvmsg`]: one message at a time, as the manual allows.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if fds::conn(fd).is_none() || count == 0 {
        // SAFETY: the caller's promise is the same.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // SAFETY: the manual's contract: there is one at least.
    let first = unsafe { &mut *messages };
    // SAFETY: as above.
    match unsafe { recvmsg(fd, &mut first.msg_hdr, flags) } {
        read if read < 0 => -1,
        read => {
            first.msg_len = read as u32;
            1
        }
    }
}

/// What programs call that were compiled with checks of buffers (`_FORTIFY_SOURCE`).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    fits(len, room);
    // SAFETY: the caller's promise is the same.
    unsafe { read(fd, buf, len) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    fits(len, room);
    // SAFETY: the caller's promise is the same.
    unsafe { recv(fd, buf, len, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    fits(len, room);
    // SAFETY: the caller's promise is the same.
    unsafe { recvfrom(fd, buf, len, flags, from, from_len) }
}

/// The C library ends a program that reads beyond its buffer.
pub(super) fn fits(len: usize, room: usize) {
    if len > room {
        eprintln!("*** buffer overflow detected ***: {len} bytes into {room}");
        std::process::abort();
    }
}

/// How long a socket's writes wait at most.
pub(super) fn send_timeout(fd: RawFd) -> Option<Duration> {
    sockopt::socket_timeout(tcp::fd(fd), sockopt::Timeout::Send).ok().flatten()
}
