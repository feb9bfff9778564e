//! States that nobody can bring about but a state machine itself: of the RNIC, of the control protocol, of
//! the core.
//!
//! What a process or a peer can cause is an error, a refusal or a counter. The rest cannot be, and is said
//! so where it is met: [`bug!`](crate::bug!) stops a test, a simulation and a program with debug assertions
//! at that place. A node goes on, for others' work is worth more: each place does what is safe there, and
//! the bug is counted ([`count`]).

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Of all state machines of this process: some are found by what knows none of them.
static FOUND: AtomicUsize = AtomicUsize::new(0);
static STOPS: AtomicBool = AtomicBool::new(false);

/// Tells of a state that cannot be. It is given words and no values, for these would have to stand in memory
/// before it is known that they are needed.
#[macro_export]
macro_rules! bug {
    ($what:expr) => {
        $crate::bug::found($what)
    };
}

/// Counts so many off. More than there are is a [`bug!`](crate::bug!), and leaves none.
#[macro_export]
macro_rules! count_off {
    ($count:expr, $by:expr) => {
        $count = $crate::less!($count, $by)
    };
}

/// The difference of two counts. If the second is larger that is a [`bug!`](crate::bug!), and none is left.
#[macro_export]
macro_rules! less {
    ($count:expr, $by:expr) => {
        match $count.checked_sub($by) {
            Some(left) => left,
            None => {
                $crate::bug!(concat!(stringify!($by), " are more than ", stringify!($count)));
                0
            }
        }
    };
}

/// From now on each bug panics, also in a program without debug assertions: what simulations ask for.
pub fn stop_at_bugs() {
    STOPS.store(true, Ordering::Relaxed);
}

/// How many this process has met.
pub fn count() -> u64 {
    FOUND.load(Ordering::Relaxed) as u64
}

/// See [`bug!`](crate::bug!).
#[cold]
#[inline(never)]
#[track_caller]
pub fn found(what: &'static str) {
    FOUND.fetch_add(1, Ordering::Relaxed);
    if cfg!(debug_assertions) || STOPS.load(Ordering::Relaxed) {
        panic!("a bug of ours: {what}");
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
    #[should_panic(expected = "a bug of ours: ended are more than posted")]
    fn more_than_there_are_stops_a_test() {
        let (posted, ended) = (3u32, 4);
        let _ = less!(posted, ended);
    }
}
