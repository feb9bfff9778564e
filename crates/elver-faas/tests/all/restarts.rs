//! An orchestrator that is killed, between any two steps, and its successor.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use elver_faas::client::{ClientError, StuckContainer};
use elver_faas::schedule::Start;
use elver_random::Rng;
use elver_testkit::{Place, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::platform::{Platform, processes_of, python, signal_first, wait_for_processes};
use crate::store::{Held, Store};

const PLACE: Place =
    Place { name: "faas-restarts", network: 69, udp_ports: 28_200, registry_ports: 28_300 };

#[test]
fn a_successor_finds_what_runs_and_forks_it() {
    let mut platform = Platform::start("", &python("alice", 61_031, &["echo", "hangs"]));
    let (_, first) = platform.answer("alice-echo", json!(1));
    platform.answer("alice-hangs", json!(null));
    // Both have said that they serve.
    for function in ["alice-echo", "alice-hangs"] {
        assert_eq!(platform.answer(function, json!(null)).0, Start::Fork);
    }
    let before = platform.list().processes;
    // A child is at work when its orchestrator goes.
    let lost = platform.invoke_beside("alice-hangs", json!("hang"));
    wait_for("the child", || {
        let is_there = platform.list().processes.iter().any(|row| row.requests == 1);
        is_there.then_some(())
    });
    platform.kill();
    assert!(lost.join().unwrap().is_err());
    platform.start_again();
    let after = wait_for("the container to be found", || {
        let found = platform.list().processes;
        (found.len() == before.len()).then_some(found)
    });
    assert_eq!(after, before);
    let (start, answer) = platform.answer("alice-echo", json!(2));
    assert_eq!((start, &answer["calls"]), (Start::Fork, &json!(2)));
    assert_ne!(answer["pid"], first["pid"]);
    // elver-init and two INIT processes: the child that hangs has its function's time, and no more.
    wait_for_processes(61_031, 3);
    platform.end();
    wait_for_processes(61_031, 0);
}

/// Does not end with its orchestrator, but with an answer that is refused.
const STRICT: &str = r#"#!/usr/bin/python3
import http.client, json, os, sys, time
def ask(method, path, body=None):
    while True:
        try:
            api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
            api.request(method, "/2018-06-01/runtime/invocation/" + path, body)
            answer = api.getresponse()
            return answer, answer.read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
while True:
    answer, event = ask("GET", "next")
    request, go = answer.headers["Lambda-Runtime-Aws-Request-Id"], json.loads(event)
    while go and not os.path.exists(go):
        time.sleep(0.01)
    answer, _ = ask("POST", request + "/response", event)
    if answer.status != 202:
        sys.exit("it was refused")
"#;

#[test]
fn a_program_that_is_found_is_handed_nothing_before_it_asks() {
    let functions = "[owners.udo]\nuid = 61071\n[functions.program]\nowner = \"udo\"\ncode = \"@CODE@\"\nhandler = \"bootstrap\"\nruntime = \"program\"\ntimeout_s = 100\n";
    let mut platform = Platform::start("", functions);
    let program = platform.code().join("bootstrap");
    std::fs::write(&program, STRICT).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    platform.answer("program", json!(null));
    // One is at work when its orchestrator goes, and the other waits for a request.
    let lost = platform.invoke_beside("program", json!("go"));
    wait_for("it to be at work", || (platform.list().processes[0].requests == 1).then_some(()));
    assert_eq!(platform.answer("program", json!(null)).0, Start::Warm);
    platform.kill();
    assert!(lost.join().unwrap().is_err());
    platform.start_again();
    wait_for("both to be found", || (platform.list().processes.len() == 2).then_some(()));
    let asked = platform.invoke_beside("program", json!("go"));
    let is_placed = |platform: &Platform| platform.list().processes.iter().any(|p| p.requests > 0);
    wait_for("a place for it", || is_placed(&platform).then_some(()));
    std::fs::write(platform.code().join("go"), "").unwrap();
    assert!(!asked.join().unwrap().unwrap().is_error);
    platform.end();
    wait_for_processes(61_071, 0);
}

/// Where `crun` is to stand for the test, and does not end containers while a file is there.
fn refusing_runtime(place: &Path) -> (PathBuf, PathBuf) {
    let (program, refuses) = (place.join("crun"), place.join("refuses"));
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' delete '*) test ! -e {refuses:?} || {{ echo not now >&2; exit 1; }} ;; esac\nexec crun \"$@\"\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    (program, refuses)
}

