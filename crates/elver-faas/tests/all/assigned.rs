//! Connections that children find stay for those that come after them: the QP Table and the Assignment Table of an INIT
//! process, and the Orchestrator Table (Swift, section 4.1.3).

use std::collections::BTreeSet;

use elver_faas::schedule::Start;
use elver_testkit::{Examples, Place, copy, wait_for};
use serde_json::{Value, json};

use crate::platform::{Platform, python, wait_for_processes};
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-assigned", network: 66, udp_ports: 28_800, registry_ports: 28_900 };

/// Reads from the peer that the event names, and says whether its QP was connected when the session was taken over.
const HANDLERS: &str = r#"
import elver

def read(event, context):
    found = set(elver.context().qps)
    context.qps[event["to"]].read(context.mr, 0, 8, event["address"], event["rkey"], timeout=10)
    if "lies" in event:
        import os
        for line in event["lies"]:
            os.write(elver_finds(), line.encode())
    return {"read": context.mr.read(0, 8).decode(), "found": event["to"] in found}

def elver_finds():
    import elver_context
    return elver_context.READY.ahead.finds
"#;

/// What a child of a user's function answers, once all four of its sessions are free, also for the INIT process: the node
/// knows of a child's end before that does.
fn child(
    platform: &Platform,
    near: &Store,
    (uid, function): (u32, &str),
    towards: &[String],
    event: Value,
) -> Value {
    wait_for("four sessions to be free", || (near.count("free") == 4).then_some(()));
    // The container's first, and the INIT process.
    wait_for_processes(uid, 2);
    let invoked = platform.invoke_towards(function, towards, event).unwrap();
    assert_eq!(invoked.start, Start::Fork);
    let answer: Value = serde_json::from_slice(&invoked.body).unwrap();
    assert!(!invoked.is_error, "{answer}\n{}", platform.logs());
    answer
}

fn wait_for_row(platform: &Platform, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|gid| gid.to_string()).collect();
    wait_for("the Orchestrator Table's row", || {
        (platform.list().processes[0].connections == expected).then_some(())
    });
}

fn stays_connected(platform: &Platform, near: &Store, far: &Store, function: (u32, &str)) {
    platform.invoke(function.1, near.event(json!({}))).unwrap();
    wait_for_row(platform, &[&near.gid()]);
    let towards = [far.gid()];
    let asks = |event: Value| child(platform, near, function, &towards, event);
    let finds = || {
        let answer = asks(far.event(json!({})));
        assert_eq!(answer["read"], "greeting");
        answer["found"] == true
    };
    // The first connects it. It is the first session's, which is the next one's who wants to go there; and the one's after
    // that, if the node had made the session anew before it was told.
    assert!(!finds());
    wait_for_row(platform, &[&near.gid(), &far.gid()]);
    wait_for("a child that finds it connected", || finds().then_some(()));
    for _ in 0..3 {
        assert!(finds());
    }
    wait_for_row(platform, &[&near.gid(), &far.gid()]);
    // Who wants nothing has the first that is free, with all that it has.
    let answer = child(platform, near, function, &[], near.event(json!({})));
    assert_eq!([&answer["read"], &answer["found"]], [&json!("greeting"), &json!(true)]);
}

/// Nodes of one cluster: where functions run, which is the meta server, and another.
fn nodes(group: u8) -> (Store, Store) {
    let (near, far) = PLACE.cluster(group, |_| {});
    (Store::of(near), Store::of(far))
}

