//! Each example runs as the processes of a group beside a daemon's socket, as `elver launch` starts them, and ends well.

use std::process::Stdio;

use crate::common::{TOKEN, TestNode, config, session_at};
use elver_msg::{Launched, Rendezvous};
use elver_testkit::Examples;

static EXAMPLES: Examples = Examples::new("elver-msg", env!("CARGO_MANIFEST_DIR"), "");

/// What all ranks say, and that they end well.
fn run(group: u8, size: u32, name: &str, arguments: &[&str]) -> String {
    let node = TestNode::start(config(group, 1));
    let session = session_at(&node);
    let mut place = Rendezvous::bind(&session, 0, size, TOKEN).unwrap();
    let rendezvous = place.address();
    let mut ranks: Vec<_> = (0..size)
        .map(|rank| {
            let launched = Launched { rank, size, rendezvous, token: TOKEN };
            let mut command = EXAMPLES.command(&node, name, arguments);
            command.envs(launched.variables()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    // One that ends before it has come never comes.
    let met = place.run(|| ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_some()));
    assert!(met.unwrap(), "{:?} did not come", place.missing());
    let all = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
    all.map(|output| {
        assert!(output.status.success(), "{name}: {}", output.status);
        String::from_utf8(output.stdout).unwrap()
    })
    .collect()
}

#[test]
fn sums_are_known_to_all() {
    let said = run(80, 4, "sums", &["1000"]);
    assert!(said.contains("4 ranks: mean 500.5, deviation 288.7"), "{said}");
    assert!(said.contains("[250.0, 500.0, 750.0, 1000.0]"), "{said}");
}

/// However many share the rod, it is one rod.
#[test]
fn heat_is_kept() {
    let warmest = |said: &str| said.split("heat 1000.000, ").nth(1).map(str::to_string);
    let alone = run(81, 1, "heat", &["60", "200"]);
    let shared = run(82, 3, "heat", &["60", "200"]);
    assert!(warmest(&alone).is_some(), "{alone}");
    assert_eq!(warmest(&alone), warmest(&shared));
}

#[test]
fn blocks_are_handed_out() {
    let said = run(83, 3, "blocks", &["20", "100000"]);
    // 0 to 19, each in as many bytes.
    assert!(said.contains("20 blocks of 100000 bytes, their bytes together 19000000"), "{said}");
    let read = |line: &str| -> u32 {
        let count = line.split(": ").nth(1).and_then(|rest| rest.split(' ').next());
        count.unwrap().parse().unwrap()
    };
    let workers = said.lines().filter(|line| line.starts_with("rank "));
    assert_eq!(workers.map(read).sum::<u32>(), 20, "each was READ: {said}");
}

/// An example that nobody runs rots.
#[test]
fn all_of_them_are_run() {
    assert_eq!(EXAMPLES.names(), ["blocks", "heat", "sums"]);
}
