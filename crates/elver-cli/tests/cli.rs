//! The built command, end to end. One test function for all that spins: on two cores spinning
//! programs side by side would only slow each other.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::Value;

fn elver() -> Command {
    Command::new(env!("CARGO_BIN_EXE_elver"))
}

fn run(arguments: &[&str]) -> Output {
    elver().args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What each transport allows.
const ALLOWED: [(&str, &[&str]); 4] = [
    ("rc", &["read", "write", "write-imm", "send", "fetch-add", "cmp-swp"]),
    ("dc", &["read", "write", "write-imm", "send", "fetch-add", "cmp-swp"]),
    ("uc", &["write", "write-imm", "send"]),
    ("ud", &["send"]),
];

fn check(object: &Value, op: &str, transport: &str, placement: &str, mode: &str) {
    assert_eq!(object["bench"], "perf");
    assert_eq!(object["op"], op);
    assert_eq!(object["transport"], transport);
    assert_eq!(object["placement"], placement);
    assert_eq!(object["mode"], mode);
    assert_eq!(object["errors"], 0);
    assert!(object["ops_per_s"].as_f64().unwrap() > 0.0, "{object}");
    let latency = &object["lat_us"];
    for (low, high) in [("min", "p50"), ("p50", "p99"), ("p99", "p999"), ("p999", "max")] {
        assert!(latency[low].as_f64() <= latency[high].as_f64(), "{object}");
    }
}

#[test]
fn every_operation_in_every_placement() {
    for placement in ["process", "loopback", "netns"] {
        for (transport, ops) in ALLOWED {
            for op in ops {
                let is_atomic = ["fetch-add", "cmp-swp"].contains(op);
                let size = if is_atomic { "8" } else { "64" };
                for mode in ["sync", "async"] {
                    let output = run(&[
                        "perf",
                        "pair",
                        op,
                        "--placement",
                        placement,
                        "--transport",
                        transport,
                        "--size",
                        size,
                        "--mode",
                        mode,
                        "--depth",
                        "32",
                        "--batch",
                        "8",
                        "--duration",
                        "0.05",
                        "--idle",
                        "yield",
                        "--json",
                    ]);
                    check(&json(&output), op, transport, placement, mode);
                }
            }
        }
    }
    a_server_serves_client_after_client();
    a_script_is_told_of_clients();
    a_terminal_is_told_what_came_so_far();
    loss_is_borne();
    a_capture_is_dissected();
    counters_of_a_running_device_are_shown();
    frame_links_carry_it("dgram");
    frame_links_carry_it("fd");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// `elver perf server` with `arguments`, once it says that it serves.
fn server<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Server {
    let mut child =
        elver().args(["perf", "server"]).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let server = Server(child);
    let (said, says) = mpsc::channel();
    // Read to the end, for the server goes on to speak of its clients.
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let _ = said.send(line);
        }
    });
    let first = says.recv_timeout(Duration::from_secs(60)).expect("the server said nothing");
    assert!(first.starts_with("serving "), "{first}");
    server
}

fn a_server_serves_client_after_client() {
    let _server = server(["--bind", "127.0.0.31", "--idle", "sleep"]);
    for (op, transport) in [("read", "rc"), ("send", "dc"), ("send", "ud")] {
        let output = run(&[
            "perf",
            op,
            "127.0.0.31",
            "--bind",
            "127.0.0.32",
            "--transport",
            transport,
            "--duration",
            "0.05",
            "--idle",
            "yield",
            "--json",
        ]);
        check(&json(&output), op, transport, "remote", "sync");
    }
}

fn loss_is_borne() {
    let output = run(&[
        "perf",
        "pair",
        "write",
        "--placement",
        "loopback",
        "--size",
        "65536",
        "--mode",
        "async",
        "--depth",
        "8",
        "--batch",
        "1",
        "--loss",
        "1",
        "--duration",
        "0.3",
        "--idle",
        "yield",
        "--json",
    ]);
    let object = json(&output);
    check(&object, "write", "rc", "loopback", "async");
    assert!(object["retransmits"].as_u64().unwrap() > 0, "{object}");
}

/// What a command prints on a terminal.
fn on_a_terminal(arguments: &[&str]) -> String {
    let command = [&[env!("CARGO_BIN_EXE_elver")], arguments].concat().join(" ");
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script is missing: apt-get install bsdutils");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn a_terminal_is_told_what_came_so_far() {
    for (seconds, is_told) in [("2.5", true), ("0.7", false)] {
        let said =
            on_a_terminal(&["perf", "pair", "read", "--idle", "yield", "--duration", seconds]);
        assert!(said.contains("ops/s"), "{said}");
        assert_eq!(said.contains(" operations in "), is_told, "{said}");
    }
}

