//! `elver status`: how a running node is.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use elver_console::{Failure, plain, table};
use elver_node::Status;
use elver_node::config::{SOCKET_VARIABLE, default_socket, status_path};

/// Rows of a table that are shown without --all.
const ROWS: usize = 20;
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

const EXAMPLES: &str = "\
Examples:
  elver status
      sessions, VQPs, peers and counters of this host's node
  elver status --watch
      the same, live, with rates
  elver status --json | jq '.vqps[] | select(.via == \"rc\")'
      VQPs that are backed by an RC QP now
  elver status --socket /run/user/1000/elver/elverd.sock
      another node's";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// The node's socket; by default ELVER_SOCKET, else where elverd puts it.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Show it again and again, every so many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<f64>,
    /// With --watch: end after so many times.
    #[arg(long, requires = "watch", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Show every row of every table, also of counters that are 0.
    #[arg(long)]
    all: bool,
    /// Print JSON, an object a time.
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let interval = match args.watch {
        None => Duration::ZERO,
        Some(seconds) if seconds > 0.0 && seconds <= 3_600.0 => Duration::from_secs_f64(seconds),
        Some(seconds) => {
            return Err(Failure::unusable(format!(
                "--watch {seconds}: it must be above 0 and at most 3600 seconds"
            )));
        }
    };
    let socket = args.socket.clone().unwrap_or_else(usual_socket);
    let times = if args.watch.is_some() { args.count.unwrap_or(u64::MAX) } else { 1 };
    let clears = args.watch.is_some() && std::io::stdout().is_terminal();
    let mut before: Option<(Instant, Status)> = None;
    for time in 0..times {
        if time > 0 {
            std::thread::sleep(interval);
        }
        let status = Status::fetch(&socket)?;
        // A terminal may hold what is written for long.
        let fetched = Instant::now();
        let text = if args.json {
            serde_json::to_string(&status)? + "\n"
        } else {
            let since = before.as_ref().map(|(at, status)| (fetched - *at, status));
            let rows = if args.all { usize::MAX } else { ROWS };
            format!("{}{}", if clears { CLEAR } else { "" }, page(&status, since, rows))
        };
        // Who reads may have enough.
        if !elver_console::write(text.as_bytes()) {
            return Ok(());
        }
        before = Some((fetched, status));
    }
    Ok(())
}

/// Where processes find the node: the host's, unless nobody is there or it is not for this user, else
/// this user's.
pub(crate) fn usual_socket() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => first_that_answers([PathBuf::from("/run/elver/elverd.sock"), default_socket()]),
    }
}

/// The first at which a node that this user trusts lets him in; if none does the first that is there, for whoever asks
/// it to hear why not.
fn first_that_answers(sockets: [PathBuf; 2]) -> PathBuf {
    let answers = |socket: &&PathBuf| Status::is_told_at(socket);
    let is_there = |socket: &&PathBuf| status_path(socket).exists();
    let found = sockets.iter().find(answers).or_else(|| sockets.iter().find(is_there));
    found.unwrap_or(&sockets[1]).clone()
}

