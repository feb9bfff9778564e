//! Processes that did not answer, and are not asked again for a while: a program that has many QPs with one waits once.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one is not asked again, and how many are remembered.
const SHUNNED: Duration = Duration::from_secs(5);
const MOST: usize = 64;

/// By the addresses of their devices, and until when.
#[derive(Default)]
pub(crate) struct Shunned(Mutex<VecDeque<(IpAddr, Instant)>>);

impl Shunned {
    fn all(&self) -> MutexGuard<'_, VecDeque<(IpAddr, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, address: IpAddr) {
        let mut all = self.all();
        all.truncate(MOST - 1);
        all.push_front((address, Instant::now() + SHUNNED));
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let now = Instant::now();
        let mut all = self.all();
        all.retain(|(_, until)| *until > now);
        all.iter().any(|(other, _)| *other == address)
    }
}
