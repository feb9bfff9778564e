//! Programs of Debian, unmodified: perftest, and the examples of libibverbs and librdmacm. A server and a
//! client each, on loopback.

use std::fs;
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
const PAIRS: [Row; 40] = [
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
    row("ib_write_bw", "RC", "-n 200 --odp", &[""]),
    row("ib_send_bw", "RC", "-n 200 -l 8 --recv_post_list=4", &[""]),
    row("ib_send_bw", "XRC", "-n 200 -c XRC", &[""]),
    row("ib_send_bw", "UD", "-n 200 -c UD -R", &[""]),
    // An InfiniBand port's: their ends know each other by LIDs.
    row("env ELVER_LINK_LAYER=infiniband ibv_rc_pingpong", "RC", "-n 200 -c", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ibv_uc_pingpong", "UC", "-n 200 -c", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ibv_ud_pingpong", "UD", "-n 200 -c", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ibv_srq_pingpong", "RC", "-n 200 -c", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ibv_xsrq_pingpong", "XRC", "-n 200", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ib_write_bw", "RC", "-n 200", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ib_send_bw", "UD", "-n 200 -c UD", &[""]),
    row("env ELVER_LINK_LAYER=infiniband ib_write_bw", "DC", "-n 200 -c DC", &[""]),
];

/// A program whose two ends meet by rdma_cm, or by TCP at a port that its client knows.
struct Managed {
    transport: &'static str,
    server: &'static str,
    client: &'static str,
    /// Whether the server ends by itself.
    ends: bool,
    /// Whether a quick run has it.
    quick: bool,
    /// The port that its server must listen on before its client is started; others' clients wait for it themselves.
    first: Option<u16>,
}

const fn managed(transport: &'static str, server: &'static str, client: &'static str) -> Managed {
    Managed { transport, server, client, ends: true, quick: false, first: None }
}

/// One whose server serves on.
const fn serving(transport: &'static str, server: &'static str, client: &'static str) -> Managed {
    Managed { ends: false, ..managed(transport, server, client) }
}

/// Of datagram rsockets, which a quick run has too; the server serves on.
const fn datagrams(server: &'static str, client: &'static str) -> Managed {
    Managed { quick: true, ..serving("UD", server, client) }
}

/// Riostream, whose server listens before it sets what the sockets that it accepts inherit. Who asks in between, as a client
/// does that waits for the port, is given a socket that takes no maps: his `riomap` fails, and then the server's `rrecv`,
/// with the errno of an earlier call.
const fn mapped(server: &'static str, client: &'static str, quick: bool) -> Managed {
    Managed { quick, first: Some(7_471), ..managed("RC", server, client) }
}

/// `udpong` serves the first address that has its name, IPv6's if there is one, unless it is told which. Its whole run
/// sends more than its server takes, and `rpoll` of librdmacm 44 hangs where an answer is late once and lost later (mended
/// by rdma-core's a1747742e): so many datagrams as there are receives are not lost.
const MANAGED: [Managed; 20] = [
    managed("RC", "rping -s -a 127.0.0.1 -C 5", "rping -c -a 127.0.0.1 -C 5"),
    managed("RC", "ucmatose", "ucmatose -s 127.0.0.1"),
    managed("UD", "udaddy", "udaddy -s 127.0.0.1"),
    managed("UD", "mckey -b 127.0.0.1 -m 230.0.0.1", "mckey -b 127.0.0.1 -m 230.0.0.1 -s"),
    managed("RC", "rstream", "rstream -s 127.0.0.1"),
    mapped("riostream", "riostream -s 127.0.0.1", false),
    mapped(
        "riostream -S 5000 -I 100 -C 10 -T v",
        "riostream -s 127.0.0.1 -S 5000 -I 100 -C 10 -T v",
        true,
    ),
    datagrams("udpong -b 127.0.0.1", "udpong -s 127.0.0.1 -S 500 -C 1000 -T e"),
    datagrams("udpong -b 127.0.0.1", "udpong -s 127.0.0.1 -S 500 -C 200"),
    managed("RC", "rdma_server", "rdma_client -s 127.0.0.1"),
    managed("RC", "rdma_xserver -c r", "rdma_xclient -s 127.0.0.1 -c r"),
    managed("XRC", "rdma_xserver -c x", "rdma_xclient -s 127.0.0.1 -c x"),
    serving("RC", "cmtime -b 127.0.0.1 -c 50", "cmtime -s 127.0.0.1 -c 50"),
    // Without rdma_cm it knows peers by LIDs alone, which RoCE has not.
    serving("RC", "qperf", QPERF),
    serving("RC, UC, UD", "env ELVER_LINK_LAYER=infiniband qperf", QPERF_BY_LIDS),
    // It takes atomics of devices alone that say so.
    managed(
        "RC",
        "ucx_perftest -p 13441",
        "ucx_perftest 127.0.0.1 -p 13441 -d elver0:1 -x rc_verbs -t fadd -n 1000",
    ),
    managed(
        "RC",
        "ucx_perftest -p 13442",
        "ucx_perftest 127.0.0.1 -p 13442 -d elver0:1 -x rc_verbs -t put_lat -n 1000",
    ),
    managed(
        "RC",
        "ucx_perftest -p 13443",
        "ucx_perftest 127.0.0.1 -p 13443 -d elver0:1 -x rc_verbs -t am_lat -n 1000",
    ),
    managed("RC, UD", UCX_SERVER, UCX_CLIENT),
    managed("RC, UD", UCX_SERVER_BY_LIDS, UCX_CLIENT_BY_LIDS),
];
/// RC, connected by UD; see docs/preload.md for the second variable.
const UCX_SERVER: &str =
    "env UCX_TLS=rc_verbs,ud_verbs:aux UCX_UD_VERBS_ETH_DGID_CHECK=n ucx_perftest -p 13444";
