//! Each example runs, as a process beside a daemon's socket, and ends well.

use elver_testkit::{Examples, Place, examples};

const PLACE: Place =
    Place { name: "cases", network: 20, udp_ports: 26_000, registry_ports: 27_000 };
static EXAMPLES: Examples = Examples::new("elver-cases", env!("CARGO_MANIFEST_DIR"), "");

examples! {
    EXAMPLES, PLACE, ["2000"];
    flow_counter, 1, "2000 packets of";
    database, 2, "2000 requests answered";
    web, 3, "2000 files of 1024 bytes";
}