/// The status for people. Where there is an earlier one, what happened since by second.
fn page(status: &Status, before: Option<(Duration, &Status)>, rows: usize) -> String {
    let mut text = Page { text: String::new(), rows };
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let metas: Vec<String> = status.registries.iter().map(ToString::to_string).collect();
    text.line(&format!(
        "node {}  elverd {} pid {}  meta servers {} (registered at {} of {})",
        dash(status.address.map(|address| address.to_string())),
        status.version,
        status.pid,
        if metas.is_empty() { "-".into() } else { metas.join(", ") },
        status.registered,
        metas.len()
    ));
    for refusal in &status.refusals {
        text.line(&format!("cannot register at {}: {}", refusal.registry, refusal.reason));
    }
    text.line(&format!(
        "memory of connections {} KB  sessions {}  VQPs {} (going {})  peers {}",
        status.connection_bytes / 1024,
        status.sessions.len(),
        status.vqps_total,
        status.vqps_going,
        status.peers_total
    ));
    let heirs = ["prepared", "free", "inherited", "returned", "refused"];
    let heirs = heirs.map(|name| {
        (name, status.engine.get(&format!("heirs_{name}")).copied().unwrap_or_default())
    });
    if heirs.iter().any(|(_, count)| *count > 0) {
        let heirs = heirs.map(|(name, count)| format!("{name} {count}"));
        text.line(&format!("sessions for children  {}", heirs.join("  ")));
    }
    for (counter, what) in LEASES_REFUSED {
        let refused = status.engine.get(counter).copied().unwrap_or_default();
        if refused > 0 {
            text.line(&what.replace("{}", &refused.to_string()));
        }
    }
    let sessions = status.sessions.iter().map(|one| {
        let state = if one.active { "active" } else { "asleep" };
        let kilobytes = one.bytes / 1024;
        let direct = [one.direct_reads, one.direct_writes].map(|number| number.to_string());
        let numbers = [u64::from(one.uid), one.vqps.into(), one.mrs.into(), kilobytes];
        let [uid, vqps, mrs, kilobytes] = numbers.map(|number| number.to_string());
        let [reads, writes] = direct;
        [one.pid.to_string(), state.into(), uid, vqps, mrs, kilobytes, reads, writes]
    });
    let heads = [
        "SESSION PID",
        "STATE",
        "UID",
        "VQPS",
        "MRS",
        "MEMORY KB",
        "DIRECT READS",
        "DIRECT WRITES",
    ];
    text.table(heads, sessions, 2);
    let accounts = status.users.iter().map(|one| {
        let space = (one.space > 0).then(|| one.space.to_string());
        let numbers = [one.sessions.into(), one.vqps.into(), one.ports.into(), one.mrs.into()];
        let [sessions, vqps, ports, mrs] = numbers.map(|number: u64| number.to_string());
        let numbers = [one.bytes / 1024, one.leased_wrs.into(), one.wrs];
        let [kilobytes, leased, wrs] = numbers.map(|number| number.to_string());
        [one.uid.to_string(), dash(space), sessions, vqps, ports, mrs, kilobytes, leased, wrs]
    });
    let heads = [
        "ACCOUNT",
        "NAMESPACE",
        "SESSIONS",
        "VQPS",
        "PORTS",
        "MRS",
        "MEMORY KB",
        "LEASED WRS",
        "WRS",
    ];
    text.table(heads, accounts, 1);
    let vqps = status.vqps.iter().map(|one| {
        let peer = one.peer.map(|peer| match one.port {
            Some(port) if port != 0 => format!("{peer} port {port}"),
            _ => peer.to_string(),
        });
        [
            format!("{:#x}", one.vqp),
            one.state.clone(),
            dash(peer),
            dash(one.via.clone()),
            one.way.clone(),
            one.class.clone(),
            dash(one.bound.map(|port| port.to_string())),
            one.outstanding.to_string(),
            one.sends_done.to_string(),
            one.receives_done.to_string(),
            one.transfers.to_string(),
        ]
    });
    let heads = [
        "VQP",
        "STATE",
        "PEER",
        "VIA",
        "WAY",
        "CLASS",
        "BOUND",
        "OUTSTANDING",
        "SENT",
        "RECEIVED",
        "TRANSFERS",
    ];
    text.table(heads, vqps, 6);
    let peers = status.peers.iter().map(|one| {
        let old = before.and_then(|(past, status)| {
            let old = status.peers.iter().find(|old| old.address == one.address)?;
            Some(one.ops.saturating_sub(old.ops) as f64 / past.as_secs_f64())
        });
        [
            one.address.to_string(),
            one.vqps.to_string(),
            one.rc_qps.to_string(),
            one.ops.to_string(),
            one.bytes.to_string(),
            dash(old.map(|rate| format!("{rate:.0}"))),
        ]
    });
    text.table(["PEER", "VQPS", "RC QPS", "OPERATIONS", "BYTES", "OPERATIONS/S"], peers, 1);
    let latencies = status.latencies.iter().map(|one| {
        let micros = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
        let times = [one.p50_ns, one.p99_ns, one.p999_ns, one.max_ns];
        let [p50, p99, p999, max] = times.map(micros);
        [one.op.clone(), one.samples.to_string(), p50, p99, p999, max]
    });
    let heads = ["LATENCY (US)", "SAMPLES", "P50", "P99", "P99.9", "MAX"];
    text.table(heads, latencies, 1);
    for (name, pick) in COUNTERS {
        let now = pick(status);
        let is_shown = |value: u64| value > 0 || rows == usize::MAX;
        let counters = now.iter().filter(|(_, value)| is_shown(**value)).map(|(name, value)| {
            let rate = before.map(|(past, status)| {
                let old = pick(status).get(name).copied().unwrap_or(0);
                value.saturating_sub(old) as f64 / past.as_secs_f64()
            });
            [name.clone(), value.to_string(), dash(rate.map(|rate| format!("{rate:.0}")))]
        });
        text.table([name, "VALUE", "A SECOND"], counters, 1);
    }
    plain(&text.text).into_owned()
}

