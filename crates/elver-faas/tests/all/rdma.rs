//! What handlers have of RDMA: connections of an INIT process, and sessions that its children inherit.

use elver_faas::schedule::Start;
use elver_testkit::{Place, python_module, wait_for};
use serde_json::{Value, json};

use crate::platform::{Platform, python, wait_for_processes};
use crate::store::{BYTES, Store};

const PLACE: Place =
    Place { name: "faas-rdma", network: 62, udp_ports: 29_800, registry_ports: 29_900 };

/// Reads a peer's memory in the way that the event names.
const HANDLERS: &str = r#"
import ctypes, os, signal, time
import elver

def scribble(byte, spared=0, length=0):
    # Over all that it shares with whomever, but some bytes, and not by any call of ours.
    for line in list(open("/proc/self/maps")):
        place, rights = line.split()[:2]
        if rights == "rw-s":
            begin, end = (int(word, 16) for word in place.split("-"))
            is_there = begin <= spared < end
            ctypes.memset(begin, byte, (spared if is_there else end) - begin)
            if is_there:
                ctypes.memset(spared + length, byte, end - spared - length)

def read(event, context):
    if event.get("wild"):
        # Before it has anything.
        scribble(event["wild"])
    qp = context.qps[event["to"]]
    qp.read(context.mr, 16, 8, event["address"], event["rkey"], timeout=10)
    large = context.pd.alloc(1 << 20, "")
    qp.read(large, 0, 8, event["address"], event["rkey"], timeout=10)
    assert large.read(0, 8) == context.mr.read(16, 8)
    if event.get("until"):
        print("it waits", flush=True)
        until = time.monotonic() + 60
        while not os.path.exists(event["until"]) and time.monotonic() < until:
            time.sleep(0.01)
    if event.get("hold"):
        time.sleep(event["hold"])
        qp.read(context.mr, 16, 8, event["address"], event["rkey"], timeout=10)
    for offset, bytes, address, rkey in event.get("wrong", []):
        try:
            qp.read(context.mr, offset, bytes, address, rkey, timeout=10)
            return "it was let"
        except (elver.Error, ValueError) as error:
            print("refused:", error, flush=True)
    if event.get("scribble"):
        scribble(event["scribble"], ctypes.addressof(ctypes.c_char.from_buffer(context.mr)), len(context.mr))
        qp.read(context.mr, 16, 8, event["address"], event["rkey"], timeout=0.1)
    if event.get("stray") and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            # Its parent's QP is what it inherited too.
            time.sleep(0.2)
            qp.read(context.mr, 16, 8, event["address"], event["rkey"], timeout=10)
            time.sleep(1000)
        os._exit(0)
    if event.get("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {
        "read": context.mr.read(16, 8).decode(), "bytes": len(context.mr),
        "inherited": elver.context().inherited, "same": elver.context().mr is context.mr,
    }
"#;

/// An orchestrator with functions in TOML, whose handlers are those above.
fn platform(store: &Store, functions: &str) -> Platform {
    let platform = store.platform_with_python(functions);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    platform
}

/// An owner's function with destinations.
fn reading(owner: &str, uid: u32, destinations: &[&str], more: &str) -> String {
    python(owner, uid, &["read"]) + &format!("destinations = {destinations:?}\n{more}\n")
}

fn right(answer: &Value, inherited: bool) {
    let expected =
        json!({"read": "greeting", "bytes": 32 << 10, "inherited": inherited, "same": true});
    assert_eq!(answer, &expected);
}

#[test]
fn children_inherit_connections_and_give_them_back() {
    let store = Store::new(&PLACE, 1);
    let mut platform = platform(&store, &reading("ivan", 62_001, &[&store.gid()], ""));
    let (start, first) = platform.answer("ivan-read", store.event(json!({})));
    assert_eq!(start, Start::Cold);
    right(&first, false);
    let connections = wait_for("the connections to be told", || {
        let row = platform.list().processes.remove(0);
        (!row.connections.is_empty()).then_some(row.connections)
    });
    assert_eq!(connections.into_iter().collect::<Vec<_>>(), [store.gid()]);
    for killed in [false, true, false, true, false, true, false] {
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
        let event = store.event(json!({"crash": killed}));
        if killed {
            let (_, why) = platform.refusal("ivan-read", event);
            assert!(why.contains("signal 9"), "{why}");
        } else {
            let (start, answer) = platform.answer("ivan-read", event);
            assert_eq!(start, Start::Fork);
            right(&answer, true);
        }
    }
    assert_eq!(["prepared", "inherited", "refused"].map(|name| store.count(name)), [4, 7, 0]);
    platform.end();
    wait_for("all sessions to go", || (store.count("free") == 0).then_some(()));
}

