//! What a lender and its children share: a mapping that is made before the first fork, with a slot for each queue pair.
//!
//! Children of one process trust each other as far as this table goes: each of them can write all of it. Which child has a
//! queue pair, and that it is drained, the lender keeps in its own memory ([`super::registry`], [`super::owner`]), and gives
//! none away by what stands here alone.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::{Duration, Instant};

use super::bell::Bell;

/// Most queue pairs of a process that are lent.
pub(crate) const LENT_MAX: usize = 1024;

/// For how long a child looks before it sleeps: who answers takes a few microseconds where it is awake.
const SPIN: Duration = Duration::from_micros(50);
/// For how long it sleeps before it looks whether its parent is still there.
const NAP_NS: i64 = 100_000_000;

/// How a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// It is not lent.
    Not = 0,
    /// A child may take it.
    Free = 1,
    /// A child has it.
    Taken = 2,
    /// Its child has ended, and it is being drained.
    Returning = 3,
    /// It is drained, and in the state RESET.
    Reset = 4,
    /// It could not be drained.
    Broken = 5,
}

/// The bits of a state's word that are the state; above them stands the generation, and above that the process.
const STATES: u32 = 7;
const GENERATION: u32 = STATES.count_ones();
const PROCESS: u32 = 32;

/// A state's word. A generation's highest bits have no room: 2^29 lendings later one is taken for another.
fn word(state: State, generation: u32, pid: u32) -> u64 {
    u64::from(state as u32 | generation << GENERATION) | u64::from(pid) << PROCESS
}

impl State {
    fn of(word: u64) -> State {
        match word as u32 & STATES {
            1 => State::Free,
            2 => State::Taken,
            3 => State::Returning,
            4 => State::Reset,
            5 => State::Broken,
            _ => State::Not,
        }
    }
}

/// A queue pair. One writer a word, but for the state.
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// [`State`], which of the slot's queue pairs it is of, and the number of the process that has that.
    state: AtomicU64,
    /// What tells the process that has it from an earlier one of the same number, which ended before the owner knew of it.
    taker: AtomicU64,
    /// Times that children gave it back. The owner's.
    pub(crate) returned: AtomicU32,
    /// The process whose end the owner waits for; 0 for none. The owner's.
    pub(crate) watched: AtomicU32,
    /// Requests of the child's.
    asked: AtomicU32,
    /// Those that the owner has done, and what came of the last, as errno says.
    answered: AtomicU32,
    result: AtomicU32,
    /// Posts that the child has begun, and those that it has been told of.
    pub(crate) begun: AtomicU32,
    pub(crate) ended: AtomicU32,
    /// Whether it posted receives.
    pub(crate) receives: AtomicU32,
}

#[repr(C, align(128))]
struct Head {
    /// Whether the owner sleeps, and is to be woken.
    asleep: AtomicU32,
    /// The number of the owner's thread; 0 before it runs.
    owner: AtomicU32,
    /// Slots with requests, a bit each.
    wanted: [AtomicU64; LENT_MAX / 64],
}

/// The mapping. It stays until the process ends: children that outlive a lending still look at it.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    head: &'static Head,
    slots: &'static [Slot],
    /// The owner waits at it.
    bell: Bell,
}

