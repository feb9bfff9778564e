//! Descriptors that are readable as often as somebody rang.

use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::{
    Errno, FdFlags, ReadWriteFlags, fcntl_dupfd_cloexec, fcntl_setfd, ioctl_fionread, preadv2,
};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::errno::last;

/// Bytes that a pipe has room for, for who rings.
const ROOM: usize = 8 << 10;
/// Where a descriptor stands, for who has no places.
const HERE: u64 = u64::MAX;

/// This library's end of a bell: it rings, and takes rings back, so that no write is without a reader, for which the kernel would end
/// the process.
pub(crate) struct Own {
    rings: OwnedFd,
    /// What takes them, where the first does not.
    takes: Option<OwnedFd>,
}

/// What is rung: the program's end, and this library's.
pub(crate) type Bell = (OwnedFd, Own);

/// One whose program's end has these flags of `open`. It is never writable, as the kernel's descriptors are not: a loop that looks for both
/// would turn without end.
pub(crate) fn bell(flags: c_int) -> Result<Bell, Errno> {
    let wanted = flags & (libc::O_NONBLOCK | libc::O_CLOEXEC);
    let (program, rings) = pipe_with(PipeFlags::from_bits_retain(wanted as u32))?;
    let name = format!("/proc/thread-self/fd/{}", program.as_raw_fd());
    let both = open(name, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let own = match both {
        Ok(rings) => Own { rings, takes: None },
        // Without /proc it costs one more.
        Err(_) => apart(&program, rings)?,
    };
    // Users have a bound for what all their pipes have room for.
    let _ = fcntl_setpipe_size(&own.rings, ROOM);
    Ok((program, own))
}

/// The same of a pipe's other end, which takes by the program's.
pub(crate) fn apart(program: &OwnedFd, rings: OwnedFd) -> Result<Own, Errno> {
    fcntl_setfl(&rings, OFlags::NONBLOCK)?;
    fcntl_setfd(&rings, FdFlags::CLOEXEC)?;
    Ok(Own { rings, takes: Some(fcntl_dupfd_cloexec(program, 0)?) })
}

impl Own {
    /// Makes the other end readable once more, by a name that who reads it finds, if it has room for that.
    pub(crate) fn ring(&self, name: u64) -> bool {
        rustix::io::write(&self.rings, &name.to_ne_bytes()).is_ok()
    }

    /// Takes the oldest ring, if there is one.
    pub(crate) fn take(&self) -> Option<u64> {
        let takes = self.takes.as_ref().unwrap_or(&self.rings);
        let mut name = [0; 8];
        // In one call: another thread may take the ring that a look has seen.
        let bufs = &mut [IoSliceMut::new(&mut name)];
        let mut taken = preadv2(takes, bufs, HERE, ReadWriteFlags::NOWAIT);
        if taken == Err(Errno::OPNOTSUPP) {
            // Pipes before Linux 6.4, which do not block here.
            let mut ready = [PollFd::new(takes, PollFlags::IN)];
            let is_ready = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
            taken = if is_ready { rustix::io::read(takes, &mut name) } else { Err(Errno::AGAIN) };
        }
        (taken == Ok(name.len())).then(|| u64::from_ne_bytes(name))
    }

    /// How many rings nobody has taken.
    pub(crate) fn count(&self) -> usize {
        let takes = self.takes.as_ref().unwrap_or(&self.rings);
        ioctl_fionread(takes).map_or(0, |bytes| bytes as usize / size_of::<u64>())
    }

    /// What is left of it once the program's end is closed: who waits at that sleeps on, and is rung for no more. None where nobody can
    /// sleep by it.
    pub(crate) fn silent(self) -> Option<OwnedFd> {
        if self.takes.is_some() {
            return Some(self.rings);
        }
        // It reads no more, so that the kernel knows whether anybody does.
        let name = format!("/proc/thread-self/fd/{}", self.rings.as_raw_fd());
        open(name, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

/// Waits for a ring and takes it; its name, or an errno: `EAGAIN` where there is none and the program made the descriptor
/// nonblocking, `EBADF` where it is closed, also meanwhile.
///
/// A thread may be cancelled here (`pthread_cancel`), as in the `read` of the genuine library. Its frames are then given up
/// as they stand: none up to the program's own may hold or own anything, or catch panics.
pub(crate) fn wait(fd: RawFd) -> Result<u64, c_int> {
    let mut name = [0_u8; 8];
    // SAFETY: there is room for a ring, and no frame here has anything to drop.
    match unsafe { __read(fd, name.as_mut_ptr().cast(), name.len()) } {
        // Nobody rings any more: its descriptor was closed while this waited.
        0 => Err(libc::EBADF),
        1.. => Ok(u64::from_ne_bytes(name)),
        _ => Err(last()),
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

/// Whether somebody still has the other end of a [silent](Own::silent) one, be it only for the time of a call.
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
