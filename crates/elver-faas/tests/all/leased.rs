//! Functions with queue pairs of their own, at a node that has few of them.

use elver::{ConnectOptions, Policy, Session, Vqp, VqpOptions};
use elver_faas::schedule::Start;
use elver_testkit::{Place, TestNode, wait_for};
use serde_json::{Value, json};

use crate::native::{EXAMPLES, native, put};
use crate::platform::{Platform, python, wait_until_told_of_no_room};
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-leased", network: 74, udp_ports: 27_600, registry_ports: 27_700 };

/// What a leased queue pair takes of `transfer.leased_wrs_max`: what a VQP may have outstanding, and a few of the node's.
const DEPTH: u32 = 128 + 16;

/// Reads from the peer that the event names. It may give its connection up before it ends, and wait for a file.
const HANDLERS: &str = r#"
import os, time
import elver

def read(event, context):
    found = event["to"] in elver.context().qps
    context.qps[event["to"]].read(context.mr, 0, 8, event["address"], event["rkey"], timeout=10)
    if event.get("leaves"):
        del context.qps[event["to"]]
    until = time.monotonic() + 60
    while "until" in event and not os.path.exists(event["until"]) and time.monotonic() < until:
        time.sleep(0.01)
    return {"read": context.mr.read(0, 8).decode(), "found": found}
"#;

/// A node with room for so many leased queue pairs.
fn node(group: u8, leases: u32) -> Store {
    let mut config = PLACE.config(group, 1);
    config.transfer.leased_wrs_max = leases * DEPTH;
    Store::of(TestNode::start(config))
}

/// A platform with a leased function of an owner, and lines for it.
fn platform(store: &Store, owner: &str, uid: u32, lines: &str) -> Platform {
    let function = python(owner, uid, &["read"]) + &format!("connections = \"leased\"\n{lines}\n");
    let platform = store.platform_with_python(&function);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    platform
}

/// The same, with the node itself as its destination, once it has answered and its sessions for children are free.
fn begun(
    store: &Store,
    (owner, uid): (&str, u32),
    (sessions, unassigned): (u32, u32),
) -> (Platform, String) {
    let platform = platform(store, owner, uid, &towards(store, sessions, unassigned));
    let function = format!("{owner}-read");
    platform.answer(&function, store.event(json!({})));
    wait_for_free(store, sessions.into());
    (platform, function)
}

/// The node itself as a destination, and so many sessions for children.
fn towards(store: &Store, sessions: u32, unassigned: u32) -> String {
    format!(
        "destinations = [{:?}]\nsessions = {sessions}\nconcurrency_max = {sessions}\nunassigned_qps = {unassigned}",
        store.gid()
    )
}

fn wait_for_free(store: &Store, count: u64) {
    wait_for("sessions to be free, or taken", || (store.count("free") == count).then_some(()));
}

/// What a child answers.
fn child(platform: &Platform, function: &str, event: Value) -> Value {
    let (start, answer) = platform.answer(function, event);
    assert_eq!(start, Start::Fork);
    answer
}

/// A connection of this process's, which takes one of the node's leased queue pairs as soon as there is one.
fn lease(store: &Store, session: &Session) -> Vqp {
    wait_for("a leased queue pair", || {
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        let how = ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() };
        vqp.qconnect_with(store.node.gid, 0, how).is_ok().then_some(vqp)
    })
}

#[test]
fn a_session_that_lacks_its_connection_is_passed_over() {
    // One for the INIT process, and one for each of two sessions.
    let store = node(1, 3);
    let (mut platform, function) = begun(&store, ("ada", 62_251), (2, 0));
    // The first session's child gives its queue pair up, and somebody else takes that before the session is made anew.
    let going = platform.invoke_beside(&function, store.event(json!({"leaves": 1, "until": "go"})));
    let session = Session::connect(&store.node.path).unwrap();
    let kept = lease(&store, &session);
    std::fs::write(platform.code().join("go"), "").unwrap();
    assert!(!going.join().unwrap().unwrap().is_error);
    for _ in 0..3 {
        wait_for_free(&store, 2);
        let answer = child(&platform, &function, store.event(json!({})));
        assert_eq!(answer, json!({"read": "greeting", "found": true}));
    }
    drop(kept);
    platform.end();
}

