//! Cold, warm and fork start, what a container has, and the same under runc.

use elver_faas::schedule::Start;
use elver_testkit::{Place, wait_for};
use serde_json::json;

use crate::platform::{Platform, python, wait_for_processes};
use crate::store::Store;

const PLACE: Place = Place { name: "faas", network: 61, udp_ports: 29_600, registry_ports: 29_700 };

#[test]
fn what_exists_chooses_the_start() {
    let functions = python("alice", 61_001, &["echo", "fails"]) + &python("bob", 61_002, &["echo"]);
    let mut platform = Platform::start("", &functions);
    let (start, first) = platform.answer("alice-echo", json!({"a": 1}));
    assert_eq!((start, &first["event"]), (Start::Cold, &json!({"a": 1})));
    for _ in 0..3 {
        let (start, forked) = platform.answer("alice-echo", json!("again"));
        // A child of the process that ran the first, and none of another child.
        assert_eq!((start, &forked["calls"]), (Start::Fork, &json!(2)));
        assert_ne!(forked["pid"], first["pid"]);
        assert_eq!(forked["start"], "fork");
    }
    let failed = platform.invoke("alice-fails", json!("bread")).unwrap();
    assert_eq!((failed.start, failed.is_error), (Start::Warm, true));
    let error: serde_json::Value = serde_json::from_slice(&failed.body).unwrap();
    assert_eq!(
        (&error["errorType"], &error["errorMessage"]),
        (&json!("ValueError"), &json!("no bread"))
    );
    assert_eq!(platform.answer("bob-echo", json!(null)).0, Start::Cold);
    let table = platform.list().processes;
    let containers: Vec<_> = table.iter().map(|row| (row.owner.as_str(), row.container)).collect();
    assert_eq!(containers[0], ("alice", containers[1].1));
    assert_eq!(containers[2].0, "bob");
    assert_ne!(containers[2].1, containers[0].1);
    platform.end();
    wait_for_processes(61_001, 0);
    wait_for_processes(61_002, 0);
}

#[test]
fn requests_at_once_have_a_process_each() {
    let mut platform = Platform::start("", &python("carol", 61_003, &["echo"]));
    platform.answer("carol-echo", json!(0));
    let asked: Vec<_> = (0..20).map(|i| platform.invoke_beside("carol-echo", json!(i))).collect();
    for (i, asked) in asked.into_iter().enumerate() {
        let invoked = asked.join().unwrap().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&invoked.body).unwrap();
        assert_eq!((invoked.start, &answer["event"]), (Start::Fork, &json!(i)));
    }
    // elver-init and the INIT process: every child has ended.
    wait_for_processes(61_003, 2);
    platform.end();
}

#[test]
fn a_container_has_what_its_owner_needs_and_no_more() {
    let functions = python("dave", 61_004, &["look"]) + &python("erin", 61_005, &["look"]);
    let platform = Platform::start("", &functions);
    let (_, daves) = platform.answer("dave-look", json!(null));
    assert_eq!(daves["uid"], 61_004);
    assert_eq!(daves["code"], json!(["dave-look"]));
    assert_eq!(daves["run"], json!(["faas"]));
    assert_eq!(daves["capabilities"], "0".repeat(32));
    assert_eq!(daves["interfaces"], json!(["lo"]));
    assert_eq!(daves["written"], json!([]));
    let (start, erins) = platform.answer("erin-look", json!(null));
    assert_eq!((start, &erins["code"]), (Start::Cold, &json!(["erin-look"])));
    let store = Store::new(&PLACE, 2);
    let platform = store.platform(&python("dave", 61_004, &["look"]));
    assert_eq!(platform.answer("dave-look", json!(null)).1["run"], json!(["faas", "node"]));
}

/// Reads of a device that the container has, and of what else is there.
const DEVICE: &str = r#"
import os, stat

def handler(event, context):
    found = os.stat(event)
    with open(event, "rb") as device:
        return [os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode), device.read(2).hex()]
"#;

