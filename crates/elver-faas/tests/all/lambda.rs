//! Programs that speak the Lambda Runtime API over TCP, as AWS documents it, and know nothing of us.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use elver_faas::schedule::Start;
use elver_testkit::wait_for;
use serde_json::{Value, json};

use crate::platform::{Platform, wait_for_processes};

const PROGRAM: &str = r#"#!/usr/bin/python3
import base64, http.client, json, os, time
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
BASE = "/2018-06-01/runtime/"
def begin(request):
    """A response whose length is not known when it begins."""
    api.putrequest("POST", BASE + f"invocation/{request}/response")
    api.putheader("Transfer-Encoding", "chunked")
    api.endheaders()
def ask(method, path, body=None):
    api.request(method, BASE + path, body)
    answer = api.getresponse()
    return answer, answer.read()
while True:
    answer, event = ask("GET", "invocation/next")
    request = answer.headers["Lambda-Runtime-Aws-Request-Id"]
    event = json.loads(event)
    said = {"event": event, "pid": os.getpid(), "headers": dict(answer.headers)}
    said["left_ms"] = int(answer.headers["Lambda-Runtime-Deadline-Ms"]) - time.time() * 1000
    if event == "others":
        other = f"{request[:-12]}{int(request[-12:], 16) + 1:012x}"
        said["other"] = [ask("POST", f"invocation/{of}/response", "{}")[0].status for of in (other, "x")]
        said["path"] = ask("GET", "nothing")[0].status
    if event == "no start":
        said["start"] = ask("POST", "init/error", "too late")[0].status
    if event in ("stream", "broken stream"):
        # A response whose length is not known when it begins, and which may end with an error.
        api.putrequest("POST", BASE + f"invocation/{request}/response")
        api.putheader("Transfer-Encoding", "chunked")
        api.putheader("Lambda-Runtime-Function-Response-Mode", "streaming")
        api.putheader("Trailer", "Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body")
        api.endheaders()
        api.send(b'6\r\n"begun\r\n1\r\n"\r\n0\r\n')
        if event == "broken stream":
            error = base64.b64encode(b'{"errorType": "Mine", "errorMessage": "amid"}').decode()
            api.send(f"Lambda-Runtime-Function-Error-Type: Mine\r\nLambda-Runtime-Function-Error-Body: {error}\r\n".encode())
        api.send(b"\r\n")
        api.getresponse().read()
    elif event == "cut":
        begin(request)
        api.send(b'6\r\n"begun\r\n')
        api.close()
    elif event in ("no chunk", "long trailers"):
        begin(request)
        api.send({"no chunk": b"begun", "long trailers": b"1\r\n1\r\n0\r\nX: " + b"x" * 20000}[event] + b"\r\n\r\n")
        api.getresponse().read()
    elif event == "twice":
        begin(request)
        second = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
        second.request("POST", BASE + f"invocation/{request}/response", '"second"')
        answer = second.getresponse()
        status = json.dumps([answer.status, json.load(answer)["errorType"]])
        api.send(f"{len(status):x}\r\n{status}\r\n0\r\n\r\n".encode())
        api.getresponse().read()
    elif event == "too much":
        begin(request)
        api.send(b"700000\r\n" + b"x" * 0x700000 + b"\r\n")
        while not os.path.exists("go"):
            time.sleep(0.01)
        api.send(b"0\r\n\r\n")
        api.getresponse().read()
    elif event == "fail without a word":
        api.request("POST", BASE + f"invocation/{request}/error", b"", {"Lambda-Runtime-Function-Error-Type": "Mine.Silent"})
        api.getresponse().read()
    elif event == "fail":
        ask("POST", f"invocation/{request}/error", json.dumps({"errorType": "Mine", "errorMessage": "no"}))
    else:
        ask("POST", f"invocation/{request}/response", json.dumps(said))
"#;

fn platform(uid: u32) -> Platform {
    platform_with(uid, "timeout_s = 60")
}

/// With more lines for its function.
fn platform_with(uid: u32, lines: &str) -> Platform {
    let functions = format!(
        "[owners.alice]\nuid = {uid}\n[functions.program]\nowner = \"alice\"\ncode = \"@CODE@\"\nhandler = \"bootstrap\"\nruntime = \"program\"\n{lines}\n"
    );
    let platform = Platform::start("", &functions);
    let program = platform.code().join("bootstrap");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    platform
}

