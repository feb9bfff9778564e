//! The demonstration, the status and the benchmarks of connections, through the built programs.
//!
//! The benchmarks run for moments: what is tested is what they print, never a figure. One test
//! function for all that spins: side by side they would only slow each other.

mod common;

use std::process::{Command, Stdio};
use std::time::Instant;

use common::{Daemon, WAIT, elver, is_root, json, leftovers, run};
use serde_json::Value;

#[test]
fn what_spins() {
    the_demonstration_holds("loopback");
    if is_root() {
        the_demonstration_holds("netns");
    }
    a_demonstration_that_is_ended_leaves_nothing();
    the_status_is_shown();
    connects_have_their_rows();
    rings_have_their_rows();
    rings_of_several_threads_have_their_rows();
    rings_without_a_choice_have_their_rows();
    cases_have_their_rows();
    streams_have_their_rows();
    calls_have_their_rows();
    data_has_its_rows();
    a_mesh_has_its_rows();
    a_storm_has_its_rows();
    priorities_have_their_rows();
}

fn the_demonstration_holds(placement: &str) {
    let object = json(&run(&["demo", "--json", "--placement", placement]));
    assert_eq!(object["demo"], "elver");
    assert_eq!(object["placement"], placement);
    assert!(object["seconds"].as_f64().unwrap() > 0.0, "{object}");
    let names: Vec<_> =
        object["connect"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["vqp-dccache", "vqp-uncached", "first-connect", "verbs", "tcp"]);
    assert_eq!(object["traffic"]["verified"], true);
    assert!(object["traffic"]["echoes"].as_u64().unwrap() > 0);
    assert_eq!(object["killed"]["reclaimed"], true);
    assert!(object["killed"]["vqps"].as_u64().unwrap() > 0);
    assert!(object["killed"]["bystander_reads"].as_u64().unwrap() > 0);
    assert_eq!((&object["switch"]["from"], &object["switch"]["to"]), (&"dc".into(), &"rc".into()));
}

fn a_demonstration_that_is_ended_leaves_nothing() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let mut demo = elver()
            .args(["demo", "--placement", "loopback"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The first title comes when all daemons run.
        let mut out = std::io::BufReader::new(demo.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("up in") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut out, &mut line).unwrap() > 0, "it ended");
        }
        let pid = rustix::process::Pid::from_child(&demo);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(!demo.wait().unwrap().success());
        let end = Instant::now() + WAIT;
        loop {
            let mut left = leftovers(&format!("elver-{}-", demo.id()));
            if signal == rustix::process::Signal::KILL {
                // Nobody was there to remove the directory.
                left.retain(|line| line.contains(' '));
            }
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < end, "{left:?}");
            std::thread::yield_now();
        }
        if signal == rustix::process::Signal::KILL {
            for name in leftovers(&format!("elver-{}-", demo.id())) {
                std::fs::remove_dir_all(std::env::temp_dir().join(name)).unwrap();
            }
        }
    }
}

fn the_status_is_shown() {
    let none = run(&["status", "--socket", "/nowhere/elverd.sock"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("start `elverd`"));

    let daemon = Daemon::start("127.0.0.71");
    let object = json(&run(&["status", "--json", "--socket", &daemon.socket()]));
    assert_eq!(object["pid"], daemon.child.id());
    assert_eq!(object["address"], "127.0.0.71");
    for key in ["sessions", "vqps", "peers", "core", "engine", "device", "connection_bytes"] {
        assert!(!object[key].is_null(), "{key}: {object}");
    }
    let watched = elver()
        .args(["status", "--watch", "0.05", "--count", "3"])
        .env("ELVER_SOCKET", daemon.socket())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&watched.stdout);
    assert_eq!(text.matches("node 127.0.0.71").count(), 3, "{text}");
    assert!(!text.contains('\x1b'), "a pipe is no terminal");
    assert_eq!(run(&["status", "--watch", "0"]).status.code(), Some(2));
}

