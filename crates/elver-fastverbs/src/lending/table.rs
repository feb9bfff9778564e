//! What a lender and its children share: a mapping that is made before the first fork, with a slot for each queue pair.
//!
//! Children of one process trust each other as far as this table goes: each of them can write all of it. What the lender
//! does to its own queue pairs, it decides by what it has seen itself ([`super::owner`]).

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::{Duration, Instant};

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

impl State {
    fn of(word: u64) -> State {
        match word as u32 {
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
    /// [`State`], and above it the number of the process that has it.
    state: AtomicU64,
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
    /// Slots with requests, a bit each.
    wanted: [AtomicU64; LENT_MAX / 64],
}

/// The mapping. It stays until the process ends: children that outlive a lending still look at it.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    head: &'static Head,
    slots: &'static [Slot],
    /// The owner waits at it. An eventfd.
    bell: i32,
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
        // SAFETY: the call has no memory to do with.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Table { head, slots, bell })
    }

    pub(crate) fn slot(&self, at: usize) -> &'static Slot {
        &self.slots[at]
    }

    pub(crate) fn bell(&self) -> i32 {
        self.bell
    }

    /// Asks the owner for something, and waits for it: `gone` says whether nobody will ever answer.
    ///
    /// # Errors
    /// What the owner's call came to, or ENODEV if it is gone.
    pub(crate) fn ask(&self, at: usize, gone: impl Fn() -> bool) -> Result<(), i32> {
        let slot = self.slot(at);
        let number = slot.asked.fetch_add(1, Release).wrapping_add(1);
        self.call(at);
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
        }
    }

    /// Has the owner look at a slot.
    fn call(&self, at: usize) {
        self.head.wanted[at / 64].fetch_or(1 << (at % 64), Release);
        fence(SeqCst);
        if self.head.asleep.load(Relaxed) != 0 {
            self.ring();
        }
    }

    /// How a queue pair is, and who has it. A child that was killed when it had taken the queue pair, and had not said so
    /// yet, the owner hears of from whoever looks next.
    pub(crate) fn look(&self, at: usize) -> (State, u32) {
        let slot = self.slot(at);
        let (state, pid) = slot.state();
        if state == State::Taken && slot.watched.load(Acquire) != pid {
            self.call(at);
        }
        (state, pid)
    }

    /// Wakes the owner.
    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of a local's. That the counter is full means that it has been rung.
        unsafe { libc::write(self.bell, (&raw const one).cast(), size_of_val(&one)) };
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
    pub(crate) fn state(&self) -> (State, u32) {
        let word = self.state.load(Acquire);
        (State::of(word), (word >> 32) as u32)
    }

    pub(crate) fn set(&self, state: State) {
        self.state.store(u64::from(state as u32), Release);
    }

    /// A child takes it, if it is free; how it is if not.
    pub(crate) fn take(&self, pid: u32) -> Result<(), State> {
        let taken = u64::from(State::Taken as u32) | u64::from(pid) << 32;
        let free = u64::from(State::Free as u32);
        let result = self.state.compare_exchange(free, taken, SeqCst, Relaxed);
        result.map(drop).map_err(State::of)
    }

    /// Changes its state if that is so; how it is if not.
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        let [from, to] = [from, to].map(|state| u64::from(state as u32));
        let result = self.state.compare_exchange(from, to, SeqCst, Relaxed);
        result.map(drop).map_err(State::of)
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
        assert_eq!(slot.take(7), Err(State::Not));
        slot.set(State::Free);
        assert_eq!(slot.take(7), Ok(()));
        assert_eq!(slot.take(8), Err(State::Taken));
        assert_eq!(slot.state(), (State::Taken, 7));
        slot.set(State::Reset);
        assert_eq!((slot.take(8), slot.state()), (Err(State::Reset), (State::Reset, 0)));
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
                    let result = if answered == 0 { Ok(()) } else { Err(libc::EIO) };
                    slot.answer(slot.asked().0, result);
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
        table.slot(1).set(State::Free);
        table.slot(1).take(7).unwrap();
        assert_eq!(table.look(1), (State::Taken, 7));
        assert_eq!(table.wanted().collect::<Vec<_>>(), [1], "nobody watches it");
        table.slot(1).watched.store(7, Release);
        table.look(1);
        assert_eq!(table.wanted().next(), None);
        let mut count = 0_u64;
        // SAFETY: eight bytes of a local's.
        let mut heard = || unsafe { libc::read(table.bell(), (&raw mut count).cast(), 8) };
        assert!(table.ask(0, || true).is_err());
        assert_eq!(heard(), -1);
        table.set_asleep(true);
        assert!(table.ask(0, || true).is_err());
        assert_eq!(heard(), 8);
    }
}