#[test]
fn a_program_takes_one_request_after_the_other() {
    let mut platform = platform(61_021);
    let (start, first) = platform.answer("program", json!({"a": [1]}));
    assert_eq!((start, &first["event"]), (Start::Cold, &json!({"a": [1]})));
    let headers = &first["headers"];
    assert_eq!(
        headers["lambda-runtime-invoked-function-arn"],
        "arn:elver:lambda:local:alice:function:program"
    );
    assert_eq!(headers["content-type"], "application/json");
    assert!(headers["lambda-runtime-trace-id"].as_str().unwrap().starts_with("Root=1-"));
    assert!((0.0..=60_000.0).contains(&first["left_ms"].as_f64().unwrap()), "{first}");
    let (start, second) = platform.answer("program", json!(2));
    assert_eq!((start, &second["pid"]), (Start::Reuse, &first["pid"]));
    let failed = platform.invoke("program", json!("fail")).unwrap();
    let error: Value = serde_json::from_slice(&failed.body).unwrap();
    assert_eq!((failed.is_error, &error["errorType"]), (true, &json!("Mine")));
    let failed = platform.invoke("program", json!("fail without a word")).unwrap();
    let error: Value = serde_json::from_slice(&failed.body).unwrap();
    assert_eq!((failed.is_error, &error["errorType"]), (true, &json!("Mine.Silent")));
    platform.end();
    wait_for_processes(61_021, 0);
}

#[test]
fn a_response_that_ends_with_an_error_is_one() {
    let platform = platform(61_020);
    assert_eq!(platform.answer("program", json!("stream")).1, json!("begun"));
    let failed = platform.invoke("program", json!("broken stream")).unwrap();
    let error: Value = serde_json::from_slice(&failed.body).unwrap();
    let expected = json!({"errorType": "Mine", "errorMessage": "amid"});
    assert_eq!((failed.is_error, error), (true, expected));
    assert_eq!(platform.answer("program", json!(1)).0, Start::Reuse);
}

/// The error with which the program answers.
fn error(platform: &Platform, event: &str) -> Value {
    let failed = platform.invoke("program", json!(event)).unwrap();
    assert!(failed.is_error, "{event}: {}", String::from_utf8_lossy(&failed.body));
    serde_json::from_slice(&failed.body).unwrap()
}

/// Its caller waited until the request's time was over, and its process was ended for that.
#[test]
fn a_response_that_does_not_come_whole_is_an_error() {
    let platform = platform_with(62_240, "timeout_s = 30");
    let (_, first) = platform.answer("program", json!(1));
    for event in ["cut", "no chunk", "long trailers"] {
        assert_eq!(error(&platform, event)["errorType"], "Runtime.TruncatedResponse", "{event}");
        // It gets its next request once it has asked, and another one has those that come before.
        wait_for("the first process", || {
            let (start, again) = platform.answer("program", json!(1));
            let is_first = again["pid"] == first["pid"];
            assert!(start == Start::Reuse || !is_first, "{event}: {start}");
            is_first.then_some(())
        });
    }
}

/// It was killed, and its request told of a start that had failed.
#[test]
fn a_program_that_has_answered_has_started() {
    let platform = platform(62_243);
    let (_, first) = platform.answer("program", json!(1));
    for event in [json!("no start"), json!("no start")] {
        let (start, answer) = platform.answer("program", event);
        assert_eq!(
            (start, &answer["pid"], &answer["start"]),
            (Start::Reuse, &first["pid"], &json!(403))
        );
    }
}

#[test]
fn a_request_has_one_response_at_a_time() {
    let platform = platform(62_241);
    let (_, answer) = platform.answer("program", json!("twice"));
    assert_eq!(answer, json!([403, "InvalidStateTransition"]));
}

#[test]
fn a_response_that_is_too_large_is_answered_before_its_end() {
    let platform = platform_with(62_242, "timeout_s = 60");
    let (_, first) = platform.answer("program", json!(1));
    assert_eq!(error(&platform, "too much")["errorType"], "Function.ResponseSizeTooLarge");
    // Who still sends it takes no other request.
    assert_eq!(platform.answer("program", json!(2)).0, Start::Warm);
    std::fs::write(platform.code().join("go"), "").unwrap();
    wait_for("the first process", || {
        let (start, again) = platform.answer("program", json!(3));
        assert_eq!(start, Start::Reuse);
        (again["pid"] == first["pid"]).then_some(())
    });
}

