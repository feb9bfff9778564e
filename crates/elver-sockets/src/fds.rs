//! What stands behind a descriptor, without a lock: nearly all descriptors of a program are none of ours.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Descriptors above it are left to the kernel.
const FDS_MAX: usize = 1 << 16;
/// An epoll, whose number stands behind.
const EPOLL: u32 = 1 << 31;
/// It has connections of ours.
const WATCHES: u32 = 1 << 30;
/// A socket that an epoll had before it was connected; with a number behind, a connection that had it and is the kernel's
/// alone by now.
const EARLY: u32 = 1 << 29;
/// This library's own.
const OWN: u32 = 1 << 28;
/// A socket of one descriptor of this process alone, which is not connected; the count of forks stands behind.
const SOLE: u32 = 1 << 27;

static FDS: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];
/// Threads that wait in the kernel's epoll behind a descriptor.
static INSIDE: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];

/// The last one that may be ours.
pub(crate) const LAST: u32 = FDS_MAX as u32 - 1;
/// The largest number of a connection, and of an epoll; the smallest is 1.
pub(crate) const NUMBER_MAX: u32 = SOLE - 1;

/// Times that this process has begun, or ended, to fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

fn entry(fd: RawFd) -> Option<&'static AtomicU32> {
    FDS.get(usize::try_from(fd).ok()?)
}

#[inline]
fn word(fd: RawFd) -> u32 {
    entry(fd).map_or(0, |entry| entry.load(Ordering::Acquire))
}

fn set(fd: RawFd, word: u32) -> bool {
    entry(fd).map(|entry| entry.store(word, Ordering::Release)).is_some()
}

/// Whether there is room for a note of it.
pub(crate) fn has_room(fd: RawFd) -> bool {
    !usize::try_from(fd).is_ok_and(|fd| fd >= FDS_MAX)
}

/// The number of the connection that a descriptor is of, if it is one of ours.
#[inline]
pub(crate) fn conn(fd: RawFd) -> Option<u32> {
    Some(word(fd)).filter(|number| (1..=NUMBER_MAX).contains(number))
}

/// The number of the epoll that a descriptor is of.
#[inline]
pub(crate) fn epoll(fd: RawFd) -> Option<u32> {
    let word = word(fd);
    (word & EPOLL != 0).then_some(word & NUMBER_MAX)
}

/// The number of the epoll that a descriptor is of, if that has connections of ours.
#[inline]
pub(crate) fn watching(fd: RawFd) -> Option<u32> {
    let word = word(fd);
    (word & WATCHES != 0).then_some(word & NUMBER_MAX)
}

/// Whether it is a socket that an epoll had before it was connected.
pub(crate) fn is_early(fd: RawFd) -> bool {
    let word = word(fd);
    word == EARLY || word & (EARLY | SOLE) == EARLY | SOLE
}

/// Whether it is of the connection that had this number, which is the kernel's alone by now: else it was closed.
pub(crate) fn has_stayed(fd: RawFd, number: u32) -> bool {
    word(fd) == EARLY | number
}

/// Whether it is a connection, an epoll, or a socket that an epoll has.
pub(crate) fn is_known(fd: RawFd) -> bool {
    conn(fd).is_some() || epoll(fd).is_some() || is_own(fd) || is_early(fd)
}

/// Whether anything is noted of it.
#[inline]
pub(crate) fn is_ours(fd: RawFd) -> bool {
    word(fd) != 0
}

/// Notes that a descriptor is a connection's; whether there is room for that.
pub(crate) fn set_conn(fd: RawFd, number: u32) -> bool {
    set(fd, number)
}

/// Notes that a descriptor is an epoll's, which has connections of ours or not; whether there is room for that.
pub(crate) fn set_epoll(fd: RawFd, number: u32, watches: bool) -> bool {
    set(fd, EPOLL | number | if watches { WATCHES } else { 0 })
}

/// Notes that an epoll has a descriptor whose socket is not connected; whether there is room for that.
pub(crate) fn set_early(fd: RawFd) -> bool {
    let sole = Some(word(fd)).filter(|word| word & SOLE != 0).unwrap_or_default();
    set(fd, EARLY | sole)
}

/// The count by which it is told that a socket was there when this process forked: to be asked before it is made.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::SeqCst) & NUMBER_MAX
}

/// The process forks, and again when it has: sockets that are there meanwhile are two processes'.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Notes that it is of a new socket, made when there had been so many forks.
pub(crate) fn set_sole(fd: RawFd, forks: u32) {
    set(fd, SOLE | forks);
}

/// Whether it is of a socket that nobody else has, and that was not connected.
pub(crate) fn is_sole(fd: RawFd) -> bool {
    let word = word(fd) & !EARLY;
    word == SOLE | forks()
}

/// Others have its socket as well.
pub(crate) fn share(fd: RawFd) {
    let word = word(fd);
    if word & SOLE != 0 {
        set(fd, word & EARLY);
    }
}

/// Notes that it is this library's own, or is none of anybody's.
pub(crate) fn set_own(fd: RawFd, is_own: bool) {
    lose_former(fd);
    set(fd, if is_own { OWN } else { 0 });
}

/// Whether it is this library's own.
pub(crate) fn is_own(fd: RawFd) -> bool {
    word(fd) == OWN
}

/// Notes that it is of a connection that is the kernel's alone from here on.
pub(crate) fn set_stayed(fd: RawFd, number: u32) {
    set(fd, EARLY | number);
}

/// A descriptor was closed, or replaced, in the middle of a call: what has it hears of that later.
static HAS_LOST: AtomicBool = AtomicBool::new(false);

/// A descriptor is closed where nobody can be told.
pub(crate) fn lose(fd: RawFd) {
    clear(fd);
    HAS_LOST.store(true, Ordering::Release);
}

/// The kernel has just given out a number: what stands behind it was closed by a call that is not known.
pub(crate) fn lose_former(fd: RawFd) {
    if !matches!(word(fd), 0 | OWN) {
        lose(fd);
    }
}

/// Whether some were of which nobody has been told.
pub(crate) fn has_lost() -> bool {
    HAS_LOST.load(Ordering::Relaxed)
}

/// Those that were by now are told of.
pub(crate) fn tell_lost() {
    HAS_LOST.swap(false, Ordering::Acquire);
}

/// It is the kernel's alone.
pub(crate) fn clear(fd: RawFd) {
    set(fd, 0);
}

/// A thread that waits in the kernel's epoll.
pub(crate) struct Inside(Option<&'static AtomicU32>);

impl Inside {
    /// It is about to; whether the epoll has connections of ours is to be asked from here on.
    pub(crate) fn enter(epoll: RawFd) -> Inside {
        let count = usize::try_from(epoll).ok().and_then(|epoll| INSIDE.get(epoll));
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        // Beside the one below: it reads that the epoll has some, or is seen there.
        fence(Ordering::SeqCst);
        Inside(count)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether a thread waits in the kernel's epoll behind one of these, of those that began before it had connections of ours.
pub(crate) fn is_anybody_inside(epoll: &[RawFd]) -> bool {
    fence(Ordering::SeqCst);
    let inside = |fd: &RawFd| INSIDE.get(usize::try_from(*fd).ok()?);
    epoll.iter().filter_map(inside).any(|count| count.load(Ordering::Acquire) > 0)
}