#[test]
fn a_container_that_ends_leaves_nothing_at_the_node_nor_in_the_tables() {
    let store = Store::new(&PLACE, 12);
    let functions = reading("victoria", 62_013, &[&store.gid()], "");
    let mut platform = store.platform_with_python(&format!("keep_alive_s = 1\n{functions}"));
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let before = store.held();
    for round in 0..2 {
        let go = format!("go-{round}");
        let asked = platform.invoke_beside("victoria-read", store.event(json!({"until": go})));
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
        wait_for("the handler", || platform.logs().contains("it waits").then_some(()));
        let held = store.held();
        // Of the INIT process, and of each of its four children: a session, a region, and a VQP at least.
        assert!(held.open > before.open && held.sessions >= before.sessions + 5, "{held:?}");
        assert!(held.vqps >= before.vqps + 5 && held.mrs >= before.mrs + 5, "{held:?}");
        assert_eq!(platform.list().processes.len(), 1);
        std::fs::write(platform.code().join(go), "").unwrap();
        assert_eq!(asked.join().unwrap().unwrap().start, Start::Cold);
        // What children have inherited goes as what nobody has taken over.
        let (_, answer) = platform.answer("victoria-read", store.event(json!({})));
        assert_eq!(answer["read"], "greeting");
        wait_for("the tables to be empty", || {
            let listed = platform.list();
            (listed.processes.is_empty() && listed.stuck.is_empty()).then_some(())
        });
        wait_for_processes(62_013, 0);
        wait_for("the node to have what it had", || (store.held() == before).then_some(()));
        assert_eq!(store.count("free"), 0);
        // The tables are empty from when its end begins.
        wait_for("its directory to go", || (platform.containers() == 0).then_some(()));
    }
    platform.end();
}

#[test]
fn more_sessions_are_made_while_few_are_free() {
    let store = Store::new(&PLACE, 2);
    let limits = "sessions = 2\nconcurrency_max = 7";
    let mut platform = platform(&store, &reading("judy", 62_002, &[&store.gid()], limits));
    platform.answer("judy-read", store.event(json!({})));
    let made = wait_for("all of them to be made", || {
        let event = store.event(json!({"hold": 0.3}));
        let asked: Vec<_> =
            (0..7).map(|_| platform.invoke_beside("judy-read", event.clone())).collect();
        for asked in asked {
            let invoked = asked.join().unwrap().unwrap();
            let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
            assert_eq!(answer["read"], "greeting");
        }
        let prepared = store.count("prepared");
        (prepared >= 6).then_some(prepared)
    });
    // Whole sets of two, and never more than requests may run.
    assert_eq!(made, 6);
    platform.end();
}

#[test]
fn who_keeps_no_sessions_has_children_that_open_their_own() {
    let store = Store::new(&PLACE, 3);
    let functions = reading("mallory", 62_003, &[&store.gid()], "sessions = 0")
        + &python("niaj", 62_004, &["read"]);
    let mut platform = platform(&store, &functions);
    for function in ["mallory-read", "niaj-read"] {
        for expected in [Start::Cold, Start::Fork] {
            let (start, answer) = platform.answer(function, store.event(json!({})));
            assert_eq!(start, expected);
            right(&answer, false);
        }
    }
    assert_eq!(store.count("prepared"), 0);
    platform.end();
}

#[test]
fn a_destination_that_does_not_answer_holds_up_who_asks_for_it() {
    let store = Store::new(&PLACE, 4);
    let away = "::ffff:127.62.4.99";
    let mut platform = platform(&store, &reading("olivia", 62_005, &[away, &store.gid()], ""));
    right(&platform.answer("olivia-read", store.event(json!({}))).1, false);
    let asks = || {
        let failed = platform.invoke("olivia-read", store.event(json!({"to": away}))).unwrap();
        let error: Value = serde_json::from_slice(&failed.body).unwrap();
        assert_eq!((failed.is_error, &error["errorType"]), (true, &json!("Error")), "{error}");
    };
    asks();
    // What is there is inherited all the same.
    wait_for("a session to be inherited", || {
        let (_, answer) = platform.answer("olivia-read", store.event(json!({})));
        (answer["inherited"] == true).then_some(())
    });
    asks();
    platform.end();
}

