//! What a row of `bench connect` means: what was there before the clock began, and what is in it.

use elver_console::say;
use serde_json::{Value, json};

/// By row.
const NOTES: [(&str, &str); 15] = [
    ("tcp", "from connect to the first echo of 8 bytes; the server listens and spins"),
    (
        "verbs",
        "an RC QP of its own at either end, by a handshake over UD; there before: device, PD, CQ, and \
         how the peer is asked; closing is not in it",
    ),
    ("verbs-full", "the same, and before it a device, a PD, a CQ and an MR of 4 KB"),
    (
        "lite-miss",
        "the first connect to a node makes an RC QP for all who follow; there before: how the peer is \
         asked",
    ),
    ("lite-hit", "the node has an RC QP to the peer"),
    ("rpc-meta", "the peer itself is asked for its record; there before: how it is asked"),
    (
        "vqp-cold",
        "the node knows nothing of the peer; there before: the meta server's record, and no RC QP: it \
         is asked over DC",
    ),
    (
        "vqp-uncached",
        "the meta server is asked, whatever the node knows; there before: its record, and no RC QP: it \
         is asked over DC",
    ),
    ("vqp-dccache", "the node knows the peer's record"),
    ("vqp-rc", "the node has an RC QP to the peer"),
    (
        "first-connect",
        "a fresh process, from its first call to the end of its first READ, from a node that its own \
         knows nothing of; there before: the process and its daemon, which spins; the meta server is \
         asked over DC, by a node that has no RC QP",
    ),
    ("first-connect-asleep", "the same, the daemon asleep when it begins"),
    ("first-connect-host", "the same, from another process of its own host: no network is crossed"),
    (
        "exec-to-read",
        "a fresh program, from its exec to the end of its first READ; there before: as first-connect",
    ),
    (
        "exec-to-tcp",
        "the same program on the same path, from its exec to its first echo over TCP; there before: \
         a server that listens and spins",
    ),
];

/// The notes of these rows, by name.
pub(crate) fn of<'a>(rows: impl Iterator<Item = &'a str>) -> Value {
    known(rows).map(|(name, note)| (name.to_string(), json!(note))).collect()
}

/// The same for people.
pub(crate) fn print<'a>(rows: impl Iterator<Item = &'a str>) {
    for (name, note) in known(rows) {
        say!("  {name}: {note}");
    }
}

fn known<'a>(
    rows: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let rows: Vec<&str> = rows.collect();
    NOTES.iter().filter(move |(name, _)| rows.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::args::CONNECT_ROWS;

    #[test]
    fn every_row_says_what_it_is() {
        assert_eq!(NOTES.map(|(name, _)| name), CONNECT_ROWS);
    }
}
