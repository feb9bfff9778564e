//! Programs of Debian, unmodified: perftest, and the examples of libibverbs and librdmacm. A server and a
//! client each, on loopback.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

use super::outcome::{Item, Outcome};
use super::process::{Call, Ended, Runner, last_line};

/// A program, the options that choose its transport, and the options that are tried with it.
struct Row {
    program: &'static str,
    transport: &'static str,
    always: &'static str,
    options: &'static [&'static str],
}

const fn row(
    program: &'static str,
    transport: &'static str,
    always: &'static str,
    options: &'static [&'static str],
) -> Row {
    Row { program, transport, always, options }
}

/// Programs that speak to no other.
const ALONE: [&str; 2] = ["ibv_devices", "ibv_devinfo -v"];

/// Programs whose two ends meet over TCP, at a port that is named; the examples compare what they receive.
const PAIRS: [Row; 28] = [
    row("ibv_rc_pingpong", "RC", "-g 0 -n 200", &["-c", "-c -e", "-c -N", "-t", "-c -o", "-c -j"]),
    row("ibv_uc_pingpong", "UC", "-g 0 -n 200", &["-c", "-c -e"]),
    row("ibv_ud_pingpong", "UD", "-g 0 -n 200", &["-c", "-c -e"]),
    row("ibv_srq_pingpong", "RC", "-g 0 -n 200", &["-c", "-c -e"]),
    row("ibv_xsrq_pingpong", "XRC", "-g 0 -n 200", &[""]),
    row("ib_write_bw", "RC", "-n 200", &["", "-b", "-q 8", "-a -n 20", "-R"]),
    row("ib_write_bw", "UC", "-n 200 -c UC", &["", "-b", "-q 8", "-a -n 20"]),
    row("ib_write_lat", "RC", "-n 200", &["", "-a -n 20", "-R"]),
    row("ib_write_lat", "UC", "-n 200 -c UC", &[""]),
    row("ib_read_bw", "RC", "-n 200", &["", "-b", "-q 8", "-e", "-a -n 20", "-R"]),
    row("ib_read_lat", "RC", "-n 200", &["", "-e", "-a -n 20", "-R"]),
    row("ib_send_bw", "RC", "-n 200", &["", "-b", "-q 8", "-e", "-a -n 20", "--use-srq", "-R"]),
    row("ib_send_bw", "UC", "-n 200 -c UC", &["", "-b", "-q 8", "-e"]),
    row("ib_send_bw", "UD", "-n 200 -c UD", &["", "-b", "-q 8", "-e", "-a -n 20", "--use-srq"]),
    row("ib_send_lat", "RC", "-n 200", &["", "-e", "-a -n 20", "--use-srq", "-R"]),
    row("ib_send_lat", "UC", "-n 200 -c UC", &["", "-e"]),
    row("ib_send_lat", "UD", "-n 200 -c UD", &["", "-e", "-a -n 20", "--use-srq"]),
    row("ib_atomic_bw", "RC", "-n 200", &["", "-b", "-q 8", "-e", "-R"]),
    row("ib_atomic_lat", "RC", "-n 200", &["", "-R"]),
    row("ib_write_bw", "DC", "-n 200 -c DC", &["", "-b", "-q 8", "-a -n 20"]),
    row("ib_write_lat", "DC", "-n 200 -c DC", &[""]),
    row("ib_read_bw", "DC", "-n 200 -c DC", &["", "-b", "-q 8", "-e"]),
    row("ib_read_lat", "DC", "-n 200 -c DC", &[""]),
    row("ib_send_bw", "DC", "-n 200 -c DC", &["", "-b", "-q 8", "-e", "-a -n 20"]),
    row("ib_send_lat", "DC", "-n 200 -c DC", &["", "-e"]),
    row("ib_atomic_bw", "DC", "-n 200 -c DC", &["", "-b", "-q 8"]),
    row("ib_atomic_lat", "DC", "-n 200 -c DC", &[""]),
    row("ib_write_bw", "XRC", "-n 200 -c XRC", &[""]),
];

/// Programs whose two ends meet by rdma_cm: the server's words, and the client's.
const MANAGED: [(&str, &str, &str); 8] = [
    ("RC", "rping -s -a 127.0.0.1 -C 5", "rping -c -a 127.0.0.1 -C 5"),
    ("RC", "ucmatose", "ucmatose -s 127.0.0.1"),
    ("UD", "udaddy", "udaddy -s 127.0.0.1"),
    ("UD", "mckey -b 127.0.0.1 -m 230.0.0.1", "mckey -b 127.0.0.1 -m 230.0.0.1 -s"),
    ("RC", "rstream", "rstream -s 127.0.0.1"),
    ("RC", "riostream", "riostream -s 127.0.0.1"),
    ("RC", "rcopy", "rcopy /etc/hostname 127.0.0.1:/dev/null"),
    ("UD", "udpong", "udpong -s 127.0.0.1"),
];

/// What a quick run leaves out: all sizes, and rdma_cm.
const SLOW: [&str; 2] = ["-a -n 20", "-R"];

/// Runs the programs.
pub(super) fn run(runner: &Runner, quick: bool) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for words in ALONE.into_iter().filter(|words| runner.wants(words)) {
        let ended = runner.alone(&split(words), Path::new("/"), &[])?;
        items.push(item(words, "", &[ended]));
    }
    for Row { program, transport, always, options } in &PAIRS {
        for option in *options {
            let name = [*program, always, option].join(" ");
            if quick && SLOW.contains(option) || !runner.wants(name.trim()) {
                continue;
            }
            let port = free_port()?.to_string();
            let words = [&split(&name)[..], &["-p", &port]].concat();
            let client = [&words[..], &["127.0.0.1"]].concat();
            let ended = pair(runner, &words, &client)?;
            items.push(item(name.trim(), transport, &ended));
        }
    }
    let managed = if quick { &[][..] } else { &MANAGED };
    for (transport, server, client) in managed.iter().filter(|row| runner.wants(row.2)) {
        let [server, bounded] = [server, client].map(|words| format!("timeout 10 {words}"));
        let ended = pair(runner, &split(&server), &split(&bounded))?;
        items.push(item(client, transport, &ended));
    }
    Ok(items)
}

/// A server and its client, on loopback.
fn pair(runner: &Runner, server: &[&str], client: &[&str]) -> Result<[Ended; 2]> {
    let [server, client] = [server, client].map(|words| Call { words, ..Call::default() });
    runner.pair(&server, &client, Path::new("/"))
}

pub(super) fn split(words: &str) -> Vec<&str> {
    words.split_whitespace().collect()
}

pub(super) fn item(name: &str, transport: &str, ended: &[Ended]) -> Item {
    let failed = ended.iter().find(|ended| !ended.status.success());
    let (outcome, said) = match failed {
        None => (Outcome::Pass, String::new()),
        Some(ended) => (Outcome::Fail, format!("{}: {}", ended.status, last_line(&ended.said))),
    };
    Item { transport: transport.to_string(), ..Item::new(name.to_string(), outcome, said) }
}

/// A port of none that the system gives to who asks for any, and each once.
pub(super) fn free_port() -> Result<u16> {
    const FIRST: u32 = 21_000;
    const COUNT: u32 = 10_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + (std::process::id() * 100 + taken) % COUNT) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free from {FIRST} on")
}
