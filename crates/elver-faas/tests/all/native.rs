//! Functions in Rust and in C, whose processes are forked with their connections as Python's are.

use std::path::{Path, PathBuf};
use std::process::Command;

use elver_faas::schedule::Start;
use elver_testkit::{Examples, Place, TestNode, copy, handler_library, wait_for};
use serde_json::{Value, json};

use crate::platform::{Platform, wait_for_processes, wait_until_told_of_no_room};
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-native", network: 64, udp_ports: 29_200, registry_ports: 29_300 };

const IN_RUST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-handler");
const IN_C: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-handler-c");

pub static EXAMPLES: Examples = Examples::new("elver-handler", IN_RUST, "");

/// An owner with a function, whose program is put into its code afterwards.
pub fn native(owner: &str, uid: u32, gid: &str) -> String {
    format!(
        "[owners.{owner}]\nuid = {uid}\n[functions.{owner}]\nowner = \"{owner}\"\ncode = \"@CODE@\"\nhandler = \"function\"\nruntime = \"native\"\ntimeout_s = 20\ndestinations = [\"{gid}\"]\n"
    )
}

pub fn put(platform: &Platform, program: &Path) {
    copy(program, &platform.code().join("function"));
}

/// The example in C, as its users build it.
fn in_c(directory: &Path) -> PathBuf {
    let program = directory.join("function-c");
    let library = Path::new(IN_C);
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(library.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(library.join("examples/function.c"))
        .arg(handler_library())
        .args(["-lgcc_s", "-lm"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

#[test]
fn a_function_in_rust_is_forked_with_its_connections() {
    let store = Store::new(&PLACE, 1);
    let mut platform = store.platform(&native("rust", 62_101, &store.gid()));
    put(&platform, &EXAMPLES.program("function"));
    let (start, first) = platform.answer("rust", store.event(json!({})));
    assert_eq!((start, &first["read"]), (Start::Cold, &json!("greeting")));
    assert_eq!((&first["calls"], &first["inherited"]), (&json!(1), &json!(false)));
    let mut pids = std::collections::BTreeSet::new();
    for crash in [false, true, false, true, false] {
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
        let event = store.event(json!({"crash": crash}));
        if crash {
            let (kind, why) = platform.refusal("rust", event);
            assert!(kind == "Ended" && why.contains("signal 6"), "{kind}: {why}");
            continue;
        }
        let (start, answer) = platform.answer("rust", event);
        assert_eq!((start, &answer["start"]), (Start::Fork, &json!("fork")));
        assert_eq!((&answer["read"], &answer["inherited"]), (&json!("greeting"), &json!(true)));
        // A child of the process that ran the first, and of no other child.
        assert_eq!(answer["calls"], 2);
        pids.insert(answer["pid"].as_u64().unwrap());
    }
    assert_eq!(pids.len(), 3);
    assert_eq!(["prepared", "inherited", "refused"].map(|name| store.count(name)), [4, 5, 0]);
    let told = &platform.list().processes[0].connections;
    assert_eq!(told.iter().collect::<Vec<_>>(), [&store.gid()]);
    platform.end();
    wait_for_processes(62_101, 0);
    wait_for("all sessions to go", || (store.count("free") == 0).then_some(()));
}

/// The orders of its INIT process are a socket, which the programs of its first request had.
#[test]
fn a_program_that_a_function_starts_has_none_of_its_sockets() {
    let store = Store::new(&PLACE, 10);
    let mut platform = store.platform(&native("parent", 62_110, &store.gid()));
    put(&platform, &EXAMPLES.program("function"));
    for start in [Start::Cold, Start::Fork] {
        let (started, answer) = platform.answer("parent", store.event(json!({"inherits": true})));
        assert_eq!(started, start);
        let inherits = answer["inherits"].as_str().unwrap();
        assert!(inherits.contains("pipe:") && !inherits.contains("socket:"), "{inherits}");
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    }
    platform.end();
}

#[test]
fn a_leased_function_has_queue_pairs_of_its_own_and_gives_them_back() {
    let store = Store::new(&PLACE, 6);
    let more = "connections = \"leased\"\nsessions = 2\nconcurrency_max = 2\n";
    let mut platform = store.platform(&(native("leaser", 62_106, &store.gid()) + more));
    put(&platform, &EXAMPLES.program("function"));
    let leased = |count| {
        wait_for("leased queue pairs", || {
            let free = store.count("free");
            (store.ways_to(&store) == vec!["leased"; count]).then_some(free)
        })
    };
    let held = |go: &str| platform.invoke_beside("leaser", store.event(json!({"until": go})));
    let answer = |go: &str, asked: std::thread::JoinHandle<_>| {
        std::fs::write(platform.code().join(go), "").unwrap();
        let invoked: Result<elver_faas::client::Invoked, _> = asked.join().unwrap();
        let invoked = invoked.unwrap();
        let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!(answer["read"], "greeting", "{answer}");
        (invoked.start, answer["inherited"] == true)
    };
    // The INIT process's own, and one in each session for a child.
    let first = held("go-0");
    leased(3);
    assert_eq!(answer("go-0", first), (Start::Cold, false));
    for (go, crash) in [("go-1", false), ("go-2", true)] {
        wait_for("two sessions to be free", || (store.count("free") == 2).then_some(()));
        let child = held(go);
        wait_for("a session to be taken", || (store.count("free") == 1).then_some(()));
        leased(2);
        if crash {
            let (_, why) = platform.refusal("leaser", store.event(json!({"crash": true})));
            assert!(why.contains("signal 6"), "{why}");
        }
        assert_eq!(answer(go, child), (Start::Fork, true));
    }
    wait_for("two sessions to be free", || (store.count("free") == 2).then_some(()));
    leased(2);
    platform.end();
    leased(0);
}

#[test]
fn who_has_no_room_for_leased_queue_pairs_is_told() {
    let mut config = PLACE.config(7, 1);
    config.transfer.leased_wrs_max = 64;
    let store = Store::of(TestNode::start(config));
    let more = "connections = \"leased\"\n";
    let mut platform = store.platform(&(native("crowd", 62_107, &store.gid()) + more));
    put(&platform, &EXAMPLES.program("function"));
    for start in [Start::Cold, Start::Fork, Start::Fork] {
        let failed = platform.invoke("crowd", store.event(json!({}))).unwrap();
        let error: Value = serde_json::from_slice(&failed.body).unwrap();
        assert_eq!((failed.start, failed.is_error), (start, true));
        let why = error["errorMessage"].as_str().unwrap();
        assert!(why.contains("raise `transfer.leased_wrs_max` here"), "{why}");
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    }
    assert!(store.ways_to(&store).is_empty());
    // Once for the INIT process, for each session, and for each child and its session that is made anew.
    assert_eq!(store.node.status().engine["leases_refused"], 1 + 4 + 2 * 2);
    wait_until_told_of_no_room(&platform);
    platform.end();
}

#[test]
fn a_native_function_has_its_rdma_again_when_the_node_has_started_again() {
    let mut store = Store::new(&PLACE, 5);
    let mut platform = store.platform(&native("again", 62_105, &store.gid()));
    put(&platform, &EXAMPLES.program("function"));
    platform.answer("again", store.event(json!({})));
    wait_for("sessions to be ready", || (store.count("free") == 4).then_some(()));
    assert_eq!(platform.answer("again", store.event(json!({}))).1["inherited"], true);
    store = store.again(&PLACE, 5);
    wait_for("a session to be inherited again", || {
        let invoked = platform.invoke("again", store.event(json!({}))).unwrap();
        let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!(invoked.start, Start::Fork, "{answer}");
        (!invoked.is_error && answer["inherited"] == true).then_some(())
    });
    platform.end();
}

#[test]
fn what_a_native_function_does_wrong_is_told() {
    let store = Store::new(&PLACE, 2);
    let mut platform = store.platform(&native("rusty", 62_102, &store.gid()));
    put(&platform, &EXAMPLES.program("function"));
    let error = |event: Value| {
        let failed = platform.invoke("rusty", event).unwrap();
        assert!(failed.is_error);
        serde_json::from_slice::<Value>(&failed.body).unwrap()
    };
    for _ in 0..2 {
        // In the INIT process, and in a child.
        assert_eq!(error(json!({"to": "nowhere"}))["errorMessage"], "the event has no address");
        assert_eq!(error(json!({"panic": true}))["errorType"], "Panic");
    }
    let event = json!({"to": "nowhere", "address": 1, "rkey": 1});
    let why = error(event)["errorMessage"].to_string();
    assert!(why.contains("is no GID, which is written as the IP address of its node"), "{why}");
    let wrong = store.event(json!({"rkey": 1}));
    assert!(error(wrong)["errorMessage"].as_str().unwrap().contains("access"));
    let (_, answer) = platform.answer("rusty", store.event(json!({})));
    assert_eq!(answer["read"], "greeting");
    platform.end();
}

#[test]
fn what_a_native_function_leaves_behind_ends_with_its_child() {
    let store = Store::new(&PLACE, 3);
    let mut platform = store.platform(&native("leaver", 62_103, &store.gid()));
    put(&platform, &EXAMPLES.program("function"));
    platform.answer("leaver", json!({}));
    for _ in 0..3 {
        let (start, answer) = platform.answer("leaver", store.event(json!({"stray": true})));
        assert_eq!((start, answer["stray"].is_u64()), (Start::Fork, true));
        // elver-init and the INIT process.
        wait_for_processes(62_103, 2);
    }
    wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    platform.end();
}

#[test]
fn a_function_in_c_is_forked_with_its_connections() {
    let store = Store::new(&PLACE, 4);
    let mut platform = store.platform(&native("c", 62_104, &store.gid()));
    put(&platform, &in_c(platform.directory.path()));
    let event = store.event(json!({}));
    let text = format!("{} {} {}", event["to"].as_str().unwrap(), event["address"], event["rkey"]);
    for expected in [Start::Cold, Start::Fork, Start::Fork] {
        let (start, answer) = platform.answer("c", json!(text));
        assert_eq!((start, answer), (expected, json!({"read": "greeting"})));
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    }
    assert!(store.count("inherited") >= 1);
    let failed = platform.invoke("c", json!("hello")).unwrap();
    let error: Value = serde_json::from_slice(&failed.body).unwrap();
    assert_eq!(error["errorMessage"], "the event is no \"GID ADDRESS RKEY\"");
    let failed = platform.invoke("c", json!(format!("nowhere {} 1", event["address"]))).unwrap();
    let error: Value = serde_json::from_slice(&failed.body).unwrap();
    let why = error["errorMessage"].as_str().unwrap();
    assert!(why.starts_with("\"nowhere\" is no GID, which is written"), "{why}");
    platform.end();
}