/// How a request is refused for which there is no room, by a next orchestrator that lets it wait for a second; the one after that
/// gives starts their time again.
fn refusal_without_room(platform: &mut Platform, function: &str) -> String {
    platform.kill();
    platform.configure("init_timeout_s = 60", "init_timeout_s = 1");
    platform.start_again();
    let kind = platform.refusal(function, json!(2)).0;
    platform.configure("init_timeout_s = 1", "init_timeout_s = 60");
    kind
}

fn stuck(platform: &Platform) -> StuckContainer {
    wait_for("the container to be stuck", || platform.list().stuck.into_iter().next())
}

/// One whose end failed was told of as ended: it ran on, and there could be any number of such.
#[test]
fn a_container_that_the_runtime_does_not_end_counts_until_it_has_ended() {
    let place = tempfile::tempdir().unwrap();
    let (runtime, refuses) = refusing_runtime(place.path());
    let settings = format!("keep_alive_s = 1\ncontainers_max = 1\nruntime = [{runtime:?}]");
    let functions = python("zita", 61_070, &["echo"]);
    let mut platform = Platform::start(&settings, &functions);
    // Before it may be ended, which it is a second after its answer.
    std::fs::write(&refuses, "").unwrap();
    platform.answer("zita-echo", json!(1));
    let told = stuck(&platform);
    assert_eq!(told.owner, "zita");
    assert!(told.why.contains("not now"), "{told:?}");
    assert_eq!(platform.list().processes, []);
    wait_for("another try", || (stuck(&platform).tries > 1).then_some(()));
    // No other orchestrator forgets it. It would be made otherwise today, and is not taken over.
    platform.configure("timeout_s = 20", "timeout_s = 19");
    assert_eq!(refusal_without_room(&mut platform, "zita-echo"), "NotStarted");
    assert_eq!(stuck(&platform).container, told.container);
    platform.kill();
    platform.start_again();
    assert_eq!(stuck(&platform).container, told.container);
    std::fs::remove_file(&refuses).unwrap();
    wait_for("the container to end", || platform.list().stuck.is_empty().then_some(()));
    wait_for_processes(61_070, 0);
    assert_eq!(platform.answer("zita-echo", json!(3)).0, Start::Cold);
    platform.end();
}

/// It counted nowhere before it connected, and never if it did not.
#[test]
fn a_container_that_is_found_and_does_not_connect_counts() {
    let place = tempfile::tempdir().unwrap();
    let (runtime, refuses) = refusing_runtime(place.path());
    let settings = format!("containers_max = 1\nruntime = [{runtime:?}]");
    let mut platform = Platform::start(&settings, &python("zeno", 61_086, &["echo"]));
    assert_eq!(platform.answer("zeno-echo", json!(1)).0, Start::Cold);
    platform.kill();
    signal_first(61_086, Signal::STOP);
    std::fs::write(&refuses, "").unwrap();
    assert_eq!(refusal_without_room(&mut platform, "zeno-echo"), "NotStarted");
    let told = stuck(&platform);
    assert!(told.owner == "zeno" && platform.containers() == 1, "{told:?}");
    platform.kill();
    platform.start_again();
    assert_eq!(stuck(&platform).container, told.container);
    std::fs::remove_file(&refuses).unwrap();
    wait_for("the container to end", || platform.list().stuck.is_empty().then_some(()));
    assert_eq!(platform.answer("zeno-echo", json!(3)).0, Start::Cold);
    platform.end();
    wait_for_processes(61_086, 0);
}

/// A runtime that was just ending a container was killed by the orchestrator's end, and the container left.
#[test]
fn an_orchestrator_ends_when_what_it_was_ending_has_ended() {
    let place = tempfile::tempdir().unwrap();
    let (slow, ending) = (place.path().join("crun"), place.path().join("ending"));
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' delete '*) touch {ending:?}; sleep 2 ;; esac\nexec crun \"$@\"\n"
    );
    std::fs::write(&slow, script).unwrap();
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap();
    let settings = format!("keep_alive_s = 1\nruntime = [{slow:?}]");
    let mut platform = Platform::start(&settings, &python("zora", 61_066, &["echo"]));
    platform.answer("zora-echo", json!(1));
    wait_for("the container to be ended", || ending.exists().then_some(()));
    platform.end();
    wait_for_processes(61_066, 0);
}

