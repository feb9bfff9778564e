//! Functions of AWS's own client for Rust, the crate `lambda_runtime`, which know nothing of us (`examples/bootstrap.rs`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use elver_faas::client::Invoked;
use elver_faas::schedule::Start;
use elver_testkit::{Place, copy, wait_for};
use serde_json::{Value, json};

use crate::platform::{EXAMPLES, Platform, wait_for_processes};
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-provided", network: 67, udp_ports: 28_600, registry_ports: 28_700 };

/// An owner of functions, whose lines of configuration these are beside what all have.
fn functions(uid: u32, functions: &[(&str, &str)]) -> String {
    let each = functions.iter().map(|(name, more)| {
        format!(
            "[functions.{name}]\nowner = \"olive\"\ncode = \"@CODE@\"\nhandler = \"any.thing\"\nruntime = \"provided.al2023\"\ntimeout_s = 20\n{more}\n"
        )
    });
    format!("[owners.olive]\nuid = {uid}\n{}", each.collect::<String>())
}

fn put(platform: &Platform) {
    copy(&EXAMPLES.program("bootstrap"), &platform.code().join("bootstrap"));
}

fn platform(uid: u32, each: &[(&str, &str)]) -> Platform {
    let platform = Platform::start("", &functions(uid, each));
    put(&platform);
    platform
}

/// The error with which a function answers.
fn error(platform: &Platform, function: &str, event: Value) -> Value {
    let failed = platform.invoke(function, event).unwrap();
    assert!(failed.is_error, "{}", String::from_utf8_lossy(&failed.body));
    serde_json::from_slice(&failed.body).unwrap()
}

/// Waits until a process takes the next request of its function, once it has sent what was of no use.
fn wait_for_process(platform: &Platform, function: &str, first: &Value) {
    wait_for("the first process", || {
        let (start, answer) = platform.answer(function, Value::Null);
        assert!(matches!(start, Start::Warm | Start::Reuse), "{start}");
        (answer["pid"] == first["pid"]).then_some(())
    });
}

#[test]
fn a_function_of_lambda_runtime_starts_cold_and_warm_and_is_never_forked() {
    let mut platform = platform(62_220, &[("first", "memory_mb = 600"), ("second", "")]);
    let (start, first) = platform.answer("first", json!({"a": [1]}));
    assert_eq!((start, &first["event"]), (Start::Cold, &json!({"a": [1]})));
    let (start, second) = platform.answer("second", json!(2));
    assert_eq!((start, &second["calls"]), (Start::Warm, &json!(1)));
    for calls in 2..6 {
        let (start, again) = platform.answer("first", json!(calls));
        let expected = (Start::Reuse, &first["pid"], &json!(calls));
        assert_eq!((start, &again["pid"], &again["calls"]), expected);
        assert_ne!(again["request"], first["request"]);
    }
    let processes = platform.list().processes;
    assert_eq!((processes.len(), processes[0].container), (2, processes[1].container));
    platform.end();
    wait_for_processes(62_220, 0);
}

