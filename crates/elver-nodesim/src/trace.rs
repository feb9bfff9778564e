use std::collections::VecDeque;
use std::fmt;

use elver_verbs::Time;

/// Events that a failure shows.
const TAIL: usize = 120;
/// Events that are kept when the whole trace was asked for.
const WHOLE: usize = 1 << 16;

/// The last events of a run, and a hash of all of them: two runs with one hash did the same.
#[derive(Debug)]
pub(crate) struct Trace {
    lines: VecDeque<(Time, String)>,
    capacity: usize,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(whole: bool) -> Trace {
        let capacity = if whole { WHOLE } else { TAIL };
        // The offset basis of FNV-1a, which the events are hashed with.
        Trace { lines: VecDeque::new(), capacity, hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(crate) fn add(&mut self, now: Time, event: fmt::Arguments<'_>) {
        let line = event.to_string();
        let bytes = now.0.to_le_bytes();
        for byte in bytes.iter().chain(line.as_bytes()) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.lines.len() == self.capacity {
            self.lines.pop_front();
        }
        self.lines.push_back((now, line));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The events that are still known, among the packets of `network`, one line each.
    pub(crate) fn lines(&self, network: Vec<(Time, String)>) -> Vec<String> {
        let mut all: Vec<&(Time, String)> = self.lines.iter().chain(&network).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter()
            .map(|(at, what)| format!("{:>12.3} us  {what}", at.0 as f64 / 1e3))
            .collect()
    }
}
