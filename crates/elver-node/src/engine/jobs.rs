//! What the maker's thread is to do: what is given back comes first, and whole, since it makes room, without which what comes
//! next would be refused; then what was ordered, an account after the other, of each in order, and of what is large some at a
//! turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use elver_soft::SoftMemory;

use super::account::Account;
use super::orders::{Cleared, Job};
use super::pieces::Begun;
use super::quota::Usage;

/// Pieces and files that may wait to be made; of these one account has half of what others leave. What is to be given back
/// always has a place: large memory was made by the thread that gives it back, so that no more of it waits than processes
/// had at once.
const MAKING_MAX: usize = 64;

/// What is done next. Of what is begun, gone on with or given up it is told how that went.
pub(super) enum Work {
    Discard(SoftMemory, Cleared),
    Begin(Job),
    GoOn(Begun),
    GiveUp(Begun),
}

/// What an account has that is being made.
struct Doing {
    /// The session that has ordered it.
    token: u64,
    is_forgotten: bool,
    /// None while it has its turn.
    begun: Option<Begun>,
}

/// What waits, between who orders and who makes.
#[derive(Default)]
pub(super) struct Jobs {
    waiting: Mutex<Waiting>,
    bell: Condvar,
}

#[derive(Default)]
struct Waiting {
    discards: VecDeque<(SoftMemory, Cleared)>,
    of: HashMap<Account, VecDeque<Job>>,
    /// How many these are in all.
    all: usize,
    doing: HashMap<Account, Doing>,
    /// Accounts that have something to be made, in turn; but not the one whose turn it is.
    turns: VecDeque<Account>,
    is_closed: bool,
}

impl Jobs {
    /// Takes one more, if there is room for it.
    pub(super) fn add(&self, job: Job) -> bool {
        let has_room = self.waiting().add(job);
        self.bell.notify_one();
        has_room
    }

    pub(super) fn discard(&self, memory: SoftMemory, cleared: Cleared) {
        self.waiting().discards.push_back((memory, cleared));
        self.bell.notify_one();
    }

    /// Takes all back that a session has ordered and that is not begun; what counts no more by that.
    pub(super) fn forget(&self, token: u64, account: Account) -> Usage {
        self.waiting().forget(token, account)
    }

    /// The next one; waits for it. None once there will be no more.
    pub(super) fn next(&self) -> Option<Work> {
        let mut waiting = self.waiting();
        loop {
            if let Some(work) = waiting.next() {
                return Some(work);
            }
            if waiting.is_closed {
                return None;
            }
            waiting = self.bell.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What was begun, or gone on with, has more turns to come.
    pub(super) fn goes_on(&self, begun: Begun) {
        self.waiting().goes_on(begun);
    }

    /// An account's is made, or is not.
    pub(super) fn ended(&self, account: Account) {
        self.waiting().ended(account);
    }

    /// There will be no more. Nothing is made for nobody; what is to be discarded still is.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        waiting.of.clear();
        waiting.all = 0;
        waiting.turns.clear();
        let doing = std::mem::take(&mut waiting.doing);
        drop(waiting);
        // It takes as long as it is large.
        drop(doing);
        self.bell.notify_one();
    }

    /// How many are to be made of which nothing is there.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting().all
    }

