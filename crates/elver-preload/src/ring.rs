//! Descriptors that are readable as often as somebody rang.

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::errno::last;

/// Where a descriptor stands, for who has no places.
const HERE: u64 = u64::MAX;

/// A descriptor that is readable as often as it was rung.
pub(crate) fn event_fd() -> Result<OwnedFd, c_int> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
        .map_err(|error| error.raw_os_error())
}

/// Makes it readable once more.
pub(crate) fn ring(fd: &OwnedFd) {
    // It fails only beyond 2^64 events.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Waits for a ring and takes it; 0, or an errno: `EAGAIN` where there is none and the program made the descriptor
/// nonblocking.
///
/// A thread may be cancelled here (`pthread_cancel`), as in the `read` of the genuine library. Its frames are then given up
/// as they stand: none up to the program's own may hold or own anything, or catch panics.
pub(crate) fn wait(fd: RawFd) -> c_int {
    let mut count = [0_u8; 8];
    // SAFETY: there is room for what an eventfd tells, and no frame here has anything to drop.
    if unsafe { __read(fd, count.as_mut_ptr().cast(), count.len()) } >= 0 { 0 } else { last() }
}

/// Waits for nothing until the thread is cancelled, as [`wait`] may be, or its process ends.
#[cold]
pub(crate) fn sleep_on() -> ! {
    loop {
        // SAFETY: it is given no descriptors, and no frame here has anything to drop.
        unsafe { poll(ptr::null_mut(), 0, -1) };
    }
}

unsafe extern "C-unwind" {
    /// libc's, where a thread may be cancelled.
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;

    /// libc's `read`, by the name that no other library takes: theirs may have frames that cannot be given up.
    fn __read(fd: c_int, to: *mut c_void, count: usize) -> isize;
}

/// Takes one ring, if there is one.
pub(crate) fn take(fd: RawFd) -> Result<(), c_int> {
    // SAFETY: who asks holds its owner.
    let fd: BorrowedFd<'_> = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut count = [0; 8];
    // In one call: another thread may take the ring that a look has seen.
    let bufs = &mut [IoSliceMut::new(&mut count)];
    match preadv2(fd, bufs, HERE, ReadWriteFlags::NOWAIT) {
        // Before Linux 5.8.
        Err(Errno::OPNOTSUPP) => {}
        taken => return taken.map(drop).map_err(|error| error.raw_os_error()),
    }
    let mut ready =
        [rustix::event::PollFd::from_borrowed_fd(fd.as_fd(), rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut ready, Some(&now)) != Ok(1) {
        return Err(libc::EAGAIN);
    }
    rustix::io::read(fd, &mut count).map(drop).map_err(|error| error.raw_os_error())
}
