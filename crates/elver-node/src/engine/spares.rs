//! Shared memory that is made ready for sessions to come.
//!
//! The kernel takes longer to clear a session's memory, and to map it, than a process and its node take for all else of a
//! session's beginning. So some is there before; what was given a thread makes anew, when the process that has it has
//! begun. A timer starts that thread: to wake it at once would keep the process waiting where it shares the engine's core.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use elver_portal::memfd::Pages;
use elver_portal::{ARENA_BYTES, Layout, NodeEnd};
use elver_soft::SoftMemory;
use elver_verbs::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::room::{self, Backing};
use crate::worker::Worker;

/// So long after some was given it is made anew.
const LATER: Itimerspec = Itimerspec {
    it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: Timespec { tv_sec: 0, tv_nsec: 1_000_000 },
};
/// After so long a wait that failed begins anew.
const RETRY: Duration = Duration::from_millis(10);
/// After so long memory for a session is looked for again.
const AGAIN_NS: u64 = 1_000_000_000;

/// Shared memory for a session that has none yet. Nobody has had it before.
pub(super) struct Spare {
    pub(super) file: Backing,
    pub(super) end: NodeEnd,
    pub(super) arena: SoftMemory,
}

/// What is there for sessions to come.
pub(super) struct Spares {
    ready: Vec<Spare>,
    max: usize,
    /// What the thread is to make.
    expected: usize,
    /// There was no memory for one: until then none is made.
    again_at: Time,
    /// Of none that are kept.
    maker: Option<Maker>,
}

/// The thread that makes them.
struct Maker {
    order: Arc<Order>,
    made: Receiver<io::Result<Spare>>,
    /// It ends with it.
    _thread: Worker,
}

struct Order {
    wanted: AtomicUsize,
    timer: OwnedFd,
    /// The timer runs.
    is_set: AtomicBool,
}

impl Spare {
    fn make(layout: Layout) -> io::Result<Spare> {
        let file = room::memfd("elver-portal", layout.bytes() as u64, Pages::Small, None)?;
        let end = NodeEnd::map(&file, layout)?;
        let arena = SoftMemory::map_file_from(&file, layout.arena_at() as u64, ARENA_BYTES);
        Ok(Spare { file, end, arena: arena.map_err(io::Error::other)? })
    }
}

impl Spares {
    /// Makes so many.
    pub(super) fn new(max: usize) -> io::Result<Spares> {
        let maker = (max > 0).then(Maker::start).transpose()?;
        let mut spares = Spares {
            ready: Vec::with_capacity(max),
            max,
            expected: 0,
            again_at: Time::ZERO,
            maker,
        };
        while spares.ready.len() < max {
            spares.ready.push(Spare::make(Layout::default())?);
        }
        Ok(spares)
    }

    /// Memory of a layout: ready made if it is the usual one. One more is made for the next.
    pub(super) fn take(&mut self, layout: Layout, now: Time) -> io::Result<Spare> {
        if layout != Layout::default() {
            return Spare::make(layout);
        }
        self.collect(now);
        let spare = self.ready.pop();
        self.order(now);
        match spare {
            Some(spare) => Ok(spare),
            None => Spare::make(layout),
        }
    }

    /// To be called now and then: where there was no memory, it is looked for again.
    pub(super) fn tend(&mut self, now: Time) {
        self.collect(now);
        self.order(now);
    }

    /// Takes what was made. Without memory there will be fewer for a time.
    fn collect(&mut self, now: Time) {
        let Some(maker) = &self.maker else { return };
        while let Ok(made) = maker.made.try_recv() {
            self.expected -= 1;
            match made {
                Ok(spare) => self.ready.push(spare),
                Err(_) => self.again_at = now.saturating_add_ns(AGAIN_NS),
            }
        }
    }

    /// Has the thread make as many as are missing.
    fn order(&mut self, now: Time) {
        let missing = self.max - (self.ready.len() + self.expected);
        if missing > 0 && now >= self.again_at {
            self.expected += missing;
            self.maker.iter().for_each(|maker| maker.order.more(missing));
        }
    }
}

impl Maker {
    fn start() -> io::Result<Maker> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let (wanted, is_set) = (AtomicUsize::new(0), AtomicBool::new(false));
        let order = Arc::new(Order { wanted, timer, is_set });
        let (made, ordered) = (channel(), order.clone());
        let work = move |stop: &AtomicBool, wake: &OwnedFd| work(&ordered, &made.0, (stop, wake));
        let thread = Worker::start("elver-spares", work)?;
        Ok(Maker { order, made: made.1, _thread: thread })
    }
}

