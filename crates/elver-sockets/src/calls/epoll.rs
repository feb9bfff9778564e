//! `epoll`: connections that are carried stand in tables here, all others in the kernel's.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, epoll_event, pollfd, sigset_t, timespec,
};

use super::poll::duration;
use crate::conn::READS;
use crate::epolls::{Entry, Epoll, kept};
use crate::log::Why;
use crate::signals::Signals;
use crate::sleeper::Watched;
use crate::wait::{Wanted, asked};
use crate::world::World;
use crate::{errno, fds, lock, real, tcp, wait};

/// What a thread waits for in an epoll.
struct InEpoll<'a> {
    epoll: RawFd,
    number: u32,
    events: &'a mut [epoll_event],
    told: usize,
    /// It was closed meanwhile.
    is_gone: bool,
}

impl Wanted for InEpoll<'_> {
    fn look(&mut self, world: &mut World, kernel: bool) -> bool {
        let Some(descriptor) = self.descriptor(world) else {
            self.is_gone = true;
            return true;
        };
        self.told = 0;
        // Who always finds something here must not keep the kernel's from being told, however little room there is.
        let epoll = world.epolls.get_mut(&self.number);
        let is_kernel_s_turn = epoll.is_some_and(Epoll::is_kernel_s_turn);
        if is_kernel_s_turn {
            self.ask_kernel(descriptor, world);
        }
        self.told += world.tell_epoll(self.number, &mut self.events[self.told..]);
        if kernel && !is_kernel_s_turn {
            self.ask_kernel(descriptor, world);
        }
        self.told > 0
    }

    fn watched(&self, world: &mut World) -> Vec<Watched> {
        let carried = self.carried(world);
        let watched = |(id, asked, seen)| {
            let interest = world.conn(id)?.interest(asked)?;
            Some(Watched { id, interest, seen })
        };
        carried.into_iter().filter_map(watched).collect()
    }

    fn kernels(&self, world: &mut World, all: &mut Vec<pollfd>) {
        all.extend(self.descriptor(world).map(|epoll| asked(epoll, POLLIN)));
        for (id, asked, _) in self.carried(world) {
            all.extend(world.conn(id).and_then(|conn| conn.watch(asked & READS != 0)));
        }
    }
}

impl InEpoll<'_> {
    /// Takes what the kernel has, as far as there is room.
    fn ask_kernel(&mut self, descriptor: RawFd, world: &mut World) {
        let rest = &mut self.events[self.told..];
        if rest.is_empty() {
            return;
        }
        let (mut told, is_stirred) = look_at_kernel(descriptor, rest);
        if let Some(epoll) = world.epolls.get_mut(&self.number) {
            if is_stirred {
                epoll.calm();
                // It may have taken the room of another.
                told += look_at_kernel(descriptor, &mut rest[told..]).0;
            }
            epoll.told_by_kernel(&rest[..told]);
        }
        self.told += told;
    }

    /// One that it has: that which the call was made with may be another's by now.
    fn descriptor(&self, world: &World) -> Option<RawFd> {
        if self.number == 0 || fds::epoll(self.epoll) == Some(self.number) {
            return Some(self.epoll);
        }
        world.epolls.get(&self.number)?.fds.first().copied()
    }

    /// Carried connections, what is asked about each, and what had arrived when it was told of what has not been read yet.
    fn carried(&self, world: &mut World) -> Vec<(u32, i16, Option<u64>)> {
        let Some(epoll) = world.epolls.get(&self.number) else { return Vec::new() };
        let wanted =
            epoll.entries().iter().filter_map(|it| Some((it.conn, it.wanted()?, it.seen())));
        let wanted: Vec<_> = wanted.collect();
        let is_carried = |(id, ..): &(u32, i16, Option<u64>)| {
            world.conn(*id).is_some_and(|conn| conn.is_carried())
        };
        wanted.into_iter().filter(is_carried).collect()
    }
}

/// Takes what the kernel has, without waiting: how many events, and whether it was stirred.
fn look_at_kernel(epoll: RawFd, events: &mut [epoll_event]) -> (usize, bool) {
    let now = ptr::null();
    // SAFETY: so many events fit there.
    let told =
        unsafe { real::epoll_pwait(epoll, events.as_mut_ptr(), events.len() as c_int, 0, now) };
    let told = told.max(0) as usize;
    let ours = kept(&mut events[..told]);
    (ours, ours < told)
}