/// By its time and by a signal, into a file and into a pipe. What stands in it, elverd's tests look at.
#[test]
fn a_capture_ends_whole() {
    let daemon = Daemon::start("127.0.0.72");
    let socket = daemon.socket();
    let file = daemon.directory.join("node.pcapng");
    let path = file.to_str().unwrap();
    let timed = run(&["capture", "-w", path, "--socket", &socket, "--duration", "0.05", "--json"]);
    let object = json(&timed);
    assert_eq!(object["left_out"], 0, "{object}");
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    let last = u32::from_le_bytes(*written.last_chunk().unwrap()) as usize;
    assert_eq!(written[written.len() - last..][..4], 5u32.to_le_bytes(), "the statistics");

    let mut piped = elver()
        .args(["capture", "-w", "-", "--socket", &socket])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = piped.stdout.take().unwrap();
    let mut head = [0; 4];
    std::io::Read::read_exact(&mut out, &mut head).unwrap();
    assert_eq!(head, [0x0a, 0x0d, 0x0d, 0x0a]);
    let pid = rustix::process::Pid::from_child(&piped);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    std::io::Read::read_to_end(&mut out, &mut Vec::new()).unwrap();
    let ended = piped.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && told.contains("0 left out"), "{told}");

    let none = run(&["capture", "-w", path, "--socket", "/nowhere/elverd.sock"]);
    assert_eq!(none.status.code(), Some(1));
    for wrong in [
        &["capture", "-w", "-", "perf", "pair", "read"][..],
        &["capture", "-w", path, "status"],
        &["capture", "-w", path, "--duration", "0"],
        &["capture"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The units name the daemon where it is, and what the owner has changed stays.
#[test]
fn an_installation_is_whole_and_keeps_its_configuration() {
    let root = std::env::temp_dir().join(format!("elver-install-{}", std::process::id()));
    let destdir = root.to_str().unwrap();
    let arguments = ["install", "--destdir", destdir, "--prefix", "/opt/elver"];
    let list = run(&[&arguments[..], &["--list"]].concat());
    assert!(list.status.success() && !root.exists(), "{list:?}");
    let installed = run(&arguments);
    assert!(installed.status.success(), "{installed:?}");
    assert_eq!(list.stdout, installed.stdout);
    let read = |path: &str| {
        let file = root.join(path);
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    assert!(read("etc/systemd/system/elverd.service").contains("=/opt/elver/bin/elverd\n"));
    assert!(read("etc/systemd/system/elverd.socket").contains("ListenSequentialPacket"));
    for (page, of) in [
        ("man1/elver.1", "elver"),
        ("man1/elver-bench-connect.1", "connect"),
        ("man8/elverd.8", "elverd"),
    ] {
        let text = read(&format!("opt/elver/share/man/{page}"));
        assert!(text.contains(".TH") && text.contains(of), "{page}");
    }
    for script in ["bash-completion/completions/elver", "zsh/site-functions/_elverd"] {
        assert!(!read(&format!("opt/elver/share/{script}")).is_empty());
    }
    let version = Command::new(root.join("opt/elver/bin/elverd")).arg("--version").output();
    assert!(version.unwrap().status.success());
    let config = root.join("etc/elver/elverd.toml");
    std::fs::write(&config, "# mine\n").unwrap();
    let again = String::from_utf8(run(&arguments).stdout).unwrap();
    assert_eq!(again.matches(" (kept)").count(), 1, "{again}");
    assert_eq!(read("etc/elver/elverd.toml"), "# mine\n");
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(run(&["install", "--prefix", "usr"]).status.code(), Some(2));
}

/// Rows have these keys and no others.
fn check_rows(object: &Value, names: &[&str], keys: &[&str]) {
    let rows = object["rows"].as_array().unwrap_or_else(|| panic!("{object}"));
    let mut found: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    found.dedup();
    assert_eq!(found, names);
    for row in rows {
        let mut has: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut keys = keys.to_vec();
        has.sort_unstable();
        keys.sort_unstable();
        assert_eq!(has, keys, "{row}");
        for (key, value) in row.as_object().unwrap() {
            let text = ["name", "op", "mode"].contains(&key.as_str());
            assert!(if text { value.is_string() } else { value.is_number() }, "{key}: {row}");
        }
    }
}

/// Rows of `bench connect`, in their order, with one client.
const CONNECT_ROWS: [&str; 15] = [
    "tcp",
    "verbs",
    "verbs-full",
    "lite-miss",
    "lite-hit",
    "rpc-meta",
    "vqp-cold",
    "vqp-uncached",
    "vqp-dccache",
    "vqp-rc",
    "first-connect",
    "first-connect-asleep",
    "first-connect-host",
    "exec-to-read",
    "exec-to-tcp",
];
const CONNECT_KEYS: [&str; 12] = [
    "name",
    "p50_us",
    "p99_us",
    "per_s",
    "clients",
    "peers",
    "connects",
    "reads",
    "rpcs",
    "rc_made",
    "packets",
    "rc_before",
];

/// Runs a benchmark for a moment.
fn bench(name: &str, placement: &str, arguments: &[&str]) -> Value {
    let object =
        json(&run(&[&["bench", name, "--json", "--placement", placement], arguments].concat()));
    assert_eq!((&object["bench"], &object["placement"]), (&name.into(), &placement.into()));
    object
}

/// A count of the one row that has this name and so many clients and peers.
fn count(object: &Value, key: &str, name: &str, clients: u64, peers: u64) -> u64 {
    let wanted = |row: &&Value| {
        (&row["name"], &row["clients"], &row["peers"])
            == (&name.into(), &clients.into(), &peers.into())
    };
    let mut rows = object["rows"].as_array().unwrap().iter().filter(wanted);
    let row = rows.next().unwrap_or_else(|| panic!("{name}, {clients}, {peers}: {object}"));
    assert!(rows.next().is_none(), "{name} stands there twice: {object}");
    row[key].as_u64().unwrap()
}

fn connects_have_their_rows() {
    let short = ["--rounds", "1", "--duration", "0.05", "--hosts", "6"];
    let mut placements = vec!["loopback", "host"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let object = bench("connect", placement, &short);
        assert!(object["read_8b_us"]["p50"].as_f64().unwrap() > 0.0);
        // Processes of one daemon have no fresh one for every stranger that they meet.
        let strangers = ["lite-miss", "vqp-cold"];
        let here = |row: &&str| placement != "host" || !strangers.contains(row);
        let rows: Vec<&str> = CONNECT_ROWS.into_iter().filter(here).collect();
        check_rows(&object, &rows, &CONNECT_KEYS);
        for row in object["rows"].as_array().unwrap() {
            assert_eq!(row["clients"], 1);
            assert!(row["per_s"].as_f64().unwrap() > 0.0, "{row}");
            assert!(object["notes"][row["name"].as_str().unwrap()].is_string(), "{row}");
        }
        honest_rows(&object, placement);
        the_machine_is_judged(&object);
    }
    // Many at once: between two nodes, and of as many processes.
    for placement in ["loopback", "host"] {
        let only = ["--only", "tcp,rpc-meta,vqp-uncached,first-connect", "--clients", "2,24"];
        let object = bench("connect", placement, &[&short[..], &only].concat());
        check_rows(&object, &["tcp", "rpc-meta", "vqp-uncached", "first-connect"], &CONNECT_KEYS);
        for row in object["rows"].as_array().unwrap() {
            assert!(row["p50_us"].as_f64() <= row["p99_us"].as_f64(), "{row}");
            assert!(row["per_s"].as_f64().unwrap() > 0.0, "{row}");
        }
        // To one node, and to many, 24 clients have 6.
        for (clients, peers) in [(2, 1), (2, 2), (24, 1), (24, 6)] {
            let of = |key| count(&object, key, "vqp-uncached", clients, peers);
            assert!(of("connects") > 0 && of("reads") > 0, "{object}");
            // Those to one node share READs; nobody shares one with who goes elsewhere.
            if clients == peers {
                assert!(of("reads") >= of("connects"), "{object}");
            }
            assert!(of("packets") > 0, "nothing left the host: {object}");
            assert!(count(&object, "rpcs", "rpc-meta", clients, peers) > 0, "{object}");
        }
    }
    // As many strangers as clients, and each is asked for.
    let strangers = ["--only", "verbs,lite-miss,vqp-cold", "--clients", "6"];
    let object = bench("connect", "loopback", &[&short[..], &strangers].concat());
    // Who asks again, of a node that had no core, READs once more.
    assert!(count(&object, "reads", "vqp-cold", 6, 6) >= 6, "{object}");
    assert!(count(&object, "rc_made", "lite-miss", 6, 6) >= 6, "{object}");
    for peers in [1, 6] {
        let of = |key| count(&object, key, "verbs", 6, peers);
        assert!(of("rc_made") >= of("connects"), "{object}");
    }
}

/// What makes rows of one client what they say they are.
fn honest_rows(object: &Value, placement: &str) {
    let of = |name: &str, key: &str, peers| count(object, key, name, 1, peers);
    let asked = of("vqp-uncached", "reads", 1) >= of("vqp-uncached", "connects", 1);
    assert!(asked, "who asks READs: {object}");
    assert!(of("vqp-uncached", "packets", 1) > 0, "and leaves the host: {object}");
    assert!(of("rpc-meta", "rpcs", 1) >= of("rpc-meta", "connects", 1), "an RPC asks: {object}");
    assert!(of("verbs", "rc_made", 1) >= of("verbs", "connects", 1), "verbs make QPs: {object}");
    for name in ["lite-hit", "vqp-dccache", "vqp-rc"] {
        assert_eq!((of(name, "reads", 1), of(name, "rpcs", 1)), (0, 0), "{name}: {object}");
    }
    for name in ["first-connect", "first-connect-asleep", "exec-to-read"] {
        assert!(of(name, "reads", 20) >= 20, "{name} meets nobody twice: {object}");
        assert!(of(name, "packets", 20) > 20, "{name} leaves the host: {object}");
    }
    assert!(of("first-connect-host", "reads", 1) == 0, "its node knows itself: {object}");
    if placement != "host" {
        assert_eq!(of("vqp-cold", "connects", 6), 6, "{object}");
        assert!(of("vqp-cold", "reads", 6) >= 6, "{object}");
        assert_eq!(of("lite-miss", "connects", 6), 6, "{object}");
        assert!(of("lite-miss", "rc_made", 6) >= 6, "{object}");
    }
    // What is said to have been there was: who asks over DC needs no RC QP.
    for (name, peers) in [("vqp-cold", 6), ("vqp-uncached", 1), ("first-connect", 20)] {
        if placement == "host" && name == "vqp-cold" {
            continue;
        }
        let note = object["notes"][name].as_str().unwrap();
        assert!(note.contains("no RC QP") && note.contains("over DC"), "{name}: {note}");
        assert_eq!(of(name, "rc_before", peers), 0, "{name}: {object}");
    }
    for name in ["lite-hit", "vqp-rc"] {
        let note = object["notes"][name].as_str().unwrap();
        assert!(note.contains("has an RC QP"), "{name}: {note}");
        assert!(of(name, "rc_before", 1) > 0, "{name}: {object}");
    }
    for part in ["context", "pd_cq", "mr", "qp"] {
        assert!(object["verbs_parts_us"][part].as_f64().unwrap() > 0.0, "{part}: {object}");
    }
}

/// Every benchmark says whether its machine was fit to be measured on.
fn the_machine_is_judged(object: &Value) {
    let objections = object["objections"].as_array().unwrap();
    assert_eq!(object["sound"], objections.is_empty(), "{object}");
    assert!(object["machine"]["others_cores"].as_f64().unwrap() >= 0.0, "{object}");
    assert!(object["machine"]["stolen_cores"].as_f64().unwrap() >= 0.0, "{object}");
    assert!(object["machine"]["runnable"].as_u64().unwrap() >= 1, "{object}");
    if elver_testbed::seat::cores() == 1 {
        assert_eq!(object["sound"], false, "{object}");
        return;
    }
    let line = &object["line_round_trip_ns"];
    assert!(line["before"].as_f64().unwrap() > 0.0, "{object}");
    let cores = &object["cores"];
    let slowed = cores["slowed_beside"].as_f64().unwrap();
    assert!(cores["siblings"].is_boolean() && slowed > 0.0, "{object}");
}

fn data_has_its_rows() {
    let keys = ["name", "op", "mode", "size", "p50_us", "p99_us", "ops_per_s"];
    let short = ["--rounds", "1", "--duration", "0.03"];
    let four = ["raw-rc", "vqp-rc", "raw-dc", "vqp-dc"];
    let mut placements = vec!["loopback", "host"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let object = bench("data", placement, &short);
        check_rows(&object, &four.repeat(6), &keys);
        if placement != "host" {
            data_is_claimed(&object);
        }
        let kinds: Vec<_> = object["rows"].as_array().unwrap().iter().step_by(4).collect();
        let kinds: Vec<_> = kinds
            .iter()
            .map(|row| [&row["op"], &row["mode"]].map(|v| v.as_str().unwrap()))
            .collect();
        let both = |op| [[op, "sync"], [op, "async"]];
        assert_eq!(kinds, [both("read"), both("write"), both("send")].concat());
    }
    // A message that the receiver reads from where it lies.
    let long = ["--ops", "send", "--modes", "sync", "--sizes", "200000", "--only", "vqp-rc,vqp-dc"];
    let object = bench("data", "host", &[&short[..], &long].concat());
    check_rows(&object, &["vqp-rc", "vqp-dc"], &keys);
}

/// What `bench data` promises between hosts: each claim by its name, with its target.
fn data_is_claimed(object: &Value) {
    let mut wanted = Vec::new();
    let promised = [("read", "0.98", "0.93"), ("write", "0.95", "0.9"), ("send", "0.9", "0.85")];
    for (op, rc, dc) in promised {
        for (name, least) in [("vqp-rc", rc), ("vqp-dc", dc)] {
            wanted.push((format!("{name} {op} 8 B, async"), format!("≥ {least}")));
        }
    }
    for name in ["raw-rc", "vqp-rc", "raw-dc", "vqp-dc"] {
        wanted.push((format!("{name} read / write 8 B, async"), "≥ 0.6".to_string()));
    }
    for name in ["vqp-rc", "vqp-dc"] {
        wanted.push((format!("{name} read 8 B, sync"), "≤ 1.1".to_string()));
    }
    let claims = object["claims"].as_array().unwrap();
    for (name, target) in wanted {
        let mut of_name = claims.iter().filter(|claim| claim["name"] == name.as_str());
        let claim = of_name.next().unwrap_or_else(|| panic!("no claim {name}: {object}"));
        assert!(of_name.next().is_none(), "{name} stands there twice: {object}");
        assert_eq!(claim["target"], target.as_str(), "{name}: {claim}");
        assert!(claim["ratio"].as_f64().unwrap() > 0.0 && claim["met"].is_boolean(), "{claim}");
    }
}

fn a_mesh_has_its_rows() {
    let mut placements = vec!["loopback"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let object = bench("mesh", placement, &["--rounds", "1", "--workers", "8"]);
        assert_eq!(object["workers"], 8);
        let names = ["tcp", "verbs", "lite", "rpc-meta", "vqp-cold", "vqp", "vqp-uncached"];
        let keys =
            ["name", "total_us", "connections", "connects", "reads", "rpcs", "rc_made", "packets"];
        check_rows(&object, &names, &keys);
        let of = |key: &str, name: &str| {
            let rows = object["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["name"] == name).unwrap();
            row[key].as_u64().unwrap()
        };
        // Who knows nothing asks, at both ends; who knows does not.
        assert!(of("reads", "vqp-cold") >= 2, "{object}");
        assert_eq!(of("reads", "vqp"), 0, "{object}");
        assert!(of("reads", "vqp-uncached") >= 2 && of("rpcs", "rpc-meta") >= 1, "{object}");
        // A QP for every pair, and one for all pairs of two nodes.
        assert!(of("rc_made", "verbs") >= of("connections", "verbs"), "{object}");
        assert!((1..of("connections", "lite")).contains(&of("rc_made", "lite")), "{object}");
    }
}

fn a_storm_has_its_rows() {
    let object = bench("storm", "loopback", &["--rounds", "1", "--clients", "40"]);
    let names = ["verbs", "lite", "vqp-uncached", "first-connect"];
    check_rows(&object, &names, &["name", "p50_us", "p99_us", "total_us", "clients"]);
}

fn priorities_have_their_rows() {
    let object = bench("qos", "loopback", &["--rounds", "1", "--duration", "0.1"]);
    let keys = ["name", "p50_us", "p99_us", "p999_us", "ops_per_s", "flood_mb_per_s"];
    let names = ["alone", "qos-on", "qos-off", "alone-busy", "qos-on-busy"];
    check_rows(&object, &names, &keys);
}

/// Of each load, number of calls under way and way to wait one.
fn calls_have_their_rows() {
    let short = ["--rounds", "1", "--duration", "0.05", "--in-flight", "1,16"];
    let mut placements = vec!["loopback", "host"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let object = bench("rpc", placement, &short);
        let rows = object["rows"].as_array().unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                let [cores, name] = ["cores", "name"].map(|key| row[key].as_str().unwrap());
                (cores, row["in_flight"].as_u64().unwrap(), name)
            })
            .collect();
        let mut expected = Vec::new();
        for cores in ["quiet", "busy"] {
            for in_flight in [1, 16] {
                let names = ["elver-rpc", "elver-rpc-default"];
                expected.extend(names.map(|name| (cores, in_flight, name)));
            }
        }
        assert_eq!(found, expected);
        for row in rows {
            assert_eq!(row["size"], 64);
            assert!(row["calls_per_s"].as_f64().unwrap() > 0.0, "{row}");
            let latency = ["mean", "p50", "p999"].map(|key| row["lat_us"][key].as_f64().unwrap());
            assert!(latency.iter().all(|us| *us > 0.0), "{row}");
        }
    }
    let arguments = ["bench", "rpc", "--placement", "loopback", "--rival", "/nowhere/at/all"];
    let failed = run(&arguments);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && said.contains("cannot run /nowhere/at/all"), "{said}");
}

/// Of each design, mode and size one, whose figures go together.
fn rings_have_their_rows() {
    const DESIGNS: [&str; 6] = ["rb2", "farm", "socksdirect", "l5", "mvapich", "raw"];
    let short = ["--rounds", "1", "--duration", "0.05", "--sizes", "64,100000"];
    let mut placements = vec!["loopback", "host"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let object = bench("ring", placement, &short);
        let rows = object["rows"].as_array().unwrap();
        let mut expected = Vec::new();
        for mode in ["throughput", "latency"] {
            for size in [64, 100_000] {
                expected.extend(DESIGNS.map(|design| (design, size, mode)));
            }
        }
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                let text = |key: &str| row[key].as_str().unwrap();
                (text("design"), row["size"].as_u64().unwrap(), text("mode"))
            })
            .collect();
        assert_eq!(found, expected);
        for row in rows {
            let figure = |key: &str| row[key].as_f64().unwrap();
            assert_eq!(row["threads"], 1);
            // Of long messages there may be fewer than the last digit tells.
            let is_told = row["size"] == 100_000 || figure("mmsg_per_s") > 0.0;
            assert!(is_told && figure("gbps") >= 0.0, "{row}");
            let latency = &row["lat_us"];
            assert_eq!(latency.is_object(), row["mode"] == "latency", "{row}");
            if latency.is_object() {
                let [mean, p999] = ["mean", "p999"].map(|key| latency[key].as_f64().unwrap());
                assert!(mean > 0.0 && p999 > 0.0, "{row}");
            }
        }
        the_machine_is_judged(&object);
    }
}

