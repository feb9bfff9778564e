//! The kernel's TCP, without waiting.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, getpeername, ipproto, recvmsg,
    sendmsg, sockopt,
};

/// A descriptor of the program's, for the time of a call.
pub(crate) fn fd<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the program keeps a descriptor open while it calls for it, and the table of descriptors names none that
    // it has closed. One that it closes meanwhile in another thread gives EBADF, or what a TCP socket's user gets there.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether it is a socket that is not connected, and does not listen.
pub(crate) fn is_unconnected(fd: BorrowedFd<'_>) -> bool {
    let is_tcp = sockopt::socket_protocol(fd).is_ok_and(|protocol| protocol == Some(ipproto::TCP));
    is_tcp && getpeername(fd).is_err() && sockopt::socket_acceptconn(fd) == Ok(false)
}

/// Whether what it sends with `MSG_ZEROCOPY` stays in the program's memory until the kernel says that it is sent.
pub(crate) fn sends_without_copies(fd: BorrowedFd<'_>) -> bool {
    let (mut is_set, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    let (value, fd) = (std::ptr::from_mut::<c_int>(&mut is_set).cast(), fd.as_raw_fd());
    // SAFETY: a number of that size fits there.
    let told = unsafe {
        crate::real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, &mut len)
    };
    told == 0 && is_set != 0
}

/// Receives at most so many bytes.
///
/// # Errors
/// The kernel's, as errno.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    most: u64,
    flags: RecvFlags,
) -> Result<usize, c_int> {
    let all: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
    let mut control = RecvAncillaryBuffer::default();
    let flags = flags | RecvFlags::DONTWAIT;
    let received = if all <= most {
        recvmsg(fd, bufs, &mut control, flags)
    } else {
        // A part is as good: the rest comes another way.
        let Some(buf) = bufs.iter_mut().find(|buf| !buf.is_empty()) else { return Ok(0) };
        let len = buf.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        recvmsg(fd, &mut [IoSliceMut::new(&mut buf[..len])], &mut control, flags)
    };
    received.map(|received| received.bytes).map_err(rustix::io::Errno::raw_os_error)
}

/// Sends what there is room for.
///
/// # Errors
/// The kernel's, as errno.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    flags: SendFlags,
) -> Result<usize, c_int> {
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
        .map_err(rustix::io::Errno::raw_os_error)
}
