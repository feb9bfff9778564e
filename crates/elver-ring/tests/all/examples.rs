//! Each example runs, as a process beside a daemon's socket, and ends well.

use elver_testkit::{Examples, examples};

use crate::common::PLACE;

static EXAMPLES: Examples = Examples::new("elver-ring", env!("CARGO_MANIFEST_DIR"), "tokio");

// Those that count rounds take their number.
examples! {
    EXAMPLES, PLACE, ["2000"];
    records, 30, "2000 records of";
    ping_pong, 31, "2000 questions";
    ring_tasks, 32, "the sum is 5050";
}