impl Table {
    /// A table without lent queue pairs.
    pub(crate) fn new() -> io::Result<Table> {
        let bytes = size_of::<Head>() + LENT_MAX * size_of::<Slot>();
        let (read_write, shared) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the kernel has room.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, read_write, shared, -1, 0) };
        let at = NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED);
        let at = at.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the mapping is that long, aligned to a page, zeroed, never unmapped, and only of atomic words, whose
        // every value is one.
        let (head, slots) = unsafe {
            let slots = at.byte_add(size_of::<Head>()).cast::<Slot>();
            (at.cast::<Head>().as_ref(), std::slice::from_raw_parts(slots.as_ptr(), LENT_MAX))
        };
        Ok(Table { head, slots, bell: Bell::new()? })
    }

    pub(crate) fn slot(&self, at: usize) -> &'static Slot {
        &self.slots[at]
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell
    }

    /// The calling thread is the owner.
    pub(crate) fn set_owner(&self) {
        // SAFETY: the call has no memory to do with.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        self.head.owner.store(thread as u32, Release);
    }

    /// Whether a process has an owner. One that has executed another program has its number still, but not this thread.
    pub(crate) fn has_owner(&self, pid: u32) -> bool {
        let thread = self.head.owner.load(Acquire);
        // SAFETY: signal 0 is none: the kernel only looks for the thread.
        let found = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, 0) };
        thread == 0 || found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }

    /// Asks the owner for something, and waits for it: `gone` says whether nobody will ever answer.
    ///
    /// # Errors
    /// What the owner's call came to, ENODEV if it is gone, or EBADF if this process has closed the bell.
    pub(crate) fn ask(&self, at: usize, gone: impl Fn() -> bool) -> Result<(), i32> {
        let slot = self.slot(at);
        let number = slot.asked.fetch_add(1, Release).wrapping_add(1);
        self.call(at)?;
        let begun = Instant::now();
        loop {
            let answered = slot.answered.load(Acquire);
            if answered.wrapping_sub(number) as i32 >= 0 {
                return match slot.result.load(Relaxed) {
                    0 => Ok(()),
                    error => Err(error as i32),
                };
            }
            if begun.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            sleep(&slot.answered, answered);
            if gone() {
                return Err(libc::ENODEV);
            }
            // What was rung before may have been another file, if a thread closed the bell just then.
            self.call(at)?;
        }
    }

    /// Has the owner look at a slot.
    fn call(&self, at: usize) -> Result<(), i32> {
        self.head.wanted[at / 64].fetch_or(1 << (at % 64), Release);
        fence(SeqCst);
        match self.head.asleep.load(Relaxed) {
            0 => Ok(()),
            _ => self.bell.ring(),
        }
    }

    /// How a queue pair is, and who has it. A child that was killed when it had taken the queue pair, and had not said so
    /// yet, the owner hears of from whoever looks next.
    pub(crate) fn look(&self, at: usize, generation: u32) -> (State, u32) {
        let slot = self.slot(at);
        let (state, pid) = slot.state(generation);
        if state == State::Taken && slot.watched.load(Acquire) != pid {
            // Who has no bell leaves it to who looks next.
            let _ = self.call(at);
        }
        (state, pid)
    }

    /// The slots that have requests; each is told once.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = usize> {
        self.head.wanted.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = if bits.load(Relaxed) == 0 { 0 } else { bits.swap(0, Acquire) };
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit as usize)
            })
        })
    }

    /// Says that who asks must ring. After it the owner looks once more before it sleeps.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.head.asleep.store(u32::from(asleep), Relaxed);
        fence(SeqCst);
    }
}

impl Slot {
    /// How the queue pair of a generation is, and who has it. That of another is not lent.
    pub(crate) fn state(&self, generation: u32) -> (State, u32) {
        let now = self.state.load(Acquire);
        let pid = (now >> PROCESS) as u32;
        let state = State::of(now);
        if now == word(state, generation, pid) { (state, pid) } else { (State::Not, 0) }
    }

    /// Whether a process has the queue pair of a generation, and took it with this word.
    pub(crate) fn is_taken(&self, generation: u32, pid: u32, taker: u64) -> bool {
        self.state.load(Acquire) == word(State::Taken, generation, pid)
            && self.taker.load(Relaxed) == taker
    }

    pub(crate) fn set(&self, state: State, generation: u32) {
        self.state.store(word(state, generation, 0), Release);
    }

    /// A child takes it with a word of its own, if it is free; whether it was.
    pub(crate) fn take(&self, generation: u32, pid: u32, taker: u64) -> bool {
        let [free, taken] = [(State::Free, 0), (State::Taken, pid)]
            .map(|(state, pid)| word(state, generation, pid));
        let is_free = self.state.compare_exchange(free, taken, SeqCst, Relaxed).is_ok();
        if is_free {
            self.taker.store(taker, Relaxed);
        }
        is_free
    }

    /// Changes its state if that is so; whether it was.
    pub(crate) fn change(&self, from: State, to: State, generation: u32) -> bool {
        let [from, to] = [from, to].map(|state| word(state, generation, 0));
        self.state.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
    }

    /// Another queue pair's from here on, which no child has had yet.
    pub(crate) fn begin(&self, generation: u32) {
        self.clear();
        self.returned.store(0, Relaxed);
        self.set(State::Free, generation);
    }

    /// A new child has posted nothing yet.
    pub(crate) fn clear(&self) {
        for word in [&self.begun, &self.ended, &self.receives] {
            word.store(0, Relaxed);
        }
    }

    /// What is asked up to here, and whether some of it is not answered.
    pub(crate) fn asked(&self) -> (u32, bool) {
        let asked = self.asked.load(Acquire);
        (asked, asked != self.answered.load(Relaxed))
    }

