//! Calls that programs make by number, or by none of the C library's functions (`direct.c`).

use crate::edges::beside_threads;

/// libuv closes so: its server's connections stayed open to their peers, and the next file was taken for one of them.
#[test]
fn calls_by_number_are_those_by_name() {
    let host = beside_threads(52, "1", "by-number");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
    assert_eq!(host.lines("came by TCP, of no call"), 0, "{}", host.log());
}

/// The thread had the lock, and waited for it.
#[test]
fn a_number_that_was_closed_unseen_holds_nobody_up() {
    beside_threads(53, "2", "closed-unseen");
}

/// It knew nothing of being another process, and took its files for the parent's connections.
#[test]
fn a_child_by_number_is_a_child() {
    let host = beside_threads(57, "1", "clone");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}
