//! Keeps forks and the lender's own use of queue pairs apart. Providers' locks are process-private words beside their queue
//! pairs: a child that is forked while the lender's thread holds one has a copy that nobody will ever unlock.

use std::cell::RefCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who forks, or uses a queue pair that is lent.
static EITHER: Mutex<()> = Mutex::new(());
/// Threads that fork or wait to, and forks that are done.
static FORKING: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// What a thread holds while it forks.
    static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Before a fork, in the thread that forks.
pub(crate) extern "C" fn prepare() {
    FORKING.fetch_add(1, Relaxed);
    let held = EITHER.lock().unwrap_or_else(PoisonError::into_inner);
    // A thread that forks while it ends has no place for it.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

/// After it, in the parent.
pub(crate) extern "C" fn parent() {
    let held = HELD.try_with(RefCell::take);
    DONE.fetch_add(1, Release);
    FORKING.fetch_sub(1, Relaxed);
    drop(held);
}

/// After it, in the child, where no other thread forks.
pub(crate) extern "C" fn child() {
    let held = HELD.try_with(RefCell::take);
    FORKING.store(0, Relaxed);
    drop(held);
}

/// The lender's thread's side.
#[derive(Default)]
pub(crate) struct Between {
    /// Forks that were done when it last had its turn.
    done: u32,
}

impl Between {
    /// A time without forks, as long as what is returned is kept. None while a fork waits that came after the last turn: the
    /// thread comes again at once, and would take the lock before who waits is awake.
    pub(crate) fn turn(&mut self) -> Option<MutexGuard<'static, ()>> {
        if FORKING.load(Relaxed) != 0 && DONE.load(Acquire) == self.done {
            return None;
        }
        let turn = EITHER.lock().unwrap_or_else(PoisonError::into_inner);
        self.done = DONE.load(Acquire);
        Some(turn)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    /// One test at a time looks at who forks.
    pub(crate) static ALONE: Mutex<()> = Mutex::new(());

    /// Returns when a fork waits; fails after twenty seconds, or when it has been done.
    pub(crate) fn until_one_waits(is_done: impl Fn() -> bool) {
        let begun = Instant::now();
        while FORKING.load(Relaxed) != 1 {
            assert!(!is_done(), "it did not wait");
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody forks");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_fork_waits_for_the_turn_and_comes_before_the_next() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut between = Between::default();
        let turn = between.turn().unwrap();
        let (tells, told) = channel();
        let (lets, let_go) = channel::<()>();
        let forks = std::thread::spawn(move || {
            prepare();
            tells.send(()).unwrap();
            let_go.recv().unwrap();
            parent();
        });
        until_one_waits(|| false);
        assert!(told.try_recv().is_err(), "it was prepared within the turn");
        drop(turn);
        // However often the lender's thread comes: it has no turn before the fork has had its own.
        for _ in 0..1_000 {
            assert!(between.turn().is_none());
        }
        told.recv().unwrap();
        assert!(EITHER.try_lock().is_err(), "a fork is under way");
        lets.send(()).unwrap();
        forks.join().unwrap();
        assert!(between.turn().is_some());
        // As in a child, which has a copy of all of it.
        prepare();
        child();
        assert_eq!(FORKING.load(Relaxed), 0);
        assert!(between.turn().is_some());
    }
}