    /// Tells what all requests up to `asked` came to.
    pub(crate) fn answer(&self, asked: u32, result: Result<(), i32>) {
        self.result.store(result.err().unwrap_or(0) as u32, Relaxed);
        self.answered.store(asked, Release);
        // SAFETY: the word is mapped for good; the call wakes who waits at it.
        unsafe {
            libc::syscall(libc::SYS_futex, self.answered.as_ptr(), libc::FUTEX_WAKE, i32::MAX)
        };
    }
}

/// Waits until a word is another, or for [`NAP_NS`].
fn sleep(word: &AtomicU32, value: u32) {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: both are valid while the call runs.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const nap)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_has_one_taker() {
        let table = Table::new().unwrap();
        let slot = table.slot(3);
        assert!(!slot.take(1, 7, 70));
        slot.begin(1);
        assert!(slot.take(1, 7, 70) && slot.is_taken(1, 7, 70));
        assert!(!slot.take(1, 8, 80) && !slot.is_taken(1, 8, 80));
        // One that has its number when it has ended, and which the owner takes for it.
        assert!(!slot.take(1, 7, 71) && !slot.is_taken(1, 7, 71));
        assert_eq!(slot.state(1), (State::Taken, 7));
        slot.set(State::Reset, 1);
        assert!(!slot.take(1, 8, 80) && !slot.is_taken(1, 7, 70));
        assert_eq!(slot.state(1), (State::Reset, 0));
        assert!(!slot.change(State::Broken, State::Not, 1));
        assert!(slot.change(State::Reset, State::Free, 1) && slot.take(1, 8, 80));
    }

    #[test]
    fn who_knows_a_slots_former_queue_pair_has_no_other() {
        let table = Table::new().unwrap();
        let slot = table.slot(0);
        slot.begin(1);
        slot.returned.store(9, Relaxed);
        assert!(slot.change(State::Free, State::Not, 1));
        slot.begin(2);
        assert_eq!(slot.returned.load(Relaxed), 0, "another's returns");
        assert!(!slot.take(1, 7, 70), "the slot has another queue pair");
        assert!(slot.take(2, 7, 70));
        assert_eq!((slot.state(1), slot.state(2)), ((State::Not, 0), (State::Taken, 7)));
        assert!(!slot.is_taken(1, 7, 70));
        // The last generation that there is room for, and the first that there is none for.
        for generation in [(1 << 29) - 1, 1 << 29] {
            slot.begin(generation);
            assert_eq!(slot.state(generation), (State::Free, 0));
        }
    }

    #[test]
    fn an_owner_that_has_ended_is_missed() {
        let table = Table::new().unwrap();
        let own = std::process::id();
        assert!(table.has_owner(own), "it may still come");
        std::thread::spawn(move || {
            table.set_owner();
            assert!(table.has_owner(own));
        })
        .join()
        .unwrap();
        let begun = Instant::now();
        // Who joins may be woken before the kernel has forgotten the thread.
        while table.has_owner(own) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_asked_is_answered_or_the_owner_has_gone() {
        let table = Table::new().unwrap();
        let answers = std::thread::spawn(move || {
            let mut answered = 0;
            while answered < 2 {
                for at in table.wanted() {
                    assert_eq!(at, 70);
                    let slot = table.slot(at);
                    // Who waits for long calls again.
                    let (asked, true) = slot.asked() else { continue };
                    let result = if answered == 0 { Ok(()) } else { Err(libc::EIO) };
                    slot.answer(asked, result);
                    answered += 1;
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(table.ask(70, || false), Ok(()));
        assert_eq!(table.ask(70, || false), Err(libc::EIO));
        answers.join().unwrap();
        assert_eq!(table.ask(70, || true), Err(libc::ENODEV));
        assert_eq!(table.wanted().collect::<Vec<_>>(), [70]);
        assert_eq!(table.wanted().next(), None);
    }

    #[test]
    fn who_sleeps_is_rung_for_and_who_died_early_is_seen() {
        let table = Table::new().unwrap();
        table.slot(1).begin(5);
        assert!(table.slot(1).take(5, 7, 70));
        assert_eq!(table.look(1, 5), (State::Taken, 7));
        assert_eq!(table.wanted().collect::<Vec<_>>(), [1], "nobody watches it");
        table.slot(1).watched.store(7, Release);
        table.look(1, 5);
        assert_eq!(table.wanted().next(), None);
        assert!(table.ask(0, || true).is_err());
        assert!(!table.bell().drain());
        table.set_asleep(true);
        assert!(table.ask(0, || true).is_err());
        assert!(table.bell().drain());
    }
}