#[test]
fn a_function_of_lambda_runtime_learns_what_aws_tells_one() {
    let platform = platform(62_221, &[("told", "memory_mb = 600\nenvironment = { OWN = \"x\" }")]);
    let (_, answer) = platform.answer("told", Value::Null);
    let log_stream = platform.list().processes[0].process.0.to_string();
    let config = json!({
        "function_name": "told", "memory": 600, "version": "$LATEST",
        "log_group": "/elver/told", "log_stream": log_stream,
    });
    assert_eq!(answer["config"], config);
    for (variable, value) in [
        ("_HANDLER", "any.thing"),
        ("LAMBDA_TASK_ROOT", "/var/task/told"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("AWS_REGION", "local"),
        ("AWS_DEFAULT_REGION", "local"),
        ("TZ", ":UTC"),
        ("OWN", "x"),
    ] {
        assert_eq!(answer["environment"][variable], value, "{variable}");
    }
    // As with provided.al2023.
    assert!(answer["environment"].get("AWS_EXECUTION_ENV").is_none());
    assert_eq!(answer["arn"], "arn:elver:lambda:local:olive:function:told");
    assert_eq!(answer["trace"], answer["environment"]["_X_AMZN_TRACE_ID"]);
    let left = answer["left_ms"].as_u64().unwrap();
    assert!((1..=20_000).contains(&left), "{left}");
}

#[test]
fn what_a_function_of_lambda_runtime_does_wrong_is_told() {
    let mut platform = platform(62_222, &[("wrong", "")]);
    let (_, first) = platform.answer("wrong", Value::Null);
    let failed = error(&platform, "wrong", json!({"fail": "as it was asked to"}));
    assert_eq!(failed["errorMessage"], "as it was asked to");
    assert!(failed["errorType"].as_str().unwrap().contains("Error"), "{failed}");
    let panicked = error(&platform, "wrong", json!({"panic": true}));
    assert_eq!(panicked["errorMessage"], "Lambda panicked: as it was asked to");
    // Neither has cost it its process.
    let (start, again) = platform.answer("wrong", Value::Null);
    assert_eq!((start, &again["pid"], &again["calls"]), (Start::Reuse, &first["pid"], &json!(4)));
    let (kind, why) = platform.refusal("wrong", json!({"abort": true}));
    assert!(kind == "Ended" && why.contains("signal 6"), "{kind}: {why}");
    assert_eq!(platform.answer("wrong", Value::Null).0, Start::Warm);
    platform.end();
    wait_for_processes(62_222, 0);
}

#[test]
fn a_function_of_lambda_runtime_takes_and_gives_bodies_of_megabytes() {
    let platform = platform(62_223, &[("large", "")]);
    let text = "x".repeat(5 << 20);
    let (_, first) = platform.answer("large", json!({"text": text}));
    assert!(first["event"]["text"] == text, "it came back otherwise");
    // Lambda takes 100 bytes more than 6 MB.
    let most = (6 << 20) + 100;
    let (_, answer) = platform.answer("large", json!({"bytes": most - 2}));
    assert_eq!(answer.as_str().unwrap().len(), most - 2);
    for far in [most, 4 * most] {
        let failed = error(&platform, "large", json!({"bytes": far}));
        assert_eq!(failed["errorType"], "Function.ResponseSizeTooLarge");
        wait_for_process(&platform, "large", &first);
    }
}

/// What a stream has before its first byte, as the crate sends it.
const PRELUDE: &str = "{\"statusCode\":200,\"headers\":{\"content-type\":\"application/octet-stream\"},\"cookies\":[]}";

/// The part of a stream that is its function's.
fn streamed(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap();
    let rest = text.strip_prefix(PRELUDE).and_then(|rest| rest.strip_prefix("\0\0\0\0\0\0\0\0"));
    rest.unwrap_or_else(|| panic!("no prelude in {}", &text[..text.len().min(200)]))
}

#[test]
fn a_streamed_response_of_lambda_runtime_comes_whole() {
    let platform = platform(62_224, &[("stream", "")]);
    let (_, first) = platform.answer("stream", Value::Null);
    let parts = |count: usize| (0..count).map(|part| format!("{part:>1023}\n")).collect::<String>();
    for count in [0, 1, 3000] {
        let Invoked { body, is_error, .. } =
            platform.invoke("stream", json!({"stream": count})).unwrap();
        assert!(!is_error && streamed(&body) == parts(count), "of {count} parts");
    }
    // Who asks learns that it is one, by its type.
    let mut asking = UnixStream::connect(platform.socket()).unwrap();
    let event = "{\"stream\": 1}";
    let length = event.len();
    write!(asking, "POST /functions/stream/invocations HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{event}").unwrap();
    let mut answer = String::new();
    asking.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("content-type: application/vnd.awslambda.http-integration-response\r\n"),
        "{answer}"
    );
    // The crate writes what should stand behind a stream that broke into it, where nobody can tell it from the function's own.
    let broken = platform.invoke("stream", json!({"stream": 2, "breaks": true})).unwrap();
    let rest = streamed(&broken.body).strip_prefix(&parts(2)).unwrap();
    assert!(
        rest.starts_with("Lambda-Runtime-Function-Error-Type: Runtime.StreamError\r\n"),
        "{rest}"
    );
    assert!(!broken.is_error);
    let failed = error(&platform, "stream", json!({"stream": 7000}));
    assert_eq!(failed["errorType"], "Function.ResponseSizeTooLarge");
    wait_for_process(&platform, "stream", &first);
}

#[test]
fn a_start_of_lambda_runtime_that_fails_is_told() {
    let with = |variables: &str| format!("environment = {{ {variables} }}");
    let snapped =
        |more: &str| with(&format!("AWS_LAMBDA_INITIALIZATION_TYPE = \"snap-start\"{more}"));
    let before = snapped(", BEFORE_SNAPSHOT = \"no snapshot\"");
    let after = snapped(", AFTER_RESTORE = \"no restoring\"");
    let mut platform = platform(
        62_225,
        &[
            ("ends", &with("FAILS = \"no start\"")),
            ("before", &before),
            ("after", &after),
            ("good", &snapped("")),
        ],
    );
    for _ in 0..2 {
        for (function, expected) in
            [("ends", "exit code 1"), ("before", "no snapshot"), ("after", "no restoring")]
        {
            let (kind, why) = platform.refusal(function, Value::Null);
            assert!(kind == "Ended" && why.contains(expected), "{function}, {kind}: {why}");
            assert_eq!(why.contains("its start failed"), function != "ends", "{why}");
        }
    }
    wait_for("the log", || platform.logs().contains("no start").then_some(()));
    assert_eq!(platform.answer("good", Value::Null).1["calls"], 1);
    std::fs::remove_file(platform.code().join("bootstrap")).unwrap();
    let (kind, why) = platform.refusal("ends", Value::Null);
    assert!(kind == "Ended" && why.contains("/var/task/ends/bootstrap"), "{kind}: {why}");
    platform.end();
    wait_for_processes(62_225, 0);
}

#[test]
fn a_function_of_lambda_runtime_has_rdma_by_a_session_of_its_own() {
    let store = Store::new(&PLACE, 1);
    let destinations = format!("destinations = [{:?}]", store.gid());
    let functions = functions(62_226, &[("reads", &destinations)]);
    let mut platform = store.platform(&functions);
    put(&platform);
    let sessions = || store.node.status().sessions.len();
    let before = sessions();
    for expected in [Start::Cold, Start::Reuse, Start::Reuse] {
        let (start, answer) = platform.answer("reads", store.event(json!({})));
        assert_eq!((start, &answer["read"]), (expected, &json!("greeting")));
        // elver-init's own, by which it has the node look the destination up, ends by itself.
        wait_for("one session more", || (sessions() == before + 1).then_some(()));
    }
    // None is made ready for children that there never are.
    assert_eq!(store.count("prepared"), 0);
    platform.end();
    wait_for_processes(62_226, 0);
}

/// The crate's programs have as many threads as the host has processors.
#[test]
fn a_function_of_lambda_runtime_has_room_for_the_threads_of_a_large_host() {
    let threads = "environment = { TOKIO_WORKER_THREADS = \"64\" }";
    let platform = platform(62_227, &[("threads", threads)]);
    assert_eq!(platform.answer("threads", Value::Null).0, Start::Cold);
}