#[test]
fn many_connections_of_programs_leave_room() {
    let functions = "[owners.carol]\nuid = 61049\n[functions.program]\nowner = \"carol\"\ncode = \"@CODE@\"\nhandler = \"bootstrap\"\nruntime = \"program\"\ntimeout_s = 60\nprocesses_max = 24\n";
    let mut platform = Platform::start("", functions);
    let program = platform.code().join("bootstrap");
    // Each is to hold many connections to the API at once.
    let many = PROGRAM.replace(
        "while True:\n",
        "held = [http.client.HTTPConnection(os.environ[\"AWS_LAMBDA_RUNTIME_API\"]) for _ in range(40)]\nfor one in held:\n    one.request(\"GET\", BASE + \"restore/next\")\n    one.getresponse().read()\nwhile True:\n",
    );
    std::fs::write(&program, many).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let asked: Vec<_> = (0..4).map(|i| platform.invoke_beside("program", json!(i))).collect();
    for asked in asked {
        assert!(!asked.join().unwrap().unwrap().is_error);
    }
    platform.end();
    wait_for_processes(61_049, 0);
}

#[test]
fn an_answer_to_a_request_that_one_has_not_is_refused() {
    let platform = platform(61_022);
    let (_, answer) = platform.answer("program", json!("others"));
    assert_eq!(answer["other"], json!([403, 404]));
    assert_eq!(answer["path"], 404);
    assert_eq!(platform.answer("program", json!(1)).0, Start::Reuse);
}

#[test]
fn requests_at_once_have_programs_of_their_own() {
    let platform = platform(61_023);
    let asked: Vec<_> = (0..4).map(|i| platform.invoke_beside("program", json!(i))).collect();
    let mut pids = std::collections::BTreeSet::new();
    for (i, asked) in asked.into_iter().enumerate() {
        let invoked = asked.join().unwrap().unwrap();
        let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!(answer["event"], json!(i));
        pids.insert(answer["pid"].as_u64().unwrap());
    }
    assert_eq!(platform.list().processes.len(), pids.len());
}

/// `ELVER_AWSLAMBDARIC` is the directory that `python3 -m pip install --target DIRECTORY awslambdaric` filled.
#[test]
#[ignore = "needs awslambdaric of PyPI, which Debian has not: name its directory in ELVER_AWSLAMBDARIC"]
fn the_unmodified_awslambdaric_is_forked_where_it_asks_to_be_restored() {
    let client = std::env::var("ELVER_AWSLAMBDARIC").expect("ELVER_AWSLAMBDARIC is a directory");
    let functions = "[owners.bob]\nuid = 61024\n[functions.lambda]\nowner = \"bob\"\ncode = \"@CODE@\"\nhandler = \"function.handler\"\nruntime = \"awslambdaric\"\ntimeout_s = 60\n";
    let mut platform = Platform::start("", functions);
    let copied = std::process::Command::new("cp")
        .args(["-r", &format!("{client}/."), platform.code().to_str().unwrap()])
        .status();
    assert!(copied.unwrap().success());
    const HANDLER: &str = "import os\nCALLS = 0\ndef handler(event, context):\n    global CALLS\n    CALLS += 1\n    if event == 'crash':\n        os._exit(7)\n    return [event, CALLS, os.getpid()]\n";
    std::fs::write(platform.code().join("function.py"), HANDLER).unwrap();
    let mut pids = std::collections::BTreeSet::new();
    for expected in [Start::Cold, Start::Fork, Start::Fork, Start::Fork] {
        let (start, answer) = platform.answer("lambda", json!("here"));
        // Each child is at its first call.
        assert_eq!((start, &answer[0], &answer[1]), (expected, &json!("here"), &json!(1)));
        pids.insert(answer[2].as_u64().unwrap());
    }
    assert_eq!(pids.len(), 4);
    // At once, each has its own child, which is ended for no other.
    for _ in 0..5 {
        let events: Vec<_> =
            (0..8).map(|i| if i % 4 == 3 { json!("crash") } else { json!(i) }).collect();
        let asked: Vec<_> =
            events.iter().map(|event| platform.invoke_beside("lambda", event.clone())).collect();
        for (event, asked) in events.iter().zip(asked) {
            match asked.join().unwrap() {
                Err(error) => {
                    assert!(event == "crash" && error.to_string().contains("code 7"), "{error}")
                }
                Ok(invoked) => {
                    let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
                    assert_eq!((&answer[0], &answer[1]), (event, &json!(1)));
                }
            }
        }
    }
    let (kind, what) = platform.refusal("lambda", json!("crash"));
    assert!(kind == "Ended" && what.contains("exit code 7"), "{what}");
    // elver-init and the process that is forked.
    wait_for_processes(61_024, 2);
    platform.end();
}
