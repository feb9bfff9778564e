//! Descriptors that are readable as often as somebody rang.

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, ReadWriteFlags, fcntl_dupfd_cloexec, preadv2};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::errno::last;

/// Bytes that a pipe has room for, for who rings.
const ROOM: usize = 8 << 10;
/// Where a descriptor stands, for who has no places.
const HERE: u64 = u64::MAX;

/// What is rung: the program's end, and this library's.
pub(crate) type Bell = (OwnedFd, OwnedFd);

/// One whose program's end has these flags of `open`.
pub(crate) fn bell(flags: c_int) -> Result<Bell, Errno> {
    // Without /proc there are no pipes.
    pipe(flags).or_else(|_| counter(flags))
}

/// The program's is never writable, as the kernel's descriptors are not: a loop that looks for both would turn without end. The library's
/// own reads it too, so that no write is without a reader, for which the kernel would end the process.
fn pipe(flags: c_int) -> Result<Bell, Errno> {
    let wanted = flags & (libc::O_NONBLOCK | libc::O_CLOEXEC);
    let (program, _) = pipe_with(PipeFlags::from_bits_retain(wanted as u32))?;
    let name = format!("/proc/thread-self/fd/{}", program.as_raw_fd());
    let own = open(name, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    // Users have a bound for what all their pipes have room for.
    let _ = fcntl_setpipe_size(&own, ROOM);
    Ok((program, own))
}

/// An eventfd, which is always writable.
pub(crate) fn counter(flags: c_int) -> Result<Bell, Errno> {
    let mut wanted = EventfdFlags::SEMAPHORE;
    wanted.set(EventfdFlags::NONBLOCK, flags & libc::O_NONBLOCK != 0);
    wanted.set(EventfdFlags::CLOEXEC, flags & libc::O_CLOEXEC != 0);
    let program = eventfd(0, wanted)?;
    let own = fcntl_dupfd_cloexec(&program, 0)?;
    Ok((program, own))
}

/// Makes it readable once more, if it has room for that.
pub(crate) fn ring(own: &OwnedFd) -> bool {
    rustix::io::write(own, &1_u64.to_ne_bytes()).is_ok()
}

/// Waits for a ring and takes it; 0, or an errno: `EAGAIN` where there is none and the program made the descriptor
/// nonblocking, `EBADF` where it is closed, also meanwhile.
///
/// A thread may be cancelled here (`pthread_cancel`), as in the `read` of the genuine library. Its frames are then given up
/// as they stand: none up to the program's own may hold or own anything, or catch panics.
pub(crate) fn wait(fd: RawFd) -> c_int {
    let mut count = [0_u8; 8];
    // SAFETY: there is room for a ring, and no frame here has anything to drop.
    match unsafe { __read(fd, count.as_mut_ptr().cast(), count.len()) } {
        // Nobody rings any more: its descriptor was closed while this waited.
        0 => libc::EBADF,
        1.. => 0,
        _ => last(),
    }
}

/// Waits until a handler of a signal has run, the thread is cancelled, as [`wait`] may be, or its process ends; an errno.
#[cold]
pub(crate) fn sleep_on() -> c_int {
    // SAFETY: it takes nothing, and no frame here has anything to drop.
    unsafe { pause() };
    libc::EINTR
}

/// Has the thread be cancelled, where it was told to be.
pub(crate) fn be_cancelled() {
    // SAFETY: it takes nothing, and no frame here has anything to drop.
    unsafe { pthread_testcancel() };
}

/// What is left of this library's end of a bell once the program's is closed: who waits at that sleeps on, and is rung for no more. None
/// where nobody sleeps by it.
pub(crate) fn silent(own: OwnedFd) -> Option<OwnedFd> {
    // It reads no more, so that the kernel knows whether anybody does.
    let name = format!("/proc/thread-self/fd/{}", own.as_raw_fd());
    open(name, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether somebody still has the other end of a [`silent`] one, be it only for the time of a call.
pub(crate) fn is_awaited(silent: &OwnedFd) -> bool {
    let mut other = [PollFd::new(silent, PollFlags::empty())];
    let looked = poll(&mut other, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && !other[0].revents().contains(PollFlags::ERR)
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();

    /// libc's, where a thread may be cancelled.
    fn pause() -> c_int;

    /// libc's `read`, by the name that no other library takes: theirs may have frames that cannot be given up.
    fn __read(fd: c_int, to: *mut c_void, count: usize) -> isize;
}

/// Takes one ring, if there is one, by this library's end; whether there was.
pub(crate) fn take(own: &OwnedFd) -> bool {
    let mut count = [0; 8];
    // In one call: another thread may take the ring that a look has seen.
    let bufs = &mut [IoSliceMut::new(&mut count)];
    let taken = preadv2(own, bufs, HERE, ReadWriteFlags::NOWAIT);
    if taken != Err(Errno::OPNOTSUPP) {
        return taken.is_ok();
    }
    // Pipes before Linux 6.4, which do not block here.
    let mut ready = [PollFd::new(own, PollFlags::IN)];
    let is_ready = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
    is_ready && rustix::io::read(own, &mut count).is_ok()
}
