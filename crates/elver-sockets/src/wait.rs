//! Waiting for what is partly the kernel's and partly streams': looking for some time, then sleeping until the node, the
//! kernel, or another thread of this process wakes.

use std::cell::RefCell;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use elver_portal::Turns;
use libc::{POLLIN, pollfd, sigset_t, timespec};
use rustix::event::{EventfdFlags, eventfd};

use crate::conn::{ALWAYS, READS};
use crate::lock::{self, Locked};
use crate::own::Own;
use crate::signals::Signals;
use crate::sleeper::{Sleeper, Watched};
use crate::world::World;
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
    fn watched(&self, world: &mut World) -> Vec<Watched>;
    /// The kernel's part of it.
    fn kernels(&self, world: &mut World, fds: &mut Vec<pollfd>);
    /// The one connection that it is for, if it is for one.
    fn own(&self) -> Option<u32> {
        None
    }
}

/// What a call waits for at its one connection, whatever becomes of the descriptor that it was made with.
pub(crate) struct OfConn {
    pub(crate) id: u32,
    pub(crate) events: i16,
}

impl Wanted for OfConn {
    fn own(&self) -> Option<u32> {
        Some(self.id)
    }

    fn look(&mut self, world: &mut World, kernel: bool) -> bool {
        // One that is gone is told by the next try.
        let Some(conn) = world.conn(self.id) else { return true };
        if conn.is_carried() {
            return conn.events(self.events) & !ALWAYS != 0;
        }
        let mut fds = [asked(conn.socket().as_raw_fd(), self.events)];
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the entry and the time stand in this function.
        kernel && unsafe { real::ppoll(fds.as_mut_ptr(), 1, &now, std::ptr::null()) } > 0
    }

    fn watched(&self, world: &mut World) -> Vec<Watched> {
        let conn = world.conn(self.id).filter(|conn| conn.is_carried());
        let interest = conn.and_then(|conn| conn.interest(self.events));
        interest.map(|interest| Watched::new(self.id, interest)).into_iter().collect()
    }

    fn kernels(&self, world: &mut World, fds: &mut Vec<pollfd>) {
        let Some(conn) = world.conn(self.id) else { return };
        if conn.is_carried() {
            fds.extend(conn.watch(self.events & READS != 0));
        } else {
            fds.push(asked(conn.socket().as_raw_fd(), self.events));
        }
    }
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

/// Waits until something is there, false when the time has passed. A thread may be cancelled while it sleeps, and at no
/// other time.
///
/// # Errors
/// `EINTR`.
pub(crate) fn until(
    wanted: &mut dyn Wanted,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<bool, c_int> {
    let mut looks = Looks::default();
    loop {
        let asleep = match errno::guarded(|| looks.look(wanted, deadline))? {
            Next::Told(true) => return Ok(true),
            Next::Told(false) => return signals.passed().map(|()| false),
            Next::Look => continue,
            Next::Sleep(asleep) => asleep,
        };
        let woken = asleep.sleep(signals.held())?;
        (looks.kernel, looks.kept_awake) = (true, 0);
        looks.began = looks.began.filter(|_| !woken);
    }
}

/// What follows a look.
enum Next {
    Told(bool),
    Look,
    Sleep(Asleep),
}

/// Looks of one wait.
#[derive(Default)]
struct Looks {
    looks: u32,
    began: Option<Instant>,
    kept_awake: u32,
    kernel: bool,
}

impl Looks {
    fn look(&mut self, wanted: &mut dyn Wanted, deadline: Option<Instant>) -> Result<Next, c_int> {
        let mut world = lock::lock();
        world.progress(wanted.own());
        if wanted.look(&mut world, self.kernel) {
            return Ok(Next::Told(true));
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Next::Told(!self.kernel && wanted.look(&mut world, true)));
        }
        self.looks += 1;
        self.kernel = self.looks.is_multiple_of(LOOKS_PER_KERNEL);
        let watched = wanted.watched(&mut world);
        let looked_for = now - *self.began.get_or_insert(now);
        if !watched.is_empty() && looked_for < SPIN {
            drop(world);
            if look_on(now) {
                return Ok(Next::Look);
            }
            world = lock::lock();
        }
        // All that the kernel has is told before a sleep, by the sleep.
        let at_most = match world.arm(&watched) {
            Some(at_most) => at_most,
            None if self.kept_awake < KEPT_AWAKE_MAX => {
                self.kept_awake += 1;
                return Ok(Next::Look);
            }
            None => NAP,
        };
        let left = deadline.map_or(at_most, |deadline| at_most.min(deadline - now));
        let mut fds = Vec::new();
        wanted.kernels(&mut world, &mut fds);
        Asleep::lie_down(world, watched, fds, left).map(Next::Sleep)
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

fn new_bell() -> Result<Own, c_int> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map(Own::new)
        .map_err(rustix::io::Errno::raw_os_error)
}

/// A thread that sleeps, or is about to. It is woken where others see it until this is dropped, also by the unwinding of a
/// thread that is cancelled.
struct Asleep {
    sleeper: Option<Arc<Sleeper>>,
    fds: Vec<pollfd>,
    /// Those that the node or another thread wake it by.
    own: Range<usize>,
    at_most: Duration,
}

impl Asleep {
    fn lie_down(
        mut world: Locked,
        watched: Vec<Watched>,
        mut fds: Vec<pollfd>,
        at_most: Duration,
    ) -> Result<Asleep, c_int> {
        let bell = world.bells.pop().map_or_else(new_bell, Ok)?;
        let others = fds.len();
        fds.push(asked(bell.as_fd().as_raw_fd(), POLLIN));
        fds.extend(world.link().map(|link| asked(link.fd().as_raw_fd(), POLLIN)));
        let own = others..fds.len();
        fds.extend(world.meetings().map(|meeting| asked(meeting.as_fd().as_raw_fd(), POLLIN)));
        let sleeper = Arc::new(Sleeper { bell, watched });
        world.sleepers.push(sleeper.clone());
        Ok(Asleep { sleeper: Some(sleeper), fds, own, at_most })
    }

    /// Whether the node or another thread woke it.
    fn sleep(mut self, mask: *const sigset_t) -> Result<bool, c_int> {
        let (seconds, nanos) = (self.at_most.as_secs() as i64, self.at_most.subsec_nanos());
        let time = timespec { tv_sec: seconds, tv_nsec: nanos.into() };
        let (fds, count) = (self.fds.as_mut_ptr(), self.fds.len() as u64);
        // SAFETY: the entries stand here and the time in this function, and the mask is the caller's caller's.
        let slept = unsafe { real::ppoll(fds, count, &time, mask) };
        match (slept < 0).then(errno::get) {
            Some(error) => Err(error),
            None => Ok(self.fds[self.own.clone()].iter().any(|fd| fd.revents != 0)),
        }
    }

    fn get_up(&mut self) {
        let mut world = lock::lock();
        let Some(sleeper) = self.sleeper.take() else { return };
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
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        errno::beside(|| self.get_up());
    }
}
