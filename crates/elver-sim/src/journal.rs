use std::collections::VecDeque;
use std::fmt;

use elver_verbs::Time;

/// Events that a failure shows.
const TAIL: usize = 120;
/// Events that are kept when the whole trace was asked for.
const WHOLE: usize = 1 << 16;

/// The last events of a run, and a hash of all of them: two runs with one hash did the same.
#[derive(Debug)]
pub struct Journal {
    lines: VecDeque<(Time, String)>,
    capacity: usize,
    hash: u64,
}

impl Journal {
    /// An empty one, which keeps the last 120 events, or, if the `whole` is asked for, 65,536.
    pub fn new(whole: bool) -> Journal {
        let capacity = if whole { WHOLE } else { TAIL };
        // The offset basis of FNV-1a, which the events are hashed with.
        Journal { lines: VecDeque::new(), capacity, hash: 0xcbf2_9ce4_8422_2325 }
    }

    /// Something happened.
    pub fn add(&mut self, now: Time, event: fmt::Arguments<'_>) {
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

    /// Hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The events that are still known, among the packets of `network`, one line each.
    pub fn lines(&self, network: Vec<(Time, String)>) -> Vec<String> {
        let mut all: Vec<&(Time, String)> = self.lines.iter().chain(&network).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter()
            .map(|(at, what)| format!("{:>12.3} us  {what}", at.0 as f64 / 1e3))
            .collect()
    }
}
