//! The kernel's TCP, without waiting.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::{pollfd, timespec};
use rustix::event::PollFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, getpeername, ipproto, recvmsg,
    sendmsg, sockopt,
};

/// What becomes of a failure that a try meets. The kernel, too, says what failed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The call tells it.
    Told,
    /// The call has something else to tell, so that the next one has to hear of it.
    Kept,
}

impl Failure {
    /// What becomes of one that a call meets that has moved so many bytes.
    pub(crate) fn behind(moved: usize) -> Failure {
        if moved == 0 { Failure::Told } else { Failure::Kept }
    }

    pub(crate) fn is_told(self) -> bool {
        self == Failure::Told
    }
}

/// A descriptor of the program's, for the time of a call.
pub(crate) fn fd<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the program keeps a descriptor open while it calls for it, and the table of descriptors names none that
    // it has closed. One that it closes meanwhile in another thread gives EBADF, or what a TCP socket's user gets there.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether it is a socket of TCP's.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_protocol(fd).is_ok_and(|protocol| protocol == Some(ipproto::TCP))
}

/// Whether it is a socket that is not connected, and does not listen.
pub(crate) fn is_unconnected(fd: BorrowedFd<'_>) -> bool {
    is_tcp(fd) && getpeername(fd).is_err() && sockopt::socket_acceptconn(fd) == Ok(false)
}

/// Whether a connection that was made is one still: if it is not, another may have its addresses.
pub(crate) fn stands(fd: BorrowedFd<'_>) -> bool {
    getpeername(fd).is_ok()
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
    failure: Failure,
) -> Result<usize, c_int> {
    if !failure.is_told() && has_failed(fd) && rustix::io::ioctl_fionread(fd) == Ok(0) {
        return Err(libc::ECONNRESET);
    }
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
    failure: Failure,
) -> Result<usize, c_int> {
    if !failure.is_told() && has_failed(fd) {
        return Err(libc::ECONNRESET);
    }
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
        .map_err(rustix::io::Errno::raw_os_error)
}

/// Whether a connection is over by a failure of which nobody was told yet; nobody is by this.
fn has_failed(fd: BorrowedFd<'_>) -> bool {
    waits(fd, PollFlags::empty(), Some(Duration::ZERO)).is_ok_and(is_failure)
}

/// Waits for an event of a connection, before a call that would take what failed with it; whether there is something
/// for that call to move.
///
/// # Errors
/// The kernel's, as errno.
pub(crate) fn has_more(
    fd: BorrowedFd<'_>,
    event: PollFlags,
    at_most: Option<Duration>,
) -> Result<bool, c_int> {
    let told = waits(fd, event, at_most)?;
    let is_unread =
        || event == PollFlags::IN && rustix::io::ioctl_fionread(fd).is_ok_and(|it| it > 0);
    Ok(!told.is_empty() && (!is_failure(told) || is_unread()))
}

fn waits(
    fd: BorrowedFd<'_>,
    event: PollFlags,
    at_most: Option<Duration>,
) -> Result<PollFlags, c_int> {
    let event = event.bits() as i16;
    let mut entry = pollfd { fd: fd.as_raw_fd(), events: event, revents: 0 };
    let at_most = at_most
        .map(|it| timespec { tv_sec: it.as_secs() as i64, tv_nsec: it.subsec_nanos().into() });
    let time = at_most.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the entry and the time stand in this function.
    let told = unsafe { crate::real::ppoll(&mut entry, 1, time, ptr::null()) };
    if told < 0 {
        return Err(crate::errno::get());
    }
    Ok(PollFlags::from_bits_retain(entry.revents as u16))
}

/// An entry in the error queue is an error too, and no failure of the connection.
fn is_failure(told: PollFlags) -> bool {
    told.contains(PollFlags::ERR | PollFlags::HUP)
}
