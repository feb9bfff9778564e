//! What is told of connections that a stream carries (`readiness.c`).

use crate::common::{Host, port, program};
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

#[test]
fn an_epoll_has_a_connection_until_its_last_copy_is_closed() {
    let host = beside_threads(49, "2", "close-copy");
    let stayed = host.lines("Connector: by TCP, since an epoll has it by a copy that was closed");
    assert_eq!((stayed, host.lines(" ended: ")), (1, 2), "{}", host.log());
}

#[test]
fn what_is_no_epoll_is_told_so() {
    let host = beside_threads(50, "2", "no-epoll");
    assert_eq!(host.lines(" ended: "), 4, "{}", host.log());
}

#[test]
fn edges_are_told_of_bytes_behind_others_that_nobody_has_read() {
    beside_threads(51, "1", "edges-of-more");
}

/// uvloop took a connection for ended of which most came by TCP still when the stream's end was known.
#[test]
fn an_end_is_told_behind_all_bytes_and_a_read_takes_all_that_came() {
    let (host, port) = (Host::new(54), port());
    host.run(&[&program(), "ends-behind-all", &port.to_string()]);
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}
