//! What hostile handlers do about leased queue pairs and the door of their Runtime API, and what others have of that.

use elver_faas::schedule::Start;
use elver_testkit::{Place, TestNode, wait_for};
use serde_json::{Value, json};

use crate::platform::{Platform, python};
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-attacks", network: 90, udp_ports: 27_400, registry_ports: 27_500 };

/// A node with room for about so many leased queue pairs.
fn node(group: u8, leases: u32) -> Store {
    let mut config = PLACE.config(group, 1);
    config.transfer.leased_wrs_max = wrs_max(leases);
    Store::of(TestNode::start(config))
}

/// Each is for 128 send WRs, and a few of the node's.
fn wrs_max(leases: u32) -> u32 {
    leases * (128 + 16)
}

/// WRs of the leased queue pairs that each account has.
fn leased(store: &Store) -> Vec<u32> {
    let users = store.node.status().users.into_iter().map(|user| user.leased_wrs);
    let mut leased: Vec<u32> = users.filter(|wrs| *wrs > 0).collect();
    leased.sort_unstable();
    leased
}

const HANDLERS: &str = r#"
import json, os, signal, time
import elver

def until(event):
    late = time.monotonic() + 60
    while not os.path.exists(event["until"]) and time.monotonic() < late:
        time.sleep(0.01)

def leases_all(event, end):
    """What a process gets by a session of its own, and keeps."""
    session, had = elver.Session(os.environ["ELVER_SOCKET"]), []
    try:
        while True:
            had.append(session.connect(event["to"], leased=True))
    except elver.Error as error:
        os.write(end, json.dumps([len(had), str(error)]).encode())
    until(event)
    os._exit(0)

def bomb(event, context):
    if "children" not in event:
        return read(event, context)
    said = []
    for _ in range(event["children"]):
        reading, end = os.pipe()
        if os.fork() == 0:
            leases_all(event, end)
        said.append(json.loads(os.read(reading, 4096)))
        os.close(end)
        os.close(reading)
    until(event)
    return said

def read(event, context):
    context.qps[event["to"]].read(context.mr, 0, 8, event["address"], event["rkey"], timeout=10)
    return context.mr.read(0, 8).decode()

def dies(event, context):
    """At a step of leasing, one after the other."""
    if "step" not in event:
        return read(event, context)
    def step(number):
        if event["step"] == number:
            os.kill(os.getpid(), signal.SIGKILL)
    step(0)
    rdma = elver.context()
    step(1)
    import elver_context
    for line in event.get("lies", []):
        os.write(elver_context.READY.ahead.finds, line.encode())
    begun = rdma.device.connect_start(event["to"], leased=True)
    step(2)
    vqp = begun.wait()
    step(3)
    vqp.connect(event["to"], leased=True)
    step(4)
    del vqp, begun
    step(5)
    rdma.device.connect_start(event["to"], leased=True)
    return read(event, context)
"#;

fn platform(store: &Store, functions: &str) -> Platform {
    let platform = store.platform_with_python(functions);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    platform
}

/// A leased function of an owner, with so many sessions that have a connection to the node.
fn function(store: &Store, owner: &str, uid: u32, name: &str, sessions: u32) -> String {
    let more = format!("connections = \"leased\"\ndestinations = [{:?}]\n", store.gid());
    python(owner, uid, &[name]).replace("timeout_s = 20", "timeout_s = 60")
        + &more
        + &format!("sessions = {sessions}\nconcurrency_max = {sessions}\nunassigned_qps = 1\n")
}

/// Waits until a function's sessions are free, and there are so many connections: its INIT process's, and one in each session.
/// WRs of the leased queue pairs then.
fn rested(store: &Store, sessions: u64, connections: usize) -> Vec<u32> {
    wait_for("sessions", || (store.count("free") == sessions).then_some(()));
    wait_for("connections", || (store.ways_to(store) == vec!["leased"; connections]).then_some(()));
    leased(store)
}

/// One container's processes took all that there was, and nobody else had any.
#[test]
fn a_container_that_leases_all_it_gets_leaves_some_to_anothers() {
    let store = node(1, 64);
    let functions = function(&store, "mallory", 63_010, "bomb", 1)
        + &function(&store, "nora", 63_011, "read", 1);
    let mut platform = platform(&store, &functions);
    platform.answer("mallory-bomb", store.event(json!({})));
    let [own] = rested(&store, 1, 2)[..] else { panic!("one account") };
    let bomb = store.event(json!({"children": 4, "until": "go"}));
    let bomb = platform.invoke_beside("mallory-bomb", bomb);
    let refused = || store.node.status().engine["leases_refused_user"] >= 4;
    wait_for("each of its children to be refused", || refused().then_some(()));
    // Half of all, and no part of a queue pair more.
    let [held] = leased(&store)[..] else { panic!("one account") };
    let half = wrs_max(64) / 2;
    assert!(held <= half && held + own / 2 > half, "{held} of {half}, where two take {own}");
    for start in [Start::Cold, Start::Fork, Start::Fork] {
        assert_eq!(
            platform.answer("nora-read", store.event(json!({}))),
            (start, json!("greeting"))
        );
        // Mallory's is free all the time.
        wait_for("nora's session", || (store.count("free") == 2).then_some(()));
    }
    std::fs::write(platform.code().join("go"), "").unwrap();
    let said = bomb.join().unwrap().unwrap();
    assert_eq!((said.start, said.is_error), (Start::Fork, false));
    let said: Vec<(u32, String)> = serde_json::from_slice(&said.body).unwrap();
    for (_, why) in &said {
        let why_not = format!("it leaves some of the node's {} to others", wrs_max(64));
        assert!(why.contains(&why_not), "{why}");
    }
    assert!(said[0].0 > 0 && said[1..].iter().all(|(had, _)| *had == 0), "{said:?}");
    wait_for("all of it to be given back", || (rested(&store, 2, 4) == [own; 2]).then_some(()));
    platform.end();
    wait_for("the rest", || leased(&store).is_empty().then_some(()));
}