/// Of each number of threads one, beside each other at one node; elsewhere a node has one thread.
fn rings_of_several_threads_have_their_rows() {
    let short = ["--rounds", "1", "--duration", "0.05", "--sizes", "64", "--threads", "1,3"];
    let object = bench("ring", "host", &short);
    let rows = object["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 6, "{object}");
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row["threads"], [1, 3][at / 6 % 2], "{object}");
        assert!(row["mmsg_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let refused = run(&["bench", "ring", "--placement", "loopback", "--threads", "2"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("--placement host"), "{said}");
}

/// The paper's micro-benchmarks, and its table II: each row is measured, or named with the reason why it is not.
fn rings_without_a_choice_have_their_rows() {
    let short = ["--rounds", "1", "--duration", "0.05"];
    let micro = ["pull-cq", "push-cq", "pull-wt", "push-wt", "raw-hot"];
    let (designs, sizes) = (micro.join(","), ["--sizes", "64"]);
    let arguments = [&short[..], &sizes, &["--designs", &designs]].concat();
    let object = bench("ring", "loopback", &arguments);
    let rows = object["rows"].as_array().unwrap();
    for design in micro {
        let mut of_design = rows.iter().filter(|row| row["design"] == design);
        let rate = |row: &Value| row["mmsg_per_s"].as_f64().unwrap();
        assert!(of_design.any(|row| rate(row) > 0.0), "{design}: {object}");
    }
    let arguments = [&short[..], &["--sizes", "512"]].concat();
    let object = bench("ring-ablation", "loopback", &arguments);
    let names = |key: &str| -> Vec<String> {
        let rows = object[key].as_array().unwrap().iter();
        rows.map(|row| row["row"].as_str().unwrap().to_string()).collect()
    };
    let mut all = [names("rows"), names("not_measured")].concat();
    all.sort();
    assert_eq!(all, (1..=9).map(|n| format!("M{n}")).collect::<Vec<_>>(), "{object}");
    assert!(names("rows").len() >= 7, "{object}");
    the_machine_is_judged(&object);
}

/// Of each program and design one, and a claim for each program.
fn cases_have_their_rows() {
    let few = ["--rounds", "1", "--packets", "5000", "--flows", "100", "--records", "100"];
    let few = [&few[..], &["--requests", "2000", "--gets", "200"]].concat();
    for placement in ["loopback", "host"] {
        let object = bench("cases", placement, &few);
        let rows = object["rows"].as_array().unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| ["case", "design"].map(|key| row[key].as_str().unwrap()))
            .collect();
        let designs = ["rb2", "farm", "socksdirect", "l5", "mvapich", "alone"];
        let of_case = |case| designs.map(|design| [case, design]);
        assert_eq!(found, ["nf", "database", "http"].map(of_case).concat());
        for row in rows {
            assert!(row["per_s"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert_eq!(object["claims"].as_array().unwrap().len(), 3);
        the_machine_is_judged(&object);
    }
}

/// Of each load, mode and design one, and a claim for each load and mode beside either TCP: a target beside the one
/// that sleeps alone, on a quiet machine on one host alone.
fn streams_have_their_rows() {
    let mut placements = vec!["loopback", "host"];
    if is_root() {
        placements.push("netns");
    }
    for placement in placements {
        let short = ["--rounds", "1", "--duration", "0.05"];
        let object = bench("stream", placement, &short);
        let rows = object["rows"].as_array().unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| ["cores", "mode", "design"].map(|key| row[key].as_str().unwrap()))
            .collect();
        let mut expected = Vec::new();
        for load in ["quiet", "busy"] {
            for mode in ["latency", "throughput"] {
                let designs = ["elver-stream", "tcp", "tcp-spin"];
                expected.extend(designs.map(|design| [load, mode, design]));
            }
        }
        assert_eq!(found, expected);
        for row in rows {
            let is_latency = row["mode"] == "latency";
            assert_eq!(row["size"], if is_latency { 64 } else { 1 << 20 });
            assert_eq!(row["per_s_spread"].as_array().unwrap().len(), 2);
            let figures = if is_latency {
                ["mean", "p50", "p999"].map(|key| row["lat_us"][key].as_f64())
            } else {
                [row["gb_per_s"].as_f64(), row["per_s"].as_f64(), Some(1.0)]
            };
            assert!(figures.iter().all(|figure| figure.is_some_and(|it| it > 0.0)), "{row}");
        }
        let claims = object["claims"].as_array().unwrap();
        assert_eq!(claims.len(), 8);
        for claim in claims {
            assert!(claim["ratio"].as_f64().unwrap() > 0.0, "{claim}");
            let is_promised = claim["baseline"]["name"] == "tcp";
            assert!(is_promised || claim["baseline"]["name"] == "tcp-spin", "{claim}");
            let is_busy = claim["name"].as_str().unwrap().contains("busy");
            let is_judged = is_promised && (is_busy || placement == "host");
            assert_eq!(claim["met"].is_boolean(), is_judged, "{claim}");
        }
        the_machine_is_judged(&object);
    }
}

#[test]
fn what_cannot_be_is_refused_with_2() {
    for arguments in [
        &["bench", "connect", "--clients", "0"][..],
        &["bench", "connect", "--only", "unicorn"],
        &["bench", "data", "--sizes", "0"],
        &["bench", "mesh", "--workers", "1"],
        &["bench", "qos", "--placement", "host"],
        &["bench", "connect", "--duration", "0"],
        &["demo", "--placement", "moon"],
        &["worker", "{}"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says why");
    }
}

#[test]
fn every_command_teaches() {
    for command in ["demo", "status", "launch", "bench connect", "bench data", "bench mesh"] {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.push("--help");
        let text = run(&arguments);
        assert!(String::from_utf8_lossy(&text.stdout).contains("Examples:"), "{command}");
    }
}
