//! Writing.

use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{
    MSG_DONTWAIT, MSG_NOSIGNAL, MSG_OOB, POLLOUT, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr,
    socklen_t, ssize_t,
};
use rustix::event::PollFlags;
use rustix::net::SendFlags;

use super::input::{is_nonblocking, send_timeout, wait_for};
use crate::carried::Done;
use crate::conn::Conn;
use crate::log::Why;
use crate::signals::Signals;
use crate::tcp::Failure;
use crate::{errno, fds, lock, real, tcp, wait};

/// Bytes of a file that are sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Writes, behind so many bytes that the call has written before, if the descriptor is a connection of ours; else none.
fn write_conn(
    fd: RawFd,
    bufs: &mut [IoSlice<'_>],
    flags: c_int,
    before: usize,
) -> Option<Result<usize, c_int>> {
    let id = fds::conn(fd)?;
    let all: usize = bufs.iter().map(|buf| buf.len()).sum();
    let (mut bufs, mut written, mut deadline) = (bufs, 0, None);
    let mut signals = Signals::of_thread();
    let mut waits = (flags & MSG_DONTWAIT != 0).then_some(false);
    loop {
        let failure = Failure::behind(before + written);
        let done = match errno::guarded(|| Ok(try_write(id, bufs, all - written, flags, failure))) {
            Ok(Some(done)) => done,
            Ok(None) if fds::has_stayed(fd, id) => {
                // It became the kernel's alone in the middle of the call.
                let rest = || Ok(written + rest(fd, bufs, flags));
                return (before + written > 0).then(rest);
            }
            // It was closed meanwhile, and the number may be another's.
            Ok(None) => Done::Failed(libc::EBADF),
            Err(error) => Done::Failed(error),
        };
        match done {
            Done::Bytes(more) => {
                written += more;
                IoSlice::advance_slices(&mut bufs, more);
                if written == all {
                    return Some(Ok(written));
                }
            }
            Done::Failed(_) if written > 0 => return Some(Ok(written)),
            Done::Failed(error) => {
                if error == libc::EPIPE && flags & MSG_NOSIGNAL == 0 && before == 0 {
                    // SAFETY: as the kernel does to who writes where nobody reads.
                    unsafe { libc::raise(libc::SIGPIPE) };
                }
                return Some(Err(error));
            }
            Done::Wait => {
                if !*waits.get_or_insert_with(|| !is_nonblocking(fd)) {
                    return Some(if written > 0 { Ok(written) } else { Err(libc::EAGAIN) });
                }
                let until = *deadline.get_or_insert_with(|| wait::deadline(send_timeout(fd)));
                match wait_for(id, POLLOUT, until, &mut signals) {
                    Ok(true) => {}
                    Ok(false) | Err(_) if written > 0 => return Some(Ok(written)),
                    Ok(false) => return Some(Err(libc::EAGAIN)),
                    Err(error) => return Some(Err(error)),
                }
            }
        }
    }
}

/// Writes what there is room for, of so many bytes; none if the connection is the kernel's alone.
fn try_write(
    id: u32,
    bufs: &[IoSlice<'_>],
    all: usize,
    flags: c_int,
    failure: Failure,
) -> Option<Done> {
    // More is to come: the kernel's TCP is told, a stream sends it all the same.
    let known = SendFlags::from_bits_retain((flags & libc::MSG_MORE) as u32);
    let mut world = lock::lock();
    // What a stream cannot do. Without `SO_ZEROCOPY` that flag says nothing.
    let why = if flags & MSG_OOB != 0 {
        Some(Why::OutOfBand)
    } else if flags & libc::MSG_ZEROCOPY != 0 {
        let is_set = |conn: &mut Conn| tcp::sends_without_copies(conn.socket());
        world.conn(id).is_some_and(is_set).then_some(Why::ZeroCopy)
    } else {
        None
    };
    if let Some(why) = why {
        let stays = world.may_stay(id, why, "");
        return (!stays).then_some(Done::Failed(libc::EOPNOTSUPP));
    }
    world.touch(id);
    world.progress(Some(id));
    let done = world.conn(id)?.write(bufs, known, failure);
    if !matches!(done, Done::Bytes(written) if written == all) {
        world.tried(id, false);
    }
    Some(done)
}

/// What the kernel takes of the rest of a call's buffers; what it says instead the next call hears.
fn rest(fd: RawFd, bufs: &[IoSlice<'_>], flags: c_int) -> usize {
    let waits = flags & MSG_DONTWAIT == 0 && !is_nonblocking(fd);
    let at_most = if waits { send_timeout(fd) } else { Some(Duration::ZERO) };
    if tcp::has_more(tcp::fd(fd), PollFlags::OUT, at_most) != Ok(true) {
        return 0;
    }
    // SAFETY: a message of nothing is all zeros.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = bufs.as_ptr().cast::<iovec>().cast_mut();
    message.msg_iovlen = bufs.len();
    // SAFETY: an `IoSlice` is an `iovec`, as its documentation says, and is only read.
    let sent = unsafe { real::sendmsg(fd, &message, flags) };
    usize::try_from(sent).unwrap_or(0)
}

/// A program's buffers.
///
/// # Safety
/// The manual's contract.
unsafe fn buffers<'a>(iov: *const iovec, count: usize) -> Vec<IoSlice<'a>> {
    // SAFETY: so many stand there, each of which names memory that may be read.
    (0..count)
        .map(|at| unsafe { buffer((*iov.add(at)).iov_base, (*iov.add(at)).iov_len) })
        .collect()
}

/// A program's buffer.
///
/// # Safety
/// The manual's contract.
unsafe fn buffer<'a>(buf: *const c_void, len: size_t) -> IoSlice<'a> {
    let (buf, len) = if len == 0 { (std::ptr::dangling(), 0) } else { (buf.cast::<u8>(), len) };
    // SAFETY: the caller's promise; one of no bytes may be anywhere.
    IoSlice::new(unsafe { std::slice::from_raw_parts(buf, len) })
}

macro_rules! or_real {
    ($fd:ident, $bufs:expr, $flags:expr, $real:expr) => {{
        if lock::conn($fd).is_none() {
            // SAFETY: the caller's promise is the same.
            return unsafe { $real };
        }
        // SAFETY: the manual's contract.
        let mut bufs = unsafe { $bufs };
        match write_conn($fd, &mut bufs, $flags, 0) {
            Some(result) => errno::tell(result.map(|written| written as isize)),
            // SAFETY: as above.
            None => unsafe { $real },
        }
    }};
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
) -> ssize_t {
    or_real!(fd, [buffer(buf, len)], 0, real::write(fd, buf, len))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    if count < 0 {
        // SAFETY: the caller's promise is the same; the kernel refuses it.
        return unsafe { real::writev(fd, iov, count) };
    }
    or_real!(fd, buffers(iov, count as usize), 0, real::writev(fd, iov, count))
}

/// As `preadv2`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    if offset != -1 || count < 0 {
        // SAFETY: the caller's promise is the same.
        return unsafe { real::pwritev2(fd, iov, count, offset, flags) };
    }
    let waits = if flags & libc::RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 };
    or_real!(fd, buffers(iov, count as usize), waits, real::pwritev2(fd, iov, count, offset, flags))
}