/// Connects that were refused a leased queue pair, by what for.
const LEASES_REFUSED: [(&str, &str); 3] = [
    (
        "leases_refused",
        "connects that found no room for a leased queue pair  {}; transfer.leased_wrs_max bounds them",
    ),
    (
        "leases_refused_user",
        "connects whose account has its share of leased queue pairs  {}; quota.leased_wrs bounds it",
    ),
    (
        "leases_refused_peer",
        "connects whose peer has leased this node its share of queue pairs  {}; its transfer.leased_wrs_max bounds it",
    ),
];

type Counters = (&'static str, fn(&Status) -> &BTreeMap<String, u64>);
const COUNTERS: [Counters; 4] = [
    ("CORE", |status| &status.core),
    ("ENGINE", |s| &s.engine),
    ("DEVICE", |s| &s.device),
    ("REGISTRY", |s| &s.registry),
];

/// Lines and tables.
struct Page {
    text: String,
    rows: usize,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A table of as many rows as may be shown; nothing if there are none.
    fn table<const N: usize>(
        &mut self,
        heads: [&str; N],
        rows: impl Iterator<Item = [String; N]>,
        left: usize,
    ) {
        let rows: Vec<[String; N]> = rows.collect();
        if rows.is_empty() {
            return;
        }
        let shown = &rows[..rows.len().min(self.rows)];
        self.line(&format!("\n{}", table::text(heads, shown, left)));
        if rows.len() > shown.len() {
            self.line(&format!("… and {} more: --all", rows.len() - shown.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn connects_that_found_no_room_for_a_leased_queue_pair_are_shown() {
        let mut status = Status::default();
        assert!(!page(&status, None, 10).contains("leased"));
        status.engine.insert("leases_refused".into(), 3);
        status.engine.insert("leases_refused_user".into(), 5);
        status.engine.insert("leases_refused_peer".into(), 7);
        let said = page(&status, None, 10);
        assert!(said.contains("leased this node its share of queue pairs  7;"), "{said}");
        assert!(said.contains("no room for a leased queue pair  3;"), "{said}");
        assert!(said.contains("its share of leased queue pairs  5; quota.leased_wrs"), "{said}");
    }

    /// As programs do, which ask one after the other.
    #[test]
    fn a_node_that_has_gone_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let sockets = ["host", "user"].map(|name| place.path().join(name));
        assert_eq!(first_that_answers(sockets.clone()), sockets[1], "neither is there");
        drop(UnixListener::bind(status_path(&sockets[0])).unwrap());
        assert_eq!(first_that_answers(sockets.clone()), sockets[0], "its node has gone");
        let _user = UnixListener::bind(status_path(&sockets[1])).unwrap();
        assert_eq!(first_that_answers(sockets.clone()), sockets[1]);
        std::fs::remove_file(status_path(&sockets[0])).unwrap();
        let _host = UnixListener::bind(status_path(&sockets[0])).unwrap();
        assert_eq!(first_that_answers(sockets.clone()), sockets[0]);
    }
}
