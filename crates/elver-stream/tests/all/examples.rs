//! Each example runs, as a process beside a daemon's socket, and ends well.

use elver_testkit::{Examples, examples};

use crate::common::PLACE;

static EXAMPLES: Examples = Examples::new("elver-stream", env!("CARGO_MANIFEST_DIR"), "tokio");

// Those that count rounds take their number.
examples! {
    EXAMPLES, PLACE, ["2000"];
    echo_lines, 70, "2000 lines, ";
    echo_epoll, 71, "80000 bytes of 10 streams";
    echo_tasks, 72, "40000 bytes of 5 streams";
}
