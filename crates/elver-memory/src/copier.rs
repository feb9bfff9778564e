//! Copies that may never end, made by a thread that may be left behind.
//!
//! What a process maps is its own affair: a page of it may lie in a file system that the process
//! serves itself (FUSE), or be one whose faults it answers (userfaultfd), and whoever touches the page
//! waits for as long as the process likes. It may put such a page where there was another at any
//! time, so that no check beforehand helps.
//!
//! So each account has a thread of its own that copies for it, one after the other, and whoever asked
//! does something else meanwhile ([`Copier::submit`]); what can only be waited for ([`Copier::run`]) is
//! not waited for without end. An account has so much time in which its pages may keep others waiting,
//! who share a queue pair with it, and gets little more a second. Beyond it nothing is copied for it,
//! for longer each time, nor while a thread of its is left behind, so that what that one may still
//! write comes before what is written later. Only waiting counts: a thread that runs, or would if it
//! had a core, is at work.
#![allow(
    clippy::disallowed_types,
    reason = "how long copies are waited for, while the machine runs"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an account's pages may keep others waiting, in all, before nothing is copied for it.
const BUDGET: Duration = Copier::PATIENCE;
/// What it gets back of that: a part of the time that passes.
const BUDGET_PART: u32 = 50;
/// What is left of it must be as much, or a copy is not begun.
const BUDGET_MIN: Duration = Duration::from_millis(1);
/// For so long nothing is copied for an account that used it up, the first time; then for twice as
/// long each time.
const BAN_FIRST: Duration = Duration::from_secs(1);
const BAN_MAX: Duration = Duration::from_secs(600);
/// After so long in peace it is the first time again.
const FORGIVEN: Duration = Duration::from_secs(600);
/// The longest that a copy may take without having to wait for a page, on a machine that has too much
/// to do.
const RUN_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at a copy that takes long ([`Copier::overdue`]).
pub const LOOK: Duration = Duration::from_millis(5);
/// Threads that were left behind, at once; an account has one at most.
const LEFT_MAX: usize = 256;
/// Threads that copy or wait for work, at once.
const WORKERS_MAX: usize = 64;
/// Copies that wait for an account's thread.
const JOBS_MAX: u32 = 8_192;
/// A copier's stack.
const STACK_BYTES: usize = 64 << 10;
/// Accounts of which something is remembered; those in peace give way.
const ACCOUNTS_MAX: usize = 4_096;

/// What is copied, by a thread; whether it went well.
type Job = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;
/// Whom it is told to when it has ended.
type Tell = Box<dyn FnOnce(Ended) + Send>;

/// A copy that has ended, for [`Copier::end`].
#[derive(Debug)]
pub struct Ended {
    /// The bytes, if it went well.
    pub bytes: Option<Vec<u8>>,
    account: u64,
    /// It had to wait, for so long.
    waited: Option<Duration>,
}

/// Copies for processes that may not let a copy end.
///
/// A copy by it costs two changes of threads, some 10 µs. One that took too long and was given up
/// may still reach the memory of its process.
pub struct Copier {
    state: Mutex<State>,
    budget: Duration,
    /// Copies that had to wait for a page.
    waited: AtomicU64,
    /// Copies that were given up.
    given_up: AtomicU64,
    /// Times that an account had used up its time.
    bans: AtomicU64,
    /// Copies that were not begun for that.
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<u64, Worker>,
    accounts: BTreeMap<u64, Account>,
    left: Vec<Arc<Thread>>,
}

/// An account that has kept others waiting.
struct Account {
    budget: Duration,
    seen: Instant,
    banned_until: Option<Instant>,
    ban: Duration,
    /// The thread that it keeps still.
    held: Option<Arc<Thread>>,
}

struct Worker {
    jobs: Sender<(Job, Tell)>,
    thread: Arc<Thread>,
}