/// With room for one at first, which the INIT process takes: the first child connects what its session lacks, by the session's
/// own QP, and all have it afterwards. The INIT process keeps so many.
fn is_leased_once(store: &Store, keeps: usize, begin: impl FnOnce() -> (Platform, String)) {
    let session = Session::connect(&store.node.path).unwrap();
    let taken = [(); 3].map(|()| lease(store, &session));
    let (mut platform, function) = begin();
    drop(taken);
    wait_for("room", || (store.ways_to(store).len() == keeps).then_some(()));
    for found in [false, true, true, true] {
        wait_for_free(store, 2);
        let answer = child(&platform, &function, store.event(json!({})));
        assert_eq!((&answer["read"], &answer["found"]), (&json!("greeting"), &json!(found)));
    }
    wait_for_free(store, 2);
    assert_eq!(store.ways_to(store), vec!["leased"; keeps + 1]);
    platform.end();
}

#[test]
fn what_a_session_lacked_is_leased_once() {
    let store = node(2, 4);
    is_leased_once(&store, 1, || begun(&store, ("beate", 62_252), (2, 1)));
}

/// A platform with a leased function in Rust, and lines for it, once it has answered. Its INIT process has its own connection
/// until then alone, and so many sessions are made ready meanwhile.
fn begun_in_rust(
    store: &Store,
    (owner, uid): (&str, u32),
    to: &str,
    sessions: u32,
    unassigned: u32,
) -> Platform {
    let lines = format!(
        "connections = \"leased\"\nsessions = {sessions}\nconcurrency_max = {sessions}\nunassigned_qps = {unassigned}\n"
    );
    let platform = store.platform(&(native(owner, uid, to) + &lines));
    put(&platform, &EXAMPLES.program("function"));
    let first = platform.invoke_beside(owner, store.event(json!({"until": "begun"})));
    wait_for_free(store, sessions.into());
    std::fs::write(platform.code().join("begun"), "").unwrap();
    assert!(!first.join().unwrap().unwrap().is_error);
    platform
}

#[test]
fn what_a_session_in_rust_lacked_is_leased_once() {
    let store = node(6, 4);
    is_leased_once(&store, 0, || {
        let platform = begun_in_rust(&store, ("frieda", 63_000), &store.gid(), 2, 1);
        (platform, "frieda".into())
    });
}

/// Each spelling had a row of its own in the tables, and queue pairs of its own.
fn is_one_in_whichever_spelling(
    store: &Store,
    keeps: usize,
    platform: &mut Platform,
    function: &str,
) {
    let v4 = store.gid();
    let std::net::IpAddr::V4(address) = store.node.gid.to_ip() else { panic!("{v4}") };
    let number = u32::from(address);
    let spelled = [
        v4.clone(),
        format!("::ffff:{v4}"),
        format!("::FFFF:{:x}:{:x}", number >> 16, number & 0xffff),
        format!("0:0000:0:0:0:FFFF:{v4}"),
    ];
    for to in &spelled {
        wait_for_free(store, 1);
        let event = store.event(json!({"to": to})).to_string().into_bytes();
        let towards = std::slice::from_ref(to);
        let invoked =
            elver_faas::client::invoke_towards(&platform.socket(), function, towards, event);
        let invoked = invoked.unwrap();
        let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!(
            (invoked.start, &answer["found"]),
            (Start::Fork, &json!(true)),
            "{to}: {answer}"
        );
    }
    wait_for_free(store, 1);
    assert_eq!(store.ways_to(store), vec!["leased"; keeps + 1]);
    let row = platform.list().processes.remove(0).connections;
    assert_eq!(row.into_iter().collect::<Vec<_>>(), [v4]);
    platform.end();
}

/// The node in two spellings, as a configuration's list has them.
fn twice(store: &Store) -> String {
    format!("{0}\", \"::ffff:{0}", store.gid())
}

#[test]
fn a_destination_is_leased_once_in_whichever_spelling() {
    let store = node(7, 8);
    let lines = "sessions = 1\nconcurrency_max = 1\n";
    let named = format!("destinations = [\"{}\"]\n{lines}", twice(&store));
    let mut platform = platform(&store, "gerda", 63_001, &named);
    platform.answer("gerda-read", store.event(json!({})));
    is_one_in_whichever_spelling(&store, 1, &mut platform, "gerda-read");
}

#[test]
fn a_destination_in_rust_is_leased_once_in_whichever_spelling() {
    let store = node(8, 8);
    let mut platform = begun_in_rust(&store, ("hilda", 63_002), &twice(&store), 1, 0);
    is_one_in_whichever_spelling(&store, 0, &mut platform, "hilda");
}