/// A device of the host's, until it is dropped.
struct Device(&'static str);

impl Device {
    /// Like `/dev/zero`.
    fn zero(path: &'static str) -> Device {
        // One that was killed may have left it.
        let _ = std::fs::remove_file(path);
        let made =
            std::process::Command::new("mknod").args(["-m", "444", path, "c", "1", "5"]).status();
        assert!(made.unwrap().success());
        Device(path)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

#[test]
fn containers_have_the_devices_that_the_platform_names() {
    let device = Device::zero("/dev/elver-faas-test");
    for (runtime, uid) in [("crun", 61_087), ("runc", 61_088)] {
        let functions = python("dina", uid, &["x"]).replace("handlers.x", "device.handler");
        let lines = format!("runtime = [{runtime:?}]\ndevices = [{:?}]", device.0);
        let mut platform = Platform::start(&lines, &functions);
        std::fs::write(platform.code().join("device.py"), DEVICE).unwrap();
        let (_, told) = platform.answer("dina-x", json!(device.0));
        assert_eq!(told, json!([1, 5, 0o444, "0000"]), "{runtime}");
        platform.end();
    }
    for (path, why) in [("/dev/elver-nowhere", "No such file"), ("/dev/shm", "no character device")]
    {
        let platform =
            Platform::start(&format!("devices = [{path:?}]"), &python("dino", 61_089, &["echo"]));
        let (kind, what) = platform.refusal("dino-echo", json!(1));
        assert!(kind == "Container" && what.contains(path) && what.contains(why), "{kind}: {what}");
    }
}

/// Stands at its import until a file appears.
const STANDS: &str = r#"
import os, time
print("it is being imported", flush=True)
until = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < until:
    time.sleep(0.01)

def handler(event, context):
    return event
"#;

#[test]
fn connections_are_made_while_the_handler_is_imported() {
    let store = Store::new(&PLACE, 1);
    let gid = store.gid();
    for (owner, uid, has_module) in [("frank", 61_006, false), ("fiona", 61_029, true)] {
        let functions = python(owner, uid, &["x"]).replace("handlers.x", "stands.handler")
            + &format!("destinations = [\"{gid}\", \"::ffff:127.61.1.99\"]\n");
        let mut platform = match has_module {
            true => store.platform_with_python(&functions),
            false => store.platform(&functions),
        };
        std::fs::write(platform.code().join("stands.py"), STANDS).unwrap();
        let before = store.held();
        let function = format!("{owner}-x");
        let asked = platform.invoke_beside(&function, json!(1));
        wait_for("the import", || platform.logs().contains("it is being imported").then_some(()));
        if has_module {
            // All that its first request and its children are to have; the other destination has no node, and holds up
            // nobody.
            wait_for("sessions with connections", || (store.count("free") == 4).then_some(()));
            wait_for("connections", || (store.connected() >= 5).then_some(()));
        }
        let reached = || platform.list().processes.remove(0).connections;
        if !has_module {
            // The node has looked the destination up for what the handler makes then.
            wait_for("the node to be asked", || (!reached().is_empty()).then_some(()));
            assert_eq!(reached().iter().collect::<Vec<_>>(), [&gid]);
            wait_for("its session to end", || (store.held() == before).then_some(()));
        }
        assert!(!asked.is_finished(), "its import is over");
        std::fs::write(platform.code().join("go"), "").unwrap();
        let invoked = asked.join().unwrap().unwrap();
        assert_eq!((invoked.start, &invoked.body[..]), (Start::Cold, &b"1"[..]));
        wait_for("the connections to be told", || (!reached().is_empty()).then_some(()));
        assert_eq!(reached().iter().collect::<Vec<_>>(), [&gid]);
        assert_eq!(platform.answer(&function, json!(2)).0, Start::Fork);
        platform.end();
        wait_for("the node to have what it had", || (store.held() == before).then_some(()));
    }
}

#[test]
fn idle_containers_end() {
    let mut platform = Platform::start("keep_alive_s = 1", &python("grace", 61_007, &["echo"]));
    platform.answer("grace-echo", json!(1));
    wait_for_processes(61_007, 0);
    wait_for("the table to be empty", || platform.list().processes.is_empty().then_some(()));
    assert_eq!(platform.answer("grace-echo", json!(2)).0, Start::Cold);
    platform.end();
}

#[test]
fn runc_does_the_same() {
    let mut platform =
        Platform::start("runtime = [\"runc\"]", &python("heidi", 61_008, &["echo", "look"]));
    assert_eq!(platform.answer("heidi-echo", json!(1)).0, Start::Cold);
    assert_eq!(platform.answer("heidi-echo", json!(2)).0, Start::Fork);
    let (start, seen) = platform.answer("heidi-look", json!(null));
    assert_eq!((start, &seen["written"]), (Start::Warm, &json!([])));
    platform.end();
    wait_for_processes(61_008, 0);
}

#[test]
#[ignore = "needs cgroups that runc may write, which a CI that is a container has not"]
fn a_container_has_a_limit_of_memory_if_it_is_asked_for() {
    let lines = "runtime = [\"runc\"]\ncontainer_memory_mb = 128";
    let mut platform = Platform::start(lines, &python("olga", 61_050, &["remembers"]));
    for megabytes in [0, 16] {
        let (_, held) = platform.answer("olga-remembers", json!(megabytes));
        assert_eq!(held, megabytes << 20);
    }
    // Files in memory are none of a process's own.
    let (kind, what) = platform.refusal("olga-remembers", json!(512));
    assert!(kind == "Ended" || kind == "Container", "{kind}: {what}");
    platform.answer("olga-remembers", json!(0));
    platform.end();
}

/// The same functions by another engine.
fn does_the_same(platform: &str, owner: &str, uid: u32) {
    let mut platform = Platform::start(platform, &python(owner, uid, &["echo", "look"]));
    let (echo, look) = (format!("{owner}-echo"), format!("{owner}-look"));
    assert_eq!(platform.answer(&echo, json!(1)).0, Start::Cold);
    assert_eq!(platform.answer(&echo, json!(2)).0, Start::Fork);
    let (start, seen) = platform.answer(&look, json!(null));
    assert_eq!((start, &seen["uid"]), (Start::Warm, &json!(uid)));
    assert_eq!((&seen["written"], &seen["interfaces"]), (&json!([]), &json!(["lo"])));
    assert_eq!(seen["scratch"], true);
    assert_eq!(seen["capabilities"], "0".repeat(32));
    assert_eq!(seen["code"].as_array().unwrap().len(), 2);
    // A successor finds the container, and ends it. Both have said that they serve.
    assert_eq!(platform.answer(&look, json!(null)).0, Start::Fork);
    platform.kill();
    platform.start_again();
    wait_for("the container to be found", || (platform.list().processes.len() == 2).then_some(()));
    assert_eq!(platform.answer(&echo, json!(3)).0, Start::Fork);
    platform.end();
    wait_for_processes(uid, 0);
}

#[test]
fn what_was_written_for_lambda_finds_its_files_and_names() {
    const HANDLER: &str = r#"
import decimal, os
def handler(event, context):
    context.log("logged\n")
    return {
        "text": open("text.txt").read(), "here": os.getcwd(), "half": decimal.Decimal("0.5"),
        "nothing": [context.identity, context.client_context],
        "log": [context.log_group_name, type(context.log_stream_name).__name__],
    }
"#;
    let functions = python("rita", 61_063, &["x"]).replace("handlers.x", "parts/inner.handler");
    let platform = Platform::start("", &functions);
    let parts = platform.code().join("parts");
    std::fs::create_dir(&parts).unwrap();
    std::fs::write(parts.join("inner.py"), HANDLER).unwrap();
    std::fs::write(platform.code().join("text.txt"), "brought").unwrap();
    for _ in 0..2 {
        let (_, answer) = platform.answer("rita-x", json!(null));
        let expected = json!({
            "text": "brought", "here": "/var/task/rita-x", "half": 0.5, "nothing": [null, null],
            "log": ["/elver/rita-x", "str"],
        });
        assert_eq!(answer, expected);
    }
    wait_for("the log", || platform.logs().contains("logged\n").then_some(()));
}

#[test]
fn a_functions_modules_are_its_own_whatever_their_names() {
    let functions = python("sven", 61_064, &["x"]).replace("handlers.x", "assignments.handler");
    let platform = Platform::start("", &functions);
    for (name, text) in [
        ("assignments.py", "import strays\ndef handler(event, context):\n    return strays.OURS\n"),
        ("strays.py", "OURS = \"the function's\"\n"),
    ] {
        std::fs::write(platform.code().join(name), text).unwrap();
    }
    for expected in [Start::Cold, Start::Fork] {
        assert_eq!(platform.answer("sven-x", json!(null)), (expected, json!("the function's")));
    }
}

#[test]
fn podman_does_the_same() {
    // Its own choice, crun, refuses hosts whose cgroups are hybrid.
    does_the_same("runtime = [\"podman\", \"--runtime=runc\"]", "judy", 61_009);
}

#[test]
#[ignore = "needs a docker daemon, which a CI that is a container has not"]
fn docker_does_the_same() {
    does_the_same("runtime = [\"docker\"]", "mike", 61_026);
}

#[test]
fn a_container_has_a_user_namespace_if_it_is_asked_for() {
    for (runtime, owner, uid) in [("crun", "ivan", 61_010), ("runc", "niaj", 61_025)] {
        let lines = format!("runtime = [{runtime:?}]\nuser_namespace = 61999");
        does_the_same(&lines, owner, uid);
        let platform = Platform::start(&lines, &python(owner, uid, &["look"]));
        let (_, seen) = platform.answer(&format!("{owner}-look"), json!(null));
        let expected = format!("0 61999 1 {uid} {uid} 1");
        assert_eq!(seen["users"], expected);
    }
}

#[test]
fn calls_that_no_function_needs_are_refused() {
    for (runtime, uid) in [("crun", 61_036), ("runc", 61_037)] {
        let lines = format!("runtime = [{runtime:?}]");
        let mut platform = Platform::start(&lines, &python("gina", uid, &["reaches"]));
        let (_, refused) = platform.answer("gina-reaches", json!(null));
        for (call, error) in refused.as_object().unwrap() {
            let expected = if call == "clone3" { "ENOSYS" } else { "EPERM" };
            assert_eq!(error, expected, "{call} under {runtime}");
        }
        // Threads may be had, and the next request a process: a child, or one whose thread is not quite gone.
        let (start, again) = platform.answer("gina-reaches", json!(null));
        assert!(
            matches!(start, Start::Fork | Start::Reuse) && again == refused,
            "{start}, {again}"
        );
        platform.end();
    }
}