pub(crate) struct Thread {
    id: AtomicI32,
    ended: AtomicBool,
    /// What is left to do is not done.
    left: AtomicBool,
    /// Jobs that have not ended.
    open: AtomicU32,
    /// When the job began that it does, in nanoseconds since it was made, and one more; 0 is none.
    since: AtomicU64,
    made: Instant,
}

/// What became of accounts' copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopierCounters {
    /// Copies that had to wait for a page.
    pub waited: u64,
    /// Copies that were given up.
    pub given_up: u64,
    /// Times that an account had used up its time.
    pub bans: u64,
    /// Copies that were not begun for that.
    pub refused: u64,
}

impl Default for Copier {
    fn default() -> Copier {
        Copier::new(BUDGET)
    }
}

impl Copier {
    /// For how long an account's pages may keep others waiting, unless somebody says otherwise.
    pub const PATIENCE: Duration = Duration::from_millis(100);

    /// One that lets each account's pages keep others waiting for so long.
    pub fn new(budget: Duration) -> Copier {
        Copier {
            state: Mutex::default(),
            budget,
            waited: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            bans: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether an account has used up its time, so that nothing is copied for it now.
    pub fn refuses(&self, account: u64) -> bool {
        self.state().refuses(account, self.budget, Instant::now())
    }

    /// What became of all copies.
    pub fn counters(&self) -> CopierCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopierCounters {
            waited: get(&self.waited),
            given_up: get(&self.given_up),
            bans: get(&self.bans),
            refused: get(&self.refused),
        }
    }

    /// Does a job for an account and waits for it; none if it fails or is waited for too long.
    pub(super) fn run(
        &self,
        account: u64,
        job: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Vec<u8>> {
        let (tell, told) = sync_channel(1);
        let tell = Box::new(move |ended| drop(tell.send(ended)));
        let begun = Instant::now();
        let thread = self.submit(account, Box::new(job), tell)?;
        let most = self.state().accounts.get(&account).map_or(self.budget, |one| one.budget);
        match thread.wait(&told, begun, most) {
            Some(ended) => {
                self.end(&ended);
                ended.bytes
            }
            None => {
                self.give_up(account);
                None
            }
        }
    }

    /// Has a job done for an account, and `tell` called on the thread that did it, to be given to
    /// [`Copier::end`]. None if nothing is done for the account now. If it is given up before it has
    /// ended ([`Copier::overdue`]), nothing is told, or something that comes too late.
    pub(crate) fn submit(&self, account: u64, job: Job, tell: Tell) -> Option<Arc<Thread>> {
        let mut state = self.state();
        if state.refuses(account, self.budget, Instant::now()) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if !state.workers.contains_key(&account) {
            let Some(worker) = state.start(account) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            state.workers.insert(account, worker);
        }
        let worker = state.workers.get(&account)?;
        let thread = worker.thread.clone();
        if thread.open.fetch_add(1, Ordering::Relaxed) >= JOBS_MAX {
            thread.open.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        worker.jobs.send((job, tell)).ok()?;
        Some(thread)
    }

    /// Takes note of a copy that has ended, and charges its account with what it waited.
    pub fn end(&self, ended: &Ended) {
        if let Some(waited) = ended.waited {
            self.waited.fetch_add(1, Ordering::Relaxed);
            self.charge(&mut self.state(), ended.account, waited, None);
        }
    }

    /// Whether an account's thread waits for a page for longer than it may; then it is given up, with
    /// all that it was to do.
    pub fn overdue(&self, account: u64) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let Some(worker) = state.workers.get(&account) else { return true };
        let Some(waited) = worker.thread.busy_for(now) else { return false };
        let most = match state.accounts.get_mut(&account) {
            Some(one) => one.budget,
            None => self.budget,
        };
        let worker = &state.workers[&account];
        if waited < most || (waited < RUN_MAX.max(most) && worker.thread.would_run()) {
            return false;
        }
        drop(state);
        self.give_up(account);
        true
    }

    /// Leaves an account's thread behind: it ends with its job, if ever.
    fn give_up(&self, account: u64) {
        let mut state = self.state();
        let Some(Worker { thread, .. }) = state.workers.remove(&account) else { return };
        self.given_up.fetch_add(1, Ordering::Relaxed);
        thread.left.store(true, Ordering::Release);
        state.left.push(thread.clone());
        let waited = thread.busy_for(Instant::now()).unwrap_or_default();
        self.charge(&mut state, account, waited, Some(thread));
    }

    fn charge(&self, state: &mut State, account: u64, waited: Duration, held: Option<Arc<Thread>>) {
        if state.charge(account, waited, held, self.budget, Instant::now()) {
            self.bans.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refuses(&mut self, account: u64, budget: Duration, now: Instant) -> bool {
        let Some(one) = self.accounts.get_mut(&account) else { return false };
        if one.held.as_ref().is_some_and(|thread| !thread.ended.load(Ordering::Acquire)) {
            return true;
        }
        one.held = None;
        one.recover(budget, now);
        one.banned_until.is_some_and(|until| now < until)
    }

    /// Takes from an account what others waited for it; whether it has nothing left.
    fn charge(
        &mut self,
        account: u64,
        waited: Duration,
        held: Option<Arc<Thread>>,
        budget: Duration,
        now: Instant,
    ) -> bool {
        if self.accounts.len() >= ACCOUNTS_MAX {
            self.accounts.retain(|_, one| !one.is_at_peace(budget, now));
        }
        let one = self.accounts.entry(account).or_insert_with(|| Account {
            budget,
            seen: now,
            banned_until: None,
            ban: BAN_FIRST,
            held: None,
        });
        one.recover(budget, now);
        one.budget = one.budget.saturating_sub(waited);
        let is_held = held.is_some();
        // A look that ended before, and is told of later, says nothing of a thread that still writes.
        if is_held {
            one.held = held;
        }
        if one.budget >= BUDGET_MIN && !is_held {
            return false;
        }
        // What was begun before it was kept out ends meanwhile: it went on with nothing.
        if one.banned_until.is_some_and(|until| now < until) {
            return false;
        }
        one.banned_until = Some(now + one.ban);
        one.ban = (one.ban * 2).min(BAN_MAX);
        true
    }

    fn start(&mut self, account: u64) -> Option<Worker> {
        self.left.retain(|thread| !thread.ended.load(Ordering::Acquire));
        if self.left.len() >= LEFT_MAX {
            return None;
        }
        if self.workers.len() >= WORKERS_MAX {
            let idle = |(account, worker): (&u64, &Worker)| {
                (worker.thread.open.load(Ordering::Acquire) == 0).then_some(*account)
            };
            let idle = self.workers.iter().find_map(idle)?;
            self.workers.remove(&idle);
        }
        let (jobs, inbox) = channel::<(Job, Tell)>();
        let thread = Arc::new(Thread {
            id: AtomicI32::new(0),
            ended: AtomicBool::new(false),
            left: AtomicBool::new(false),
            open: AtomicU32::new(0),
            since: AtomicU64::new(0),
            made: Instant::now(),
        });
        let its = thread.clone();
        let body = move || {
            its.id.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
            while let Ok((job, tell)) = inbox.recv() {
                if its.left.load(Ordering::Acquire) {
                    break;
                }
                let (begun, before) = (Instant::now(), waits());
                its.since.store((begun - its.made).as_nanos() as u64 + 1, Ordering::Release);
                let bytes = job();
                its.since.store(0, Ordering::Release);
                let waited = (waits() != before).then(|| begun.elapsed());
                tell(Ended { bytes, account, waited });
                its.open.fetch_sub(1, Ordering::Release);
            }
            its.ended.store(true, Ordering::Release);
        };
        let builder = std::thread::Builder::new().name("elver-copier".into());
        builder.stack_size(STACK_BYTES).spawn(body).ok()?;
        Some(Worker { jobs, thread })
    }
}

impl Account {
    fn recover(&mut self, budget: Duration, now: Instant) {
        self.budget = (self.budget + now.duration_since(self.seen) / BUDGET_PART).min(budget);
        self.seen = now;
        if self.banned_until.is_some_and(|until| now >= until + FORGIVEN) {
            (self.banned_until, self.ban) = (None, BAN_FIRST);
        }
    }

    fn is_at_peace(&mut self, budget: Duration, now: Instant) -> bool {
        self.recover(budget, now);
        self.held.is_none() && self.banned_until.is_none() && self.budget >= budget
    }
}

impl Thread {
    /// Waits for a job: for as long as `most` if it waits for something itself, and longer while it
    /// would run.
    fn wait(&self, told: &Receiver<Ended>, begun: Instant, most: Duration) -> Option<Ended> {
        let mut patience = most;
        loop {
            match told.recv_timeout(patience) {
                Ok(ended) => return Some(ended),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if begun.elapsed() >= RUN_MAX.max(most) || !self.would_run() {
                return told.try_recv().ok();
            }
            patience = LOOK;
        }
    }

    /// How long it has been at its job, if it has one.
    fn busy_for(&self, now: Instant) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire).checked_sub(1)?;
        Some(now.saturating_duration_since(self.made + Duration::from_nanos(since)))
    }

    /// Whether it runs or waits for nothing but a core.
    fn would_run(&self) -> bool {
        let id = self.id.load(Ordering::Acquire);
        if id == 0 {
            // It has not begun.
            return true;
        }
        let text = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        // Behind the name, which may have any characters.
        text.is_ok_and(|text| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')))
    }
}

/// Times that this thread has waited for something.
fn waits() -> i64 {
    // SAFETY: all zeros are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is ours, and valid for what the kernel writes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_end_holds_nobody_up_but_its_user() {
        let copier = Copier::new(Duration::from_millis(2));
        let (go_on, stuck) = sync_channel::<()>(0);
        assert_eq!(copier.run(1, move || stuck.recv().ok().map(|()| vec![1])), None);
        assert!(copier.refuses(1) && !copier.refuses(2));
        assert_eq!(copier.run(1, || unreachable!("it has no time left")), None);
        // Another thread serves the others.
        assert_eq!(copier.run(2, || None), None);
        assert_eq!(copier.run(2, || Some(vec![2])), Some(vec![2]));
        // A thread's first allocation may wait for the process's other threads: that is no page either.
        let CopierCounters { given_up, bans, refused, .. } = copier.counters();
        assert_eq!((given_up, bans, refused), (1, 1, 1));
        drop(go_on);
    }

    /// Pages that answered in 240 ms were waited for again and again.
    #[test]
    fn copies_that_end_just_in_time_use_up_the_time_all_the_same() {
        let copier = Copier::new(Duration::from_secs(1_000));
        for _ in 0..3 {
            let (answer, page) = sync_channel::<()>(0);
            std::thread::spawn(move || answer.send(()));
            let nap = Duration::from_micros(1);
            let slow = move || page.recv().ok().map(|()| std::thread::sleep(nap)).map(|()| vec![1]);
            assert_eq!(copier.run(1, slow), Some(vec![1]));
        }
        assert_eq!(copier.counters().waited, 3);
        // One that is at work waits for nothing, and is not charged.
        copier.run(1, || (0..100_000).max().map(|_| vec![1]));
        assert_eq!(copier.counters().waited, 3);
    }

    #[test]
    fn whoever_goes_on_is_kept_out_for_longer_each_time_and_forgiven_in_the_end() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut state = State::default();
        let charge = |state: &mut State, now| state.charge(1, ms(60), None, BUDGET, now);
        assert!(!charge(&mut state, start) && !state.refuses(1, BUDGET, start));
        assert!(charge(&mut state, start) && state.refuses(1, BUDGET, start));
        assert!(!state.refuses(2, BUDGET, start));
        let mut now = start;
        let mut waited = ms(120);
        for ban in [1, 2, 4, 8, 16, 32].map(Duration::from_secs) {
            assert!(state.refuses(1, BUDGET, now + ban - ms(1)));
            now += ban;
            assert!(!state.refuses(1, BUDGET, now));
            // All it got back, and a little more.
            while !charge(&mut state, now) {
                waited += ms(60);
            }
            waited += ms(60);
        }
        // Others waited for a small part of the time.
        assert!(waited < BUDGET * 2 + ms(120) * 6, "{waited:?}");
        assert!(waited < (now - start) / 40 + BUDGET + ms(600), "{waited:?} of {:?}", now - start);
        now += Duration::from_secs(64) + FORGIVEN;
        assert!(!state.refuses(1, BUDGET, now));
        assert!(state.accounts.get_mut(&1).unwrap().is_at_peace(BUDGET, now));
        charge(&mut state, now);
        assert!(charge(&mut state, now) && !state.refuses(1, BUDGET, now + BAN_FIRST));
    }

    /// Each of the copies that an account had begun before it was kept out doubled the time when it ended.
    #[test]
    fn what_was_begun_before_keeps_nobody_out_for_longer() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut state = State::default();
        assert!(state.charge(1, BUDGET, None, BUDGET, start));
        for ended in 1..=20 {
            assert!(!state.charge(1, ms(5), None, BUDGET, start + ms(ended)), "{ended}");
        }
        let again = start + BAN_FIRST;
        assert!(state.refuses(1, BUDGET, again - ms(1)) && !state.refuses(1, BUDGET, again));
        assert!(state.charge(1, BUDGET, None, BUDGET, again));
        assert!(!state.refuses(1, BUDGET, again + BAN_FIRST * 2));
    }

    #[test]
    fn an_account_holds_one_thread_and_all_together_so_many() {
        let copier = Copier::new(Duration::ZERO);
        let stuck: Vec<_> = (0..LEFT_MAX as u64 + 3)
            .map(|account| {
                let (go_on, stuck) = sync_channel::<()>(0);
                assert_eq!(copier.run(account, move || stuck.recv().ok().map(|()| vec![1])), None);
                assert_eq!(copier.run(account, || unreachable!("one thread is held")), None);
                go_on
            })
            .collect();
        assert_eq!(copier.state().left.len(), LEFT_MAX);
        drop(stuck);
    }

    #[test]
    fn so_many_accounts_are_copied_for_at_once_and_so_much_for_each() {
        let copier = Copier::new(Duration::from_secs(1_000));
        let (told, ended) = channel();
        // Has a job done that lasts until what comes with it is let go.
        let begin = |account| {
            let (go_on, page) = channel::<()>();
            let told = told.clone();
            let job = Box::new(move || page.recv().ok().map(|()| Vec::new()));
            let tell = Box::new(move |_: Ended| told.send(account).unwrap_or(()));
            copier.submit(account, job, tell).map(|thread| (thread, go_on))
        };
        let mut busy: Vec<_> = (0..WORKERS_MAX as u64).map(begin).collect();
        assert!(busy.iter().all(Option::is_some));
        assert!(begin(1_000).is_none() && copier.counters().refused == 1);
        // One that has nothing to do gives way.
        let (thread, go_on) = busy.pop().flatten().unwrap();
        drop(go_on);
        assert_eq!(ended.recv(), Ok(WORKERS_MAX as u64 - 1));
        while thread.open.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let mut waiting = vec![begin(1_000).unwrap()];
        waiting.extend((1..JOBS_MAX).map(|_| begin(1_000).unwrap()));
        assert!(begin(1_000).is_none() && copier.counters().refused == 2);
    }
}