/// An epoll was made, or not. Its copies must be known before it has a connection of ours.
fn made(epoll: c_int) -> c_int {
    if epoll >= 0 && lock::is_interrupted() {
        // In a signal's handler: it is known from when it is asked for a connection.
        fds::lose_former(epoll);
    } else if epoll >= 0 {
        errno::beside(|| {
            let mut world = lock::lock();
            if !world.is_borrowed() {
                world.epoll(epoll);
            }
        });
    }
    epoll
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's promise is the same.
    made(unsafe { real::epoll_create(size) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's promise is the same.
    made(unsafe { real::epoll_create1(flags) })
}

/// The kernel has done what was asked about a descriptor that is no connection of ours. A socket that is not connected yet
/// may become one.
fn done_early(epoll: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    let is_new =
        || operation == EPOLL_CTL_ADD && !fds::is_known(fd) && tcp::is_unconnected(tcp::fd(fd));
    if fds::is_early(fd) || is_new() {
        let event = event.filter(|_| operation != EPOLL_CTL_DEL);
        errno::beside(|| {
            let mut world = lock::lock();
            if !world.is_borrowed() {
                world.early(epoll, fd, event);
            }
        });
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let kernel = || {
        // SAFETY: the caller's promise is the same.
        unsafe { real::epoll_ctl(epoll, operation, fd, event) }
    };
    // SAFETY: the manual's contract.
    let asked = unsafe { event.as_ref() };
    let Some(id) = fds::conn(fd) else {
        let done = kernel();
        if done == 0 {
            done_early(epoll, operation, fd, asked.copied());
        }
        return done;
    };
    errno::told(|| {
        let mut world = lock::lock();
        // Who waits in an epoll that is not known is told nothing of streams.
        if !fds::has_room(epoll) {
            return if world.may_stay(id, Why::Descriptor, "") {
                told(kernel())
            } else {
                Err(libc::EMFILE)
            };
        }
        let Some(conn) = world.conn(id) else { return told(kernel()) };
        let is_carried = conn.is_carried();
        if is_carried {
            is_epoll(epoll, fd)?;
        } else {
            told(kernel())?;
        }
        let number = world.epoll(epoll).ok_or(libc::EMFILE)?;
        let known = world.epolls.get_mut(&number).is_some_and(|it| it.entry(fd).is_some());
        if is_carried {
            match operation {
                EPOLL_CTL_ADD if known => return Err(libc::EEXIST),
                EPOLL_CTL_MOD | EPOLL_CTL_DEL if !known => return Err(libc::ENOENT),
                EPOLL_CTL_ADD | EPOLL_CTL_MOD if asked.is_none() => return Err(libc::EFAULT),
                EPOLL_CTL_ADD | EPOLL_CTL_MOD | EPOLL_CTL_DEL => {}
                _ => return Err(libc::EINVAL),
            }
        }
        match (operation, asked) {
            (EPOLL_CTL_DEL, _) => drop(world.epolls.get_mut(&number).map(|it| it.remove(fd))),
            (_, Some(asked)) => world.watch(number, Entry::new(fd, id, asked)),
            _ => {}
        }
        Ok(0)
    })
}

/// Whether a descriptor that is asked for a connection is an epoll's.
///
/// # Errors
/// What the kernel says of one that is none.
fn is_epoll(epoll: c_int, carried: c_int) -> Result<(), c_int> {
    if fds::epoll(epoll).is_some() {
        return Ok(());
    }
    // The kernel's has none that a stream carries.
    let none = ptr::null_mut();
    // SAFETY: a deletion needs no event.
    match told(unsafe { real::epoll_ctl(epoll, EPOLL_CTL_DEL, carried, none) }) {
        Err(libc::ENOENT) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

fn told(result: c_int) -> Result<c_int, c_int> {
    if result < 0 { Err(errno::get()) } else { Ok(result) }
}

/// Waits.
///
/// # Safety
/// The manual's contract.
unsafe fn waits(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    at_most: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, c_int> {
    let len = usize::try_from(count).ok().filter(|len| *len > 0).ok_or(libc::EINVAL)?;
    // SAFETY: so many events fit there.
    let events = unsafe { std::slice::from_raw_parts_mut(events, len) };
    // One that is not known has nothing of ours.
    let number = fds::epoll(epoll).unwrap_or_default();
    let mut wanted = InEpoll { epoll, number, events, told: 0, is_gone: false };
    wait::until(&mut wanted, wait::deadline(at_most), &mut Signals::by(mask))?;
    if wanted.is_gone {
        return Err(libc::EBADF);
    }
    Ok(wanted.told as c_int)
}

/// The kernel has told of something in an epoll that got its first connection of ours meanwhile, or has none.
fn told_once(epoll: c_int, events: &[epoll_event]) {
    if let Some(number) = fds::watching(epoll) {
        errno::beside(|| {
            if let Some(epoll) = lock::lock().epolls.get_mut(&number) {
                epoll.told_by_kernel(events);
            }
        });
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let at_most = u64::try_from(timeout).ok().map(Duration::from_millis);
    let inside = fds::Inside::enter(epoll);
    if fds::watching(epoll).is_none() {
        // SAFETY: the caller's promise is the same.
        let told = unsafe { real::epoll_pwait(epoll, events, count, timeout, mask) };
        if told <= 0 {
            return told;
        }
        // SAFETY: the kernel has put so many there.
        let events = unsafe { std::slice::from_raw_parts_mut(events, told as usize) };
        let rest = kept(events);
        if rest > 0 {
            told_once(epoll, &events[..rest]);
            return rest as c_int;
        }
    }
    drop(inside);
    // SAFETY: the caller's promise is the same.
    errno::tell(unsafe { waits(epoll, events, count, at_most, mask) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe { epoll_pwait(epoll, events, count, timeout, ptr::null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if fds::watching(epoll).is_none() {
        // SAFETY: the manual's contract.
        let at_most = unsafe { timeout.as_ref() };
        // Rounded up, as far as the kernel goes that knows milliseconds alone.
        let timeout = at_most.map_or(Ok(-1), |time| {
            let millis = duration(time)?.as_nanos().div_ceil(1_000_000);
            Ok(c_int::try_from(millis).unwrap_or(c_int::MAX))
        });
        return match timeout {
            // SAFETY: the caller's promise is the same.
            Ok(timeout) => unsafe { epoll_pwait(epoll, events, count, timeout, mask) },
            Err(error) => errno::tell(Err(error)),
        };
    }
    // SAFETY: the manual's contract.
    let at_most = unsafe { timeout.as_ref() }.map(duration).transpose();
    // SAFETY: the caller's promise is the same.
    errno::tell(at_most.and_then(|it| unsafe { waits(epoll, events, count, it, mask) }))
}