const UCX_CLIENT: &str = "env UCX_TLS=rc_verbs,ud_verbs:aux UCX_UD_VERBS_ETH_DGID_CHECK=n ucx_perftest 127.0.0.1 -p 13444 -t tag_lat -n 1000";
/// UCX looks for GIDs in datagrams on Ethernet alone.
const UCX_SERVER_BY_LIDS: &str =
    "env ELVER_LINK_LAYER=infiniband UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest -p 13445";
const UCX_CLIENT_BY_LIDS: &str = "env ELVER_LINK_LAYER=infiniband UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest 127.0.0.1 -p 13445 -t tag_lat -n 1000";
const QPERF_BY_LIDS: &str = "env ELVER_LINK_LAYER=infiniband qperf 127.0.0.1 -t 1 rc_bw rc_lat uc_bw uc_lat uc_rdma_write_bw \
    ud_bw ud_lat ver_rc_compare_swap ver_rc_fetch_add";
/// `ver_` compares what atomics come to.
const QPERF: &str = "qperf 127.0.0.1 -t 1 -cm 1 rc_bi_bw rc_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw \
    rc_rdma_write_lat rc_rdma_write_poll_lat ver_rc_compare_swap ver_rc_fetch_add";

/// What a quick run leaves out: all sizes, and most of rdma_cm.
const SLOW: [&str; 2] = ["-a -n 20", "-R"];

/// Runs the programs; `scratch` is a folder.
pub(super) fn run(runner: &Runner, scratch: &Path, quick: bool) -> Result<Vec<Item>> {
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
    for row in MANAGED.iter().filter(|row| (row.quick || !quick) && runner.wants(row.client)) {
        let client = format!("timeout 90 {}", row.client);
        let ended = if row.ends {
            let server = format!("timeout 90 {}", row.server);
            pair_at(runner, &split(&server), &split(&client), row.first)?.into()
        } else {
            vec![served(runner, &split(row.server), &split(&client), Path::new("/"))?]
        };
        items.push(item(row.client, row.transport, &ended));
    }
    items.extend(copied(runner, scratch)?);
    Ok(items)
}

/// A server and its client, on loopback.
fn pair(runner: &Runner, server: &[&str], client: &[&str]) -> Result<[Ended; 2]> {
    pair_at(runner, server, client, None)
}

/// The same; the client is started when somebody listens on a port of rdma_cm's, if one is named.
fn pair_at(
    runner: &Runner,
    server: &[&str],
    client: &[&str],
    port: Option<u16>,
) -> Result<[Ended; 2]> {
    let at = Path::new("/");
    let [server, client] = [server, client].map(|words| Call { words, ..Call::default() });
    let mut serving = runner.start(&server, at)?;
    if let Some(port) = port {
        serving.await_listener(port)?;
    }
    let asking = runner.ask(&mut serving, &client, at)?;
    Ok([serving.end()?, asking])
}

/// A client, and how it ended; its server serves on until it is stopped.
fn served(runner: &Runner, server: &[&str], client: &[&str], at: &Path) -> Result<Ended> {
    let [server, client] = [server, client].map(|words| Call { words, ..Call::default() });
    let mut serving = runner.start(&server, at)?;
    let asking = runner.ask(&mut serving, &client, at)?;
    serving.stop()?;
    Ok(asking)
}

/// A file, copied into a folder over a socket of rsockets.
fn copied(runner: &Runner, scratch: &Path) -> Result<Option<Item>> {
    const CLIENT: &str = "rcopy /etc/hostname 127.0.0.1:copied";
    if !runner.wants(CLIENT) {
        return Ok(None);
    }
    let copy = scratch.join("copied");
    // One of an earlier run, if there is one.
    let _ = fs::remove_file(&copy);
    let ended = served(runner, &["rcopy"], &split(CLIENT), scratch)?;
    let item = item(CLIENT, "RC", &[ended]);
    if item.passes() && fs::read(&copy).ok() != fs::read("/etc/hostname").ok() {
        return Ok(Some(Item { outcome: Outcome::Fail, said: "the copy differs".into(), ..item }));
    }
    Ok(Some(item))
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
