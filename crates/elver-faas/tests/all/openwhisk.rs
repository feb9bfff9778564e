//! OpenWhisk's protocol for actions, request by request, as its invoker speaks it: `/init` and `/run` on port 8080.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use elver::{AccessFlags, Session};
use elver_faas::action::{PORT, SENTINEL};
use elver_testkit::{PATIENCE, Place, TestNode, python_module, wait_for};
use serde_json::{Value, json};

/// Says what it was given, and where it ran.
const ECHO: &str = r#"
import os
CALLS = 0
def main(args):
    global CALLS
    CALLS += 1
    print("out of", args.get("name"))
    owners = {name: value for name, value in os.environ.items() if name.startswith("__OW_") and name != "__OW_WAIT_FOR_ACK"}
    return {"args": args, "ow": owners, "calls": CALLS, "pid": os.getpid(), "parent": os.getppid(), "of": os.environ.get("OF")}
"#;

const PLACE: Place =
    Place { name: "openwhisk", network: 63, udp_ports: 29_400, registry_ports: 29_500 };

/// A container's first process, as OpenWhisk has it.
struct Action {
    process: Child,
    address: String,
    logs: [Receiver<String>; 2],
    _unpacked: tempfile::TempDir,
}

impl Action {
    /// On an address that no other test has, with variables that the image has set.
    fn start(host: u8, variables: &[(&str, &str)]) -> Action {
        let address = format!("127.63.1.{host}:{PORT}");
        let unpacked = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_elver-action"))
            .arg(&address)
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", unpacked.path())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = listen(process.stdout.take().unwrap());
        let err = listen(process.stderr.take().unwrap());
        wait_for("the port", || TcpStream::connect(&address).ok());
        Action { process, address, logs: [out, err], _unpacked: unpacked }
    }

    /// With code in it.
    fn of(host: u8, code: &str) -> Action {
        let action = Action::start(host, &[]);
        assert_eq!(action.init(json!({"name": "a", "code": code})), (200, json!({"ok": true})));
        action
    }

    fn init(&self, value: Value) -> (u16, Value) {
        self.post("/init", &json!({"value": value}).to_string())
    }

    /// An activation, and the lines of both logs that are its.
    fn run(&self, value: Value) -> (u16, Value, [Vec<String>; 2]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let deadline = (now + Duration::from_secs(20)).as_millis().to_string();
        self.run_whole(&json!({"value": value, "deadline": deadline}).to_string())
    }

    fn run_whole(&self, body: &str) -> (u16, Value, [Vec<String>; 2]) {
        let (status, answer) = self.post("/run", body);
        (status, answer, [self.log(0), self.log(1)])
    }

    /// What was written until the sentinel.
    fn log(&self, of: usize) -> Vec<String> {
        let line = || self.logs[of].recv_timeout(PATIENCE).expect("a sentinel");
        std::iter::from_fn(|| Some(line()).filter(|line| line != SENTINEL)).collect()
    }

    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        post(&mut stream, path, body);
        response(stream)
    }
}

impl Drop for Action {
    fn drop(&mut self) {
        // It may have been ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn listen(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, heard) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

pub fn post(stream: &mut TcpStream, path: &str, body: &str) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: action\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // What is refused for its length is not read to its end.
    let _ = stream.write_all(body.as_bytes());
}

pub fn response(mut stream: TcpStream) -> (u16, Value) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = String::new();
    let _ = stream.read_to_string(&mut all);
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{body:?}")))
}