#[test]
fn what_a_child_leaves_behind_cannot_keep_its_qp() {
    let store = Store::new(&PLACE, 7);
    let limits = "sessions = 1\nconcurrency_max = 1";
    let mut platform = platform(&store, &reading("rupert", 62_008, &[&store.gid()], limits));
    platform.answer("rupert-read", store.event(json!({})));
    for stray in [true, true, false] {
        wait_for("the session to be free", || (store.count("free") == 1).then_some(()));
        let (start, answer) = platform.answer("rupert-read", store.event(json!({"stray": stray})));
        assert_eq!(start, Start::Fork);
        right(&answer, true);
        // elver-init and the INIT process.
        wait_for_processes(62_008, 2);
    }
    assert_eq!(["inherited", "refused"].map(|name| store.count(name)), [3, 0]);
    platform.end();
}

/// `ELVER_AWSLAMBDARIC` is the directory that `python3 -m pip install --target DIRECTORY awslambdaric` filled.
#[test]
#[ignore = "needs awslambdaric of PyPI, which Debian has not: name its directory in ELVER_AWSLAMBDARIC"]
fn functions_of_the_unmodified_awslambdaric_have_it_as_a_module() {
    let client = std::env::var("ELVER_AWSLAMBDARIC").expect("ELVER_AWSLAMBDARIC is a directory");
    let store = Store::new(&PLACE, 6);
    let functions = reading("quentin", 62_007, &[&store.gid()], "runtime = \"awslambdaric\"");
    let mut platform = platform(&store, &functions);
    let copied = std::process::Command::new("cp")
        .args(["-r", &format!("{client}/."), platform.code().to_str().unwrap()])
        .status();
    assert!(copied.unwrap().success());
    const HANDLER: &str = "import elver, os, signal
def read(event, context):
    rdma = elver.context()
    qp = rdma.qps[event['to']]
    qp.read(rdma.mr, 0, 8, event['address'], event['rkey'], timeout=10)
    if event.get('crash'):
        os.kill(os.getpid(), signal.SIGKILL)
    return [rdma.mr.read(0, 8).decode(), rdma.inherited]
";
    std::fs::write(platform.code().join("handlers.py"), HANDLER).unwrap();
    let before = store.held();
    // Its first request is a child's, too; the next ones are of the same process, whoever of them is killed.
    let starts = [(Start::Cold, false), (Start::Fork, true), (Start::Fork, false)];
    for (expected, killed) in starts.into_iter().chain([starts[1], starts[2]]) {
        wait_for("four sessions to be free, or none to be made yet", || {
            let made = store.count("prepared");
            (made == 0 || store.count("free") == 4).then_some(())
        });
        let event = store.event(json!({"crash": killed}));
        if killed {
            let (_, why) = platform.refusal("quentin-read", event);
            assert!(why.contains("signal 9"), "{why}");
            continue;
        }
        let (start, answer) = platform.answer("quentin-read", event);
        assert_eq!((start, &answer), (expected, &json!(["greeting", true])));
    }
    assert_eq!(["prepared", "inherited", "refused"].map(|name| store.count(name)), [4, 5, 0]);
    platform.end();
    wait_for("the node to have what it had", || (store.held() == before).then_some(()));
}

#[test]
fn what_is_not_a_handlers_memory_is_refused() {
    let store = Store::new(&PLACE, 8);
    let mut platform = platform(&store, &reading("sybil", 62_009, &[&store.gid()], ""));
    right(&platform.answer("sybil-read", store.event(json!({}))).1, false);
    let event = store.event(json!({}));
    let (address, rkey) = (event["address"].as_u64().unwrap(), event["rkey"].as_u64().unwrap());
    // Beyond its own region, at its edge and far; and a peer's, with a key that there is not.
    for wrong in [
        json!([32 << 10, 8, address, rkey]),
        json!([(32 << 10) - 4, 8, address, rkey]),
        json!([1_u64 << 40, 8, address, rkey]),
        json!([0, 8, address + BYTES as u64 - 4, rkey]),
        json!([0, 8, address, 0xdead_beef_u32]),
    ] {
        let (start, answer) = platform.answer("sybil-read", store.event(json!({"wrong": [wrong]})));
        assert_eq!(start, Start::Fork);
        assert_ne!(answer, "it was let", "{wrong}");
        // Others, of the same INIT process, are unharmed.
        let (_, answer) = platform.answer("sybil-read", store.event(json!({})));
        assert_eq!(answer["read"], "greeting", "after {wrong}");
    }
    wait_for("what they wrote", || {
        (platform.logs().matches("refused:").count() == 5).then_some(())
    });
    platform.end();
}

