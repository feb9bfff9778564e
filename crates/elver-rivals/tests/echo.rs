//! The program's two ends call each other.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn calls_are_echoed_and_counted() {
    let program = env!("CARGO_BIN_EXE_elver-rival-grpc");
    for threads in ["1", "2"] {
        let mut server = Command::new(program)
            .args(["serve", "127.0.0.1:0", "--threads", threads])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready ").unwrap();
        // On a machine that has too much to do no call may begin and end in the first of these times.
        let is_counted = [0.1, 1.0, 10.0].into_iter().any(|seconds| {
            let output = Command::new(program)
                .args(["call", address, "--in-flight", "4", "--threads", threads])
                .args(["--duration", &format!("{seconds}")])
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(told["seconds"].as_f64().unwrap() >= seconds, "{told}");
            !told["counts"].as_array().unwrap().is_empty()
        });
        assert!(is_counted);
        drop(server.stdin.take());
        assert!(server.wait().unwrap().success());
    }
}