#[test]
fn what_an_action_is_given_is_what_was_sent() {
    let action = Action::of(40, "def main(args):\n    return {'seen': repr(args)}\n");
    // Beyond 64 bits, beyond what is printed of a double, in an order of their own, and over several lines.
    let sent = "{\n \"value\":\r\n {\"z\": 123456789012345678901234567890, \"a\": 0.1000000000000000055,\n \"s\": \"\\ud800\", \"\": []}}";
    let seen = r"{'z': 123456789012345678901234567890, 'a': 0.1, 's': '\ud800', '': []}";
    let (status, answer, _) = action.run_whole(sent);
    assert_eq!((status, &answer), (200, &json!({"seen": seen})));
    // What Python does not take is its request's failure, and no more.
    let deep = format!("{{\"value\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let (status, answer, _) = action.run_whole(&deep);
    let said = answer["error"].as_str().unwrap_or_default();
    assert!(status == 200 && said.contains("cannot be read"), "{status}: {answer}");
    for none in ["[1]", "1", "{\"value\": 1} 2", "{\"value\": nothing}", ""] {
        assert_eq!(action.post("/run", none).0, 400, "{none}");
    }
    assert_eq!(action.run(json!({})).0, 200);
}

#[test]
fn an_action_is_initialized_once_and_each_run_is_a_fork() {
    let action = Action::start(1, &[]);
    let (status, error) = action.post("/run", "{\"value\":{}}");
    assert_eq!((status, error), (500, json!({"error": "no action defined yet"})));
    let environment = json!({"OF": "init", "__OW_API_HOST": "host"});
    let value =
        json!({"name": "echo", "main": "main", "binary": false, "code": ECHO, "env": environment});
    assert_eq!(action.init(value.clone()), (200, json!({"ok": true})));
    let mut parents = Vec::new();
    for name in ["one", "two"] {
        let request = json!({
            "value": {"name": name}, "namespace": "guest", "action_name": "/guest/echo", "action_version": "0.0.1",
            "activation_id": format!("id of {name}"), "transaction_id": "t", "deadline": "99999999999999", "api_key": "k",
        });
        let (status, answer, [out, err]) = action.run_whole(&request.to_string());
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["args"], json!({"name": name}));
        let expected = json!({
            "__OW_NAMESPACE": "guest", "__OW_ACTION_NAME": "/guest/echo", "__OW_ACTION_VERSION": "0.0.1",
            "__OW_ACTIVATION_ID": format!("id of {name}"), "__OW_TRANSACTION_ID": "t",
            "__OW_DEADLINE": "99999999999999", "__OW_API_KEY": "k", "__OW_API_HOST": "host",
        });
        assert_eq!(answer["ow"], expected);
        // Of the same INIT process, and of no other activation.
        assert_eq!((&answer["calls"], &answer["of"]), (&json!(1), &json!("init")));
        assert_ne!(answer["pid"], answer["parent"]);
        assert_eq!((out, err), (vec![format!("out of {name}")], vec![]));
        parents.push(answer["parent"].clone());
    }
    assert_eq!(parents[0], parents[1]);
    let (status, error) = action.init(value);
    assert_eq!(
        (status, error),
        (403, json!({"error": "Cannot initialize the action more than once."}))
    );
}

