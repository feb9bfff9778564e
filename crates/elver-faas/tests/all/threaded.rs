//! INIT processes in Python that have threads, and so run their requests themselves, when their orchestrator is killed.

use elver_faas::schedule::Start;
use elver_testkit::wait_for;
use serde_json::{Value, json};

use crate::platform::{Platform, python, wait_for_processes};

/// A thread that Python's end would wait for; and requests that last until there is a file.
const WAITS: &str = r#"
import os, resource, threading, time
def starve(until):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    def feed():
        while not os.path.exists(until):
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        print("fed", flush=True)
    threading.Thread(target=feed).start()
threading.Thread(target=threading.Event().wait).start()
def waits(event, context):
    if event:
        print(f"at work until {event}", flush=True)
    if event == "starve":
        starve("food")
        return os.getpid()
    if event == "fork":
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return os.getpid()
    while event and not os.path.exists(event):
        time.sleep(0.01)
    return os.getpid()
"#;

/// With a process that has threads, whose requests have so many seconds, and its number.
fn platform(owner: &str, uid: u32, timeout_s: u32) -> (Platform, String, Value) {
    of(owner, &python(owner, uid, &["waits"]), timeout_s, None)
}

/// The same, of a function that is configured so, with a library beside its code.
fn of(
    owner: &str,
    functions: &str,
    timeout_s: u32,
    library: Option<&str>,
) -> (Platform, String, Value) {
    let functions = functions.replace("timeout_s = 20", &format!("timeout_s = {timeout_s}"));
    let platform = Platform::start("", &functions);
    std::fs::write(platform.code().join("handlers.py"), WAITS).unwrap();
    if let Some(library) = library {
        let mut copying = std::process::Command::new("cp");
        copying.args(["-r", &format!("{library}/."), platform.code().to_str().unwrap()]);
        assert!(copying.status().unwrap().success());
    }
    let function = format!("{owner}-waits");
    let (start, first) = platform.answer(&function, json!(null));
    assert_eq!(start, Start::Cold);
    // It has said that it serves, and what with.
    wait_for("it to serve", || {
        let (start, again) = platform.answer(&function, json!(null));
        (start == Start::Reuse && again == first).then_some(())
    });
    (platform, function, first)
}

/// Kills the orchestrator amid a request of the process, which lasts until there is such a file.
fn kill_amid(platform: &mut Platform, function: &str, go: &str) {
    let lost = platform.invoke_beside(function, json!(go));
    let line = format!("at work until {go}\n");
    wait_for("it to be at work", || platform.logs().contains(&line).then_some(()));
    platform.kill();
    assert!(lost.join().unwrap().is_err());
}

fn until_it_answers(platform: &Platform, function: &str, process: &Value) {
    wait_for("the process to be handed a request", || {
        (platform.answer(function, json!(null)).1 == *process).then_some(())
    });
}

/// It was taken for idle, and the next request waited for it until it failed, and cost it the process.
#[test]
fn one_that_is_found_at_work_is_handed_nothing_before_it_is_done() {
    let (mut platform, function, first) = platform("thea", 61_202, 60);
    kill_amid(&mut platform, &function, "go");
    platform.start_again();
    wait_for("it to be found", || (!platform.list().processes.is_empty()).then_some(()));
    let (start, other) = platform.answer(&function, json!(null));
    assert_eq!(start, Start::Warm);
    assert_ne!(other, first);
    std::fs::write(platform.code().join("go"), "").unwrap();
    until_it_answers(&platform, &function, &first);
    platform.end();
    wait_for_processes(61_202, 0);
}

/// It ended by that, or waited at its end for its threads, without an end.
#[test]
fn one_whose_request_ends_while_nobody_is_there_goes_on() {
    let (mut platform, function, first) = platform("theo", 61_203, 60);
    kill_amid(&mut platform, &function, "go");
    std::fs::write(platform.code().join("go"), "").unwrap();
    wait_for("its answer to be lost", || {
        let logs = platform.logs();
        ["is lost", "ConnectionRefusedError"].iter().any(|said| logs.contains(said)).then_some(())
    });
    platform.start_again();
    // One in a new container could have its number.
    wait_for("it to be found", || (!platform.list().processes.is_empty()).then_some(()));
    until_it_answers(&platform, &function, &first);
    platform.end();
    wait_for_processes(61_203, 0);
}

