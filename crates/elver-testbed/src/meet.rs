//! Ends that begin together and stay until all are done.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long one end waits for the other.
const WAIT: Duration = Duration::from_secs(60);

/// Where ends meet.
pub struct Meet {
    ends: u32,
    here: AtomicU32,
    done: AtomicU32,
    failed: AtomicBool,
}

impl Default for Meet {
    /// Of two.
    fn default() -> Meet {
        Meet::of(2)
    }
}

impl Meet {
    /// Where so many meet.
    pub fn of(ends: u32) -> Meet {
        Meet {
            ends,
            here: AtomicU32::default(),
            done: AtomicU32::default(),
            failed: AtomicBool::default(),
        }
    }

    /// Waits for the others, spinning.
    ///
    /// # Errors
    ///
    /// One of them does not come in time.
    pub fn wait(&self) -> Result<()> {
        self.wait_while(std::thread::yield_now)
    }

    /// The same, with something to do meanwhile.
    ///
    /// # Errors
    ///
    /// One of the others does not come in time.
    pub fn wait_while(&self, mut doing: impl FnMut()) -> Result<()> {
        self.here.fetch_add(1, Ordering::AcqRel);
        let start = Instant::now();
        while self.here.load(Ordering::Acquire) < self.ends {
            if self.failed.load(Ordering::Acquire) {
                bail!("another end failed");
            }
            if start.elapsed() > WAIT {
                bail!("not all of the {} ends got ready", self.ends);
            }
            doing();
        }
        Ok(())
    }

    /// Tells that an end has failed, and comes no more: nobody waits for it.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Tells that this end has all it wants.
    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all ends have all they want.
    pub fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.ends
    }
}

/// Where a connection of a mesh leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the end that opens it.
    Own,
    /// To the other end.
    Peer,
}

/// Connections that the workers of one end open in a full mesh; the workers stand at the two ends
/// in turn. A pair of workers has one connection, or, where `both_ways`, one from each.
pub fn targets(workers: u32, end: u32, both_ways: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for from in (0..workers).filter(|worker| worker % 2 == end) {
        for to in (0..workers).filter(|to| *to != from) {
            if both_ways || from < to {
                targets.push(if to % 2 == end { Target::Own } else { Target::Peer });
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_has_all_its_connections() {
        for workers in [2, 3, 8, 9] {
            let count = |both_ways| {
                targets(workers, 0, both_ways).len() + targets(workers, 1, both_ways).len()
            };
            assert_eq!(count(true), (workers * (workers - 1)) as usize);
            assert_eq!(count(false), (workers * (workers - 1) / 2) as usize);
        }
        assert_eq!(targets(2, 0, true), [Target::Peer]);
    }
}
