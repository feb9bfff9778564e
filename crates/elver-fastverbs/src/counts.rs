//! Counters of the process. `elver_fastverbs_counts` gives them to programs, in this order.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use elver_hostcache::Stale;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Lists of devices that the cache helped with.
    Lists,
    /// Lists that libibverbs made alone.
    Alone,
    /// There was no cache.
    Absent,
    /// The cache was not believed: somebody else could have written it, or it is none.
    Refused,
    /// Answers to libnl.
    Answers,
    /// Attributes in sysfs.
    Attributes,
    /// The cache was made anew.
    Renewed,
    /// It could not be.
    NotRenewed,
    /// A device that the cache had could not be opened.
    OpenFailed,
    /// A device was open already when it was asked for.
    Warm,
    /// The first of [`Stale::ALL`]; the others follow.
    Stale,
}

const NAMES: [&str; 16] = [
    "lists",
    "alone",
    "absent",
    "refused",
    "answers",
    "attributes",
    "renewed",
    "not renewed",
    "open failed",
    "warm",
    "stale: kernel",
    "stale: processors",
    "stale: library",
    "stale: devices",
    "stale: provider",
    "stale: boot",
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts one.
pub(crate) fn count(what: Count) {
    COUNTS[what as usize].fetch_add(1, Relaxed);
}

/// Counts what made the cache stale.
pub(crate) fn count_stale(why: Stale) {
    let at = Stale::ALL.iter().position(|one| *one == why).unwrap_or(0);
    COUNTS[Count::Stale as usize + at].fetch_add(1, Relaxed);
}

/// All of them.
pub(crate) fn all() -> [u64; NAMES.len()] {
    COUNTS.each_ref().map(|count| count.load(Relaxed))
}

/// Those that are not 0, for people.
pub(crate) fn text() -> String {
    let mut text = String::new();
    for (name, count) in NAMES.iter().zip(all()).filter(|(_, count)| *count > 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{name} {count}", if text.is_empty() { "" } else { ", " });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_name() {
        assert_eq!(NAMES.len(), Count::Stale as usize + Stale::ALL.len());
        count_stale(Stale::Provider);
        count(Count::Warm);
        let text = text();
        assert!(text.contains("warm 1") && text.contains("stale: provider 1"), "{text}");
    }
}