/// Requests were placed in it until the runtime had done with it, and failed.
#[test]
fn a_container_that_has_died_takes_no_requests_while_it_is_deleted() {
    let place = tempfile::tempdir().unwrap();
    let at = |name| place.path().join(name);
    let (held_up, ending, held) = (at("crun"), at("ending"), at("held"));
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' delete '*) touch {ending:?}; while test -e {held:?}; do sleep 0.05; done ;; esac\nexec crun \"$@\"\n"
    );
    std::fs::write(&held_up, script).unwrap();
    std::fs::set_permissions(&held_up, Permissions::from_mode(0o755)).unwrap();
    let settings = format!("runtime = [{held_up:?}]");
    let mut platform = Platform::start(&settings, &python("zelda", 61_205, &["echo"]));
    platform.answer("zelda-echo", json!(1));
    std::fs::write(&held, "").unwrap();
    signal_first(61_205, Signal::KILL);
    wait_for("the container to be deleted", || ending.exists().then_some(()));
    assert_eq!(platform.answer("zelda-echo", json!(2)).0, Start::Cold);
    std::fs::remove_file(&held).unwrap();
    platform.end();
    wait_for_processes(61_205, 0);
}

#[test]
fn what_was_made_otherwise_than_today_is_ended() {
    let functions = python("dora", 61_034, &["limits"]) + "memory_mb = 400\n";
    let mut platform = Platform::start("runtime = [\"crun\"]", &functions);
    let limit = |platform: &Platform| platform.answer("dora-limits", json!(null));
    assert_eq!(limit(&platform), (Start::Cold, json!([400 << 20, 400 << 20])));
    let mut start_otherwise = |otherwise: &dyn Fn(&Platform), megabytes: u64, start: Start| {
        // One that has answered its first request alone may not have said yet that it serves, and is not taken over.
        assert_eq!(limit(&platform).0, Start::Fork);
        platform.kill();
        otherwise(&platform);
        platform.start_again();
        let expected = json!([megabytes << 20, megabytes << 20]);
        wait_for("what was there to be found or ended", || {
            let there = platform.list().processes.len();
            (there == usize::from(start == Start::Fork)).then_some(())
        });
        if start == Start::Cold {
            wait_for_processes(61_034, 0);
        }
        assert_eq!(limit(&platform), (start, expected));
    };
    start_otherwise(&|_| {}, 400, Start::Fork);
    start_otherwise(&|p| p.configure("memory_mb = 400", "memory_mb = 300"), 300, Start::Cold);
    // Programs that it runs are replaced, as by a newer version.
    let replace = |platform: &Platform| {
        let program = platform.directory.path().join("state/programs/_elver_strays.py");
        std::fs::write(program, "# Of an older version").unwrap();
    };
    start_otherwise(&replace, 300, Start::Cold);
    // Another runtime does not know it.
    start_otherwise(&|p| p.configure("\"crun\"", "\"runc\""), 300, Start::Cold);
    start_otherwise(&|_| {}, 300, Start::Fork);
    platform.end();
    wait_for_processes(61_034, 0);
}

#[test]
fn who_has_asked_is_answered_when_it_is_told_to_end() {
    let functions = python("erik", 61_035, &["slow"]);
    let mut platform = Platform::start("drain_s = 20", &functions);
    let slow =
        "import time\n\ndef slow(event, context):\n    time.sleep(event)\n    return event\n";
    std::fs::write(platform.code().join("handlers.py"), slow).unwrap();
    platform.answer("erik-slow", json!(0));
    let asked = platform.invoke_beside("erik-slow", json!(1.0));
    wait_for("the child", || {
        platform.list().processes.iter().any(|row| row.requests == 1).then_some(())
    });
    platform.end();
    let invoked = asked.join().unwrap().unwrap();
    assert_eq!((invoked.is_error, &invoked.body[..]), (false, &b"1.0"[..]));
    wait_for_processes(61_035, 0);
    // Who hangs holds it up for that long only.
    platform.configure("drain_s = 20", "drain_s = 0");
    platform.start_again();
    platform.answer("erik-slow", json!(0));
    let lost = platform.invoke_beside("erik-slow", json!(1000));
    wait_for("the child", || {
        platform.list().processes.iter().any(|row| row.requests == 1).then_some(())
    });
    platform.end();
    assert!(lost.join().unwrap().is_err());
    wait_for_processes(61_035, 0);
}

#[test]
fn a_function_is_not_taken_for_its_containers_first_process() {
    let mut platform = Platform::start("", &python("zoe", 61_052, &["poses"]));
    platform.answer("zoe-poses", json!(null));
    let lost = platform.invoke_beside("zoe-poses", json!("pose"));
    wait_for("the child", || platform.logs().contains("it poses").then_some(()));
    platform.kill();
    assert!(lost.join().unwrap().is_err());
    platform.start_again();
    wait_for("the container to be found", || (platform.list().processes.len() == 1).then_some(()));
    assert_eq!(platform.answer("zoe-poses", json!(null)).0, Start::Fork);
    platform.end();
    wait_for_processes(61_052, 0);
}