#[test]
fn what_is_no_request_is_refused_and_harms_nothing() {
    let action = Action::start(2, &[]);
    for (path, body, expected) in [
        ("/init", "{", 400),
        ("/init", "[]", 400),
        ("/init", "{\"value\":{\"code\":7}}", 400),
        ("/init", "{\"value\":{\"code\":\"!\",\"binary\":true}}", 400),
        ("/init", "{\"value\":{\"code\":\"x\",\"env\":{\"a=b\":\"c\"}}}", 400),
        ("/init", "{\"value\":{\"code\":\"\"}}", 403),
        ("/init", "{}", 403),
        ("/run", "{", 400),
        ("/run", "[1]", 400),
        ("/run", "\u{1}", 400),
        ("/stop", "{}", 404),
        ("/init/", "{}", 404),
    ] {
        let (status, answer) = action.post(path, body);
        assert_eq!(status, expected, "{path} {body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    let (status, _) = action.post("/run", &" ".repeat((6 << 20) + 1));
    assert_eq!(status, 413);
    // Half a request, whose sender stays, holds up nobody.
    let mut half = TcpStream::connect(&action.address).unwrap();
    half.write_all(b"POST /init HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").unwrap();
    assert_eq!(action.init(json!({"code": ECHO})).0, 200);
    assert_eq!(action.run(json!({})).0, 200);
}

/// It ended the INIT process, and the action with it.
#[test]
fn a_deadline_of_any_form_harms_nothing() {
    let action = Action::of(63, "def main(args):\n    return {'here': 1}\n");
    for deadline in
        [json!("9".repeat(400)), json!("9".repeat(5000)), json!([]), json!("soon"), json!({})]
    {
        let whole = json!({"value": {}, "deadline": deadline}).to_string();
        let (status, answer, _) = action.run_whole(&whole);
        assert_eq!((status, answer), (200, json!({"here": 1})), "{deadline}");
    }
    assert_eq!(action.run(json!({})).1, json!({"here": 1}));
}

/// They took all of its places for good.
#[test]
fn connections_that_say_nothing_shut_nobody_out() {
    let action = Action::start(60, &[]);
    let mut silent: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(&action.address).unwrap()).collect();
    assert_eq!(action.init(json!({"code": ECHO})).0, 200);
    // Nor do those that have asked once, and say nothing more.
    for stream in &mut silent[1..] {
        *stream = TcpStream::connect(&action.address).unwrap();
        stream.write_all(b"GET /run HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    }
    silent.push(TcpStream::connect(&action.address).unwrap());
    assert_eq!(action.run(json!({})).0, 200);
}

/// Its request was done, so that its connection was idle: it made room for another amid its answer.
#[test]
fn who_reads_an_answer_slowly_gets_the_whole_of_it() {
    const LENGTH: usize = 5 << 20;
    let action = Action::of(68, &format!("def main(args):\n    return {{'x': 'x' * {LENGTH}}}\n"));
    let mut slow = TcpStream::connect(&action.address).unwrap();
    post(&mut slow, "/run", &json!({"value": {}}).to_string());
    let mut answer = vec![0; 64];
    slow.read_exact(&mut answer).unwrap();
    let ask = || {
        let mut stream = TcpStream::connect(&action.address).unwrap();
        stream.write_all(b"GET /run HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream
    };
    let _others: Vec<TcpStream> = (0..65).map(|_| ask()).collect();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(answer[head..].iter().filter(|byte| **byte == b'x').count(), LENGTH + 1);
}

/// The whole of it was read, of any number at once.
#[test]
fn a_second_init_is_refused_before_its_body() {
    let action = Action::of(61, ECHO);
    let mut second = TcpStream::connect(&action.address).unwrap();
    let head = format!("POST /init HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 66 << 20);
    second.write_all(head.as_bytes()).unwrap();
    assert_eq!(response(second).0, 403);
}

/// The connection was reset while it was written.
#[test]
fn who_sends_a_second_init_hears_why() {
    let action = Action::of(66, ECHO);
    let body = vec![b'x'; 3 << 20];
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    for (head, end) in [(length, ""), (chunked, "\r\n0\r\n\r\n")] {
        let mut second = TcpStream::connect(&action.address).unwrap();
        let head = format!("POST /init HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}");
        for part in [head.as_bytes(), &body, end.as_bytes()] {
            second.write_all(part).unwrap();
        }
        let mut answer = String::new();
        second.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}

/// All that came of each was kept, until its end.
#[test]
fn large_inits_come_one_at_a_time() {
    let action = Action::start(62, &[]);
    let large =
        |bytes: usize| json!({"pad": "x".repeat(bytes), "value": {"code": ECHO}}).to_string();
    let begin = |body: &str, sent: usize| {
        let mut stream = TcpStream::connect(&action.address).unwrap();
        let length = body.len();
        let head = format!(
            "POST /init HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body.as_bytes()[..sent]).unwrap();
        stream
    };
    // More than sockets keep, so that the turn has come when this is written.
    let first = large(60 << 20);
    let mut slow = begin(&first, first.len() - 1);
    let (second, third) = (large(2 << 20), large(10 << 20));
    let (whole, half) = std::thread::scope(|scope| {
        let whole = scope.spawn(|| begin(&second, second.len()));
        let half = scope.spawn(|| begin(&third, 2 << 20));
        // Small ones wait for nobody.
        for _ in 0..20 {
            assert_eq!(action.init(json!({"code": ""})).0, 403);
        }
        slow.write_all(&first.as_bytes()[first.len() - 1..]).unwrap();
        (whole.join().unwrap(), half.join().unwrap())
    });
    assert_eq!(response(slow), (200, json!({"ok": true})));
    // Each when its turn comes, of which the second one's rest comes never.
    assert_eq!(response(half).0, 403);
    assert_eq!(response(whole).0, 403);
}

#[test]
fn a_start_that_fails_may_be_tried_again() {
    let action = Action::start(3, &[]);
    for code in [
        "this is no Python",
        "import nowhere\n",
        "def other(args): pass\n",
        "import os\nos._exit(3)\n",
    ] {
        let (status, answer) = action.init(json!({"code": code}));
        assert_eq!(status, 502, "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with("cannot start action: "), "{answer}");
        let said = action.log(1).join("\n");
        assert_eq!(code.contains("exit"), said.is_empty(), "{said}");
        assert_eq!(action.log(0), [""; 0]);
        assert_eq!(action.post("/run", "{\"value\":{}}").0, 500);
    }
    assert_eq!(action.init(json!({"code": ECHO})).0, 200);
    assert_eq!(action.run(json!({"name": "x"})).0, 200);
}

#[test]
fn what_an_action_does_wrong_is_told_of_its_activation_alone() {
    let action = Action::of(
        4,
        r#"
import ctypes, os, sys, time
def main(args):
    if args.get("sleep"):
        print("sleeps", flush=True)
        time.sleep(100)
    if args.get("signal"):
        os.kill(os.getpid(), args["signal"])
    if args.get("exit"):
        print("goes", file=sys.stderr, flush=True)
        os._exit(args["exit"])
    if args.get("raise"):
        raise ValueError(args["raise"])
    if args.get("write"):
        ctypes.memset(8, 1, 8)
    return args.get("answer")
"#,
    );
    let right = || assert_eq!(action.run(json!({"answer": {"a": 1}})).1, json!({"a": 1}));
    let (status, answer, [_, err]) = action.run(json!({"raise": "no bread"}));
    assert_eq!((status, answer), (200, json!({"error": "no bread"})));
    assert!(err.iter().any(|line| line == "ValueError: no bread"), "{err:?}");
    right();
    for (value, why) in [
        (json!({"signal": 9}), "signal 9"),
        (json!({"write": true}), "signal 11"),
        (json!({"exit": 7}), "exit code 7"),
    ] {
        let (status, answer, _) = action.run(value);
        let said = format!("the action's process ended without an answer: {why}");
        assert_eq!((status, answer), (200, json!({"error": said})));
        right();
    }
    for answer in [json!(null), json!(1), json!("text")] {
        let (status, error, _) = action.run(json!({"answer": answer}));
        let said = "The action did not return a dictionary or array.";
        assert_eq!((status, error), (502, json!({"error": said})));
    }
    assert_eq!(action.run(json!({"answer": [1, 2]})).1, json!([1, 2]));
    // Late: ended by its deadline.
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(2);
    let late = json!({"value": {"sleep": true}, "deadline": soon.as_millis().to_string()});
    let (status, answer, [out, _]) = action.run_whole(&late.to_string());
    assert_eq!(status, 200);
    assert!(answer["error"].as_str().unwrap().contains("by its deadline"), "{answer}");
    // On a machine that has too much to do it may be ended before it says so.
    assert!(out.is_empty() || out == ["sleeps"], "{out:?}");
    right();
}

#[test]
fn what_an_activation_leaves_behind_ends_with_it() {
    let action = Action::of(
        5,
        r#"
import os, time
def main(args):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            time.sleep(1000)
        os._exit(0)
    return {"left": int(os.read(reading, 20))}
"#,
    );
    for _ in 0..3 {
        let (status, answer, _) = action.run(json!({}));
        assert_eq!(status, 200);
        let left = format!("/proc/{}", answer["left"]);
        wait_for("what was left to end", || (!Path::new(&left).exists()).then_some(()));
    }
}

#[test]
fn an_action_may_ask_not_to_be_forked() {
    let action = Action::start(6, &[]);
    let value = json!({"code": ECHO, "env": {"ELVER_FORK": "no"}});
    assert_eq!(action.init(value).0, 200);
    for calls in 1..4 {
        assert_eq!(action.run(json!({})).1["calls"], calls);
    }
    // What has threads is not forked either.
    let threads = Action::of(
        7,
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nCALLS = 0\ndef main(args):\n    global CALLS\n    CALLS += 1\n    return {'calls': CALLS}\n",
    );
    for calls in 1..4 {
        assert_eq!(threads.run(json!({})).1["calls"], calls);
    }
}

#[test]
fn a_module_may_say_that_it_is_pythons() {
    let action = Action::of(16, &format!("#!/usr/bin/env python3\n{ECHO}"));
    assert_eq!(action.run(json!({"name": "x"})).1["args"], json!({"name": "x"}));
}

#[test]
fn a_field_that_can_be_no_variable_is_told_of_its_activation_alone() {
    let action = Action::start(17, &[]);
    let value = json!({"code": ECHO, "env": {"ELVER_FORK": "no"}});
    assert_eq!(action.init(value).0, 200);
    let (status, answer, _) = action.run_whole("{\"value\":{},\"a=b\":\"c\"}");
    assert_eq!((status, answer["error"].is_string()), (200, true), "{answer}");
    assert_eq!(action.run(json!({})).1["calls"], 1);
}

/// What one activation had said ended the action for all later ones.
#[test]
fn a_text_that_has_no_form_in_utf_8_is_told_of_its_activation_alone() {
    for environment in [json!({"ELVER_FORK": "no"}), json!({})] {
        let action = Action::start(20, &[]);
        let code = "def main(args):\n    if 'x' in args:\n        raise ValueError(args['x'])\n    return {}\n";
        assert_eq!(action.init(json!({"code": code, "env": environment})).0, 200);
        let (status, answer, _) = action.run_whole(r#"{"value":{"x":"a\ud800b"}}"#);
        let said = answer["error"].as_str().unwrap_or_default();
        assert!(status == 200 && said.starts_with('a') && said.ends_with('b'), "{answer}");
        let (status, answer, _) = action.run(json!({}));
        assert_eq!((status, answer), (200, json!({})));
    }
}

#[test]
fn an_archive_has_modules_beside_its_main_one() {
    let directory = tempfile::tempdir().unwrap();
    const PACK: &str = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as archive:
    archive.writestr('__main__.py', 'import beside\\ndef start(args): return {\"beside\": beside.WORD}\\n')
    archive.writestr('beside.py', 'WORD = \"here\"\\n')
    archive.writestr('../../../../escaped.py', '')";
    let file = directory.path().join("action.zip");
    let packed = Command::new("/usr/bin/python3").args(["-c", PACK]).arg(&file).status();
    assert!(packed.unwrap().success());
    let code = STANDARD.encode(std::fs::read(&file).unwrap());
    let action = Action::start(8, &[]);
    let value = json!({"code": code, "binary": true, "main": "start"});
    assert_eq!(action.init(value), (200, json!({"ok": true})));
    assert_eq!(action.run(json!({})).1, json!({"beside": "here"}));
    assert!(!Path::new("/escaped.py").exists() && !Path::new("/tmp/escaped.py").exists());
}

/// Speaks ActionLoop as any runtime's launcher does.
const LOOP: &str = r#"#!/usr/bin/python3
import json, os, sys
out = os.fdopen(3, "w")
if os.environ.get("__OW_WAIT_FOR_ACK"):
    print(os.environ["ACK"], file=out, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print("heard", request["activation_id"], flush=True)
    if request["value"] == "go":
        sys.exit(3)
    print(json.dumps({"whole": request}), file=out, flush=True)
"#;

#[test]
fn a_program_speaks_action_loop() {
    let action = Action::start(9, &[]);
    let value = json!({"code": STANDARD.encode(LOOP), "binary": true});
    assert_eq!(action.init(value), (200, json!({"ok": true})));
    // A line's end within the request is none between two.
    let request =
        json!({"value": {"text": "a\nb"}, "activation_id": "7", "deadline": "99999999999999"});
    let pretty = serde_json::to_string_pretty(&request).unwrap();
    let (status, answer, [out, _]) = action.run_whole(&pretty);
    assert_eq!(
        (status, answer, out),
        (200, json!({"whole": request}), vec!["heard 7".to_string()])
    );
    let (status, answer, [out, _]) = action.run_whole("{\"value\":\"go\",\"activation_id\":\"8\"}");
    assert_eq!((status, answer), (400, json!({"error": "command exited"})));
    assert_eq!(out, ["heard 8"]);
    let (status, answer) = action.post("/run", "{\"value\":{}}");
    assert_eq!((status, answer), (500, json!({"error": "no action defined yet"})));
}

/// Answers two requests at once, of which it has had one.
const CHATTY: &str = r#"#!/usr/bin/python3
import os, sys
for line in sys.stdin:
    os.write(3, b'{"one": 1}\n{"two": 2}\n')
"#;

/// It was the next activation's.
#[test]
fn what_is_written_behind_an_answer_is_nobodys() {
    let action = Action::start(64, &[]);
    assert_eq!(action.init(json!({"code": STANDARD.encode(CHATTY), "binary": true})).0, 200);
    let (status, answer, _) = action.run(json!({}));
    assert_eq!((status, answer), (200, json!({"one": 1})));
    let (status, answer, _) = action.run(json!({}));
    let why = "the action wrote more than its answer's line, and was ended";
    assert_eq!((status, answer), (502, json!({"error": why})));
    // In Python an activation's child can write more than its answer, and nothing of it is the next one's.
    let action = Action::of(
        65,
        r#"
import fcntl, os
def main(args):
    for name in os.listdir("/proc/self/fd") if args else []:
        try:
            is_pipe = int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")
            if is_pipe and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.write(int(name), b'{"one": 1}\n{"two": 2}\n')
        except OSError:
            pass
    return {"own": 1}
"#,
    );
    for (value, expected) in [(json!({"more": 1}), "one"), (json!({}), "own")] {
        let (status, answer, _) = action.run(value);
        assert_eq!((status, answer), (200, json!({expected: 1})));
    }
}

/// Speaks ActionLoop, and starts what stays in its group and has its descriptors, and what leaves both and ends by itself.
const LEAVES: &str = r#"#!/usr/bin/python3
import json, os, sys, time
stays = os.fork()
if stays == 0:
    time.sleep(1000)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    leaves = os.fork()
    if leaves == 0:
        os._exit(0)
    os.write(writing, str(leaves).encode())
    os._exit(0)
leaves = int(os.read(reading, 20))
with open(os.environ["LEFT"], "w") as file:
    file.write(f"{stays} {leaves}\n")
os.write(3, os.environ["ACK"].encode() + b"\n")
sys.stdin.readline()
"#;

/// What a program had started was found by its own number, which nobody knew when it had been waited for; and what loses
/// its parent is the container's first process's to wait for.
#[test]
fn what_a_program_leaves_ends_with_it() {
    for (host, ack, started) in [(41, "{\"ok\": true}", 200), (42, "{\"ok\": false}", 502)] {
        let action = Action::start(host, &[("OW_WAIT_FOR_ACK", "1")]);
        let place = tempfile::tempdir().unwrap();
        let left = place.path().join("left");
        let environment = json!({"LEFT": left, "ACK": ack});
        let code = STANDARD.encode(LEAVES);
        let (status, _) = action.init(json!({"code": code, "binary": true, "env": environment}));
        assert_eq!(status, started);
        let left = std::fs::read_to_string(&left).unwrap();
        let pids: Vec<_> = left.split_whitespace().map(|pid| format!("/proc/{pid}")).collect();
        let [stays, leaves] = &pids[..] else { panic!("{left:?}") };
        wait_for("an orphan to be waited for", || (!Path::new(leaves).exists()).then_some(()));
        if started == 200 {
            assert!(Path::new(stays).exists());
            let (status, answer) = action.post("/run", "{\"value\":{}}");
            assert_eq!((status, answer), (400, json!({"error": "command exited"})));
        }
        wait_for("what stayed to end", || (!Path::new(stays).exists()).then_some(()));
    }
}

#[test]
fn a_program_that_is_waited_for_says_that_it_is_there() {
    let start = |host, ack: &str| {
        let action = Action::start(host, &[("OW_WAIT_FOR_ACK", "1")]);
        let code = STANDARD.encode(LOOP);
        let answer = action.init(json!({"code": code, "binary": true, "env": {"ACK": ack}}));
        (action, answer)
    };
    let (action, answer) = start(10, "{\"ok\": true}");
    assert_eq!(answer, (200, json!({"ok": true})));
    assert_eq!(action.run_whole("{\"value\":{},\"activation_id\":\"1\"}").0, 200);
    for (host, ack) in [(11, "{\"ok\": false}"), (12, "hello")] {
        let (_action, (status, answer)) = start(host, ack);
        let said = "cannot start action: The action did not initialize properly.";
        assert_eq!((status, answer), (502, json!({"error": said})));
    }
}

#[test]
fn who_goes_before_the_answer_does_not_leave_it_to_the_next() {
    let action = Action::of(
        13,
        "import time\ndef main(args):\n    time.sleep(args['s'])\n    print(args)\n    return args\n",
    );
    let mut gone = TcpStream::connect(&action.address).unwrap();
    post(&mut gone, "/run", "{\"value\":{\"s\":0.5}}");
    drop(gone);
    let (status, answer, [out, _]) = action.run(json!({"s": 0}));
    assert_eq!((status, answer), (200, json!({"s": 0})));
    // The one before has its part of the log, if it was read at all.
    assert!(out == ["{'s': 0.5}"] || out == ["{'s': 0}"], "{out:?}");
}

#[test]
fn a_container_that_is_ended_answers_what_runs_and_takes_no_more() {
    const WAITS: &str = "import os, time
def main(args):
    print('begun', flush=True)
    while not os.path.exists(args['go']):
        time.sleep(0.01)
    return args
";
    let mut action = Action::of(14, WAITS);
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let mut running = TcpStream::connect(&action.address).unwrap();
    post(&mut running, "/run", &json!({"value": {"go": go}}).to_string());
    assert_eq!(action.logs[0].recv_timeout(PATIENCE).unwrap(), "begun");
    let pid = rustix::process::Pid::from_child(&action.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let refused = wait_for("it to refuse", || {
        let (status, answer) = action.post("/init", "{}");
        (status == 503).then_some(answer)
    });
    assert_eq!(refused, json!({"error": "the container is being ended"}));
    std::fs::write(&go, "").unwrap();
    assert_eq!(response(running), (200, json!({"go": go})));
    assert!(action.process.wait().unwrap().success());
}

/// Whoever ran, or read his answer as slowly as he liked, held it up, and no other signal was heard.
#[test]
fn a_container_that_is_told_twice_ends() {
    let code =
        "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(1000)\n";
    let mut action = Action::of(21, code);
    let mut running = TcpStream::connect(&action.address).unwrap();
    post(&mut running, "/run", &json!({"value": {}}).to_string());
    assert_eq!(action.logs[0].recv_timeout(PATIENCE).unwrap(), "begun");
    let pid = rustix::process::Pid::from_child(&action.process);
    let tell = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    tell();
    wait_for("it to refuse", || (action.post("/init", "{}").0 == 503).then_some(()));
    tell();
    let ended = wait_for("it to end", || action.process.try_wait().unwrap());
    assert!(ended.success());
}

#[test]
fn activations_inherit_connections() {
    activations_inherit(2, 15, json!({}), "dc");
}

#[test]
fn activations_inherit_leased_queue_pairs() {
    activations_inherit(3, 18, json!({"ELVER_CONNECTIONS": "leased"}), "leased");
}

#[test]
fn what_connections_cannot_go_over_is_told() {
    let action = Action::start(19, &[]);
    let code = "def main(args):\n    return args\n";
    let value = json!({"code": code, "env": {"ELVER_CONNECTIONS": "rented"}});
    let (status, answer) = action.init(value);
    assert_eq!(status, 502, "{answer}");
    let said = action.log(1).join("\n");
    assert!(said.contains("ELVER_CONNECTIONS is 'rented'; it is shared or leased"), "{said}");
}

#[test]
fn what_is_no_gid_is_no_destination_of_an_actions() {
    let action = Action::start(30, &[]);
    let code = "def main(args):\n    return args\n";
    let value = json!({"code": code, "env": {"ELVER_DESTINATIONS": "10.0.0.1 10.0.0.02"}});
    let (status, answer) = action.init(value);
    assert_eq!(status, 502, "{answer}");
    let said = action.log(1).join("\n");
    assert!(said.contains("'10.0.0.02' is no GID, which is written"), "{said}");
}

/// With a node and an action's container of their own, and what backs the connections that are ready.
fn activations_inherit(group: u8, host: u8, variables: Value, way: &str) {
    let node = TestNode::start(PLACE.config(group, 1));
    let session = Session::connect(&node.path).unwrap();
    let region = session.alloc(64, AccessFlags::REMOTE_READ).unwrap();
    region.write(0, b"greeting").unwrap();
    let modules = tempfile::tempdir().unwrap();
    std::fs::copy(python_module(), modules.path().join("elver.abi3.so")).unwrap();
    let path = modules.path().to_str().unwrap();
    let socket = node.path.to_str().unwrap();
    let action = Action::start(host, &[("PYTHONPATH", path), ("ELVER_SOCKET", socket)]);
    const READ: &str = "import elver
def main(args):
    rdma = elver.context()
    rdma.qps[args['to']].read(rdma.mr, 0, 8, args['address'], args['rkey'], timeout=10)
    return {'read': rdma.mr.read(0, 8).decode(), 'inherited': rdma.inherited}
";
    let gid = node.gid.to_string();
    // One, in two spellings.
    let named = format!("{gid} ::FFFF:{gid}");
    let mut value = json!({"code": READ, "env": {"ELVER_DESTINATIONS": named}});
    value["env"].as_object_mut().unwrap().extend(variables.as_object().unwrap().clone());
    assert_eq!(action.init(value).0, 200);
    let count = |name: &str| node.status().engine[&format!("heirs_{name}")];
    for _ in 0..3 {
        wait_for("four sessions to be free", || (count("free") == 4).then_some(()));
        let event = json!({"to": gid, "address": region.addr(), "rkey": region.rkey()});
        let (status, answer, _) = action.run(event);
        assert_eq!((status, answer), (200, json!({"read": "greeting", "inherited": true})));
    }
    assert_eq!(["prepared", "inherited", "refused"].map(count), [4, 3, 0]);
    wait_for("four sessions to be free", || (count("free") == 4).then_some(()));
    let vqps = node.status().vqps.into_iter().filter(|vqp| vqp.state == "connected");
    let ways: Vec<_> = vqps.filter_map(|vqp| vqp.via).collect();
    // The INIT process's own, and one in each session.
    assert_eq!(ways, [way; 5]);
}
