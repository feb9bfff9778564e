//! `elver pingpong` and `elver perftest`, both ends ours. What they are for, the originals at the
//! other end, needs a kernel with rdma_rxe.
//!
//! One test function for all that moves data: on two cores they would only slow each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const SERVER: &str = "127.0.0.61";
const CLIENT: &str = "127.0.0.62";

/// A server that waits for its client.
struct Server {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(address: &str, command: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_elver"))
            .args(command)
            .args(["--bind", address, "--wait", "20", "--idle", "yield", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        Server { child, stderr }
    }

    /// Its exit code, and what it wrote to stdout and stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut error) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().code(), out, error)
    }
}

fn client(command: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_elver"))
        .args(command)
        .args(["--idle", "yield", "--json"])
        .output()
        .unwrap()
}

/// Runs both ends and gives what the server and the client tell.
fn both(program: &[&str], options: &[&str]) -> [Value; 2] {
    let server = Server::start(SERVER, &[program, options].concat());
    let ours = client(&[program, &[SERVER, "--bind", CLIENT], options].concat());
    let (code, out, error) = server.end();
    assert_eq!(code, Some(0), "{program:?} {options:?}: {error}");
    let told = String::from_utf8_lossy(&ours.stdout);
    let why = String::from_utf8_lossy(&ours.stderr);
    assert!(ours.status.success(), "{program:?} {options:?}: {why}");
    let values = [out.as_str(), &told].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!((&values[0]["role"], &values[1]["role"]), (&"server".into(), &"client".into()));
    values
}

#[test]
fn perf_speaks_of_what_perftest_has() {
    let refused = [
        (&["perf", "write", "127.0.0.1", "--peer", "perftest"][..], "write --mode async"),
        (&["perf", "read", "--peer", "perftest", "--transport", "dc"], "rc, uc and ud"),
        (&["perf", "read"], "<SERVER>"),
        (&["perf", "read", "127.0.0.1", "--iters", "9"], "--peer"),
    ];
    for (command, reason) in refused {
        let output = Command::new(env!("CARGO_BIN_EXE_elver")).args(command).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(reason), "{command:?}: {error}");
    }
}

#[test]
fn both_ends_of_every_program() {
    for transport in ["rc", "uc", "ud"] {
        for options in [&["-c"][..], &["-c", "-s", "1", "-n", "5", "-r", "2"]] {
            for told in both(&["pingpong", transport], options) {
                assert_eq!(told["checked"], told["iters"]);
                assert_eq!(told["transport"], transport);
            }
        }
    }
    for told in both(&["pingpong", "rc"], &["-c", "-e", "-s", "300001", "-n", "20", "-m", "512"]) {
        assert_eq!((&told["bytes"], &told["mtu"]), (&12_000_040.into(), &512.into()));
    }
    for told in both(&["pingpong", "rc"], &["-c", "-n", "50", "--loss", "2"]) {
        assert_eq!(told["checked"], 50);
    }
    for (test, transport) in [
        ("write-bw", "RC"),
        ("ib_write_bw", "uc"),
        ("read-bw", "rc"),
        ("read-lat", "rc"),
        ("send-lat", "rc"),
        ("send_lat", "uc"),
        ("send-lat", "ud"),
    ] {
        for options in [&["-c", transport][..], &["-c", transport, "-s", "100", "-n", "777"]] {
            let [served, measured] = both(&["perftest", test], options);
            assert_eq!(measured["peer_version"], "6.06");
            assert_eq!(measured["mtu"], 4096);
            if measured["test"].as_str().unwrap().ends_with("bw") {
                assert!(measured["mb_per_s"].as_f64().unwrap() > 0.0, "{measured}");
                assert_eq!(served["mb_per_s"], measured["mb_per_s"]);
            } else {
                assert!(measured["lat_us"]["p50"].as_f64().unwrap() > 0.0, "{measured}");
            }
        }
    }
    // Each end takes the smaller MTU.
    let server = Server::start(SERVER, &["perftest", "read-lat", "-m", "1024"]);
    let ours = client(&["perftest", "read-lat", SERVER, "--bind", CLIENT, "-m", "2048"]);
    assert_eq!(serde_json::from_slice::<Value>(&ours.stdout).unwrap()["mtu"], 1024);
    assert_eq!(server.end().0, Some(0));
}

/// What a message from nowhere makes of a server.
fn told_by(address: &str, command: &[&str], message: &[u8]) -> String {
    let server = Server::start(address, command);
    let mut stream = TcpStream::connect((address, 18_515)).unwrap();
    stream.write_all(message).unwrap();
    let (code, _, error) = server.end();
    assert_eq!(code, Some(1), "{error}");
    error
}

#[test]
fn garbage_and_silence_are_told() {
    let at = "127.0.0.63";
    let error = told_by(at, &["pingpong", "rc"], &[b'x'; 52]);
    assert!(error.contains("expected was LLLL") && error.contains("xxxx"), "{error}");
    let no_gid = b"0000:000011:abcdef:00000000000000000000000000000000\0";
    let error = told_by(at, &["pingpong", "ud"], no_gid);
    assert!(error.contains("-g 1"), "{error}");
    let error = told_by(at, &["pingpong", "rc", "--timeout", "2"], b"0000:0000");
    assert!(error.contains("the peer's address") && error.contains("only 9 came"), "{error}");
    let error = told_by(at, &["perftest", "write-bw"], b"GET / HTTP/1.1\r\n");
    assert!(error.contains("GET / HTTP/1.1") && error.contains("version"), "{error}");
    let mut message = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x403\0".to_vec();
    message.extend([b':'; 108]);
    let error = told_by(at, &["perftest", "send-lat"], &message);
    assert!(error.contains("expected was LID:OUT"), "{error}");
    let error = told_by(at, &["perftest", "send-lat"], b"5.10\0\0\0\0\0\0\0\0\0\0\0\0");
    assert!(error.contains("5.7"), "{error}");
}

#[test]
fn nobody_is_not_waited_for_without_end() {
    let at = "127.0.0.64";
    let output = client(&["pingpong", "rc", "--bind", at, "--port", "18600", "--wait", "0.1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no client came"));
    let output = client(&["perftest", "read-lat", at, "--port", "18600", "--bind", "127.0.0.65"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no server answers"));
    for refused in [
        &["pingpong", "dc"][..],
        &["pingpong", "rc", "-s", "0"],
        &["perftest", "read-lat", "-c", "UC"],
        &["perftest", "write-bw", "-c", "UD"],
        &["perftest", "write-bw", "--timeout", "0"],
    ] {
        assert_eq!(client(refused).status.code(), Some(2), "{refused:?}");
    }
}

/// Both ends of a ping-pong that were told of different contents: the check finds it.
#[test]
fn a_check_finds_what_differs() {
    let at = "127.0.0.66";
    let server = Server::start(at, &["pingpong", "rc", "-c", "-n", "5"]);
    client(&["pingpong", "rc", at, "--bind", "127.0.0.67", "-n", "5", "--timeout", "0.5"]);
    let (code, _, error) = server.end();
    assert_eq!(code, Some(1));
    assert!(error.contains("message 1 has 0x7b at byte 0 instead of 0x00"), "{error}");
}