/// Its name in programs for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise is the same.
    unsafe { pwritev2(fd, iov, count, offset, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    or_real!(fd, [buffer(buf, len)], flags, real::send(fd, buf, len, flags))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    or_real!(fd, [buffer(buf, len)], flags, real::sendto(fd, buf, len, flags, to, to_len))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the manual's contract.
    if let Err(error) = errno::guarded(|| unsafe { passed(message) }) {
        return errno::tell(Err(error));
    }
    or_real!(
        fd,
        buffers((*message).msg_iov, (*message).msg_iovlen),
        flags,
        real::sendmsg(fd, message, flags)
    )
}

/// Connections that a process hands to another stay with TCP.
///
/// # Errors
/// `EOPNOTSUPP` for one that a stream carries, or may: it is this process's alone.
///
/// # Safety
/// The manual's contract for a message.
unsafe fn passed(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: the caller's promise; these walk along the message's control part, which they keep to.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = head.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(head).cast::<c_int>();
                let count = (control.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                for at in 0..count {
                    let fd = data.add(at).read_unaligned();
                    fds::share(fd);
                    if let Some(id) = fds::conn(fd) {
                        let stays = lock::lock().may_stay(id, Why::Passed, "");
                        stays.then_some(()).ok_or(libc::EOPNOTSUPP)?;
                    }
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    Ok(())
}

/// As [`sendmsg`]: one message at a time, as the manual allows.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> c_int {
    if fds::conn(fd).is_none() || count == 0 {
        let mut all = (0..count as usize).map(|at| {
            // SAFETY: the manual's contract: so many stand there.
            unsafe { passed(&(*messages.add(at)).msg_hdr) }
        });
        if let Err(error) = errno::guarded(|| all.try_for_each(|it| it)) {
            return errno::tell(Err(error));
        }
        // SAFETY: the caller's promise is the same.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: the manual's contract: there is one at least.
    let first = unsafe { &mut *messages };
    // SAFETY: as above.
    match unsafe { sendmsg(fd, &first.msg_hdr, flags) } {
        sent if sent < 0 => -1,
        sent => {
            first.msg_len = sent as u32;
            1
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if fds::conn(to).is_none() {
        // SAFETY: the caller's promise is the same.
        return unsafe { real::sendfile(to, from, offset, count) };
    }
    // SAFETY: the manual's contract.
    let place = unsafe { offset.as_mut() };
    errno::tell(send_file(to, from, place, count).map(|sent| sent as isize))
}

/// Its name in programs for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise is the same.
    unsafe { sendfile(to, from, offset, count) }
}

/// A file's bytes are read and written: what was not sent is not taken from the file.
fn send_file(
    to: RawFd,
    from: RawFd,
    place: Option<&mut off_t>,
    count: usize,
) -> Result<usize, c_int> {
    let raw = rustix::io::Errno::raw_os_error;
    let file = crate::tcp::fd(from);
    let begin = match &place {
        Some(place) => u64::try_from(**place).map_err(|_| libc::EINVAL)?,
        None => rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0)).map_err(raw)?,
    };
    let mut bytes = vec![0; PIECE_BYTES.min(count)];
    let mut sent = 0;
    while sent < count {
        let len = bytes.len().min(count - sent);
        let read = rustix::io::pread(file, &mut bytes[..len], begin + sent as u64).map_err(raw);
        let read = match read {
            Ok(0) => break,
            Err(_) if sent > 0 => break,
            read => read?,
        };
        let mut piece = [IoSlice::new(&bytes[..read])];
        let written = match write_conn(to, &mut piece, 0, sent) {
            Some(written) => written,
            None if sent > 0 => Ok(rest(to, &piece, 0)),
            None => rustix::io::write(tcp::fd(to), &bytes[..read]).map_err(raw),
        };
        match written {
            Ok(written) => {
                sent += written;
                if written < read {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    let end = begin + sent as u64;
    match place {
        Some(place) => *place = end as off_t,
        None => drop(rustix::fs::seek(file, rustix::fs::SeekFrom::Start(end)).map_err(raw)?),
    }
    Ok(sent)
}

/// No pipe is joined to a stream; programs read and write instead. One that no stream carries yet stays with TCP.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    let is_refused = |id| !lock::lock().may_stay(id, Why::Spliced, "");
    let ours = [from, to].into_iter().filter_map(fds::conn);
    if errno::guarded(|| Ok(ours.filter(|id| is_refused(*id)).count())) != Ok(0) {
        return errno::tell(Err(libc::EINVAL));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}