fn a_script_is_told_of_clients() {
    let mut server = elver()
        .args(["perf", "server", "--bind", "127.0.0.49", "--idle", "yield", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(server.stdout.take().unwrap());
    let mut serving = BufReader::new(server.stderr.take().unwrap());
    let server = Server(server);
    serving.read_line(&mut String::new()).unwrap();
    // One that says nothing of what it wants.
    let stranger = std::net::TcpStream::connect("127.0.0.49:18515").unwrap();
    drop(stranger);
    let client = ["perf", "send", "127.0.0.49", "--bind", "127.0.0.50"];
    let measured = json(&run(&[&client[..], &["--duration", "0.05", "--json"]].concat()));
    assert_eq!(measured["errors"], 0);
    let told: Vec<Value> =
        out.lines().take(2).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(told[0]["error"].is_string() && told[1]["error"].is_null(), "{told:?}");
    assert!(told[1]["received"].as_u64().unwrap() > 0, "{told:?}");
    assert!(told.iter().all(|line| line["client"].as_str().unwrap().starts_with("127.")));
    drop(server);
}

fn a_capture_is_dissected() {
    let file = scratch("capture.pcapng");
    let name = file.to_str().unwrap();
    let output = run(&[
        "capture",
        "--json",
        "-w",
        name,
        "perf",
        "pair",
        "read",
        "--placement",
        "loopback",
        "--duration",
        "0.01",
        "--idle",
        "yield",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(numbers["left_out"], 0, "{said}");
    assert!(numbers["packets"].as_u64().unwrap() > 0, "{said}");
    let dissected = Command::new("tshark")
        .args(["-r", name, "-T", "fields", "-e", "infiniband.bth.opcode", "-c", "100"])
        .output()
        .expect("tshark is missing: apt-get install tshark");
    let opcodes = String::from_utf8_lossy(&dissected.stdout);
    // READ_REQUEST is 12, READ_RESPONSE_ONLY 16.
    assert!(opcodes.lines().any(|line| line == "12"), "{opcodes}");
    assert!(opcodes.lines().any(|line| line == "16"), "{opcodes}");
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(file.with_file_name(
        file.file_name().unwrap().to_str().unwrap().replace(".pcapng", "-server.pcapng"),
    ))
    .unwrap();
}

fn counters_of_a_running_device_are_shown() {
    let server = server(["--bind", "127.0.0.33", "--idle", "sleep"]);
    let all = json(&run(&["devinfo", "--counters", "--json"]));
    let ours = all.as_array().unwrap().iter().find(|device| device["address"] == "127.0.0.33");
    let ours = ours.unwrap_or_else(|| panic!("{all}"));
    assert_eq!(ours["pid"], server.0.id());
    assert!(ours["counters"]["rx_packets"].is_u64());
}

/// Two processes, each a station of a link between them; the exchange runs over the host's TCP.
fn frame_links_carry_it(kind: &str) {
    let (links, _held) = match kind {
        "dgram" => {
            let (a, b) = ("127.0.0.34:7001", "127.0.0.35:7001");
            (([format!("dgram:{a},{b}"), format!("dgram:{b},{a}")]), None)
        }
        _ => {
            // Not closed on exec: the two commands inherit them.
            let (family, kind, flags) =
                (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty());
            let (a, b) = rustix::net::socketpair(family, kind, flags, None).unwrap();
            ([&a, &b].map(|fd| format!("fd:{}", fd.as_raw_fd())), Some((a, b)))
        }
    };
    let exchange = "127.0.0.34:18516";
    let address = "10.9.4.1/24";
    let station = ["--link", &links[0], "--local", address, "--exchange", exchange];
    let _server = server(station.into_iter().chain(["--idle", "yield"]));
    let file = scratch("link.pcapng");
    let name = file.to_str().unwrap();
    for (op, transport) in [("read", "rc"), ("send", "ud")] {
        let output = elver()
            .args(["capture", "-w", name, "perf", op, "10.9.4.1", "--link", &links[1]])
            .args(["--local", "10.9.4.2/24", "--mac", "02:00:00:00:00:07", "--exchange", exchange])
            .args(["--transport", transport, "--size", "64", "--duration", "0.05", "--json"])
            .args(["--idle", "yield"])
            .output()
            .unwrap();
        check(&json(&output), op, transport, "remote", "sync");
        let dissected = Command::new("tshark")
            .args(["-r", name, "-n", "-T", "fields", "-e", "eth.src", "-e", "arp.opcode"])
            .args(["-Y", "arp", "-c", "100"])
            .output()
            .expect("tshark is missing: apt-get install tshark");
        let arps = String::from_utf8_lossy(&dissected.stdout);
        assert!(arps.contains("02:00:00:00:00:07\t1"), "{arps}");
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn devinfo_shows_a_station_of_a_link() {
    let link = "dgram:127.0.0.36:7001,127.0.0.37:7001";
    let (local, mac) = (["--local", "10.9.5.1/24"], ["--mac", "02:00:00:00:00:07"]);
    let mut arguments = vec!["devinfo", "-v", "--link", link, "--link-mtu", "1500"];
    arguments.extend(local.iter().chain(&mac).chain(&["--local", "fd00::1/64"]));
    let text = run(&arguments);
    let text = String::from_utf8_lossy(&text.stdout);
    for line in ["0000:00ff:fe00:0007", "1024 (3)", "ffff:0a09:0501", "GID[  1]:\t\tfd00:"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("elver-{}-{name}", std::process::id()))
}

#[test]
fn what_cannot_be_is_refused_with_2() {
    for arguments in [
        &["perf", "pair", "read", "--transport", "ud"][..],
        &["perf", "pair", "fetch-add", "--transport", "uc"],
        &["perf", "pair", "fetch-add", "--size", "9"],
        &["perf", "pair", "send", "--transport", "ud", "--size", "5000"],
        &["perf", "pair", "write", "--mtu", "1500"],
        &["perf", "pair", "write", "--duration", "0"],
        &["perf", "pair", "write", "--placement", "loopback", "--loss", "101"],
        &["perf", "pair", "write", "--placement", "loopback", "--loss=nan"],
        &["perf", "pair", "write", "--loss", "20%"],
        &["bench", "rnic", "--duration", "0"],
        &["bench", "rnic", "--duration=-1"],
        &["bench", "rnic", "--duration", "nan"],
        &["sim", "rnic", "--seeds", "0"],
        &["sim", "rnic", "--jobs", "0"],
        &["capture", "-w", "/dev/null", "bogus"],
        &["capture", "-w", "/dev/null", "devinfo"],
        &["perf", "pair", "sing"],
        &["perf", "server", "--local", "10.9.0.1/24"],
        &["perf", "server", "--link", "fd:9"],
        &["perf", "server", "--link", "fd:1", "--local", "10.9.0.1/24"],
        &["perf", "server", "--link", "dgram:127.0.0.1:1", "--local", "10.9.0.1/24"],
        &["devinfo", "--link", "fd:9", "--local", "10.9.0.1"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says why");
    }
}

#[test]
fn a_datagram_that_is_too_long_is_told_how_long_it_may_be() {
    for (mtu, most) in [(&[][..], "4096 bytes"), (&["--mtu", "1024"], "1024 bytes")] {
        let words = ["perf", "pair", "send", "--transport", "ud", "--size", "5000"];
        let output = run(&[&words[..], mtu].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        let parts = ["--size 5000", most, "--transport rc"];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
}

/// As without the capture.
#[test]
fn help_of_a_command_that_is_recorded_is_its_help() {
    let output = run(&["capture", "-w", "/dev/null", "perf", "pair", "--help"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Examples:"));
}

/// The server's thread must not wait for a client that failed.
#[test]
fn a_pair_ends_when_its_client_fails() {
    let directory = scratch("no-file.pcapng");
    std::fs::create_dir(&directory).unwrap();
    let name = directory.to_str().unwrap();
    let output = run(&["capture", "-w", name, "perf", "pair", "read", "--placement", "netns"]);
    std::fs::remove_dir(&directory).unwrap();
    // The server's own recording, beside it, was made.
    let beside = directory.with_file_name(
        directory.file_name().unwrap().to_str().unwrap().replace(".pcapng", "-server.pcapng"),
    );
    std::fs::remove_file(beside).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("capture"), "it says why");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let output = run(&["perf", "read", "127.0.0.41", "--bind", "127.0.0.42"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("elver perf server"), "{error}");
}

#[test]
fn devinfo_shows_a_device() {
    let object = json(&run(&["devinfo", "--json", "--address", "127.0.0.51"]));
    assert_eq!(object["qp_types"], "RC UC UD DC XRC");
    assert_eq!(object["ports"][0]["active_mtu"], 4096);
    let text = run(&["devinfo", "-v", "--address", "127.0.0.51"]);
    let text = String::from_utf8_lossy(&text.stdout);
    for line in ["hca_id:\tsoft0", "max_qp:", "PORT_ACTIVE (4)", "GID[  0]:"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn seeds_pass_and_a_planted_bug_is_caught() {
    let object = json(&run(&["sim", "rnic", "--seed", "7", "--seeds", "40", "--json"]));
    assert_eq!(object["failed_seeds"], serde_json::json!([]));
    let caught = run(&["sim", "rnic", "--canary", "duplicate", "--seeds", "40", "--json"]);
    assert!(!json(&caught)["failed_seeds"].as_array().unwrap().is_empty());
    let names = json(&run(&["sim", "rnic", "--list-canaries", "--json"]));
    assert!(names.as_array().unwrap().contains(&"duplicate".into()), "{names}");
    let unknown = run(&["sim", "rnic", "--canary", "unicorn"]);
    assert_eq!(unknown.status.code(), Some(2));
}

/// It would have caught a run that ends with its findings in the scrollback alone, and a replay that
/// takes a run's transports from its own command line.
#[test]
fn what_failed_is_replayed_from_a_file() {
    let file = scratch("found.jsonl");
    let path = file.to_str().unwrap();
    // No seed fails, so that the report is empty.
    let of_some = ["--transport", "rc", "--for", "50ms", "--report", path, "--json"];
    let object = json(&run(&[&["sim", "rnic", "--seed", "random"][..], &of_some].concat()));
    assert!(object["seeds"].as_u64().unwrap() > 0, "{object}");
    assert_eq!(object["report"], Value::Null);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "");

    let line = r#"{"sim":"rnic","seed":7,"options":{"transport":["rc"]},"version":"0.0.1","commit":"abc","failure":"seed 7: it broke"}"#;
    std::fs::write(path, format!("{line}\n")).unwrap();
    let object = json(&run(&["sim", "rnic", "--replay", path, "--json"]));
    assert_eq!((&object["replayed"], &object["failed_seeds"]), (&1.into(), &Value::Array(vec![])));
    let text = run(&["sim", "rnic", "--replay", path]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert_eq!(text, "seed 7 passes; 0.0.1 (abc) said: seed 7: it broke\n");

    // Another kind's, and what is no report, are named with their lines.
    let other = run(&["sim", "node", "--replay", path]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("line 1: of another kind"));
    std::fs::write(path, format!("{line}\nnonsense\n")).unwrap();
    let nonsense = run(&["sim", "rnic", "--replay", path]);
    assert_eq!(nonsense.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nonsense.stderr).contains("line 2"));
    std::fs::remove_file(path).unwrap();
    for bad in [["--for", "8 parsecs"], ["--for", "60d"], ["--seed", "randon"]] {
        assert_eq!(run(&[&["sim", "rnic"][..], &bad].concat()).status.code(), Some(2));
    }
}

#[test]
fn help_completions_and_the_manual_are_there() {
    for arguments in [
        &["--help"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["man"],
        &["man", "bench", "connect"],
        &["man", "launch"],
        &["perf", "--help"],
    ] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("elver"), "{arguments:?}");
        // What elver starts for itself is nobody else's.
        let mut words = text.split(|letter: char| !letter.is_alphanumeric());
        assert!(!words.any(|word| word == "worker"), "{arguments:?}");
    }
    let unknown = run(&["man", "bench", "sing"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("connect"),
        "it says which there are"
    );
}

/// As with `elver … | head`.
#[test]
fn a_reader_may_have_enough() {
    for arguments in [&["completions", "bash"][..], &["man"], &["devinfo", "-v"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = elver().args(arguments).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
    }
}

/// A page refers to others only if they are written with it.
#[test]
fn every_page_of_the_manual_is_written() {
    let dir = scratch("man");
    let output = run(&["man", "--dir", dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pages: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(pages.iter().any(|page| page == "elver-bench-connect.1"), "{pages:?}");
    for page in &pages {
        let text = std::fs::read_to_string(dir.join(page)).unwrap().replace("\\-", "-");
        for line in text.lines().filter(|line| line.starts_with("elver-") && line.ends_with("(1)"))
        {
            let name = line.replace("(1)", ".1");
            assert!(pages.contains(&name), "{page} refers to {name}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}