#[test]
fn what_is_kept_is_made_again_when_there_is_room_again() {
    // One for the INIT process, and one for its session.
    let store = node(3, 2);
    let lines = "sessions = 1\nconcurrency_max = 1\nunassigned_qps = 1";
    let mut platform = platform(&store, "carla", 62_253, lines);
    platform.answer("carla-read", store.event(json!({})));
    let finds = || {
        wait_for_free(&store, 1);
        let answer = child(&platform, "carla-read", store.event(json!({})));
        assert_eq!(answer["read"], "greeting");
        answer["found"] == true
    };
    assert!(!finds());
    wait_for("a child that finds it connected", || finds().then_some(()));
    // Somebody else has it when the session is made anew, which has no room then.
    wait_for_free(&store, 1);
    let event = store.event(json!({"leaves": 1, "until": "go"}));
    let going = platform.invoke_beside("carla-read", event);
    let session = Session::connect(&store.node.path).unwrap();
    let other = lease(&store, &session);
    std::fs::write(platform.code().join("go"), "").unwrap();
    assert!(!going.join().unwrap().unwrap().is_error);
    wait_for_free(&store, 1);
    assert_eq!(store.ways_to(&store).len(), 2);
    drop(other);
    wait_for("room", || (store.ways_to(&store).len() == 1).then_some(()));
    assert!(!finds());
    wait_for("a child that finds it connected again", || finds().then_some(()));
    platform.end();
}

#[test]
fn children_beyond_the_leased_queue_pairs_are_told_and_so_are_the_log_and_the_node() {
    // One for the INIT process, and two for four sessions.
    let store = node(4, 3);
    let (mut platform, function) = begun(&store, ("dora", 62_254), (4, 1));
    assert_eq!(store.node.status().engine["leases_refused"], 2);
    let held = |go: &str| platform.invoke_beside(&function, store.event(json!({"until": go})));
    let children = ["go-0", "go-1"].map(|go| {
        let free = store.count("free");
        let going = held(go);
        wait_for_free(&store, free - 1);
        going
    });
    for refused in 1..4 {
        wait_for_free(&store, 2);
        let invoked = platform.invoke(&function, store.event(json!({}))).unwrap();
        let error: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!((invoked.start, invoked.is_error), (Start::Fork, true));
        let why = error["errorMessage"].as_str().unwrap();
        assert!(why.contains("raise `transfer.leased_wrs_max` here"), "{why}");
        // What the child asked for, and what its session was made anew without.
        wait_for_free(&store, 2);
        assert_eq!(store.node.status().engine["leases_refused"], 2 + 2 * refused);
    }
    wait_until_told_of_no_room(&platform);
    // Those that have theirs notice nothing, and they are there for the next ones.
    for (go, going) in ["go-0", "go-1"].into_iter().zip(children) {
        std::fs::write(platform.code().join(go), "").unwrap();
        assert!(!going.join().unwrap().unwrap().is_error);
    }
    for _ in 0..3 {
        wait_for_free(&store, 4);
        let answer = child(&platform, &function, store.event(json!({})));
        assert_eq!(answer, json!({"read": "greeting", "found": true}));
    }
    platform.end();
}

/// A program that asks for its request as one does that was built before there were leased functions.
const OLD: &str = r#"#!/usr/bin/python3
import http.client, os, socket
api = http.client.HTTPConnection("platform")
api.sock = socket.socket(socket.AF_UNIX)
api.sock.connect(os.environ["ELVER_API_SOCKET"])
api.request("GET", "/2018-06-01/runtime/invocation/next", headers={"Elver-Request": os.environ["ELVER_FIRST"]})
invocation = api.getresponse()
assert invocation.status == 200, invocation.read()
event, request = invocation.read(), invocation.headers["Lambda-Runtime-Aws-Request-Id"]
api.request("POST", f"/2018-06-01/runtime/invocation/{request}/response", event)
api.getresponse().read()
"#;

#[test]
fn a_program_that_knows_no_leased_queue_pairs_is_not_run_with_shared_ones() {
    let store = node(5, 2);
    let function = |name: &str, connections: &str| {
        format!(
            "[functions.{name}]\nowner = \"emma\"\ncode = \"@CODE@\"\nhandler = \"old\"\nruntime = \"native\"\ntimeout_s = 60\n\
             destinations = [{:?}]\nconnections = \"{connections}\"\n",
            store.gid()
        )
    };
    let mut platform = store.platform(
        &("[owners.emma]\nuid = 62255\n".to_string()
            + &function("shared", "shared")
            + &function("leased", "leased")),
    );
    let program = platform.code().join("old");
    std::fs::write(&program, OLD).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, permissions).unwrap();
    assert_eq!(platform.answer("shared", json!(7)).1, json!(7));
    let (kind, why) = platform.refusal("leased", json!(7));
    assert!(kind == "Ended" && why.contains("knows no connections = \"leased\""), "{kind}: {why}");
    platform.end();
}