impl Order {
    /// So many more are wanted, in a while: those that are wanted by then are made together.
    fn more(&self, count: usize) {
        self.wanted.fetch_add(count, Ordering::AcqRel);
        if !self.is_set.swap(true, Ordering::AcqRel) {
            // A relative time of a timer that there is: it cannot fail.
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &LATER);
        }
    }
}

fn work(order: &Order, made: &Sender<io::Result<Spare>>, (stop, wake): (&AtomicBool, &OwnedFd)) {
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [&order.timer, wake].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Want of memory: it is looked at again a little later.
            Err(_) => std::thread::park_timeout(RETRY),
        }
        let mut times = [0; 8];
        if rustix::io::read(&order.timer, &mut times).is_err() {
            continue;
        }
        // Ahead of the look: what is wanted behind it sets the timer anew.
        order.is_set.swap(false, Ordering::AcqRel);
        for _ in 0..order.wanted.swap(0, Ordering::AcqRel) {
            // Without an engine nobody waits for it.
            if stop.load(Ordering::Relaxed) || made.send(Spare::make(Layout::default())).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const NOW: Time = Time(1 << 40);

    /// Waits for the thread, until so many are there.
    fn filled(spares: &mut Spares, count: usize, now: Time) {
        let begun = crate::clock::now();
        while spares.ready.len() < count {
            spares.tend(now);
            assert!(crate::clock::now().ns_since(begun) < 20_000_000_000, "none was made");
            std::thread::yield_now();
        }
    }

    fn number(spare: &Spare) -> u64 {
        rustix::fs::fstat(spare.file.as_fd()).unwrap().st_ino
    }

    #[test]
    fn what_was_given_is_made_anew_and_there_are_so_many_and_no_more() {
        let mut spares = Spares::new(3).unwrap();
        let mut given = Vec::new();
        for _ in 0..4 {
            for left in (0..3).rev() {
                given.push(spares.take(Layout::default(), NOW).unwrap());
                assert!(spares.ready.len() + spares.expected == 3 && spares.ready.len() >= left);
            }
            filled(&mut spares, 3, NOW);
            spares.tend(NOW);
            assert_eq!((spares.ready.len(), spares.expected), (3, 0));
        }
        // Nobody gets what another one has, or had.
        let mut numbers: Vec<u64> = given.iter().map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 12);
    }

    #[test]
    fn who_comes_when_none_is_ready_or_wants_other_rings_gets_one_all_the_same() {
        let mut spares = Spares::new(1).unwrap();
        let first = spares.take(Layout::default(), NOW).unwrap();
        let second = spares.take(Layout::default(), NOW).unwrap();
        assert_ne!(number(&first), number(&second));
        filled(&mut spares, 1, NOW);
        let other = Layout { command_slots: 512, ..Layout::default() };
        let third = spares.take(other, NOW).unwrap();
        assert_eq!((spares.ready.len(), spares.expected), (1, 0));
        let bytes = rustix::fs::fstat(third.file.as_fd()).unwrap().st_size;
        assert_eq!(bytes as usize, other.bytes());
        // A node that keeps none has no thread for it.
        let mut none = Spares::new(0).unwrap();
        none.take(Layout::default(), NOW).unwrap();
        assert!(none.maker.is_none() && none.expected == 0);
    }

    /// One moment without memory, or descriptors, and each process had to wait for its session's for good.
    #[test]
    fn spare_sessions_that_could_not_be_made_are_made_later() {
        let mut spares = Spares::new(2).unwrap();
        let (sender, made) = channel();
        // What the thread makes comes nowhere.
        spares.maker.as_mut().unwrap().made = made;
        spares.take(Layout::default(), NOW).unwrap();
        sender.send(Err(io::ErrorKind::OutOfMemory.into())).unwrap();
        spares.tend(NOW);
        assert_eq!((spares.ready.len(), spares.expected), (1, 0));
        let later = NOW.saturating_add_ns(AGAIN_NS);
        spares.tend(Time(later.0 - 1));
        assert_eq!(spares.expected, 0);
        spares.tend(later);
        assert_eq!(spares.expected, 1);
        sender.send(Spare::make(Layout::default())).unwrap();
        spares.tend(later);
        assert_eq!((spares.ready.len(), spares.expected), (2, 0));
    }
}