#[test]
fn a_directory_has_one_orchestrator() {
    let platform = Platform::start("", &python("carol", 61_033, &["echo"]));
    let second = platform.second();
    assert!(second.contains("another orchestrator works in"), "{second}");
    assert_eq!(platform.answer("carol-echo", json!(1)).0, Start::Cold);
}

/// Reads from the destination that the event names.
const READS: &str = r#"
def read(event, context):
    context.qps[event["to"]].read(context.mr, 0, 8, event["address"], event["rkey"], timeout=10)
    return context.mr.read(0, 8).decode()
"#;

/// What containers have on the host.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    processes: usize,
    directories: usize,
    /// That the runtime knows.
    containers: usize,
    mounts: usize,
    held: Held,
}

fn left(platform: &Platform, store: &Store) -> Left {
    let state = platform.directory.path().join("state");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let entries = |of: &str| std::fs::read_dir(state.join(of)).map_or(0, Iterator::count);
    Left {
        processes: processes_of(61_032),
        directories: entries("containers"),
        containers: entries("runtime"),
        mounts: mounts.matches(state.to_str().unwrap()).count(),
        held: store.held(),
    }
}

#[test]
fn wherever_it_is_killed_the_successor_serves_and_leaves_nothing() {
    let seed: u64 = match std::env::var("ELVER_SEED") {
        Ok(seed) => seed.parse().expect("ELVER_SEED is a number"),
        Err(_) => std::process::id().into(),
    };
    // Shown when the test fails.
    println!("ELVER_SEED={seed}");
    let mut random = Rng::new(seed);
    let store = Store::new(&PLACE, 1);
    let functions =
        python("bob", 61_032, &["read"]) + &format!("destinations = [{:?}]\n", store.gid());
    let mut platform = store.platform_with_python(&format!("keep_alive_s = 5\n{functions}"));
    std::fs::write(platform.code().join("handlers.py"), READS).unwrap();
    let nothing = left(&platform, &store);
    let event = store.event(json!({}));
    let ask = |platform: &Platform| {
        let invoked = platform.invoke("bob-read", event.clone()).unwrap();
        assert_eq!((invoked.is_error, &invoked.body[..]), (false, &b"\"greeting\""[..]));
        invoked
    };
    let cold = ask(&platform);
    assert_eq!(cold.start, Start::Cold);
    wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    let fork = ask(&platform);
    assert_eq!(fork.start, Start::Fork);
    wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
    let each = store.held().since(nothing.held);
    // What there is when everything has settled: of each container a first process, and of each INIT process what one has.
    // A container that was found before it had one keeps nothing but itself, and serves the next request.
    let settles = |platform: &Platform| {
        wait_for("all that there is to be in the table", || {
            let rows = platform.list().processes;
            let listed: BTreeSet<_> = rows.iter().map(|row| row.container).collect();
            let there = left(platform, &store);
            let expected = Left {
                processes: there.directories + rows.len(),
                directories: there.directories,
                containers: there.directories,
                mounts: nothing.mounts,
                held: nothing.held.and(rows.len() as u64, each),
            };
            let is_known = listed.len() <= there.directories;
            let is_at_rest = rows.iter().all(|row| row.requests == 0);
            (there == expected && is_known && is_at_rest).then_some(())
        });
    };
    settles(&platform);
    let mut is_cold = false;
    for _ in 0..12 {
        // Anywhere from before the bundle is made until the answer has come.
        let longest = if is_cold { cold.total } else { fork.total };
        let most = longest.as_micros() as u64 * 5 / 4 + 1000;
        let asked = platform.invoke_beside("bob-read", event.clone());
        std::thread::sleep(Duration::from_micros(random.next_u64() % most));
        platform.kill();
        match asked.join().unwrap() {
            Ok(answer) => {
                assert_eq!((answer.is_error, &answer.body[..]), (false, &b"\"greeting\""[..]))
            }
            // It had not asked yet.
            Err(ClientError::NotThere { .. }) => {}
            Err(error) => {
                assert!(matches!(error, ClientError::Ended { .. }), "{error:?}");
                let said = error.to_string();
                assert!(said.contains("ended before it answered"), "{said}");
            }
        }
        platform.start_again();
        ask(&platform);
        settles(&platform);
        // So that the next round begins cold.
        is_cold = random.next_u64().is_multiple_of(2);
        if is_cold {
            platform.end();
            wait_for("nothing to be left", || (left(&platform, &store) == nothing).then_some(()));
            platform.start_again();
        }
    }
    // All of it ends by itself, whoever made it.
    wait_for("what is idle to end", || (left(&platform, &store) == nothing).then_some(()));
    platform.end();
    assert_eq!(left(&platform, &store), nothing);
}
