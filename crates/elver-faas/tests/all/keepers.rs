//! Processes that keep what was handed to them, and what that costs whom.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use elver_faas::client::ClientError;
use elver_testkit::wait_for;
use serde_json::json;

use crate::platform::{Platform, python};

/// Reads of a request no more than the head, answers it, and takes the rest sip by sip.
const KEEPER: &str = r#"#!/usr/bin/python3
import http.client, os, socket, threading, time
kept = []
def sip():
    while True:
        time.sleep(2)
        for connection in kept:
            connection.recv(1 << 16)
threading.Thread(target=sip, daemon=True).start()
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["ELVER_API_SOCKET"])
    return connection
BASE = "/2018-06-01/runtime/invocation/"
while True:
    asking = connect()
    asking.sendall(f"GET {BASE}next HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += asking.recv(1)
    kept.append(asking)
    fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
    answering = http.client.HTTPConnection("x")
    answering.sock = connect()
    answering.request("POST", BASE + fields["lambda-runtime-aws-request-id"] + "/response", "1")
    answering.getresponse().read()
    answering.close()
"#;

/// The caller's room was kept for as long as the function liked, and all that he asked of others waited for it.
#[test]
fn what_a_function_does_not_read_is_not_its_callers() {
    let keeper = "[owners.mallory]\nuid = 61200\n[functions.keeper]\nowner = \"mallory\"\ncode = \"@CODE@\"\nhandler = \"bootstrap\"\nruntime = \"program\"\ntimeout_s = 300\n";
    let functions = keeper.to_string() + &python("bob", 61_201, &["echo"]);
    let platform = Platform::start("", &functions);
    let program = platform.code().join("bootstrap");
    std::fs::write(&program, KEEPER).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    platform.answer("bob-echo", json!(1));
    let large = json!("x".repeat((6 << 20) - 2));
    for _ in 0..10 {
        platform.answer("keeper", large.clone());
    }
    // One more than there is room for.
    let last = platform.invoke_beside("keeper", large.clone());
    while !last.is_finished() {
        let asked = platform.invoke_beside("bob-echo", json!(2));
        wait_for("another owner's function", || asked.is_finished().then_some(()));
        assert!(!asked.join().unwrap().unwrap().is_error);
    }
    // It is its caller's no longer, long before the function's time is over; and who kept the room is no more.
    match last.join().unwrap() {
        Err(ClientError::Refused { kind, .. }) => assert_eq!(kind, "Ended"),
        other => panic!("it has an answer: {other:?}"),
    }
    assert_eq!(platform.answer("keeper", large).1, json!(1));
}
