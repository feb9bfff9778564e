//! Waiting for what is partly the kernel's and partly streams': looking for some time, then sleeping until the node, the
//! kernel, or another thread of this process wakes.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use elver_portal::Turns;
use elver_stream::Interest;
use libc::{POLLIN, pollfd, sigset_t, timespec};
use rustix::event::{EventfdFlags, eventfd};

use crate::sleeper::Sleeper;
use crate::world::{self, Locked, World};
use crate::{errno, real};

/// How long who waits looks before it sleeps.
const SPIN: Duration = Duration::from_micros(100);
/// Looks for one at the kernel's part, which costs a call.
const LOOKS_PER_KERNEL: u32 = 8;
/// After so many times that something kept a thread from sleeping which is not its own, it sleeps all the same, so long.
const KEPT_AWAKE_MAX: u32 = 8;
const NAP: Duration = Duration::from_millis(1);

/// What a thread waits for.
pub(crate) trait Wanted {
    /// Whether it is there; the kernel is asked too, if `kernel` says so.
    fn look(&mut self, world: &mut World, kernel: bool) -> bool;
    /// The carried connections of it.
    fn watched(&self, world: &mut World) -> Vec<(u32, Interest)>;
    /// The kernel's part of it.
    fn kernels(&self, world: &mut World, fds: &mut Vec<pollfd>);
}

thread_local! {
    static TURNS: RefCell<Turns> = RefCell::default();
}

/// A time from now on; none that never comes.
pub(crate) fn deadline(at_most: Option<Duration>) -> Option<Instant> {
    at_most.and_then(|at_most| Instant::now().checked_add(at_most))
}

/// A descriptor that is asked for these events.
pub(crate) fn asked(fd: RawFd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

/// Waits until something is there, false when the time has passed. Signals are blocked by the mask while it sleeps, if
/// there is one.
///
/// # Errors
/// `EINTR`.
pub(crate) fn until(
    wanted: &mut dyn Wanted,
    deadline: Option<Instant>,
    mask: *const sigset_t,
) -> Result<bool, c_int> {
    let (mut looks, mut began, mut kept_awake) = (0u32, None, 0);
    let mut kernel = false;
    loop {
        let mut world = world::lock();
        world.progress();
        if wanted.look(&mut world, kernel) {
            return Ok(true);
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(!kernel && wanted.look(&mut world, true));
        }
        looks += 1;
        kernel = looks.is_multiple_of(LOOKS_PER_KERNEL);
        let watched = wanted.watched(&mut world);
        let looked_for = now - *began.get_or_insert(now);
        if !watched.is_empty() && looked_for < SPIN {
            drop(world);
            if look_on(now) {
                continue;
            }
            world = world::lock();
        }
        // All that the kernel has is told before a sleep, by the sleep.
        let at_most = match world.arm(&watched) {
            Some(at_most) => at_most,
            None if kept_awake < KEPT_AWAKE_MAX => {
                kept_awake += 1;
                continue;
            }
            None => NAP,
        };
        let left = deadline.map_or(at_most, |deadline| at_most.min(deadline - now));
        let mut fds = Vec::new();
        wanted.kernels(&mut world, &mut fds);
        let woken = sleep(world, watched, fds, left, mask)?;
        (kernel, kept_awake) = (true, 0);
        began = began.filter(|_| !woken);
    }
}

/// Lets other threads run, if it is not better to sleep.
fn look_on(now: Instant) -> bool {
    TURNS.with_borrow_mut(|turns| {
        let looks_on = !turns.is_held(now);
        if looks_on {
            turns.pass();
        }
        looks_on
    })
}

fn new_bell() -> Result<OwnedFd, c_int> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(rustix::io::Errno::raw_os_error)
}

/// Whether the node or another thread woke it.
fn sleep(
    mut world: Locked,
    watched: Vec<(u32, Interest)>,
    mut fds: Vec<pollfd>,
    at_most: Duration,
    mask: *const sigset_t,
) -> Result<bool, c_int> {
    let bell = world.bells.pop().map_or_else(new_bell, Ok)?;
    let others = fds.len();
    fds.push(asked(bell.as_raw_fd(), POLLIN));
    fds.extend(world.link().map(|link| asked(link.fd().as_raw_fd(), POLLIN)));
    let here = fds.len();
    fds.extend(world.meetings().map(|meeting| asked(meeting.as_fd().as_raw_fd(), POLLIN)));
    let sleeper = Arc::new(Sleeper { bell, watched });
    world.sleepers.push(sleeper.clone());
    drop(world);
    let time =
        timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
    // SAFETY: the entries and the time stand in this function, and the mask is the caller's caller's.
    let slept = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as u64, &time, mask) };
    let failed = (slept < 0).then(errno::get);
    let mut world = world::lock();
    world.sleepers.retain(|other| !Arc::ptr_eq(other, &sleeper));
    if let Some(link) = world.link() {
        link.disarm();
        world.unarmed = true;
    }
    if let Some(Sleeper { bell, .. }) = Arc::into_inner(sleeper) {
        // Whether or not it was rung, by now it is not.
        let _ = rustix::io::read(&bell, &mut [0; 8]);
        world.bells.push(bell);
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(fds[others..here].iter().any(|fd| fd.revents != 0)),
    }
}