/// Nothing bounded it: who was at a request of before was at it for as long as it liked.
#[test]
fn one_that_is_found_at_work_has_its_functions_time() {
    let (mut platform, function, _) = platform("theda", 61_204, 5);
    kill_amid(&mut platform, &function, "go");
    platform.start_again();
    // elver-init is left.
    wait_for_processes(61_204, 1);
    assert_eq!(platform.answer(&function, json!(null)).0, Start::Warm);
    platform.end();
    wait_for_processes(61_204, 0);
}

/// Both took orders then, each of them some.
#[test]
fn one_whose_handler_forks_is_the_one_that_goes_on() {
    let (mut platform, function, first) = platform("thom", 61_206, 20);
    for _ in 0..5 {
        assert_eq!(platform.answer(&function, json!("fork")), (Start::Reuse, first.clone()));
    }
    // elver-init, and it.
    wait_for_processes(61_206, 2);
    for _ in 0..20 {
        assert_eq!(platform.answer(&function, json!(null)), (Start::Reuse, first.clone()));
    }
    platform.end();
    wait_for_processes(61_206, 0);
}

/// Its caller waited for all the time that there is, and the process was killed.
#[test]
fn one_that_loses_a_request_tells_so_and_goes_on() {
    let (mut platform, function, first) = platform("tilda", 61_209, 60);
    loses_and_goes_on(&platform, &function, &first);
    platform.end();
    wait_for_processes(61_209, 0);
}

/// It has no descriptor for a connection by which to take a request, until there is a file.
fn loses_and_goes_on(platform: &Platform, function: &str, first: &Value) {
    assert_eq!(platform.answer(function, json!("starve")), (Start::Reuse, first.clone()));
    let (kind, what) = platform.refusal(function, json!(null));
    assert!(kind == "Ended" && what.contains("Too many open files"), "{kind}: {what}");
    std::fs::write(platform.code().join("food"), "").unwrap();
    wait_for("it to have descriptors", || platform.logs().contains("fed\n").then_some(()));
    assert_eq!(platform.answer(function, json!(null)), (Start::Reuse, first.clone()));
}

/// What it was to be told there ended it.
#[test]
fn one_whose_handler_closes_standard_error_goes_on() {
    let mut platform = Platform::start("", &python("tina", 61_208, &["waits"]));
    let closes = format!("{WAITS}import sys\nsys.stderr.close()\n");
    std::fs::write(platform.code().join("handlers.py"), closes).unwrap();
    let (start, first) = platform.answer("tina-waits", json!(null));
    assert_eq!(start, Start::Cold);
    wait_for("it to serve", || {
        (platform.answer("tina-waits", json!(null)) == (Start::Reuse, first.clone())).then_some(())
    });
    platform.end();
    wait_for_processes(61_208, 0);
}

/// It ended by an answer that nobody took, as Lambda's own client does.
#[test]
#[ignore = "needs awslambdaric of PyPI, which Debian has not: name its directory in ELVER_AWSLAMBDARIC"]
fn one_of_the_unmodified_awslambdaric_goes_on_too() {
    let client = std::env::var("ELVER_AWSLAMBDARIC").expect("ELVER_AWSLAMBDARIC is a directory");
    let functions = python("tess", 61_207, &["waits"]) + "runtime = \"awslambdaric\"\n";
    let (mut platform, function, first) = of("tess", &functions, 60, Some(&client));
    // What comes back from its fork too answers nothing, and takes no orders.
    for _ in 0..5 {
        assert_eq!(platform.answer(&function, json!("fork")), (Start::Reuse, first.clone()));
    }
    // elver-init, and it.
    wait_for_processes(61_207, 2);
    loses_and_goes_on(&platform, &function, &first);
    kill_amid(&mut platform, &function, "go");
    std::fs::write(platform.code().join("go"), "").unwrap();
    wait_for("its answer to be lost", || {
        platform.logs().contains("Failed to post invocation response").then_some(())
    });
    platform.start_again();
    wait_for("it to be found", || (!platform.list().processes.is_empty()).then_some(()));
    until_it_answers(&platform, &function, &first);
    // Its answer is refused then.
    kill_amid(&mut platform, &function, "back");
    platform.start_again();
    wait_for("it to be found", || (!platform.list().processes.is_empty()).then_some(()));
    std::fs::write(platform.code().join("back"), "").unwrap();
    until_it_answers(&platform, &function, &first);
    platform.end();
    wait_for_processes(61_207, 0);
}
