//! What a process has that a child of `fork` does not: the child finds none, and makes its own.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

/// Rises in a child, so that all that it inherited is of an older one.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// As many descriptors as a child closes: those to as many peers as there may be, and some.
const INHERITED_MAX: usize = 1 << 11;

/// Descriptors that a child closes: with them it would keep open what its parent wants to end.
static INHERITED: [AtomicI32; INHERITED_MAX] = [const { AtomicI32::new(-1) }; INHERITED_MAX];

/// One at a time makes something; nobody does while a thread forks.
struct Making(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is what threads may share.
unsafe impl Sync for Making {}

static MAKING: Making = Making(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

thread_local! {
    /// This thread has its turn, or waits for it. A signal may end the process meanwhile, and when it forks the program's own
    /// handlers run in it: both close descriptors.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// This process's generation: never 0.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has children close a descriptor, as long as there is room for its number.
pub(crate) fn close_in_child(fd: RawFd) {
    for slot in &INHERITED {
        if slot.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// The same no longer: it is about to be closed, and its number another's.
pub(crate) fn keep_in_child(fd: RawFd) {
    for slot in &INHERITED {
        if slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// A descriptor that no child has, however early or late it is made or closed.
#[derive(Debug)]
pub(crate) struct Unshared(ManuallyDrop<OwnedFd>);

impl Unshared {
    /// What `make` makes, which is to make nothing else that children do not have: nobody forks meanwhile.
    pub(crate) fn of(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Unshared, Errno> {
        let _turn = Turn::begin();
        let fd = make()?;
        close_in_child(fd.as_raw_fd());
        Ok(Unshared(ManuallyDrop::new(fd)))
    }
}

impl Deref for Unshared {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // A thread that waited for its own turn to end would do so for ever.
        let _turn = (!IN_TURN.get()).then(Turn::begin);
        keep_in_child(self.0.as_raw_fd());
        // SAFETY: nobody uses it behind this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Something that is made once in each process, and stays as long as it does.
pub(crate) struct Own<T: 'static>(AtomicPtr<(u32, T)>);

impl<T: Send + Sync> Own<T> {
    pub(crate) const fn new() -> Own<T> {
        Own(AtomicPtr::new(ptr::null_mut()))
    }

    /// What this process made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a box that nobody frees.
        let (generation, made) = unsafe { self.0.load(Ordering::Acquire).as_ref()? };
        (*generation == self::generation()).then_some(made)
    }

    /// The same, made now if there is none; `make` must make nothing else of this kind.
    pub(crate) fn get_or_make<E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        if let Some(made) = self.get() {
            return Ok(made);
        }
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: they lock and unlock a mutex, change words, and close descriptors.
            unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(begin)) };
        });
        let _turn = Turn::begin();
        if let Some(made) = self.get() {
            return Ok(made);
        }
        // A parent's stays where it is: its locks may be another thread's, which is not here.
        let made = Box::leak(Box::new((generation(), make()?)));
        self.0.store(made, Ordering::Release);
        Ok(&made.1)
    }
}

/// A turn to make something.
struct Turn;

impl Turn {
    fn begin() -> Turn {
        // SAFETY: the thread has no turn: what is made makes nothing else, and what closes something looks before.
        unsafe { lock() };
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: this thread has it.
        unsafe { unlock() };
    }
}

unsafe extern "C" fn lock() {
    IN_TURN.set(true);
    // SAFETY: it was made above, and is never destroyed.
    unsafe { libc::pthread_mutex_lock(MAKING.0.get()) };
}

unsafe extern "C" fn unlock() {
    // SAFETY: as above; the thread that locked it is the one that unlocks it, in a child too.
    unsafe { libc::pthread_mutex_unlock(MAKING.0.get()) };
    IN_TURN.set(false);
}

/// In a child, whose only thread is the one that forked.
unsafe extern "C" fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for slot in &INHERITED {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: it is this library's, whose owner nobody finds any more.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
    // SAFETY: the thread has locked it before it forked.
    unsafe { unlock() };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// As the handler of a signal closes what is left when it ends the process, and the program's own handlers when it forks.
    #[test]
    fn who_closes_a_descriptor_in_a_turn_of_its_own_does_not_wait_for_its_end() {
        let held = Unshared::of(|| eventfd(0, EventfdFlags::CLOEXEC)).unwrap();
        let (says, closed) = mpsc::channel();
        // One that waits for itself does so for ever, and is left behind.
        std::thread::spawn(move || {
            let _turn = Turn::begin();
            drop(held);
            says.send(()).unwrap();
        });
        closed.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
        // The turn has come to its end, and others have theirs.
        drop(Unshared::of(|| eventfd(0, EventfdFlags::CLOEXEC)).unwrap());
    }
}
