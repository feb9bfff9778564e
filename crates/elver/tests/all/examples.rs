//! Each example runs, as a process beside a daemon's socket, and ends well.

use elver_testkit::{Examples, examples};

use crate::common::PLACE;

static EXAMPLES: Examples = Examples::new("elver", env!("CARGO_MANIFEST_DIR"), "");

// Those that count rounds take their number.
examples! {
    EXAMPLES, PLACE, ["20"];
    fork, 127, "20 children READ what they should";
    echo, 200, "100 messages went there and back";
    one_sided, 201, "the owner finds \"another!\" and 3";
    latency, 211, "tokio";
    many_clients, 202, "the sum is 1400";
    reconnect, 203, "it works again";
    unsignalled, 204, "100000 WRITEs, 1563 completions";
    table, 213, "1000 look-ups took ";
    threads, 205, "4 threads added 1";
    epoll, 206, "100 READs by epoll";
    tasks, 207, "4 tasks, 100 READs each";
    register_vec, 208, "1,024 bytes were READ into a Vec";
    embedded, 209, "the test passes";
    shutdown, 210, "ended, and nothing is left";
    numa, 234, "1048576 bytes near this thread: ";
    namespaces, 212, "the other namespace says \"hello\"";
}