    /// Held for a few instructions at either side.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, job: Job) -> bool {
        let account = job.account();
        let own = self.of.get(&account).map_or(0, VecDeque::len);
        let others = self.all - own;
        if 2 * (own + 1) > MAKING_MAX.saturating_sub(others) {
            return false;
        }
        if own == 0 && !self.doing.contains_key(&account) {
            self.turns.push_back(account);
        }
        self.of.entry(account).or_default().push_back(job);
        self.all += 1;
        true
    }

    fn next(&mut self) -> Option<Work> {
        if let Some((memory, cleared)) = self.discards.pop_front() {
            return Some(Work::Discard(memory, cleared));
        }
        let account = self.turns.pop_front()?;
        if let Some(doing) = self.doing.get_mut(&account) {
            let begun = doing.begun.take()?;
            return Some(if doing.is_forgotten { Work::GiveUp(begun) } else { Work::GoOn(begun) });
        }
        let own = self.of.get_mut(&account)?;
        let job = own.pop_front()?;
        self.all -= 1;
        if own.is_empty() {
            self.of.remove(&account);
        }
        let doing = Doing { token: job.token(), is_forgotten: false, begun: None };
        self.doing.insert(account, doing);
        Some(Work::Begin(job))
    }

    fn goes_on(&mut self, begun: Begun) {
        let account = begun.account();
        // Without an entry there will be no more.
        if let Some(doing) = self.doing.get_mut(&account) {
            doing.begun = Some(begun);
            self.turns.push_back(account);
        }
    }

    fn ended(&mut self, account: Account) {
        self.doing.remove(&account);
        if self.of.contains_key(&account) {
            self.turns.push_back(account);
        }
    }

    fn forget(&mut self, token: u64, account: Account) -> Usage {
        let mut forgotten = Usage::NONE;
        if let Some(doing) = self.doing.get_mut(&account) {
            doing.is_forgotten |= doing.token == token;
        }
        let Some(own) = self.of.get_mut(&account) else { return forgotten };
        let before = own.len();
        own.retain(|job| {
            let stays = job.token() != token;
            if !stays {
                forgotten = forgotten.plus(job.usage());
            }
            stays
        });
        self.all -= before - own.len();
        if own.is_empty() {
            self.of.remove(&account);
            let doing = &self.doing;
            self.turns.retain(|other| *other != account || doing.contains_key(other));
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::super::orders::{Awaiting, SetFile};
    use super::*;

    fn account(uid: u32) -> Account {
        Account { uid, space: 0, is_root: false }
    }

    /// One of so many bytes, by which it is known.
    fn job(uid: u32, token: u64, bytes: u64) -> Job {
        let account = account(uid);
        Job::File(SetFile { set: 0, token, request: 0, account, bytes, held: None })
    }

    /// What is done, until nothing is left: bytes, and 0 for what is given back.
    fn done(waiting: &mut Waiting) -> Vec<u64> {
        let next = || match waiting.next()? {
            Work::Begin(job) => {
                waiting.ended(job.account());
                Some(job.usage().bytes)
            }
            Work::Discard(..) => Some(0),
            Work::GoOn(_) | Work::GiveUp(_) => panic!("none needs another turn"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn what_is_not_begun_when_there_will_be_no_more_is_not_made() {
        let jobs = Jobs::default();
        assert!(jobs.waiting().add(job(1, 0, 1)) && jobs.waiting().add(job(2, 0, 1)));
        jobs.close();
        assert!(jobs.next().is_none() && jobs.len() == 0);
    }

    #[test]
    fn one_account_leaves_places_to_others() {
        let mut waiting = Waiting::default();
        let has =
            |waiting: &mut Waiting, uid| (0..).take_while(|_| waiting.add(job(uid, 0, 1))).count();
        assert_eq!([1, 2, 3].map(|uid| has(&mut waiting, uid)), [32, 16, 8]);
        assert!(!waiting.add(job(1, 0, 1)));
        for _ in 0..48 {
            let Some(Work::Begin(job)) = waiting.next() else { panic!("nothing is begun") };
            waiting.ended(job.account());
        }
        assert!(waiting.add(job(2, 0, 1)) && waiting.add(job(1, 0, 1)));
        assert_eq!(done(&mut waiting).len(), 10);
        assert!(waiting.all == 0 && waiting.of.is_empty() && waiting.turns.is_empty());
    }

    /// What it orders while one of its pieces is made comes behind that, and it has one place among the others.
    #[test]
    fn an_account_whose_turn_it_is_has_one_turn() {
        let mut waiting = Waiting::default();
        assert!(waiting.add(job(1, 7, 11)) && waiting.add(job(2, 0, 21)));
        let Some(Work::Begin(begun)) = waiting.next() else { panic!("nothing is begun") };
        assert!(waiting.add(job(1, 7, 12)) && waiting.add(job(1, 8, 13)));
        assert_eq!(waiting.turns, [account(2)]);
        // Neither does it lose its place while it has something else.
        assert_eq!(waiting.forget(7, account(1)), Usage::file(12));
        waiting.ended(begun.account());
        assert_eq!(waiting.turns, [account(2), account(1)]);
        assert_eq!(done(&mut waiting), [21, 13]);
        assert!(waiting.doing.is_empty() && waiting.of.is_empty() && waiting.turns.is_empty());
    }

    /// They were made in the order in which they came, and memory was given back behind all of them.
    #[test]
    fn accounts_have_their_turns_and_what_is_given_back_comes_first() {
        let mut waiting = Waiting::default();
        for (uid, bytes) in [(1, 11), (1, 12), (1, 13), (2, 21), (3, 31), (2, 22)] {
            assert!(waiting.add(job(uid, 0, bytes)));
        }
        let usage = Usage::NONE;
        let cleared = Cleared { account: account(1), usage, awaited_by: Awaiting::Nobody };
        waiting.discards.push_back((SoftMemory::alloc(1).unwrap(), cleared));
        assert_eq!(done(&mut waiting), [0, 11, 21, 31, 12, 22, 13]);
    }

    /// Gigabytes were made for it all the same, and counted for nobody.
    #[test]
    fn what_a_session_has_ordered_goes_with_it() {
        let mut waiting = Waiting::default();
        for (uid, token, bytes) in [(1, 7, 11), (1, 8, 12), (1, 7, 13), (2, 9, 21)] {
            assert!(waiting.add(job(uid, token, bytes)));
        }
        let both = Usage::file(11).plus(Usage::file(13));
        assert_eq!(waiting.forget(7, account(1)), both);
        assert_eq!(waiting.forget(7, account(1)), Usage::NONE);
        assert_eq!(waiting.forget(9, account(2)), Usage::file(21));
        assert_eq!((waiting.all, waiting.turns.len()), (1, 1));
        assert_eq!(done(&mut waiting), [12]);
    }
}
