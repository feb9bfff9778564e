//! What may have to wait for a process, by threads of the accounts' own.
//!
//! Whoever has a file in memory can hold the lock of its inode: by punching holes into it, from a thread that others keep
//! from running. A call of the system's that takes that lock waits for as long. So the engine makes none on a file that a
//! process has been handed; a thread does that works for that process's account alone, and what waits there counts for
//! the account.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

use elver_verbs::Time;
use rustc_hash::FxHashMap;

use super::account::Account;
use super::notice::Outlet;

/// Accounts that have a thread at once, but for those whose threads stand.
const THREADS_MAX: usize = 64;
/// All that have one.
const THREADS_MAX_OF_ALL: usize = 1_024;
/// Threads that are looked at at once.
const LOOKS_MAX: usize = 64;
/// A thread stands that has done nothing of what it has for so long.
const STANDS_NS: u64 = 1_000_000_000;
/// A thread that had nothing to do for so long ends.
const IDLE_NS: u64 = 1_000_000_000;

/// What is to be done, and counts until it was, or was given up.
struct Task {
    work: Box<dyn FnOnce(&Outlet) + Send>,
    counted: Counted,
}

/// One of what an account has left.
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(left: &Arc<AtomicU32>) -> Counted {
        left.fetch_add(1, Ordering::Relaxed);
        Counted(left.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many threads there may be.
#[derive(Clone, Copy)]
struct Most {
    /// But for those that stand.
    at_work: usize,
    all: usize,
}

/// What is done aside, by account.
pub(super) struct Asides {
    outlet: Outlet,
    lines: RefCell<Lines>,
}

/// How those threads are that do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Those that have got on with nothing for too long.
    pub(super) standing: u64,
    /// Accounts that wait for one.
    pub(super) waiting: u64,
    /// Times that one had to.
    pub(super) put_off: u64,
}

struct Lines {
    most: Most,
    of: FxHashMap<Account, Line>,
    /// Those that have a thread, as they are looked at in turn.
    threads: VecDeque<Account>,
    /// Of these, those that stand.
    standing: usize,
    /// Those that have no thread and something to do, in turn.
    waiting: VecDeque<Account>,
    /// Times that one had to wait for a thread.
    put_off: u64,
}

/// What is done for an account, one after the other.
#[derive(Default)]
struct Line {
    /// All of it that is not done.
    left: Arc<AtomicU32>,
    thread: Option<Sender<Task>>,
    /// Of an account that has no thread yet.
    waiting: VecDeque<Task>,
    /// When it was last seen to have something to do.
    busy_at: Option<Time>,
    /// What it has done, as its thread counts.
    done: Arc<AtomicU32>,
    /// What that was when it was last seen to change, or to have nothing to do, and when.
    moved: (u32, Time),
    /// It has done nothing of what it has for too long.
    stands: bool,
}

impl Asides {
    /// None yet, whose outcomes are told through the outlet.
    pub(super) fn new(outlet: Outlet) -> Asides {
        Asides::bounded(outlet, Most { at_work: THREADS_MAX, all: THREADS_MAX_OF_ALL })
    }

    fn bounded(outlet: Outlet, most: Most) -> Asides {
        let lines = Lines {
            most,
            of: FxHashMap::default(),
            threads: VecDeque::new(),
            standing: 0,
            waiting: VecDeque::new(),
            put_off: 0,
        };
        Asides { outlet, lines: RefCell::new(lines) }
    }

    /// Has something done, after all else of the account's.
    pub(super) fn run(&self, account: Account, task: impl FnOnce(&Outlet) + Send + 'static) {
        let lines = &mut *self.lines.borrow_mut();
        let line = lines.of.entry(account).or_default();
        let counted = Counted::new(&line.left);
        line.waiting.push_back(Task { work: Box::new(task), counted });
        if line.thread.is_some() {
            line.advance();
        } else if line.waiting.len() == 1 {
            lines.waiting.push_back(account);
            lines.start(&self.outlet);
            lines.put_off += u64::from(lines.waiting.back() == Some(&account));
        }
    }

    /// Looks at some of the threads: ends those that have nothing to do, and gives some to those that wait for one.
    pub(super) fn tend(&self, now: Time) {
        let lines = &mut *self.lines.borrow_mut();
        lines.look(now);
        lines.start(&self.outlet);
    }

    /// How they are.
    pub(super) fn counts(&self) -> Counts {
        let lines = self.lines.borrow();
        Counts {
            standing: lines.standing as u64,
            waiting: lines.waiting.len() as u64,
            put_off: lines.put_off,
        }
    }
}

impl Lines {
    fn look(&mut self, now: Time) {
        for _ in 0..self.threads.len().min(LOOKS_MAX) {
            let Some(account) = self.threads.pop_front() else { return };
            let Some(line) = self.of.get_mut(&account) else { continue };
            let stood = line.stands;
            let stays = line.see(now);
            self.standing = self.standing + usize::from(line.stands) - usize::from(stood);
            if stays {
                self.threads.push_back(account);
            } else {
                self.of.remove(&account);
            }
        }
    }

    /// Starts threads for those that wait for one, as many as there may be.
    fn start(&mut self, outlet: &Outlet) {
        while let Some(&account) = self.waiting.front() {
            if !self.has_room() && !self.gives_way() {
                return;
            }
            let Some(line) = self.of.get_mut(&account) else { return };
            line.thread = start(line.done.clone(), outlet.clone());
            if line.thread.is_none() {
                // The system has none now.
                return;
            }
            line.advance();
            self.threads.extend(self.waiting.pop_front());
        }
    }

    /// Whether there may be one more thread.
    fn has_room(&self) -> bool {
        let all = self.threads.len();
        all - self.standing < self.most.at_work && all < self.most.all
    }

    /// Ends a thread that has nothing to do, if there is one among those that are looked at.
    fn gives_way(&mut self) -> bool {
        for _ in 0..self.threads.len().min(LOOKS_MAX) {
            let Some(account) = self.threads.pop_front() else { return false };
            let is_idle = |line: &Line| line.left.load(Ordering::Relaxed) == 0;
            if self.of.get(&account).is_some_and(is_idle) {
                let line = self.of.remove(&account);
                self.standing -= usize::from(line.is_some_and(|line| line.stands));
                if self.has_room() {
                    return true;
                }
            } else {
                self.threads.push_back(account);
            }
        }
        false
    }
}

impl Line {
    /// Looks whether its thread gets on; false if it had nothing to do for so long that it ends.
    fn see(&mut self, now: Time) -> bool {
        let is_busy = self.left.load(Ordering::Relaxed) > 0;
        let done = self.done.load(Ordering::Relaxed);
        if !is_busy || self.moved.0 != done || self.moved.1 == Time::ZERO {
            self.moved = (done, now);
        }
        self.stands = now.ns_since(self.moved.1) >= STANDS_NS;
        let busy_at = self.busy_at.get_or_insert(now);
        if is_busy {
            *busy_at = now;
        }
        now.ns_since(*busy_at) < IDLE_NS
    }

    /// Hands what waits to the thread.
    fn advance(&mut self) {
        let Some(thread) = &self.thread else { return };
        for task in self.waiting.drain(..) {
            // It takes all that it is sent.
            let _ = thread.send(task);
        }
    }
}

/// Nobody waits for the thread's end: it may stand in a call for longer than the node is there.
fn start(done: Arc<AtomicU32>, outlet: Outlet) -> Option<Sender<Task>> {
    let (tasks, given) = channel::<Task>();
    let work = move || {
        for Task { work, counted } in given {
            // A panic was reported where it happened, and what else the account has is done all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| work(&outlet)));
            done.fetch_add(1, Ordering::Relaxed);
            drop(counted);
        }
    };
    std::thread::Builder::new().name("elver-aside".into()).spawn(work).ok()?;
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::super::notice::channel;
    use super::*;
    use crate::clock::now;

    fn account(uid: u32) -> Account {
        Account { uid, space: 0, is_root: false }
    }

    /// How much of an account's is not done.
    fn left(asides: &Asides, uid: u32) -> u32 {
        let lines = asides.lines.borrow();
        lines.of.get(&account(uid)).map_or(0, |line| line.left.load(Ordering::Relaxed))
    }

    /// Waits until nothing of an account's is left to be done.
    fn done(asides: &Asides, uid: u32) {
        let begun = now();
        while left(asides, uid) > 0 {
            assert!(now().ns_since(begun) < 20_000_000_000, "waited in vain for {uid}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_stands_keeps_its_own_account_waiting_and_so_many_stand_at_once() {
        let (outlet, _inlet) = channel().unwrap();
        let asides = Asides::new(outlet);
        let mut stuck = Vec::new();
        for uid in 0..THREADS_MAX as u32 {
            asides.run(account(9_999), |_| {});
            done(&asides, 9_999);
            let (go, wait) = sync_channel::<()>(0);
            asides.run(account(uid), move |_| assert!(wait.recv().is_err()));
            stuck.push(go);
        }
        // What had nothing to do gave way. Now all stand: what comes next waits, and an account's own in order.
        let (done_first, order) = sync_channel(8);
        let done_last = done_first.clone();
        asides.run(account(7_777), move |_| done_first.send(1).unwrap());
        asides.run(account(0), move |_| done_last.send(2).unwrap());
        asides.tend(Time(1));
        assert_eq!((left(&asides, 7_777), left(&asides, 0)), (1, 2));
        // Nobody gets in before those that wait.
        asides.run(account(8_888), |_| {});
        drop(stuck.pop());
        done(&asides, THREADS_MAX as u32 - 1);
        asides.run(account(8_889), |_| {});
        done(&asides, 7_777);
        assert_eq!((order.try_recv(), left(&asides, 0)), (Ok(1), 2));
        asides.tend(Time(2));
        done(&asides, 8_888);
        asides.tend(Time(3));
        done(&asides, 8_889);
        drop(stuck);
        (0..THREADS_MAX as u32).for_each(|uid| done(&asides, uid));
        assert_eq!(order.try_recv(), Ok(2));
        asides.tend(Time(4));
        asides.tend(Time(4 + IDLE_NS));
        assert!(asides.lines.borrow().of.is_empty());
    }

    /// Sixty-four that stood held up all others for as long as they did.
    #[test]
    fn those_that_stand_leave_threads_to_others_up_to_a_bound() {
        const MOST: Most = Most { at_work: 4, all: 16 };
        let (outlet, _inlet) = channel().unwrap();
        let asides = Asides::bounded(outlet, MOST);
        let mut stuck = Vec::new();
        let mut time = Time(1);
        for uid in 0..MOST.all as u32 {
            let (go, wait) = sync_channel::<()>(0);
            let (here, begun) = sync_channel::<()>(1);
            asides.run(account(uid), move |_| {
                here.send(()).unwrap();
                assert!(wait.recv().is_err());
            });
            begun.recv_timeout(Duration::from_secs(20)).unwrap();
            stuck.push(go);
            if stuck.len() % MOST.at_work == 0 {
                let before = asides.counts().standing;
                asides.tend(time);
                time = time.saturating_add_ns(STANDS_NS);
                assert_eq!(asides.counts().standing, before);
                asides.tend(time);
                assert_eq!(asides.counts().standing, stuck.len() as u64);
            }
        }
        asides.run(account(7_777), |_| {});
        asides.tend(time);
        assert_eq!(left(&asides, 7_777), 1, "these are all");
        let all = MOST.all as u64;
        assert_eq!(asides.counts(), Counts { standing: all, waiting: 1, put_off: 1 });
        stuck.truncate(1);
        (1..MOST.all as u32).for_each(|uid| done(&asides, uid));
        asides.tend(time);
        done(&asides, 7_777);
        assert_eq!(asides.counts(), Counts { standing: 1, waiting: 0, put_off: 1 });
        drop(stuck);
        done(&asides, 0);
    }

    /// All were gone through five thousand times a second, by the engine, and again for each account that came.
    #[test]
    fn so_many_are_looked_at_at_once_and_all_in_turn() {
        const THREADS: usize = 3 * LOOKS_MAX;
        let (outlet, _inlet) = channel().unwrap();
        let asides = Asides::bounded(outlet, Most { at_work: THREADS, all: THREADS });
        let mut stuck = Vec::new();
        for uid in 0..THREADS as u32 {
            let (go, wait) = sync_channel::<()>(0);
            asides.run(account(uid), move |_| assert!(wait.recv().is_err()));
            stuck.push(go);
        }
        let seen = |time| {
            let lines = asides.lines.borrow();
            lines.of.values().filter(|line| line.busy_at == Some(time)).count()
        };
        let times = [1, 2, 3].map(Time);
        times.into_iter().for_each(|time| asides.tend(time));
        assert_eq!(times.map(seen), [LOOKS_MAX; 3]);
        let later = times.map(|time| time.saturating_add_ns(STANDS_NS));
        later.into_iter().for_each(|time| asides.tend(time));
        assert_eq!(asides.counts().standing, THREADS as u64);
        drop(stuck);
        (0..THREADS as u32).for_each(|uid| done(&asides, uid));
        later.into_iter().for_each(|time| asides.tend(time.saturating_add_ns(3)));
        assert_eq!(asides.counts().standing, 0);
        later.into_iter().for_each(|time| asides.tend(time.saturating_add_ns(3 + IDLE_NS)));
        assert!(asides.lines.borrow().of.is_empty());
    }

    #[test]
    fn what_ends_in_a_panic_counts_no_more_and_keeps_nothing_else_from_being_done() {
        let (outlet, _inlet) = channel().unwrap();
        let asides = Asides::new(outlet);
        asides.run(account(1), |_| panic!("as this test wants it"));
        let (told, hears) = sync_channel(1);
        asides.run(account(1), move |_| told.send(()).unwrap());
        hears.recv().unwrap();
        done(&asides, 1);
    }
}
