//! States that nobody can bring about but the core itself.
//!
//! What a process or a peer can cause is an error, a refusal or a counter. The rest cannot be, and is said
//! so where it is met: [`bug!`] stops a test, a simulation and a program with debug assertions at that
//! place. A node goes on, for others' work is worth more: each place does what is safe there, and the bug is
//! counted ([`crate::Stats::bugs`]).

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Of all cores of this process: some are found by what knows no core.
static FOUND: AtomicUsize = AtomicUsize::new(0);
static STOPS: AtomicBool = AtomicBool::new(false);

/// Tells of a state that cannot be. It is given words and no values, for these would have to stand in memory
/// before it is known that they are needed.
macro_rules! bug {
    ($what:expr) => {
        $crate::bug::found($what)
    };
}

/// Counts so many off. More than there are is a [`bug!`], and leaves none.
macro_rules! count_off {
    ($count:expr, $by:expr) => {
        $count = $crate::bug::less!($count, $by)
    };
}

/// The difference of two counts. If the second is larger that is a [`bug!`], and none is left.
macro_rules! less {
    ($count:expr, $by:expr) => {
        match $count.checked_sub($by) {
            Some(left) => left,
            None => {
                bug!(concat!(stringify!($by), " are more than ", stringify!($count)));
                0
            }
        }
    };
}

pub(crate) use less;

/// From now on each bug panics, also in a program without debug assertions: what simulations ask for.
pub fn stop_at_bugs() {
    STOPS.store(true, Ordering::Relaxed);
}

/// How many were met.
pub(crate) fn count() -> u64 {
    FOUND.load(Ordering::Relaxed) as u64
}

/// See [`bug!`].
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn found(what: &'static str) {
    FOUND.fetch_add(1, Ordering::Relaxed);
    if cfg!(debug_assertions) || STOPS.load(Ordering::Relaxed) {
        panic!("a bug of the core's: {what}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_go_down_to_none() {
        let mut count = 3u32;
        count_off!(count, 1);
        count_off!(count, 2);
        assert_eq!(count, 0);
    }

    /// A subtraction that saturates would have hidden it.
    #[test]
    #[should_panic(expected = "a bug of the core's: ended are more than posted")]
    fn more_than_there_are_stops_a_test() {
        let (posted, ended) = (3u32, 4);
        let _ = less!(posted, ended);
    }
}
