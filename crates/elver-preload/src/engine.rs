//! The one device of this process, who drives it, and who is told of its events.

mod attend;
mod polls;
mod state;
mod tell;
mod watched;

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use elver_soft::SoftDevice;
use elver_verbs::Qp;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use self::polls::Polls;
pub(crate) use self::state::{Kind, Region, State};
use self::watched::Watched;
use crate::addresses;
use crate::belongs::Belongs;
use crate::device::node_guid;
use crate::direct::{self, Beside, Hub};
use crate::doze::Doze;
use crate::fork::{Own, close_in_child, generation};
use crate::gid_index;
use crate::link_layer;
use crate::threads;
use crate::told;
use crate::wishes::Wishes;

/// How long a process that ends waits for a thread that has the device.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The device of this process.
pub(crate) struct Engine {
    state: Mutex<State>,
    /// Whose it is.
    process: u32,
    polls: Polls,
    /// Until when the thread sleeps.
    doze: Doze,
    watched: Watched,
    /// What contexts show as the descriptor of their device: another context can be made of it.
    pub(crate) file: OwnedFd,
    /// Finds processes that are reached directly.
    pub(crate) hub: Option<Arc<Hub>>,
}

/// The device in somebody's hands. Who lets go of it wakes the thread that has slept over a timer of his.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    engine: &'a Engine,
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.engine.doze.is_too_long(|| self.state.due()) {
            self.engine.wake();
        }
    }
}

static ENGINE: Own<Engine> = Own::new();

impl Engine {
    /// The engine, opened by the first who asks.
    pub(crate) fn open() -> Result<&'static Engine, c_int> {
        // Each is made once, and alone.
        node_guid();
        ENGINE.get_or_make(Engine::make)
    }

    /// A device, and the thread that drives it.
    fn make() -> Result<Engine, c_int> {
        let refused = |error: String| {
            eprintln!("elver: no device: {error}");
            libc::ENODEV
        };
        let wishes = Wishes::told().map_err(refused)?;
        gid_index::told().map_err(refused)?;
        link_layer::told().map_err(refused)?;
        crate::device::told().map_err(refused)?;
        let mut device = addresses::open(&wishes).map_err(refused)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| refused(error.to_string()))?;
        let hub = match wishes.is_any() {
            // What befalls packets befalls all that is sent.
            true => None,
            false => direct::open(device.address(), &wake).map_err(refused)?,
        };
        if let Some(hub) = &hub {
            device.set_bypass(Box::new(Beside::new(hub.clone())));
        }
        let socket = device.as_fd().ok_or_else(|| refused("it has no socket".into()))?;
        let socket = socket.try_clone_to_owned().map_err(|error| refused(error.to_string()))?;
        let file = memfd_create("elver", MemfdFlags::CLOEXEC)
            .map_err(|error| refused(error.to_string()))?;
        for fd in [device.as_fd().map(|fd| fd.as_raw_fd()), Some(socket.as_raw_fd())] {
            fd.into_iter().for_each(close_in_child);
        }
        threads::spawn("elver", || {
            // It is there when its turn to be made is over.
            if let Ok(engine) = ENGINE.get_or_make(|| Err(())) {
                engine.attend(threads::run_soon());
            }
        })
        .map_err(|error| refused(error.to_string()))?;
        // SAFETY: the function takes nothing, and touches what stays to the end.
        unsafe { libc::atexit(last_words) };
        Ok(Engine {
            state: Mutex::new(State::new(device, hub.clone(), &wishes)),
            process: std::process::id(),
            polls: Polls::new(),
            doze: Doze::new(),
            watched: Watched::new(wake, socket),
            file,
            hub,
        })
    }

    /// The engine of a program that has a context.
    pub(crate) fn get() -> Result<&'static Engine, c_int> {
        ENGINE.get().ok_or(libc::ENODEV)
    }

    /// The engine of an object: what a child of `fork` inherited has none.
    #[inline]
    pub(crate) fn of<T: Belongs>(object: *const T) -> Result<&'static Engine, c_int> {
        // SAFETY: the verbs contract: null, or an object of ours, which has a context of ours.
        let context = unsafe { object.as_ref() }.ok_or(libc::EINVAL)?.context();
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        match unsafe { told::owned(context) }.generation == generation() {
            true => Engine::get(),
            false => Err(libc::ENODEV),
        }
    }

    /// The device, for who does not poll.
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { state: self.state.lock().unwrap_or_else(PoisonError::into_inner), engine: self }
    }

    /// The device, for a process that ends. Other threads have it for moments; but what ends the process may have
    /// interrupted this one while it had it.
    pub(crate) fn lock_at_last(&self) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= LAST_WORDS => return None,
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// The device, for a program that polls. Who posts sees to nothing that comes, so that his posts are no polls.
    pub(crate) fn drive(&self) -> Locked<'_> {
        self.polls.count();
        self.lock()
    }

    /// Whether it is not that of a parent whose memory this process has, by `vfork`.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Has the thread watch: a program is about to wait for an event.
    pub(crate) fn watch(&self) {
        if self.polls.ask() {
            self.wake();
        }
    }

    /// Has the thread look again: what it waits for may have changed.
    pub(crate) fn wake(&self) {
        self.watched.ring();
    }

    /// Keeps peers from a QP that is to go or to change, until [`Direct::release`] or [`Direct::forget`]. Nobody waits for
    /// them with the device in hand.
    pub(crate) fn close_to_peers(&self, qp: Qp, qp_num: u32) -> Result<(), c_int> {
        self.lock().direct.hold(qp);
        direct::take_back_qp(self.hub.as_ref(), qp_num)
            .inspect_err(|_| self.lock().direct.release(qp))
    }

    /// Has the thread watch for multicast as well.
    pub(crate) fn watch_groups(&self, device: &SoftDevice) -> Result<(), c_int> {
        self.watched.watch_groups(device)
    }

    /// Has the thread watch for the ends of processes as well.
    pub(crate) fn watch_ends(&self, ends: BorrowedFd<'_>) -> Result<(), c_int> {
        self.watched.watch_ends(ends)
    }
}

/// What the device counted stays to be read, though nobody drops it. Signal handlers may call it.
pub(crate) extern "C" fn last_words() {
    // A child of `vfork` has its parent's memory, and is to leave it alone.
    let engine = ENGINE.get().filter(|engine| engine.is_of_this_process());
    if let Some(mut state) = engine.and_then(Engine::lock_at_last) {
        state.device.publish();
    }
}
