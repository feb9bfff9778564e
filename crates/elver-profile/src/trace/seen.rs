//! What was seen of programs, by verbs call, system call and function.

use std::collections::{BTreeMap, BTreeSet};

use super::thread::Frame;

/// How often, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// All of it.
    pub total_ns: u64,
    /// Of it, in the kernel.
    pub kernel_ns: u64,
    /// System calls.
    pub system_calls: u64,
}

impl Spent {
    fn one(&mut self, ns: u64, kernel_ns: u64) {
        self.count += 1;
        self.total_ns += ns;
        self.kernel_ns += kernel_ns;
    }
}

/// What libibverbs found, and each different value of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How often it was read.
    pub count: u64,
    /// Hashes of what it was.
    pub values: BTreeSet<u32>,
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Calls of libibverbs.
    pub calls: BTreeMap<String, Spent>,
    /// Functions that were called inside, of any library that is watched, with all that they called.
    pub functions: BTreeMap<(String, String), Spent>,
    /// System calls inside.
    pub system_calls: BTreeMap<(String, String), Spent>,
    /// System calls outside.
    pub outside: BTreeMap<String, Spent>,
    /// Inner results, by the call that found them.
    pub results: BTreeMap<(String, String), Found>,
    /// What each of the first system calls outside took.
    pub(super) each_ns: Vec<u64>,
}

/// How many of these are kept.
const EACH_MAX: usize = 8_000;

impl Seen {
    /// Adds what was seen of another program.
    pub fn add(&mut self, other: Seen) {
        fn all<K: Ord>(to: &mut BTreeMap<K, Spent>, from: BTreeMap<K, Spent>) {
            for (key, more) in from {
                let spent = to.entry(key).or_default();
                spent.count += more.count;
                spent.total_ns += more.total_ns;
                spent.kernel_ns += more.kernel_ns;
                spent.system_calls += more.system_calls;
            }
        }
        all(&mut self.calls, other.calls);
        all(&mut self.functions, other.functions);
        all(&mut self.system_calls, other.system_calls);
        all(&mut self.outside, other.outside);
        for (key, more) in other.results {
            let found = self.results.entry(key).or_default();
            found.count += more.count;
            found.values.extend(more.values);
        }
    }

    pub(super) fn system_call(&mut self, call: Option<&str>, name: String, ns: u64) {
        let spent = match call {
            Some(call) => {
                self.calls.entry(call.to_string()).or_default().system_calls += 1;
                self.system_calls.entry((call.to_string(), name)).or_default()
            }
            None => {
                if self.each_ns.len() < EACH_MAX {
                    self.each_ns.push(ns);
                }
                self.outside.entry(name).or_default()
            }
        };
        spent.one(ns, ns);
    }

    /// A function has returned; inside of which call.
    pub(super) fn function(&mut self, call: Option<&str>, frame: &Frame, now: u64) {
        let spent = match call {
            Some(call) => self.functions.entry((call.to_string(), frame.name.clone())).or_default(),
            None => self.calls.entry(frame.name.clone()).or_default(),
        };
        let total = now.saturating_sub(frame.begun);
        spent.one(total, frame.kernel_ns.min(total));
    }

    pub(super) fn result(&mut self, call: Option<&str>, key: String, value: u32) {
        if let Some(call) = call {
            let found = self.results.entry((call.to_string(), key)).or_default();
            found.count += 1;
            found.values.insert(value);
        }
    }
}
