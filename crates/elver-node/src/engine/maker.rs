//! Memory for clients. Small pieces are made at once; a large one takes the kernel long to clear, so that a thread of
//! its own makes it, some at a time ([`super::pieces`]), and accounts in turn ([`super::jobs`]). What a process has been handed a thread of its account gives back ([`Asides`]): it can keep whoever
//! does that waiting.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use elver_soft::SoftMemory;
use rustix::fs::{FallocateFlags, fallocate};

use super::account::Account;
use super::asides::Asides;
use super::jobs::{Jobs, Work};
use super::notice::{Notice, Outlet};
use super::orders::{Cleared, Job, Leavings, Made, Order, Piece, SetFile};
use super::pieces::{Begun, Turn};
use super::quota::Usage;
use super::room::Backing;

/// Pieces up to this are made by the engine itself.
const AT_ONCE_BYTES: u64 = 256 * 1024;
/// Counts pieces that lie elsewhere than they were to.
#[derive(Clone, Default)]
struct Unplaced(Arc<AtomicU64>);

impl Unplaced {
    fn look(&self, piece: Piece) -> Piece {
        self.0.fetch_add(u64::from(!piece.is_near), Ordering::Relaxed);
        piece
    }
}

/// Makes memory: small pieces at once, large ones on its thread.
pub(super) struct Maker {
    pub(super) jobs: Arc<Jobs>,
    unplaced: Unplaced,
    thread: Option<JoinHandle<()>>,
    /// What may have to wait for processes.
    pub(super) asides: Asides,
}

impl Maker {
    pub(super) fn start(outlet: Outlet) -> io::Result<Maker> {
        let jobs = Arc::<Jobs>::default();
        let given = jobs.clone();
        let unplaced = Unplaced::default();
        let seen = unplaced.clone();
        let asides = Asides::new(outlet.clone());
        let thread = std::thread::Builder::new()
            .name("elver-memory".into())
            .spawn(move || work(&given, &seen, &outlet))?;
        Ok(Maker { jobs, unplaced, thread: Some(thread), asides })
    }

    /// Pieces that lie anywhere, since the system did not take the wish that they lie at a NUMA node.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced.0.load(Ordering::Relaxed)
    }

    /// Makes what was ordered, at once or later: then [`Notice::Made`] brings it.
    pub(super) fn make(&self, order: Order) -> io::Result<Option<Piece>> {
        if order.len <= AT_ONCE_BYTES && !order.huge {
            return Piece::make(&order).map(|piece| Some(self.unplaced.look(piece)));
        }
        self.order(Job::Make(order))?;
        Ok(None)
    }

    /// Makes a file later: then [`Notice::Filed`] brings it.
    pub(super) fn make_file(&self, file: SetFile) -> io::Result<()> {
        self.order(Job::File(file))
    }

    /// Gives all of a set's file back to the system, though processes may still map it, and tells.
    pub(super) fn empty(&self, file: Backing, bytes: u64, cleared: Cleared) {
        self.asides.run(cleared.account, move |outlet| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // What the system does not take now it has when the last has closed the file.
            let _ = fallocate(&file, hole, 0, bytes);
            drop(file);
            // Without an engine nobody waits for it.
            let _ = outlet.send(Notice::Cleared(cleared));
        });
    }

    /// Unmaps what processes share, which may have to wait for them, and tells.
    pub(super) fn unmap(&self, mapped: impl Send + 'static, cleared: Cleared) {
        self.asides.run(cleared.account, move |outlet| {
            drop(mapped);
            let _ = outlet.send(Notice::Cleared(cleared));
        });
    }

    /// Gives what a process was handed back to the system, though it may still map it, and tells.
    pub(super) fn clear(&self, leavings: Leavings, cleared: Cleared) {
        self.asides.run(cleared.account, move |outlet| {
            leavings.clear();
            let _ = outlet.send(Notice::Cleared(cleared));
        });
    }

    /// Has the thread make something, unless too much waits already.
    fn order(&self, job: Job) -> io::Result<()> {
        if !self.jobs.add(job) {
            let busy = "too many large pieces of memory are being made; try again";
            return Err(io::Error::other(busy));
        }
        Ok(())
    }

    /// A session has ended, or said goodbye: what it has ordered is not made any more. What is being made comes all the same,
    /// and counts until then.
    pub(super) fn forget(&self, token: u64, account: Account) -> Usage {
        self.jobs.forget(token, account)
    }

    /// Gives memory back to the system that no process was handed: whether at once. Otherwise it is told of, and counts until
    /// then.
    pub(super) fn give_back(&self, memory: SoftMemory, bytes: u64, cleared: Cleared) -> bool {
        let at_once = bytes <= AT_ONCE_BYTES;
        if at_once {
            memory.discard();
        } else {
            self.jobs.discard(memory, cleared);
        }
        at_once
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.jobs.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Jobs, unplaced: &Unplaced, outlet: &Outlet) {
    while let Some(work) = jobs.next() {
        if let Some(notice) = turn(work, jobs, unplaced) {
            // Without an engine nobody waits for it.
            let _ = outlet.send(notice);
        }
    }
}

