//! Reading.

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use elver_stream::Interest;
use libc::{
    MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLIN, POLLRDHUP, iovec, mmsghdr, msghdr, off_t, pollfd,
    size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, sockopt};

use crate::carried::{Done, PEEKED_MAX};
use crate::signals::Signals;
use crate::sleeper::Watched;
use crate::tcp::Failure;
use crate::wait::{OfConn, Wanted};
use crate::world::World;
use crate::{errno, fds, lock, real, tcp, wait};

/// Flags of a call that are handed on.
const KNOWN: c_int = MSG_PEEK | libc::MSG_TRUNC;

/// Whether a descriptor's calls do not wait: to be asked before a call waits, since the number may be another's then.
pub(super) fn is_nonblocking(fd: RawFd) -> bool {
    rustix::fs::fcntl_getfl(tcp::fd(fd))
        .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Reads, behind so many bytes that the call has read before, if the descriptor is a connection of ours; else none.
fn read_conn(
    fd: RawFd,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
    before: usize,
) -> Option<Result<usize, c_int>> {
    let (mut bufs, mut read) = (bufs, 0);
    let done = read_some(fd, &mut bufs, &mut read, flags, before);
    // It became the kernel's alone when a part was read.
    if done.is_none() && before + read > 0 { Some(Ok(read + rest(fd, bufs, flags))) } else { done }
}

/// What the kernel has for the rest of a call's buffers; what it says instead of bytes the next call hears.
fn rest(fd: RawFd, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> usize {
    let waits = flags & MSG_DONTWAIT == 0 && !is_nonblocking(fd);
    let at_most = if waits { receive_timeout(fd) } else { Some(Duration::ZERO) };
    if tcp::has_more(tcp::fd(fd), PollFlags::IN, at_most) != Ok(true) {
        return 0;
    }
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
    before: usize,
) -> Option<Result<usize, c_int>> {
    let id = fds::conn(fd)?;
    let (mut deadline, mut seen, mut signals) = (None, None, Signals::of_thread());
    let mut waits = (flags & MSG_DONTWAIT != 0).then_some(false);
    let waits_for_all =
        flags & MSG_WAITALL != 0 && *waits.get_or_insert_with(|| !is_nonblocking(fd));
    loop {
        let failure = Failure::behind(before + *read);
        let done = match errno::guarded(|| Ok(try_read(id, bufs, flags, failure))) {
            Ok(Some(done)) => done,
            Ok(None) if fds::has_stayed(fd, id) => return None,
            // It was closed meanwhile, and the number may be another's.
            Ok(None) => Done::Failed(libc::EBADF),
            Err(error) => Done::Failed(error),
        };
        match done {
            Done::Bytes(0) => return Some(Ok(*read)),
            Done::Bytes(more) => {
                if flags & MSG_PEEK != 0 {
                    let all = bufs.iter().map(|buf| buf.len()).sum();
                    if !waits_for_all || more >= all || seen.replace(more) == Some(more) {
                        return Some(Ok(more));
                    }
                    let until =
                        *deadline.get_or_insert_with(|| wait::deadline(receive_timeout(fd)));
                    let mut ahead = Ahead { id, seen: more };
                    if wait::until(&mut ahead, until, &mut signals) != Ok(true) {
                        return Some(Ok(more));
                    }
                    continue;
                }
                *read += more;
                if flags & MSG_WAITALL == 0 {
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
                if !*waits.get_or_insert_with(|| !is_nonblocking(fd)) {
                    return Some(if *read > 0 { Ok(*read) } else { Err(libc::EAGAIN) });
                }
                let until = *deadline.get_or_insert_with(|| wait::deadline(receive_timeout(fd)));
                match wait_for(id, POLLIN, until, &mut signals) {
                    Ok(true) => {}
                    Ok(false) | Err(_) if *read > 0 => return Some(Ok(*read)),
                    Ok(false) => return Some(Err(libc::EAGAIN)),
                    Err(error) => return Some(Err(error)),
                }
            }
        }
    }
}

/// Reads without waiting; none if the connection is the kernel's alone.
fn try_read(id: u32, bufs: &mut [IoSliceMut<'_>], flags: c_int, failure: Failure) -> Option<Done> {
    let mut world = lock::lock();
    if flags & libc::MSG_OOB != 0 {
        // A stream has no urgent data.
        let stays = world.may_stay(id, crate::log::Why::OutOfBand, "");
        return (!stays).then_some(Done::Failed(libc::EINVAL));
    }
    world.touch(id);
    world.progress(Some(id));
    let known = RecvFlags::from_bits_retain((flags & KNOWN) as u32);
    let done = world.read(id, bufs, known, failure)?;
    world.tried(id, true);
    Some(done)
}

/// Bytes beyond those that were looked at and not taken, or that none will come.
struct Ahead {
    id: u32,
    seen: usize,
}

impl Wanted for Ahead {
    fn own(&self) -> Option<u32> {
        Some(self.id)
    }

    fn look(&mut self, world: &mut World, _: bool) -> bool {
        let Some(conn) = world.conn(self.id) else { return true };
        let fd = conn.socket();
        // Until its ends have agreed, it is TCP that knows.
        let ready = conn
            .ready_bytes()
            .or_else(|| rustix::io::ioctl_fionread(fd).ok().map(|it| it as usize));
        // More than that is not looked at ahead.
        ready.is_none_or(|ready| ready > self.seen || ready >= PEEKED_MAX)
            || conn.events(POLLRDHUP) != 0
    }

    fn watched(&self, world: &mut World) -> Vec<Watched> {
        let is_carried = world.conn(self.id).is_some_and(|conn| conn.is_carried());
        let watched = || Watched::new(self.id, Interest::Readable);
        is_carried.then(watched).into_iter().collect()
    }

    fn kernels(&self, _: &mut World, _: &mut Vec<pollfd>) {}
}

/// Waits for one connection; false when the time has passed.
pub(super) fn wait_for(
    id: u32,
    events: i16,
    deadline: Option<std::time::Instant>,
    signals: &mut Signals,
) -> Result<bool, c_int> {
    wait::until(&mut OfConn { id, events }, deadline, signals)
}

/// Whether a call takes errors alone (`MSG_ERRQUEUE`), which are the kernel's to tell.
fn takes_errors(flags: c_int) -> bool {
    flags & libc::MSG_ERRQUEUE != 0
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

/// Bytes that there is room for in buffers.
///
/// # Safety
/// The manual's contract.
unsafe fn length(iov: *const iovec, count: usize) -> usize {
    // SAFETY: so many stand there.
    (0..count).map(|at| unsafe { (*iov.add(at)).iov_len }).fold(0, usize::saturating_add)
}

/// Whether there is room in none of so many buffers, or there are less than none. What a file's reads say of that is the
/// kernel's to tell, at once.
///
/// # Safety
/// The manual's contract.
unsafe fn has_no_room(iov: *const iovec, count: c_int) -> bool {
    // SAFETY: so many stand there.
    usize::try_from(count).map_or(true, |count| unsafe { length(iov, count) } == 0)
}

fn told(result: Result<usize, c_int>) -> ssize_t {
    errno::tell(result.map(|read| read as isize))
}

macro_rules! or_real {
    ($fd:ident, $bufs:expr, $flags:expr, $real:expr) => {{
        if lock::conn($fd).is_none() || takes_errors($flags) {
            // SAFETY: the caller's promise is the same.
            return unsafe { $real };
        }
        // SAFETY: the manual's contract.
        let mut bufs = unsafe { $bufs };
        match read_conn($fd, &mut bufs, $flags, 0) {
            Some(result) => result,
            // SAFETY: as above.
            None => return unsafe { $real },
        }
    }};
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    if len == 0 {
        // SAFETY: the caller's promise is the same.
        return unsafe { real::read(fd, buf, len) };
    }
    told(or_real!(fd, [buffer(buf, len)], 0, real::read(fd, buf, len)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise is the same.
    if fds::conn(fd).is_some() && unsafe { has_no_room(iov, count) } {
        // SAFETY: as above.
        return unsafe { real::readv(fd, iov, count) };
    }
    told(or_real!(fd, buffers(iov, count as usize), 0, real::readv(fd, iov, count)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn recv(
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

/// Reads bytes that nobody wants (`MSG_TRUNC`, as tcp(7) has it), which need no buffer: some of them, as any read may, or
/// all if it is to wait for all. None if none are to be discarded here.
fn discard(fd: RawFd, len: size_t, flags: c_int) -> Option<Result<usize, c_int>> {
    const MOST: usize = 1 << 16;
    if flags & libc::MSG_TRUNC == 0 || takes_errors(flags) || fds::conn(fd).is_none() {
        return None;
    }
    let takes_all = flags & MSG_WAITALL != 0 && flags & MSG_PEEK == 0;
    let mut bytes = vec![0; len.min(MOST)];
    let mut discarded = 0;
    loop {
        let piece = bytes.len().min(len - discarded);
        let bufs = &mut [IoSliceMut::new(&mut bytes[..piece])];
        let more = match read_conn(fd, bufs, flags & !libc::MSG_TRUNC, discarded) {
            Some(Ok(more)) => more,
            // The next call hears of it.
            _ if discarded > 0 => return Some(Ok(discarded)),
            other => return other,
        };
        discarded += more;
        if !takes_all || more < piece || discarded == len {
            return Some(Ok(discarded));
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn recvfrom(
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
pub(crate) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the manual's contract. Bytes that nobody wants need no buffers, but their lengths.
    let wanted = || unsafe { length((*message).msg_iov, (*message).msg_iovlen) };
    let unwanted = if flags & libc::MSG_TRUNC == 0 { None } else { discard(fd, wanted(), flags) };
    let read = match unwanted {
        Some(discarded) => discarded,
        None => or_real!(
            fd,
            buffers((*message).msg_iov, (*message).msg_iovlen),
            flags,
            real::recvmsg(fd, message, flags)
        ),
    };
    // SAFETY: the manual's contract.
    let message = unsafe { &mut *message };
    (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
    told(read)
}

/// As [`recvmsg`]: one message at a time, as the manual allows.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if fds::conn(fd).is_none() || takes_errors(flags) || count == 0 {
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

/// A connection has no places: one that is none of a file, and -1, is where it stands.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise is the same.
    if offset != -1 || fds::conn(fd).is_some() && unsafe { has_no_room(iov, count) } {
        // SAFETY: as above.
        return unsafe { real::preadv2(fd, iov, count, offset, flags) };
    }
    let waits = if flags & libc::RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 };
    told(or_real!(
        fd,
        buffers(iov, count as usize),
        waits,
        real::preadv2(fd, iov, count, offset, flags)
    ))
}

/// Its name in programs for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise is the same.
    unsafe { preadv2(fd, iov, count, offset, flags) }
}

/// What programs call that were compiled with checks of buffers (`_FORTIFY_SOURCE`).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __read_chk(
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
pub(crate) unsafe extern "C-unwind" fn __recv_chk(
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
pub(crate) unsafe extern "C-unwind" fn __recvfrom_chk(
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

/// How long a socket's reads wait at most.
fn receive_timeout(fd: RawFd) -> Option<Duration> {
    sockopt::socket_timeout(tcp::fd(fd), sockopt::Timeout::Recv).ok().flatten()
}

/// How long a socket's writes wait at most.
pub(super) fn send_timeout(fd: RawFd) -> Option<Duration> {
    sockopt::socket_timeout(tcp::fd(fd), sockopt::Timeout::Send).ok().flatten()
}
