//! What an operator sees in trouble: a node that has gone or hangs, a disk that is full, a strict umask.

mod common;
#[path = "operator/functions.rs"]
mod functions;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use common::{Daemon, WAIT, elver, is_root, json, run};
use rustix::process::{Pid, Signal, kill_process};

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// With a standard output on a disk that is full.
fn on_a_full_disk(arguments: &[&str]) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    elver().args(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let daemon = Daemon::start("127.0.0.73");
    let socket = daemon.socket();
    for arguments in [
        &["devinfo", "--json"][..],
        &["man"],
        &["completions", "bash"],
        &["--help"],
        &["status", "-h"],
        &["--version"],
        &["status", "--socket", &socket],
        &["status", "--json", "--socket", &socket],
    ] {
        let output = on_a_full_disk(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let text = told(&output);
        let expected = "elver: cannot write the output: No space left on device (os error 28)\n";
        assert_eq!(text, expected, "{arguments:?}");
    }
}

#[test]
fn a_capture_that_the_disk_does_not_take_says_so() {
    let daemon = Daemon::start("127.0.0.74");
    let output =
        run(&["capture", "-w", "/dev/full", "--socket", &daemon.socket(), "--duration", "0.05"]);
    assert_eq!(output.status.code(), Some(1));
    let text = told(&output);
    assert!(text.contains("cannot write to /dev/full: No space left"), "{text}");

    let pair = ["perf", "pair", "read", "--placement", "loopback", "--duration", "0.05"];
    let output =
        run(&[&["capture", "-w", "/dev/full"], &pair[..], &["--udp-port", "5974"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = told(&output);
    assert!(text.contains("the capture /dev/full ends early, and lacks"), "{text}");
    assert!(text.contains("packets were not recorded"), "{text}");
}

/// A node on which nothing happens sends nothing that could not be written.
#[test]
fn a_capture_that_nobody_reads_ends_and_leaves_the_node_to_the_next() {
    let daemon = Daemon::start("127.238.0.1");
    let socket = daemon.socket();
    let mut capture = elver()
        .args(["capture", "-w", "-", "--socket", &socket])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = capture.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    let path = daemon.directory.join("earlier.pcapng");
    fs::write(&path, "earlier").unwrap();
    let other = daemon.directory.join("none.pcapng");
    for file in [&path, &other] {
        let second = run(&["capture", "-w", file.to_str().unwrap(), "--socket", &socket]);
        assert!(told(&second).contains("is being recorded already"), "{}", told(&second));
    }
    assert_eq!(fs::read(&path).unwrap(), b"earlier", "what was refused costs no earlier capture");
    assert!(!other.exists());
    drop(out);
    let output = capture.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    for _ in 0..20 {
        let path = path.to_str().unwrap();
        let next = run(&["capture", "-w", path, "--socket", &socket, "--duration", "0.001"]);
        assert!(next.status.success(), "{}", told(&next));
    }
    assert_ne!(fs::read(&path).unwrap()[..4], *b"earl");
}

/// Says at a socket how a node is that has in its version what a terminal obeys.
fn serve(name: String) {
    let listener = std::os::unix::net::UnixListener::bind(name).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // Who refuses it does not listen.
            let _ = stream.write_all(b"{\"version\": \"\\u001b[2J\"}");
        }
    });
}

/// Anybody may make a socket below /tmp.
#[test]
fn a_node_of_another_user_below_tmp_is_not_asked() {
    if !is_root() {
        return;
    }
    let place = std::env::temp_dir().join(format!("elver-foreign-{}", std::process::id()));
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
    let socket = place.join("elverd.sock");
    let path = socket.display();
    let names = [format!("{path}.status"), format!("{path}.capture")];
    let foreign = names.clone();
    let made = std::thread::spawn(move || {
        // Of this thread alone.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
        foreign.into_iter().for_each(serve);
    });
    made.join().unwrap();
    let at = socket.to_str().unwrap();
    for (words, name) in
        [(&["status"][..], &names[0]), (&["capture", "-w", "/dev/null"], &names[1])]
    {
        let output = run(&[words, &["--socket", at]].concat());
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
        let expected = format!("elver: {name} is user 65534's, and not root's or this user's");
        assert!(told(&output).starts_with(&expected), "{}", told(&output));
    }
    // Of one's own what is said is shown, and nothing of it obeyed.
    fs::remove_file(&names[0]).unwrap();
    serve(names[0].clone());
    let output = run(&["status", "--socket", at]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("elverd \\u{1b}[2J pid") && !shown.contains('\x1b'), "{shown}");
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_capture_is_its_owners_also_where_a_file_was() {
    let daemon = Daemon::start("127.0.0.75");
    let file = daemon.directory.join("open.pcapng");
    fs::write(&file, "of everybody").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let (path, socket) = (file.to_str().unwrap(), daemon.socket());
    let object =
        json(&run(&["capture", "-w", path, "--socket", &socket, "--duration", "0.05", "--json"]));
    assert_eq!(object["left_out"], 0);
    assert_eq!(mode(&file), 0o600);
}

#[test]
fn a_capture_whose_node_dies_fails() {
    let mut daemon = Daemon::start("127.0.0.76");
    let mut capture = elver()
        .args(["capture", "-w", "-", "--socket", &daemon.socket(), "--duration", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 4];
    let mut out = capture.stdout.take().unwrap();
    out.read_exact(&mut head).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    out.read_to_end(&mut Vec::new()).unwrap();
    let output = capture.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("the node ended while it was recorded"), "{}", told(&output));
}

#[test]
fn a_node_that_hangs_is_told() {
    let daemon = Daemon::start("127.0.0.77");
    let socket = daemon.socket();
    kill_process(Pid::from_child(&daemon.child), Signal::STOP).unwrap();
    let status = elver()
        .args(["status", "--socket", &socket])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let file = daemon.directory.join("node.pcapng");
    let capture = run(&["capture", "-w", file.to_str().unwrap(), "--socket", &socket]);
    let status = status.wait_with_output().unwrap();
    for (output, of) in [(status, ".status"), (capture, ".capture")] {
        assert_eq!(output.status.code(), Some(1));
        let expected = format!(
            "elver: the node ({socket}{of}) has not answered for 5 s: it hangs or is stopped"
        );
        assert!(told(&output).starts_with(&expected), "{}", told(&output));
    }
}

/// A node that nobody takes shows where it wants to be taken, and why it is not.
#[test]
fn a_meta_server_that_is_not_there_is_told() {
    // Bound, and nobody listens.
    let nobody = std::net::TcpListener::bind("127.0.0.78:0").unwrap();
    let meta = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let mut daemon = Daemon::start_with(
        "127.0.0.78",
        &format!("meta.serve = false\nmeta.servers = [\"{meta}\"]"),
    );
    let mut said = std::io::BufReader::new(daemon.child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let reason = format!("cannot register at {meta}: it cannot be reached: Connection refused");
    assert!(line.starts_with(&format!("elverd: {reason}")), "{line}");
    // The engine hears of it a moment after the operator.
    let end = Instant::now() + WAIT;
    let text = loop {
        let text = run(&["status", "--socket", &daemon.socket()]);
        let text = String::from_utf8(text.stdout).unwrap();
        if text.contains(&reason) || Instant::now() >= end {
            break text;
        }
    };
    assert!(text.contains(&format!("meta servers {meta} (registered at 0 of 1)")), "{text}");
    assert!(text.contains(&reason), "{text}");
}

#[test]
fn an_installation_is_for_everybody_under_any_umask() {
    let root = std::env::temp_dir().join(format!("elver-umask-{}", std::process::id()));
    let output = Command::new("sh")
        .args(["-c", "umask 077 && exec \"$0\" install --destdir \"$1\""])
        .arg(env!("CARGO_BIN_EXE_elver"))
        .arg(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let modes = ["usr/local/bin/elver", "usr/local/share/man/man1/elver.1", "usr/local/bin", "etc"]
        .map(|path| mode(&root.join(path)));
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(modes, [0o755, 0o644, 0o755, 0o755]);
}

/// Nor the orchestrator that it started, nor that one's containers, nor a directory.
#[test]
fn functions_that_are_ended_by_a_signal_leave_nothing() {
    if !is_root() {
        return println!("skipped: only root makes containers");
    }
    for signal in [Signal::TERM, Signal::INT] {
        let demo = elver()
            .args(["faas", "demo", "--count", "1000", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut demo = demo.unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(demo.stdout.take().unwrap());
        if std::io::BufRead::read_line(&mut out, &mut line).unwrap() == 0 {
            let lacks = told(&demo.wait_with_output().unwrap());
            assert!(lacks.contains("functions in Python cannot start"), "{lacks}");
            return println!("skipped: {lacks}");
        }
        kill_process(Pid::from_child(&demo), signal).unwrap();
        let name = format!("elver-{}-", demo.id());
        assert!(!demo.wait().unwrap().success());
        let end = Instant::now() + WAIT;
        loop {
            let left = common::leftovers(&name);
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < end, "{left:?}");
            std::thread::yield_now();
        }
    }
}
