//! Calls that the C library makes itself, that a signal interrupts, or that ask for nothing (`calls.c`).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use crate::common::{Host, port, program, succeeded};
use crate::edges::beside_threads;

/// The library closed a descriptor of its own, with such a number, under its own lock, by the function that takes it.
#[test]
fn a_descriptor_that_was_closed_unseen_is_in_nobody_s_way() {
    beside_threads(70, "5", "close-unseen");
}

#[test]
fn files_of_stdio_that_are_closed_close_connections() {
    let host = beside_threads(74, "3", "close-stdio");
    assert_eq!(host.lines(" ended: "), 6, "{}", host.log());
}

#[test]
fn a_daemon_s_first_descriptors_are_of_no_connection() {
    beside_threads(75, "2", "daemon");
}

#[test]
fn a_signal_s_handler_hangs_by_nothing_that_it_does_in_the_middle_of_a_call() {
    let host = beside_threads(73, "3", "handler-closes");
    assert_eq!(host.lines(" ended: "), 6, "{}", host.log());
}

#[test]
fn a_signal_ends_a_wait_whenever_it_comes() {
    let host = beside_threads(71, "2", "interrupt");
    assert_eq!(host.lines(" ended: "), 4, "{}", host.log());
}

#[test]
fn who_asks_for_nothing_does_not_wait() {
    let host = beside_threads(72, "1", "nothing");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}

/// Lines are written while all of a process's connections wait.
#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let (host, port) = (Host::without_node(), port());
    let (program, at) = (program(), port.to_string());
    let fifo = host.dir().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let mut reader = None;
    for _ in 0..2 {
        let server = host.serve(&[&program, "serve", &at, "threads", "1"], port);
        let mut client = host.command(&[&program, "ping", &at, "1300"]);
        succeeded("the client", &client.env("ELVER_STREAMS_LOG", &fifo).output().unwrap());
        server.ends();
        // One that has no room.
        let mut file = OpenOptions::new();
        let mut file =
            file.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        while file.write(&[b'\n'; 4096]).is_ok() {}
        reader = Some(file);
    }
    drop(reader);
}
