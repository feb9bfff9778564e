//! The lock that all of this library's is behind, and what has hold of it when the process forks or ends.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long, c_void};
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::world::World;
use crate::{fds, holder, tcp};

/// Times that this process is a child.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// This process has forked since the lock was taken last.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

struct Shut(World);

// SAFETY: a session and what it made belong to one thread because they share counts and cells that are not atomic. All
// of this process's are in the one world, no part of it leaves it, and it is reached through the lock alone.
unsafe impl Send for Shut {}

type Guard = MutexGuard<'static, Option<Shut>>;

static WORLD: Mutex<Option<Shut>> = Mutex::new(None);

/// The lock, as long as this process forks.
struct Held(UnsafeCell<Option<Guard>>);

// SAFETY: who has the lock alone touches it, which is the thread that forks.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Whether this thread has the lock, in what a signal's handler interrupted.
pub(crate) fn is_interrupted() -> bool {
    holder::is_here()
}

/// The number of the connection that a call's descriptor is of. A call that comes in the middle of another of this thread
/// is a signal handler's, or this library's own, of a file whose number was a connection's that was closed by a call that
/// is not known: that one is no connection.
#[inline]
pub(crate) fn conn(fd: RawFd) -> Option<u32> {
    let id = fds::conn(fd)?;
    (!is_interrupted() || tcp::is_tcp(tcp::fd(fd))).then_some(id)
}

/// The world, until it is dropped.
pub(crate) struct Locked(Guard);

fn take() -> Guard {
    // A panic left no half of anything that a later call could not bear: at worst a connection ends.
    let guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    holder::set_here();
    guard
}

/// Takes the lock.
pub(crate) fn lock() -> Locked {
    let mut guard = take();
    let process = PROCESS.load(Ordering::Relaxed);
    let has_forked = HAS_FORKED.swap(false, Ordering::Relaxed);
    let world = &mut guard.get_or_insert_with(|| Shut(World::new(process))).0;
    if world.process() != process {
        world.become_child(process);
    } else if has_forked {
        // Of what came while handlers of the program's ran, which may be unknown to the child.
        world.leave_unbound_to_tcp();
    }
    world.let_go_of_lost();
    Locked(guard)
}

impl Deref for Locked {
    type Target = World;

    fn deref(&self) -> &World {
        // It was put there by `lock`.
        &self.0.as_ref().expect("there is a world").0
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.0.as_mut().expect("there is a world").0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.let_go_of_lost();
        self.pass_news();
        holder::clear();
    }
}

/// The process forks: nobody else is at work here meanwhile, so that the child finds all as it should be. It allocates
/// nothing, since the program's allocator may be locked by now.
extern "C" fn before_fork() {
    fds::note_fork();
    if !is_interrupted() {
        let guard = take();
        // SAFETY: this thread has the lock.
        unsafe { *HELD.0.get() = Some(guard) };
    }
}

extern "C" fn in_parent() {
    HAS_FORKED.store(true, Ordering::Relaxed);
    release();
}

extern "C" fn in_child() {
    PROCESS.fetch_add(1, Ordering::Relaxed);
    release();
}

/// Forks by a call of which handlers hear nothing.
pub(crate) fn fork_unheard(fork: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    let forked = fork();
    if forked == 0 {
        elver::note_child();
        in_child();
    } else {
        in_parent();
    }
    forked
}

fn release() {
    fds::note_fork();
    if is_interrupted() {
        // SAFETY: this thread has the lock.
        let held = unsafe { (*HELD.0.get()).take() };
        // Else it is of the call in which a signal's handler forks.
        if held.is_some() {
            holder::clear();
        }
    }
}

/// The process ends by itself: what was written still arrives. Not where a signal's handler ends it in the middle of a
/// call.
pub(crate) fn finish() {
    if is_interrupted() {
        return;
    }
    let mut world = lock();
    // A child that shares this memory ends alone.
    if !world.is_borrowed() {
        world.finish();
    }
}

extern "C" fn at_exit(_: *mut c_void) {
    crate::errno::beside(finish);
}

/// Before the program's first function: its own handlers are registered later, so that they run before the lock is held
/// for a fork, after it is free again, and before the streams end with the process.
extern "C" fn at_load() {
    unsafe extern "C" {
        fn __cxa_atexit(
            handler: extern "C" fn(*mut c_void),
            argument: *mut c_void,
            library: *mut c_void,
        ) -> c_int;
        fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }
    let none = std::ptr::null_mut();
    // A child's handlers find streams that know themselves to be the parent's.
    elver::watch_forks();
    // SAFETY: the handlers take nothing, and what they do may be done where they are called: those of a fork change
    // atomics and the lock alone. As no library's they are called when the destructors of all have run.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
        __cxa_atexit(at_exit, none, none);
        __cxa_at_quick_exit(at_exit, none);
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what stands there once, when all that this library needs is loaded.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
