//! Each example runs, as a process beside a daemon's socket, and ends well.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use elver_testkit::Examples;

use crate::common::{TestNode, config};

static EXAMPLES: Examples = Examples::new("elver-rpc", env!("CARGO_MANIFEST_DIR"), "");

#[test]
fn blobs_go_there_and_back() {
    let node = TestNode::start(config(50, 1));
    let said = EXAMPLES.run(&node, "blobs", &["2000"]);
    assert!(said.contains("2048000 bytes there and back"), "{said}");
}

#[test]
fn the_service_has_clients() {
    let node = TestNode::start(config(51, 1));
    let mut service = EXAMPLES
        .command(&node, "kv_service", &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(service.stdout.take().unwrap());
    let mut port = String::new();
    says.read_line(&mut port).unwrap();
    for _ in 0..2 {
        let said = EXAMPLES.run(&node, "kv_client", &[port.trim(), "2000"]);
        assert!(said.contains("2000 values put") && said.contains("2000 keys"), "{said}");
        assert!(said.contains("there is no key \"nothing\""), "{said}");
    }
    drop(service.stdin.take());
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(service.wait().unwrap().success());
    assert_eq!(rest.trim(), format!("{} calls", 2 * 2_002));
}

/// An example that nobody runs rots.
#[test]
fn all_of_them_are_run() {
    assert_eq!(EXAMPLES.names(), ["blobs", "kv_client", "kv_service"]);
}