/// Does what is to be done next; what the engine is told of it.
fn turn(work: Work, jobs: &Jobs, unplaced: &Unplaced) -> Option<Notice> {
    let (account, turn) = match work {
        Work::Discard(memory, cleared) => {
            memory.discard();
            drop(memory);
            return Some(Notice::Cleared(cleared));
        }
        Work::Begin(job) => (job.account(), Begun::begin(job)),
        Work::GoOn(begun) => (begun.account(), begun.go_on()),
        Work::GiveUp(begun) => (begun.account(), Turn::Last(begun.give_up())),
    };
    let notice = match turn {
        Turn::Next(begun) => {
            jobs.goes_on(begun);
            return None;
        }
        Turn::Last(notice) => notice,
    };
    jobs.ended(account);
    Some(match notice {
        Notice::Made(Made { order, result }) => {
            let result = result.map(|piece| unplaced.look(piece));
            Notice::Made(Made { order, result })
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use elver_portal::numa;
    use elver_verbs::AccessFlags;

    use super::super::orders::{Awaiting, Filed, PAGE};
    use super::super::pieces::TURN_BYTES;
    use super::*;

    const USER: Account = Account { uid: 1, space: 0, is_root: false };

    fn cleared() -> Cleared {
        Cleared { account: USER, usage: Usage::NONE, awaited_by: Awaiting::Nobody }
    }

    fn order(account: Account, len: u64) -> Order {
        let (slot, serial, request, addr) = (0, 0, 0, 0);
        let (access, huge, near, held) = (AccessFlags::empty(), false, None, None);
        Order { slot, serial, request, account, len, addr, access, huge, near, held }
    }

    /// It waited until gigabytes were made for another.
    #[test]
    fn who_wants_little_does_not_wait_for_who_wants_much() {
        const LARGE: u64 = 4 * TURN_BYTES;
        let (jobs, unplaced) = (Jobs::default(), Unplaced::default());
        let other = Account { uid: 2, ..USER };
        for (account, len) in [(USER, LARGE), (USER, LARGE + 1), (other, LARGE / 2)] {
            assert!(jobs.add(Job::Make(order(account, len))));
        }
        let mut made = Vec::new();
        let mut turns = 0;
        while made.len() < 3 {
            turns += 1;
            match turn(jobs.next().unwrap(), &jobs, &unplaced) {
                Some(Notice::Made(Made { order, result })) => {
                    assert_eq!(elver_verbs::Memory::size(&result.unwrap().memory), order.len);
                    made.push((turns, order.account.uid, order.len));
                }
                Some(_) => panic!("nothing else was ordered"),
                None => {}
            }
        }
        // Two turns each; then the first has all the others.
        assert_eq!(made, [(4, 2, LARGE / 2), (6, 1, LARGE), (11, 1, LARGE + 1)]);
    }

    /// All of it was made, for nobody.
    #[test]
    fn what_is_being_made_is_given_up_when_its_session_goes() {
        let (jobs, unplaced) = (Jobs::default(), Unplaced::default());
        let file = SetFile {
            set: 0,
            token: 0,
            request: 7,
            account: USER,
            bytes: 4 * TURN_BYTES,
            held: None,
        };
        for job in [Job::Make(order(USER, 4 * TURN_BYTES)), Job::File(file)] {
            assert!(jobs.add(job));
            assert!(turn(jobs.next().unwrap(), &jobs, &unplaced).is_none());
            assert_eq!(jobs.forget(1, USER), Usage::NONE);
            assert!(turn(jobs.next().unwrap(), &jobs, &unplaced).is_none(), "another's");
            assert_eq!(jobs.forget(0, USER), Usage::NONE);
            // It counts until it has gone, of which the engine hears so.
            let failed = match turn(jobs.next().unwrap(), &jobs, &unplaced) {
                Some(Notice::Made(Made { result, .. })) => result.is_err(),
                Some(Notice::Filed(Filed { result, .. })) => result.is_err(),
                _ => false,
            };
            assert!(failed);
        }
        jobs.close();
        assert!(jobs.next().is_none());
    }

    /// When many waited, the engine gave the next back itself, gigabytes of it.
    #[test]
    fn what_is_given_back_waits_for_the_thread_however_much_it_is() {
        const BYTES: u64 = AT_ONCE_BYTES + PAGE;
        let (outlet, inlet) = super::super::notice::channel().unwrap();
        let maker = Maker::start(outlet.clone()).unwrap();
        // The thread has something to tell, and nobody hears it.
        while outlet.try_send(Notice::Remove { gid: elver_verbs::Gid([0; 16]) }) {}
        assert!(maker.make(order(USER, BYTES)).unwrap().is_none());
        while maker.jobs.len() > 0 {
            std::thread::yield_now();
        }
        let mut files = Vec::new();
        for _ in 0..128 {
            let Piece { file, memory, bytes, .. } = Piece::make(&order(USER, BYTES)).unwrap();
            assert!(!maker.give_back(memory, bytes, cleared()));
            files.push(file);
        }
        let blocks = |file| rustix::fs::fstat(file).unwrap().st_blocks;
        assert!(files.iter().all(|file| blocks(file) > 0));
        drop(inlet);
        drop(maker);
        assert!(files.iter().all(|file| blocks(file) == 0));
    }

    #[test]
    fn memory_that_was_given_back_takes_no_pages_though_its_file_is_open() {
        let (outlet, inlet) = super::super::notice::channel().unwrap();
        let maker = Maker::start(outlet).unwrap();
        let mut files = Vec::new();
        for len in [1, 5_000, 65_537, AT_ONCE_BYTES] {
            let order = order(USER, len);
            let Piece { file, memory, bytes, .. } = maker.make(order).unwrap().unwrap();
            assert!(bytes <= order.bytes() && elver_verbs::Memory::size(&memory) == len);
            assert!(maker.give_back(memory, bytes, cleared()));
            files.push(file);
        }
        let Piece { file, memory, bytes, .. } = Piece::make(&order(USER, 1 << 20)).unwrap();
        assert!(!maker.give_back(memory, bytes, cleared()));
        files.push(file);
        drop(inlet);
        // Its thread has done what it was asked.
        drop(maker);
        for file in files {
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        }
    }

    /// A node that the system does not know, as one is to a daemon whose set of nodes has others, or that may not say.
    #[test]
    fn memory_that_may_not_lie_where_it_is_to_is_made_and_counted() {
        let (outlet, mut inlet) = super::super::notice::channel().unwrap();
        let maker = Maker::start(outlet).unwrap();
        let mut order = order(USER, PAGE);
        assert!(maker.make(order).unwrap().unwrap().is_near);
        assert_eq!(maker.unplaced(), 0);
        order.near = Some(numa::NODES_MAX - 1);
        assert!(!maker.make(order).unwrap().unwrap().is_near);
        assert_eq!(maker.unplaced(), 1);
        // By its thread.
        order.len = AT_ONCE_BYTES + 1;
        assert!(maker.make(order).unwrap().is_none());
        let unplaced = maker.unplaced.clone();
        let limit = elver_soft::now().saturating_add_ns(60_000_000_000);
        let notice = loop {
            match inlet.next() {
                Some(notice) => break notice,
                None => assert!(elver_soft::now() < limit, "no memory"),
            }
            std::thread::yield_now();
        };
        drop(maker);
        let Notice::Made(Made { result, .. }) = notice else { panic!("no memory") };
        assert!(!result.unwrap().is_near);
        assert_eq!(unplaced.0.load(Ordering::Relaxed), 2);
    }
}