#[test]
fn a_handler_that_writes_where_it_has_no_business_harms_itself() {
    let store = Store::new(&PLACE, 10);
    let limits = "sessions = 3\nconcurrency_max = 3";
    let mut platform = platform(&store, &reading("trudy", 62_011, &[&store.gid()], limits));
    right(&platform.answer("trudy-read", store.event(json!({}))).1, false);
    let free = |count: u64| {
        wait_for("sessions to be free, or taken", || (store.count("free") == count).then_some(()))
    };
    for byte in [0xff, 0x01, 0x80] {
        wait_for_processes(62_011, 2);
        free(3);
        let brother = platform.invoke_beside("trudy-read", store.event(json!({"hold": 1})));
        free(2);
        // Before it has anything, it can write over nothing that is anybody's.
        let (start, answer) = platform.answer("trudy-read", store.event(json!({"wild": byte})));
        assert_eq!(start, Start::Fork);
        right(&answer, true);
        // It is told an error, or dies of it; its session comes back, and the next child finds nothing of it.
        if let Ok(invoked) = platform.invoke("trudy-read", store.event(json!({"scribble": byte}))) {
            assert!(invoked.is_error, "{}", String::from_utf8_lossy(&invoked.body));
        }
        // One that has another session of the set notices nothing.
        let answer = brother.join().unwrap().unwrap();
        right(&serde_json::from_slice(&answer.body).unwrap(), true);
        wait_for_processes(62_011, 2);
        free(3);
        let (start, answer) = platform.answer("trudy-read", store.event(json!({})));
        assert_eq!(start, Start::Fork);
        right(&answer, true);
    }
    platform.end();
}

#[test]
fn functions_have_their_rdma_again_when_the_node_has_started_again() {
    let mut store = Store::new(&PLACE, 9);
    let functions = reading("trent", 62_010, &[&store.gid()], "");
    let mut platform = platform(&store, &functions);
    right(&platform.answer("trent-read", store.event(json!({}))).1, false);
    wait_for("sessions to be ready", || (store.count("free") == 4).then_some(()));
    right(&platform.answer("trent-read", store.event(json!({}))).1, true);
    store = store.again(&PLACE, 9);
    // The containers and INIT processes that run are the same: each child is one's, and opens what is not made ready yet.
    wait_for("a session to be inherited again", || {
        let invoked = platform.invoke("trent-read", store.event(json!({}))).unwrap();
        let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!(invoked.start, Start::Fork, "{answer}");
        (!invoked.is_error && answer["inherited"] == true).then_some(())
    });
    assert_eq!(platform.list().processes.len(), 1);
    platform.end();
    wait_for_processes(62_010, 0);
}

#[test]
fn a_container_that_was_there_before_the_node_finds_it() {
    let store = Store::new(&PLACE, 11);
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let socket = place.path().join("elverd.sock");
    let lines = format!("node_socket = {socket:?}\nmodule = {:?}", python_module());
    let mut platform = Platform::start(&lines, &reading("ursula", 62_012, &[&store.gid()], ""));
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let failed = platform.invoke("ursula-read", store.event(json!({}))).unwrap();
    let error = String::from_utf8_lossy(&failed.body);
    assert!(failed.is_error && error.contains("platform.node_socket"), "{error}");
    std::fs::hard_link(&store.node.path, &socket).unwrap();
    wait_for("the node to be found", || {
        let invoked = platform.invoke("ursula-read", store.event(json!({}))).unwrap();
        assert_eq!(invoked.start, Start::Fork);
        (!invoked.is_error).then_some(())
    });
    platform.end();
    wait_for_processes(62_012, 0);
}

#[test]
fn without_a_node_a_handler_is_told_what_to_configure() {
    let store = Store::new(&PLACE, 5);
    let module = format!("module = {:?}", python_module());
    let mut platform = Platform::start(&module, &reading("peggy", 62_006, &[&store.gid()], ""));
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let failed = platform.invoke("peggy-read", store.event(json!({}))).unwrap();
    let error = String::from_utf8_lossy(&failed.body);
    assert!(failed.is_error && error.contains("platform.node_socket"), "{error}");
    platform.end();
}
