//! Which cores a thread or a process runs on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Set by the first seat that could not be taken.
static MISSED: AtomicBool = AtomicBool::new(false);

/// The cores that this process may run on: the first of them is core 0 of whoever asks for one here, whatever number
/// the system gives it.
struct Allowed {
    cpus: CpuSet,
    /// How many, or fewer where a quota allows only so much time.
    count: usize,
}

fn allowed() -> &'static Allowed {
    // Asked once, before any thread is pinned: a pinned thread is told of its own core alone.
    static ALLOWED: OnceLock<Allowed> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let cpus = sched_getaffinity(None).unwrap_or_else(|_| {
            let mut first = CpuSet::new();
            (0..count.min(CpuSet::MAX_CPU)).for_each(|cpu| first.set(cpu));
            first
        });
        Allowed { cpus, count }
    })
}

/// Cores that this process may run on.
pub fn cores() -> usize {
    allowed().count
}

/// Whether a thread of this process could not be put where it belongs.
pub fn has_missed_a_seat() -> bool {
    MISSED.load(Ordering::Relaxed)
}

/// Pins the calling thread to a core; where there are fewer, to the last.
pub fn pin(core: usize) {
    sit(&on(&allowed().cpus, core.min(cores() - 1)));
}

fn sit(cpus: &CpuSet) {
    // The cores that are allowed may have changed; then the scheduler places the thread, and figures say so.
    if sched_setaffinity(None, cpus).is_err() {
        MISSED.store(true, Ordering::Relaxed);
    }
}

fn numbers(cpus: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu))
}

/// That one of these; the last, where there are fewer.
fn on(cpus: &CpuSet, core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    if let Some(cpu) = numbers(cpus).take(core + 1).last() {
        set.set(cpu);
    }
    set
}

/// All others of these; all, where there is no such one, or that one alone.
fn off(cpus: &CpuSet, core: usize) -> CpuSet {
    let mut set = *cpus;
    if let Some(cpu) = numbers(cpus).nth(core) {
        set.unset(cpu);
    }
    if set.count() == 0 { *cpus } else { set }
}

/// The cores that a thread or a process runs on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seat {
    /// On all cores.
    #[default]
    Anywhere,
    /// On this one.
    On(usize),
    /// On all others.
    Off(usize),
}

impl Seat {
    /// Gives it to the calling thread, and to what it starts.
    pub fn take(self) {
        match self {
            Seat::Anywhere => sit(&allowed().cpus),
            Seat::On(core) => pin(core),
            Seat::Off(core) => sit(&off(&allowed().cpus, core)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        numbers.iter().for_each(|number| set.set(*number));
        set
    }

    #[test]
    fn a_core_is_one_of_those_that_are_allowed() {
        let allowed = of(&[2, 3]);
        assert_eq!([0, 1, 7].map(|core| on(&allowed, core)), [of(&[2]), of(&[3]), of(&[3])]);
        assert_eq!(on(&of(&[1]), 0), of(&[1]));
    }

    #[test]
    fn off_a_core_are_the_others_that_are_allowed() {
        let allowed = of(&[2, 3, 5]);
        assert_eq!(off(&allowed, 1), of(&[2, 5]));
        assert_eq!(off(&allowed, 9), allowed);
        assert_eq!(off(&of(&[1]), 0), of(&[1]));
    }

    #[test]
    fn a_pinned_thread_leaves_what_others_are_told() {
        let before = cores();
        let after = thread::scope(|scope| {
            let pinned = scope.spawn(|| {
                pin(0);
                (cores(), sched_getaffinity(None).is_ok_and(|cpus| cpus == on(&allowed().cpus, 0)))
            });
            pinned.join()
        });
        assert!(after.is_ok_and(|after| after == (before, true)));
        assert!(!has_missed_a_seat());
    }
}
