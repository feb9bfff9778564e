//! Which cores a thread or a process runs on.

use std::sync::OnceLock;
use std::thread;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

/// Cores that this process may run on.
pub fn cores() -> usize {
    // Asked once, before any thread is pinned: a pinned thread is told of its own core alone.
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Pins the calling thread to a core; where there are fewer, to the last.
pub fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core.min(cores() - 1));
    // A cgroup may forbid the core; then the scheduler places the thread.
    let _ = rustix::thread::sched_setaffinity(None, &set);
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
            Seat::Anywhere => pin_off(usize::MAX),
            Seat::On(core) => pin(core),
            Seat::Off(core) => pin_off(core),
        }
    }
}

/// Lets the calling thread run on all cores but one; on all, where there is no such core.
fn pin_off(core: usize) {
    let mut set = CpuSet::new();
    // The kernel leaves out those that there are not.
    (0..CpuSet::MAX_CPU).filter(|other| *other != core).for_each(|other| set.set(other));
    // There may be that core alone.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
