//! Debian's programs, one end in each of two network namespaces: as on two hosts. Most meet by rdma_cm.

use std::path::Path;

use anyhow::Result;

use super::not_run::Ran;
use super::outcome::Item;
use super::place::{self, APART, Place};
use super::process::{Call, Runner};
use super::programs::{item, split};

/// The transport, the server's words, and those that its client has besides, before the server's address.
const PAIRS: [(&str, &str, &str); 16] = [
    ("RC", "rping -C 5 -V", "-c -a"),
    ("RC", "ucmatose", "-s"),
    ("UD", "udaddy", "-s"),
    ("RC", "ib_write_bw -n 200 -R", ""),
    ("RC", "ib_read_lat -n 200 -R", ""),
    ("RC", "ib_send_bw -n 200 -R", ""),
    // All sizes, up to 8 MiB.
    ("RC", "ib_read_lat -a -n 20", ""),
    ("RC", "ib_write_bw -a -n 20", ""),
    ("RC", "ib_send_bw -a -n 20", ""),
    ("UD", "ib_send_bw -n 200 -c UD", ""),
    ("UC", "ib_write_bw -n 200 -c UC", ""),
    ("DC", "ib_write_bw -n 200 -c DC", ""),
    ("RC", "ib_atomic_bw -n 200", ""),
    ("RC", "rstream", "-s"),
    ("RC", "env ELVER_LINK_LAYER=infiniband ibv_rc_pingpong -n 200 -c", ""),
    ("UD", "env ELVER_LINK_LAYER=infiniband ib_send_bw -n 200 -c UD", ""),
];
/// What rping's server is told besides.
const SERVES: (&str, &str) = ("rping", "-s");

fn named(common: &str) -> String {
    format!("{common}{APART}")
}

/// Runs them, where this is root.
pub(super) fn run(runner: &Runner) -> Result<Ran> {
    let wanted: Vec<_> =
        PAIRS.into_iter().filter(|(_, common, _)| runner.wants(&named(common))).collect();
    let names = wanted.iter().map(|(_, common, _)| named(common)).collect();
    place::apart(names, |place| rows(runner, place, wanted))
}

/// A row of each pair.
fn rows(runner: &Runner, place: &Place, pairs: Vec<(&str, &str, &str)>) -> Result<Vec<Item>> {
    let [at_server, at_client] = &place.before;
    let mut items = Vec::new();
    for (transport, common, asks) in pairs {
        let serves = if common.starts_with(SERVES.0) { SERVES.1 } else { "" };
        let server = format!("timeout 60 {common} {serves}");
        let client = format!("timeout 60 {common} {asks} {}", place.addresses[0]);
        let [server, client] = [&server, &client].map(|words| split(words));
        let server = Call { before: at_server, words: &server, ..Call::default() };
        let client = Call { before: at_client, words: &client, ..Call::default() };
        let ended = runner.pair(&server, &client, Path::new("/"))?;
        items.push(item(&named(common), transport, &ended));
    }
    Ok(items)
}
