//! What is told of connections that a stream carries (`readiness.c`).

use crate::edges::beside_threads;

/// Descriptors of the kernel's are told of, however few events are asked for.
#[test]
fn an_epoll_tells_of_the_kernel_s_beside_a_connection_that_always_has_something() {
    beside_threads(35, "1", "crowd");
}

#[test]
fn a_select_waits_for_what_its_sets_mean() {
    beside_threads(39, "1", "select-in-time");
}