#[test]
fn a_child_that_dies_at_a_step_of_leasing_leaves_nothing() {
    let store = node(2, 64);
    let mut platform = platform(&store, &function(&store, "olga", 63_012, "dies", 2));
    platform.answer("olga-dies", store.event(json!({})));
    let before = rested(&store, 2, 3);
    for step in 0..=6 {
        let lies = ["1 2 10.9.9.9\n", "1 0 10.9.9.9\n", "1 3 ::ffff:10.9.9.9\n", "1 3 -\n"];
        let event = store.event(json!({"step": step, "lies": lies}));
        if step == 6 {
            let (start, answer) = platform.answer("olga-dies", event);
            assert_eq!((start, answer), (Start::Fork, json!("greeting")));
        } else {
            let (_, why) = platform.refusal("olga-dies", event);
            assert!(why.contains("signal 9"), "{step}: {why}");
        }
        wait_for("no more than before", || (rested(&store, 2, 3) == before).then_some(()));
    }
    platform.end();
    wait_for("all of it to be given back", || leased(&store).is_empty().then_some(()));
}

/// A native program that forks for each request, and asks the Runtime API what its event says, as it says it.
const ASKS: &str = r#"#!/usr/bin/python3
import http.client, json, os, select, socket, time

def ask(method, path, headers={}, body=None):
    api = http.client.HTTPConnection("platform")
    api.sock = socket.socket(socket.AF_UNIX)
    api.sock.connect(os.environ["ELVER_API_SOCKET"])
    api.request(method, "/2018-06-01/runtime/" + path, body, headers)
    answer = api.getresponse()
    return answer.status, answer.read().decode(), answer.headers

def run(request):
    own = {"Elver-Request": str(request), "Elver-Heeds": "connections"}
    status, event, headers = ask("GET", "invocation/next", own)
    assert status == 200, event
    event = json.loads(event)
    said = [ask(*what)[:2] for what in event.get("asks", [])]
    late = time.monotonic() + 60
    while "until" in event and not os.path.exists(event["until"]) and time.monotonic() < late:
        time.sleep(0.01)
    request = headers["Lambda-Runtime-Aws-Request-Id"]
    ask("POST", f"invocation/{request}/response", {}, json.dumps(said))

control = socket.socket(fileno=os.dup(0))
run(os.environ["ELVER_FIRST"])
control.sendall(b'"serving"\n')
children, buffer = {}, b""
while True:
    heard = select.select([control, *children], [], [])[0]
    for child in set(heard) & set(children):
        request, pid = children.pop(child)
        os.waitpid(pid, 0)
        os.close(child)
        control.sendall(json.dumps({"ended": [request, "it has ended"]}).encode() + b"\n")
    if control not in heard:
        continue
    more = control.recv(65536)
    if not more:
        break
    *lines, buffer = (buffer + more).split(b"\n")
    for order in map(json.loads, lines):
        if "fork" in order:
            request = order["fork"][0]
            pid = os.fork()
            if pid == 0:
                run(request)
                os._exit(0)
            children[os.pidfd_open(pid)] = request, pid
"#;

/// It was taken for its INIT process, which was ended with all of its children.
#[test]
fn a_child_that_does_not_say_who_it_is_is_refused_and_harms_no_brother() {
    let store = node(3, 8);
    let text = format!(
        "[owners.petra]\nuid = 63013\n[functions.asks]\nowner = \"petra\"\ncode = \"@CODE@\"\nhandler = \"asks\"\n\
         runtime = \"native\"\ntimeout_s = 60\ndestinations = [{:?}]\nconnections = \"leased\"\n",
        store.gid()
    );
    let mut platform = store.platform(&text);
    let program = platform.code().join("asks");
    std::fs::write(&program, ASKS).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, permissions).unwrap();
    assert_eq!(platform.answer("asks", json!({})), (Start::Cold, json!([])));
    let process = || platform.list().processes.iter().map(|row| row.process).collect::<Vec<_>>();
    let first = process();
    let brother = platform.invoke_beside("asks", json!({"until": "go"}));
    wait_for("a brother", || (platform.list().processes[0].requests == 1).then_some(()));
    let next = "invocation/next";
    let asks = json!({"asks": [
        ["GET", next],
        ["GET", next, {"Elver-Request": "7"}],
        ["GET", next, {"Elver-Request": "seven"}],
        ["GET", next, {"Elver-Request": "7", "Elver-Heeds": "connections"}],
        ["POST", "init/error", {}, "{}"],
        ["POST", "restore/error", {}, "{}"],
    ]});
    let (start, said) = platform.answer("asks", asks);
    assert_eq!(start, Start::Fork);
    let said: Vec<(u16, String)> = serde_json::from_value(said).unwrap();
    for ((status, why), (expected, part)) in said.iter().zip([
        (400, "asks for the one request that it is for, with Elver-Request"),
        (403, "knows no connections"),
        (400, "no such number"),
        (410, "the request is no more"),
        (403, "the process has started"),
        (403, "the process has started"),
    ]) {
        assert!(*status == expected && why.contains(part), "{status} {why}: not {expected} {part}");
    }
    std::fs::write(platform.code().join("go"), "").unwrap();
    let answered = brother.join().unwrap().unwrap();
    assert_eq!((answered.start, answered.is_error), (Start::Fork, false));
    assert_eq!(serde_json::from_slice::<Value>(&answered.body).unwrap(), json!([]));
    assert_eq!(process(), first, "the same INIT process");
    platform.end();
}