#[test]
fn what_a_child_in_python_has_connected_stays_for_the_next() {
    let (near, far) = nodes(1);
    let function =
        python("victor", 62_211, &["read"]) + &format!("destinations = [{:?}]\n", near.gid());
    let mut platform = near.platform_with_python(&function);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let function = (62_211, "victor-read");
    stays_connected(&platform, &near, &far, function);
    // What is no report, or none of what the child has, is nothing.
    let lies = json!({"lies": ["\n", "1 x y\n", "1 0 nowhere\n", "7 1 10.0.0.1\n", "1 0 10.0.0.1\n", "1 4000 10.0.0.1\n"]});
    child(&platform, &near, function, &[], near.event(lies));
    let answer = child(&platform, &near, function, &[far.gid()], far.event(json!({})));
    assert_eq!(answer["found"], true);
    wait_for_row(&platform, &[&near.gid(), &far.gid()]);
    // One that does not answer is nobody's connection any more, and holds up who asks for it.
    let gone = far.event(json!({}));
    drop(far);
    wait_for("the row to be without it", || {
        wait_for("four sessions to be free", || (near.count("free") == 4).then_some(()));
        let invoked = platform.invoke("victor-read", gone.clone()).unwrap();
        assert!(invoked.is_error);
        (platform.list().processes[0].connections.len() == 1).then_some(())
    });
    let answer = child(&platform, &near, function, &[], near.event(json!({})));
    assert_eq!(answer["read"], "greeting");
    platform.end();
}

#[test]
fn a_leased_function_in_python_has_queue_pairs_of_its_own_wherever_it_goes() {
    let (near, far) = nodes(5);
    let function = python("zara", 62_205, &["read"])
        + &format!("destinations = [{:?}]\nconnections = \"leased\"\n", near.gid());
    let mut platform = near.platform_with_python(&function);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    stays_connected(&platform, &near, &far, (62_205, "zara-read"));
    wait_for("four sessions to be free", || (near.count("free") == 4).then_some(()));
    for to in [&near, &far] {
        let ways = near.ways_to(to);
        assert!(!ways.is_empty() && ways.iter().all(|via| via == "leased"), "{ways:?}");
    }
    platform.end();
}

#[test]
fn what_a_native_child_has_connected_stays_for_the_next() {
    static EXAMPLES: Examples = Examples::new(
        "elver-handler",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-handler"),
        "",
    );
    let (near, far) = nodes(2);
    let function = format!(
        "[owners.wendy]\nuid = 62202\n[functions.wendy]\nowner = \"wendy\"\ncode = \"@CODE@\"\nhandler = \"function\"\nruntime = \"native\"\ntimeout_s = 20\ndestinations = [\"{}\"]\n",
        near.gid()
    );
    let mut platform = near.platform(&function);
    copy(&EXAMPLES.program("function"), &platform.code().join("function"));
    stays_connected(&platform, &near, &far, (62_202, "wendy"));
    platform.end();
}

#[test]
fn more_sessions_are_made_while_few_qps_go_nowhere() {
    let (near, far) = nodes(3);
    let function = python("xenia", 62_203, &["read"])
        + &format!(
            "destinations = [{:?}]\nunassigned_qps = 1\nsessions = 2\nconcurrency_max = 4\n",
            near.gid()
        );
    let mut platform = near.platform_with_python(&function);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    platform.answer("xenia-read", near.event(json!({})));
    wait_for("two sessions", || (near.count("prepared") == 2).then_some(()));
    // Two at once, so that each session has one to there.
    wait_for("all to be assigned, and as many to be made again", || {
        let event = far.event(json!({}));
        let asked: Vec<_> =
            (0..2).map(|_| platform.invoke_beside("xenia-read", event.clone())).collect();
        for asked in asked {
            assert!(!asked.join().unwrap().unwrap().is_error);
        }
        (near.count("prepared") == 4).then_some(())
    });
    platform.end();
}

#[test]
fn what_is_no_gid_is_no_destination() {
    let near = Store::new(&PLACE, 4);
    let mut platform = near.platform_with_python(&python("yves", 62_204, &["read"]));
    let refused = platform.invoke_towards("yves-read", &["nowhere".into()], json!({})).unwrap_err();
    assert!(refused.to_string().contains("\"nowhere\", which is no GID"), "{refused}");
    let many: Vec<String> = (0..129).map(|at| format!("10.0.0.{at}")).collect();
    let refused = platform.invoke_towards("yves-read", &many, json!({})).unwrap_err();
    assert!(refused.to_string().contains("has 129; at most 128"), "{refused}");
    platform.end();
}
